"""Reading and writing memory by address: vectors, the first lanes of vectors, single numbers, hints to the cache.

Addresses are int64 and need no alignment.  ``load(t)`` and ``load_first(t)`` are families over the vector type, picked
in a kernel's factory; stores know the type from their argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir

from .. import compiler
from . import halves, values
from .lanes import count_of, is_vec
from .values import F32, F64, I8, I16, I32, I64, Value, constant, emitted, vector_named


@functools.cache
def load(t: str) -> compiler.Intrinsic:
    """``load(t)(address)``: read a whole vector ``t``."""
    return emitted(f"{t}(i64)")(lambda address: values.load(address, vector_named(t)))


@functools.cache
def load_first(t: str) -> compiler.Intrinsic:
    """``load_first(t)(address, n)``: the first ``n`` lanes of a ``t``, then zeros; accesses no byte beyond them."""

    def emit(address: Value, n: Value) -> Value:
        return values.masked_load(address, vector_named(t), values.first_lanes(count_of(t), n))

    return emitted(f"{t}(i64, i64)")(emit)


@emitted(lambda address, v: f"void(i64, {v})" if is_vec(v) else None)
def store(address: Value, v: Value) -> None:
    """Write a whole vector."""
    values.store(address, v)


@emitted(lambda address, v, n: f"void(i64, {v}, i64)" if is_vec(v) else None)
def store_first(address: Value, v: Value, n: Value) -> None:
    """Write the first ``n`` lanes; accesses no byte beyond them."""
    values.masked_store(address, v, values.first_lanes(v.count, n))


# -- vectors of f32 from and to half-width memory --------------------------------------------------------


@functools.cache
def load_as_f32(elem: str, t: str) -> compiler.Intrinsic:
    """``load_as_f32("f16", "f32x8")(address)``: read 8 numbers of type f16, bf16 or f32 as a vector of f32."""
    read = _reading(elem)
    return emitted(f"{t}(i64)")(lambda address: read(address, count_of(t), None))


@functools.cache
def load_first_as_f32(elem: str, t: str) -> compiler.Intrinsic:
    """``load_first_as_f32(elem, t)(address, n)``: as :func:`load_as_f32`, but only the first ``n``, then zeros."""
    read = _reading(elem)
    return emitted(f"{t}(i64, i64)")(lambda address, n: read(address, count_of(t), n))


@functools.cache
def store_as(elem: str) -> compiler.Intrinsic:
    """``store_as("f16")(address, v)``: write a vector of f32 as f16, bf16 or f32."""
    narrow = _NARROW[elem]
    return emitted(_f32_vector)(lambda address, v: values.store(address, narrow(v)))


@functools.cache
def store_first_as(elem: str) -> compiler.Intrinsic:
    """``store_first_as(elem)(address, v, n)``: as :func:`store_as`, but only the first ``n`` lanes."""
    narrow = _NARROW[elem]

    def emit(address: Value, v: Value, n: Value) -> None:
        values.masked_store(address, narrow(v), values.first_lanes(v.count, n))

    return emitted(_f32_vector)(emit)


def _f32_vector(address: str, v: str, n: str | None = None) -> str | None:
    return f"void(i64, {v}{', i64' if n else ''})" if v.startswith("f32x") else None


_WIDEN: dict[str, Callable[[Value], Value]] = {
    "f16": halves.emit_widen_f16,
    "bf16": halves.emit_widen_bf16,
    "f32": lambda v: v,
}
_NARROW: dict[str, Callable[[Value], Value]] = {
    "f16": halves.emit_narrow_f16,
    "bf16": halves.emit_narrow_bf16,
    "f32": lambda v: v,
}


def _reading(elem: str) -> Callable[[Value, int, Value | None], Value]:
    widen, raw = _WIDEN[elem], F32 if elem == "f32" else I16

    def read(address: Value, count: int, n: Value | None) -> Value:
        t = values.vector(raw, count)
        if n is None:
            return widen(values.load(address, t))
        return widen(values.masked_load(address, t, values.first_lanes(count, n)))

    return read


# -- single numbers --------------------------------------------------------------------------------------


def _scalar_load(name: str, result: str, emit: Callable[[Value], Value]) -> compiler.Intrinsic:
    emit.__doc__ = f"Read the {name} at ``address``, as {result}."
    emit.__name__ = f"load_{name}"
    return emitted(f"{result}(i64)")(emit)


def _scalar_store(name: str, argument: str, emit: Callable[[Value, Value], None]) -> compiler.Intrinsic:
    emit.__doc__ = f"Write an {argument} at ``address`` as {name}."
    emit.__name__ = f"store_{name}"
    return emitted(f"void(i64, {argument})")(emit)


load_i8 = _scalar_load("i8", "i64", lambda address: values.load(address, I8).convert(I64))
load_u8 = _scalar_load("u8", "i64", lambda address: values.load(address, I8).zext(I64))
load_i16 = _scalar_load("i16", "i64", lambda address: values.load(address, I16).convert(I64))
load_u16 = _scalar_load("u16", "i64", lambda address: values.load(address, I16).zext(I64))
load_i32 = _scalar_load("i32", "i64", lambda address: values.load(address, I32).convert(I64))
load_u32 = _scalar_load("u32", "i64", lambda address: values.load(address, I32).zext(I64))
load_i64 = _scalar_load("i64", "i64", lambda address: values.load(address, I64))
load_f16 = _scalar_load("f16", "f32", lambda address: halves.emit_widen_f16(values.load(address, I16)))
load_bf16 = _scalar_load("bf16", "f32", lambda address: halves.emit_widen_bf16(values.load(address, I16)))
load_f32 = _scalar_load("f32", "f32", lambda address: values.load(address, F32))
load_f64 = _scalar_load("f64", "f64", lambda address: values.load(address, F64))


@emitted("i64(f32)")
def saturated_i32(x: Value) -> Value:
    """``x`` as a 32-bit integer: truncated, clamped to the range, 0 for NaN."""
    return x.call("llvm.fptosi.sat.i32.f32", I32).convert(I64)


store_i8 = _scalar_store("i8", "i64", lambda address, x: values.store(address, x.convert(I8)))
store_i16 = _scalar_store("i16", "i64", lambda address, x: values.store(address, x.convert(I16)))
store_i32 = _scalar_store("i32", "i64", lambda address, x: values.store(address, x.convert(I32)))
store_i64 = _scalar_store("i64", "i64", lambda address, x: values.store(address, x))
store_f16 = _scalar_store("f16", "f32", lambda address, x: values.store(address, halves.emit_narrow_f16(x)))
store_bf16 = _scalar_store("bf16", "f32", lambda address, x: values.store(address, halves.emit_narrow_bf16(x)))
store_f32 = _scalar_store("f32", "f32", lambda address, x: values.store(address, x))
store_f64 = _scalar_store("f64", "f64", lambda address, x: values.store(address, x))

#: By element type: kernels' factories pick from these.  Integers are i64 in kernels, half-width floats f32.
LOADS: dict[str, compiler.Intrinsic] = {
    "i8": load_i8,
    "i16": load_i16,
    "i32": load_i32,
    "i64": load_i64,
    "f16": load_f16,
    "bf16": load_bf16,
    "f32": load_f32,
    "f64": load_f64,
}
STORES: dict[str, compiler.Intrinsic] = {
    "i8": store_i8,
    "i16": store_i16,
    "i32": store_i32,
    "i64": store_i64,
    "f16": store_f16,
    "bf16": store_bf16,
    "f32": store_f32,
    "f64": store_f64,
}


# -- the cache ---------------------------------------------------------------------------------------------


#: Bytes of a cache line, the unit of a prefetch.
LINE = 64


def emit_prefetch(address: Value, locality: int = 3) -> None:
    """``locality``: from 3, into all caches, to 0, into none that others use, too."""
    b = address.b
    pointer = Value(b, b.inttoptr(address.ir, I8.as_pointer()))
    hints = (constant(b, I32, 0), constant(b, I32, locality), constant(b, I32, 1))
    values.call(b, "llvm.prefetch.p0", ir.VoidType(), pointer, *hints)


@emitted("void(i64)")
def prefetch(address: Value) -> None:
    """Prefetch the cache line at ``address``; no address faults."""
    emit_prefetch(address)


@emitted("void(i64)")
def prefetch_second(address: Value) -> None:
    """As :func:`prefetch`, only into the second-level cache."""
    emit_prefetch(address, 2)


@emitted("void(i64, i64, i64)")
def copy_bytes(destination: Value, source: Value, count: Value) -> None:
    """Copy ``count`` bytes between ranges that do not overlap."""
    values.copy(destination, source, count)


@emitted("void(i64, i8, i64)")
def fill_bytes(destination: Value, byte: Value, count: Value) -> None:
    """Set ``count`` bytes."""
    values.fill(destination, byte, count)

"""Vectors as Numba types, the names of types, and the operators of vectors; part of the front end, imports Numba."""

# Numba is untyped in part, llvmlite wholly
# mypy: allow-untyped-calls, disable-error-code="attr-defined,misc,name-defined,assignment,no-any-return,override"

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types, typing
from numba.core.typing.templates import AbstractTemplate, Registry
from numba.extending import models, register_model

_SCALARS: dict[str, types.Type] = {
    "void": types.void,
    "bool": types.boolean,
    **{f"i{bits}": getattr(types, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(types, f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f32": types.float32,
    "f64": types.float64,
}
_NAMES = {numba: name for name, numba in _SCALARS.items()}

_VECTOR = re.compile(r"(i1|i8|i16|i32|i64|f16|bf16|f32|f64)x([1-9]\d*)")
_TUPLE = re.compile(r"(i64|f64)\*([1-9]\d*)")
_SIGNATURE = re.compile(r"\s*([\w*]+)\s*\(([^)]*)\)\s*")


class _BFloatType(ir.types._BaseFloatType):
    """LLVM's ``bfloat``, which llvmlite lacks."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloatType._create_instance()

_ELEMENTS: dict[str, ir.Type] = {
    **{f"i{bits}": ir.IntType(bits) for bits in (1, 8, 16, 32, 64)},
    "f16": ir.HalfType(),
    "bf16": _BFloatType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
}


class Vector(types.Type):
    """``count`` lanes of ``element`` (``f32x16``); LLVM's vector type."""

    def __init__(self, element: str, count: int) -> None:
        self.element = element
        self.count = count
        super().__init__(f"{element}x{count}")

    @property
    def is_float(self) -> bool:
        return "f" in self.element


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(_ELEMENTS[fe_type.element], fe_type.count))


# -- names ------------------------------------------------------------------------------------------


@functools.cache
def type_of(name: str) -> types.Type:
    """Numba's type of a name: ``i64``, ``f32x16``, ``i64*3`` (a tuple), ``void``."""
    if name in _SCALARS:
        return _SCALARS[name]
    several = _TUPLE.fullmatch(name)
    if several is not None:
        return types.UniTuple(_SCALARS[several[1]], int(several[2]))
    match = _VECTOR.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name of a type: they look like i64, f32, bool, f32x16, i64*3 or void")
    return Vector(match[1], int(match[2]))


def name_of(numba_type: types.Type) -> str:
    """The name of a type that kernels can have; for other types Numba's name, which matches no signature."""
    plain = types.unliteral(numba_type)
    return plain.name if isinstance(plain, Vector) else _NAMES.get(plain, str(plain))


@functools.cache
def parse(text: str) -> tuple[types.Type, tuple[types.Type, ...]]:
    """``f32x16(f32x16, i64)`` as Numba's types."""
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no signature: they look like f32x16(f32x16, i64)")
    return type_of(match[1]), tuple(type_of(part.strip()) for part in match[2].split(",") if part.strip())


def signature_for(signature: str | Callable[..., str | None], arguments: tuple[types.Type, ...]) -> str | None:
    """The signature of an intrinsic for these arguments; None if there is none."""
    if isinstance(signature, str):
        return signature
    try:
        return signature(*map(name_of, arguments))
    except TypeError:  # another number of arguments
        return None


# -- operators --------------------------------------------------------------------------------------

#: Python's operator -> (the builder's method for integers, for floats); None where there is none.
_BINARY: dict[Callable[..., Any], tuple[str | None, str | None]] = {
    operator.add: ("add", "fadd"),
    operator.sub: ("sub", "fsub"),
    operator.mul: ("mul", "fmul"),
    operator.truediv: (None, "fdiv"),
    operator.and_: ("and_", None),
    operator.or_: ("or_", None),
    operator.xor: ("xor", None),
    operator.lshift: ("shl", None),
    operator.rshift: ("ashr", None),
}
_UNARY: dict[Callable[..., Any], tuple[str | None, str | None]] = {
    operator.neg: ("neg", "fneg"),
    operator.invert: ("not_", None),
}


def install_operators(typing_context: typing.Context, context: Any) -> None:
    """Installs the operators of vectors, in-place ones (``+=``) included, for one target."""
    registry = Registry()
    for table, count in ((_BINARY, 2), (_UNARY, 1)):
        for symbol, methods in table.items():
            for each in (symbol, getattr(operator, "i" + symbol.__name__.strip("_"), None) if count == 2 else None):
                if each is not None:
                    registry.register_global(each)(_template(each, methods, count))
                    context.insert_func_defn([(_lowering(methods), each, (Vector,) * count)])
    typing_context.install_registry(registry)


def _template(symbol: Callable[..., Any], methods: tuple[str | None, str | None], count: int) -> type[AbstractTemplate]:
    class Template(AbstractTemplate):
        key = symbol

        def generic(self, args: Any, kws: Any) -> Any:
            first = args[0]
            fits = isinstance(first, Vector) and args == (first,) * count and methods[first.is_float] is not None
            return typing.signature(first, *args) if fits else None

    return Template


def _lowering(methods: tuple[str | None, str | None]) -> Callable[..., ir.Value]:
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return getattr(builder, methods[sig.args[0].is_float] or "")(*args)

    return lower

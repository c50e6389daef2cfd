"""AMX: products of small matrices in eight tile registers of 16 rows of 64 bytes; and their emulation in memory.

Where the CPU has AMX (Intel, from Sapphire Rapids on), these are its instructions.  With the pseudo-feature
``amx-emulated`` (``GGPLUG_CPU_FEATURES=native+amx-emulated``) the tiles are in memory and vector code computes the
sums, so kernels with tiles can be tested on any machine.

Every function takes ``state``, the address of :data:`STATE_BYTES` bytes of the thread's scratch.  A kernel calls
``tile_configure(state)`` before and ``tile_release(state)`` after; tiles keep their contents between.  Tile numbers are
compile-time constants, so the rest are families: ``tile_load(4)(state, address, stride)``.

A product ``tile_dot_bf16(d, a, b)`` adds, for 16 x 16 float sums, ``a``'s row i (32 bf16) times ``b``'s column j, which
lies in pairs: row k of ``b`` holds elements 2k and 2k + 1 of each of 16 columns.  ``tile_dot_i8`` does so for 64 int8
and fours of them, into int32 sums.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from .. import compiler, features
from . import dots, values
from .values import F32, I8, I16, I32, I64, Value, call, constant, emitted, loop, vector

TILES = 8
ROWS = 16
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
#: Bytes of ``state``: the configuration (64 bytes), and the tiles themselves where they are emulated.
STATE_BYTES = 64 + TILES * TILE_BYTES


def has_tiles() -> bool:
    """Whether tile products exist for the target, in hardware or emulated."""
    return in_hardware() or features.has("amx-emulated")


def in_hardware() -> bool:
    """Whether the tiles are registers; with ``amx-emulated`` they are in memory even on AMX."""
    return not features.has("amx-emulated") and all(_way(product) is not None for product in ("bf16", "i8i8"))


def _way(product: str) -> dots.Way | None:
    return dots.way(product, ROWS * ROWS, ROWS)


def _x86(name: str, b: ir.IRBuilder, *arguments: Value) -> None:
    call(b, f"llvm.x86.{name}", ir.VoidType(), *arguments)


def _tile(b: ir.IRBuilder, number: int) -> Value:
    return constant(b, I8, number)


def _pointer(address: Value) -> Value:
    return Value(address.b, address.b.inttoptr(address.ir, I8.as_pointer()))


def _place(state: Value, number: int) -> Value:
    return state + (64 + number * TILE_BYTES)


def emit_configure(state: Value) -> None:
    if not in_hardware():
        return
    # palette 1; from byte 16 the bytes of a row of each tile (16 bits each), from byte 48 the rows of each tile
    config = [1] + [0] * 15 + [ROW_BYTES, 0] * TILES + [0] * 16 + [ROWS] * TILES + [0] * 8
    values.store(state, values.constants(state.b, I8, config))
    _x86("ldtilecfg", state.b, _pointer(state))


def emit_release(state: Value) -> None:
    if in_hardware():
        _x86("tilerelease", state.b)


def emit_zero(state: Value, number: int) -> None:
    if in_hardware():
        _x86("tilezero", state.b, _tile(state.b, number))
    else:
        values.fill(_place(state, number), 0, constant(state.b, I64, TILE_BYTES))


def emit_load(state: Value, number: int, address: Value, stride: Value) -> None:
    if in_hardware():
        _x86("tileloadd64", state.b, _tile(state.b, number), _pointer(address), stride)
    else:
        _copy_rows(_place(state, number), constant(state.b, I64, ROW_BYTES), address, stride)


def emit_store(state: Value, number: int, address: Value, stride: Value) -> None:
    if in_hardware():
        _x86("tilestored64", state.b, _tile(state.b, number), _pointer(address), stride)
    else:
        _copy_rows(address, stride, _place(state, number), constant(state.b, I64, ROW_BYTES))


def emit_dot(product: str, state: Value, d: int, a: int, b: int) -> None:
    """Adds the product of the tiles ``a`` and ``b`` to the tile ``d``; ``product``: ``bf16`` or ``i8i8``."""
    found = _way(product)
    if found is not None and in_hardware():
        call(state.b, found.intrinsic, ir.VoidType(), *(_tile(state.b, number) for number in (d, a, b)))
        return
    sums, left, right = (_place(state, number) for number in (d, a, b))
    width = min(ROWS, features.target().vector_bytes // 4)
    lanes = vector(F32 if product == "bf16" else I32, width)
    operand = vector(I16, 2 * width) if product == "bf16" else vector(I8, 4 * width)
    rows = constant(state.b, I64, ROWS)

    def row(i: Value, _: list[Value]) -> list[Value]:
        for part in range(0, ROW_BYTES, 4 * width):

            def element(k: Value, acc: list[Value], part: int = part) -> list[Value]:
                x = values.load(left + i * ROW_BYTES + k * 4, I32).splat(width)
                y = values.load(right + k * ROW_BYTES, vector(I32, width), part)
                return [dots.emit_dot(product, acc[0], x.bitcast(operand), y.bitcast(operand))]

            place = sums + i * ROW_BYTES
            values.store(place, loop(rows, [values.load(place, lanes, part)], element)[0], part)
        return []

    loop(rows, [], row)


_ROW = vector(I8, ROW_BYTES)


def _copy_rows(target: Value, target_stride: Value, source: Value, source_stride: Value) -> None:
    def row(i: Value, _: list[Value]) -> list[Value]:
        values.store(target + i * target_stride, values.load(source + i * source_stride, _ROW))
        return []

    loop(constant(target.b, I64, ROWS), [], row)


@emitted("void(i64)")
def tile_configure(state: Value) -> None:
    """Make this thread's eight tiles usable, 16 rows of 64 bytes each; their contents are undefined."""
    emit_configure(state)


@emitted("void(i64)")
def tile_release(state: Value) -> None:
    """Release the tiles; their state would slow down every context switch of the thread."""
    emit_release(state)


@functools.cache
def tile_zero(number: int) -> compiler.Intrinsic:
    """``tile_zero(number)(state)``: fill a tile with zeros."""
    return emitted("void(i64)")(lambda state: emit_zero(state, number))


@functools.cache
def tile_load(number: int) -> compiler.Intrinsic:
    """``tile_load(number)(state, address, stride)``: 16 rows of 64 bytes, ``stride`` bytes apart."""
    return emitted("void(i64, i64, i64)")(lambda state, address, stride: emit_load(state, number, address, stride))


@functools.cache
def tile_store(number: int) -> compiler.Intrinsic:
    """``tile_store(number)(state, address, stride)``: write 16 rows of 64 bytes, ``stride`` bytes apart."""
    return emitted("void(i64, i64, i64)")(lambda state, address, stride: emit_store(state, number, address, stride))


@functools.cache
def tile_dot_bf16(d: int, a: int, b: int) -> compiler.Intrinsic:
    """``tile_dot_bf16(d, a, b)(state)``: tile ``d`` (f32) += ``a`` times ``b`` (pairs of bf16)."""
    return emitted("void(i64)")(lambda state: emit_dot("bf16", state, d, a, b))


@functools.cache
def tile_dot_i8(d: int, a: int, b: int) -> compiler.Intrinsic:
    """``tile_dot_i8(d, a, b)(state)``: tile ``d`` (int32) += ``a`` times ``b`` (fours of signed int8)."""
    return emitted("void(i64)")(lambda state: emit_dot("i8i8", state, d, a, b))

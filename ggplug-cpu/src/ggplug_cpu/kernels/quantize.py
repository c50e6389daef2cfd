"""Rows of f32 to block types and back, bit for bit as ggml's reference (``quantize_row_*_ref``, ``dequantize_row_*``).

Rows are contiguous and whole numbers of blocks; both functions of a type are called by kernels::

    quantize, dequantize = quantize_row("q8_0"), dequantize_row("q8_0")     # in a factory
    quantize(block_address, f32_address, n)                                 # in a body
    dequantize(f32_address, block_address, n)
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ggplug_cpu.compiler import Intrinsic
from ggplug_cpu.kernels.mul_mat_weights import BLOCKS, GROUP
from ggplug_cpu.simd import halves, values
from ggplug_cpu.simd.values import F32, I8, I32, Value, emitted, loop, vector

#: The types that have blocks here.
TYPES = tuple(BLOCKS)


@functools.cache
def quantize_row(type_name: str) -> Intrinsic:
    """``quantize_row(type)(blocks, x, n)``: ``n`` f32 at ``x`` rounded to blocks at ``blocks``."""
    emit, block_bytes = _QUANTIZE[type_name], BLOCKS[type_name].block_bytes

    def row(blocks: Value, x: Value, n: Value) -> None:
        def one(i: Value, _: list[Value]) -> list[Value]:
            emit(blocks + i * block_bytes, values.load(x + i * (4 * GROUP), vector(F32, GROUP)))
            return []

        loop(n.lshr(GROUP.bit_length() - 1), [], one)

    return emitted("void(i64, i64, i64)")(row)


@functools.cache
def dequantize_row(type_name: str) -> Intrinsic:
    """``dequantize_row(type)(x, blocks, n)``: ``n`` numbers of the blocks at ``blocks``, as f32 at ``x``."""
    t = BLOCKS[type_name]

    def row(x: Value, blocks: Value, n: Value) -> None:
        def one(i: Value, _: list[Value]) -> list[Value]:
            values.store(x + i * (4 * GROUP), t.read(blocks + i * t.block_bytes))
            return []

        loop(n.lshr(GROUP.bit_length() - 1), [], one)

    return emitted("void(i64, i64, i64)")(row)


def _inverse(scale: Value) -> Value:
    """1 / scale; 0 where that is not finite, so a block of numbers too small for it becomes zeros."""
    inverse = 1.0 / scale
    return (inverse.abs() < float("inf")).select(inverse, 0.0)


def _scaled(x: Value, scale: Value) -> Value:
    """x / scale; zeros of a block with a NaN or an infinity, which its scale alone makes NaN."""
    return (scale.abs() < float("inf")).select(x * _inverse(scale).splat(GROUP), 0.0)


def _store_scale(block: Value, scale: Value) -> None:
    """The scale as f16; of NaN always the same one."""
    values.store(block, halves.emit_narrow_f16(scale.unequal(scale).select(float("nan"), scale)))


def _quantize_q8_0(block: Value, x: Value) -> None:
    scale = _size(x).max().bitcast(F32) / 127.0
    quants = _scaled(x, scale).round_away()
    _store_scale(block, scale)
    values.store(block, _to_int8(quants), 2)


def _size(x: Value) -> Value:
    """The magnitudes as integers of the same order, in which a NaN is larger than any number."""
    return x.bits() & 0x7FFFFFFF


def _quantize_q4_0(block: Value, x: Value) -> None:
    size = _size(x)
    largest = size.max()
    # the first of the numbers that are as far from zero as any, with its sign; -8 stands for it
    where = size.equal(largest.splat(GROUP)).bitcast(I32)
    first = values.call(x.b, "llvm.cttz.i32", I32, where, values.constant(x.b, values.I1, 0)).minimum(GROUP - 1)
    scale = Value(x.b, x.b.extract_element(x.ir, first.ir)) / -8.0
    # truncation towards zero, as C converts to int8
    shifted = _to_int8(_scaled(x, scale) + 8.5)
    quants = (shifted < 15).select(shifted, 15)
    packed = quants.part(0, GROUP // 2) | quants.part(GROUP // 2, GROUP // 2) << 4
    _store_scale(block, scale)
    values.store(block, packed, 2)


def _to_int8(x: Value) -> Value:
    """Float lanes truncated to int8 through int32, as C's cast does on a machine whose int is 32 bits."""
    return x.convert(I32).convert(I8)


_QUANTIZE: dict[str, Callable[[Value, Value], None]] = {"q8_0": _quantize_q8_0, "q4_0": _quantize_q4_0}

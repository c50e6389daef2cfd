"""Rows of f32 to block types and back, bit for bit as ggml's reference (``quantize_row_*_ref``, ``dequantize_row_*``).

Rows are contiguous and whole numbers of blocks; both functions of a type are called by kernels::

    quantize, dequantize = quantize_row(name), dequantize_row(name)         # in a factory
    quantize(block_address, f32_address, n)                                 # in a body
    dequantize(f32_address, block_address, n)
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Intrinsic
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import I64, Value, constant, emitted, loop
from ggplug_cpu.types import BLOCKS, GROUP


@functools.cache
def quantize_row(type_name: str) -> Intrinsic:
    """``quantize_row(type)(blocks, x, n)``: ``n`` f32 at ``x`` rounded to blocks at ``blocks``."""
    t = BLOCKS[type_name]
    encode = t.encode
    assert encode is not None

    def row(blocks: Value, x: Value, n: Value) -> None:
        def one(i: Value, _: list[Value]) -> list[Value]:
            encode(blocks + i * t.block_bytes, x + i * (4 * t.block_size))
            return []

        loop(n.lshr(t.block_size.bit_length() - 1), [], one)

    return emitted("void(i64, i64, i64)")(row)


@functools.cache
def dequantize_row(type_name: str) -> Intrinsic:
    """``dequantize_row(type)(x, blocks, n)``: ``n`` numbers of the blocks at ``blocks``, as f32 at ``x``."""
    t = BLOCKS[type_name]

    def row(x: Value, blocks: Value, n: Value) -> None:
        def one(i: Value, _: list[Value]) -> list[Value]:
            block, target = blocks + i * t.block_bytes, x + i * (4 * t.block_size)
            factors = t.factors([block])
            for part in range(t.parts):
                numbers = t.read(block, constant(x.b, I64, part), factors)
                values.store(target, numbers, 4 * GROUP * part)
            return []

        loop(n.lshr(t.block_size.bit_length() - 1), [], one)

    return emitted("void(i64, i64, i64)")(row)

"""Encodes rows of weights as in files: byte for byte as :func:`ggplug.quantize`.

Ops store rows by :mod:`ggplug_cpu.parts.converters`, which round some types in another, faster way.
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import aborted, next_chunk, scratch
from ggplug_cpu.parameters import Parameters, destination, integer, source
from ggplug_cpu.parts.nest import BLOCK
from ggplug_cpu.parts.rows import ARGUMENTS, read
from ggplug_cpu.simd.values import F32, I64, Value, constant, emitted, loop
from ggplug_cpu.types import BLOCKS
from ggplug_cpu.types.search import mean_square


class Encoding(Parameters):
    """``rows`` contiguous rows of ``n`` numbers."""

    y = destination("nb1")
    x = source("nb1", "convert", "block_bytes")
    importance = source()
    """The importance of each of the ``n`` numbers, f32, the same for all rows; absent for kernels without
    importance.
    """
    n = integer()
    rows = integer()
    at_once = integer()
    """Rows that a thread takes at a time."""


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory of the kernel."""
    return ARGUMENTS + 4 * n


@functools.cache
def encode_row(type_name: str, weighted: bool) -> Intrinsic:
    """``encode_row(...)(blocks, x, importance, n)``: encodes ``n`` f32 at ``x`` as blocks at ``blocks``."""
    t = BLOCKS[type_name]
    size = t.block_size

    def row(blocks: Value, x: Value, importance: Value, n: Value) -> None:
        mean = constant(x.b, F32, 0)
        if weighted and t.weigh is not None and t.weigh.of_row is not None:
            mean = mean_square(x, n, t.weigh.of_row)

        def one(i: Value, _: list[Value]) -> list[Value]:
            block, place = blocks + i * t.block_bytes, x + i * (4 * size)
            if weighted and t.weigh is not None:
                t.weigh.encode(block, place, importance + i * (4 * size), mean)
            else:
                encode = t.file or t.encode
                assert encode is not None
                encode(block, place)
            return []

        loop(n.lshr(constant(n.b, I64, size.bit_length() - 1)), [], one)

    return emitted("void(i64, i64, i64, i64)")(row)


@kernel
def encode_rows(type_name: str, weighted: bool) -> Body:
    """Encodes rows of any type with a reader as rows of a block type."""
    encode = encode_row(type_name, weighted)

    def body(ctx: int, params: Encoding) -> None:
        n, rows, at_once = params.n, params.rows, params.at_once
        convert, stride = params.x.convert, params.x.block_bytes
        scratch_row = scratch(ctx) + ARGUMENTS
        first = next_chunk(ctx) * at_once
        while first < rows and not aborted(ctx):
            for row in range(first, min(first + at_once, rows)):
                x = params.x.address + row * params.x.nb1
                numbers = x
                if convert != 0:
                    numbers = scratch_row
                    for start in range(0, n, BLOCK):
                        read(ctx, convert, x, stride // BLOCK, min(BLOCK, n - start), scratch_row + 4 * start)
                        x += stride
                y = params.y.address + row * params.y.nb1
                encode(y, numbers, params.importance.address, n)
            first = next_chunk(ctx) * at_once

    return body

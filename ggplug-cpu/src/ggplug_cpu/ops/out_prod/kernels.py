"""Outer products summed over columns: rows of a are accumulated in a few rows of the result."""

from __future__ import annotations

import functools

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import aborted, scratch
from ggplug_cpu.parameters import CONVERTED, STRIDES, Parameters, destination, integer, source
from ggplug_cpu.parts.nest import BLOCK, thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, read
from ggplug_cpu.simd.values import F32, Value, emitted, first_lanes, load, loop, masked_load, masked_store, vector

#: Rows of the result that a row of a is added to at a time.
GROUP = 4


class OutProd(Parameters):
    """y[:, j] = the sum over i < k of b[j, i] a[:, i], for ``n`` rows of ``m`` in ``batches2`` by ``batches3``."""

    y = destination()
    a = source(STRIDES, CONVERTED)
    b = source(STRIDES, "convert")
    m = integer()
    n = integer()
    k = integer()
    batches2 = integer()
    batches3 = integer()
    each2 = integer()
    """The number of matrices of b that use one matrix of a."""
    each3 = integer()


#: Bytes of scratch memory of the kernel.
SCRATCH_BYTES = ARGUMENTS + ROW_BYTES + 4 * 64


@functools.cache
def _accumulate(rows: int) -> Intrinsic:
    """``(y, stride, x, factors, m)`` adds the row at ``x`` times a factor to each of ``rows`` rows at ``y``."""

    def emit(y: Value, stride: Value, x: Value, factors: Value, m: Value) -> None:
        width = simd.width("f32")
        times = [load(factors, F32, 4 * j).splat(width) for j in range(rows)]
        places = [y + stride * j for j in range(rows)]

        def one(i: Value, _: list[Value]) -> list[Value]:
            mask, at = first_lanes(width, m - i * width), i * (4 * width)
            numbers = masked_load(x + at, vector(F32, width), mask)
            for place, factor in zip(places, times, strict=True):
                masked_store(place + at, numbers.fma(factor, masked_load(place + at, vector(F32, width), mask)), mask)
            return []

        loop((m + (width - 1)).lshr(width.bit_length() - 1), [], one)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


@kernel
def out_prod() -> Body:
    """Computes blocks of a few rows."""
    several, single, group = _accumulate(GROUP), _accumulate(1), GROUP

    def body(ctx: int, params: OutProd) -> None:
        m, n, k = params.m, params.n, params.k
        blocks, groups = (m + BLOCK - 1) // BLOCK, (n + group - 1) // group
        x_scratch, factors_scratch = scratch(ctx) + ARGUMENTS, scratch(ctx) + ARGUMENTS + ROW_BYTES
        first, end = thread_range(ctx, blocks * groups * params.batches2 * params.batches3)
        for task in range(first, end):
            if aborted(ctx):
                return
            block, above = task % blocks, task // blocks
            row, batch = above % groups * group, above // groups
            i2, i3 = batch % params.batches2, batch // params.batches2
            width, count = min(BLOCK, m - block * BLOCK), min(group, n - row)
            y = params.y.address + 4 * (m * (batch * n + row) + block * BLOCK)
            a = params.a.address + block * params.a.block_bytes
            a += i2 // params.each2 * params.a.nb2
            a += i3 // params.each3 * params.a.nb3
            b = params.b.address + row * params.b.nb0
            b += i2 * params.b.nb2 + i3 * params.b.nb3
            for j in range(count):
                simd.fill_bytes(y + 4 * m * j, 0, 4 * width)
            for _ in range(k):
                p = read(ctx, params.a.convert, a, params.a.nb0, width, x_scratch)
                q = read(ctx, params.b.convert, b, params.b.nb0, count, factors_scratch)
                if count == group:
                    several(y, 4 * m, p, q, width)
                else:
                    for j in range(count):
                        single(y + 4 * m * j, 0, p, q + 4 * j, width)
                a += params.a.nb1
                b += params.b.nb1

    return body

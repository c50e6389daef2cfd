"""The softmax of attention: scale, mask with ALiBi slopes, sinks."""

from __future__ import annotations

import math
from collections.abc import Callable

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, real, reals, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, read, write
from ggplug_cpu.simd import values
from ggplug_cpu.simd.memory import emit_prefetch
from ggplug_cpu.simd.transcendental import emit_exp
from ggplug_cpu.simd.values import F32, F64, Value, constant, emitted, vector


class SoftMax(Parameters):
    """Rows of ``n`` numbers, ``rows`` rows for each head; ``mask_heads``, ``mask_batches``: extents of the mask."""

    y = destination("nb0", "nb1", "convert")
    x = source("nb0", "nb1", "convert")
    mask = source(STRIDES, "convert")
    sinks = source("nb0")
    n = integer()
    rows = integer()
    heads = integer()
    batches = integer()
    mask_heads = integer()
    mask_batches = integer()
    scale = real()
    slopes = reals()
    """The ALiBi slope of every head, if there is a mask."""


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory for rows of ``n`` elements."""
    return ARGUMENTS + 12 * n


@kernel
def soft_max() -> Body:
    """Rows of any type, each by one thread."""

    def body(ctx: int, params: SoftMax) -> None:
        n, row_count, heads = params.n, params.rows, params.heads
        write_y, read_x = params.y.convert, params.x.convert
        y_scratch = scratch(ctx) + ARGUMENTS
        x_scratch = y_scratch + 4 * n
        row, end = thread_range(ctx, row_count * heads * params.batches)
        while row < end:
            y = params.y.row(row)
            x = params.x.row(row)
            p = read(ctx, read_x, x, params.x.nb0, n, x_scratch)
            r = y if write_y == 0 else y_scratch
            above = row // row_count
            soft_max_row(ctx, params, row - above * row_count, above % heads, above // heads, p, r)
            write(ctx, write_y, y, params.y.nb0, n, r)
            row += 1

    return body


@device_function
def soft_max_row(ctx: int, params: SoftMax, i: int, h: int, b: int, p: int, r: int) -> None:
    """Stores at ``r`` the softmax of the f32 at ``p``, row ``i`` of head ``h`` of batch ``b``; ``r`` may be ``p``."""
    masks, sinks = params.mask.address, params.sinks.address
    sink = simd.load_f32(sinks + h * params.sinks.nb0) if sinks != 0 else -math.inf
    if masks == 0:
        _plain_soft_max(r, p, params.n, params.scale, sink)
    else:
        mask = masks + i * params.mask.nb1
        mask += h % params.mask_heads * params.mask.nb2
        mask += b % params.mask_batches * params.mask.nb3
        scratch_row = scratch(ctx) + ARGUMENTS + 8 * params.n
        q = read(ctx, params.mask.convert, mask, params.mask.nb0, params.n, scratch_row)
        _masked_soft_max(r, p, q, params.n, params.scale, params.slopes[h], sink)


@emitted("void(i64, i64, i64, f32, f32)")
def _plain_soft_max(r: Value, p: Value, n: Value, scale: Value, sink: Value) -> None:
    """The softmax of s x."""
    _emit_soft_max(r, n, [p], lambda x: x * scale.splat(x.count), sink)


@emitted("void(i64, i64, i64, i64, f32, f32, f32)")
def _masked_soft_max(r: Value, p: Value, q: Value, n: Value, scale: Value, slope: Value, sink: Value) -> None:
    """The softmax of s x + slope m."""
    _emit_soft_max(r, n, [p, q], lambda x, m: x * scale.splat(x.count) + m * slope.splat(x.count), sink)


#: Vectors of a block, within which exponentials are added up as f32.
_VECTORS = 16


def _emit_soft_max(r: Value, n: Value, sources: list[Value], logits_of: Callable[..., Value], sink: Value) -> None:
    """Three passes over a row: logits and their maximum; exponentials and their sum; the quotient.

    The last vector, which may be partial, stays in a register: a load after a masked store waits until the store has
    reached the cache.
    """
    b, width = n.b, simd.width("f32")
    lanes = vector(F32, width)
    whole = (n - 1).lshr(width.bit_length() - 1)
    behind, mask = whole * (4 * width), values.first_lanes(width, n - whole * width)

    def logits(i: Value, tops: list[Value]) -> list[Value]:
        number = logits_of(*(values.load(source + i * (4 * width), lanes) for source in sources))
        values.store(r + i * (4 * width), number)
        return [tops[0].maximum(number)]

    lowest = constant(b, lanes, -math.inf)
    (top,) = values.loop(whole, [lowest], logits)
    last = logits_of(*(values.masked_load(source + behind, lanes, mask) for source in sources))
    top = top.maximum(mask.select(last, lowest))
    highest = sink.maximum(top.max())

    def power(i: Value, sums: list[Value]) -> list[Value]:
        # Only the first pass reads from memory, so this one prefetches the memory after the row, mostly the next row.
        ahead = (n << 2) + i * (4 * width)
        emit_prefetch(sources[0] + ahead, locality=2)
        emit_prefetch(r + ahead, locality=2)
        number = emit_exp(values.load(r + i * (4 * width), lanes) - highest.splat(width), positive=False)
        values.store(r + i * (4 * width), number)
        return [sums[0] + number]

    def block(i: Value, totals: list[Value]) -> list[Value]:
        first = i * _VECTORS
        (sums,) = values.loop(
            (whole - first).minimum(_VECTORS), [constant(b, lanes, 0)], lambda j, inner: power(first + j, inner)
        )
        return [totals[0] + _in_f64(sums)]

    last = emit_exp(last - highest.splat(width), positive=False)
    blocks = (whole + (_VECTORS - 1)).lshr(_VECTORS.bit_length() - 1)
    (total,) = values.loop(blocks, [_in_f64(mask.select(last, 0))], block)
    of_sink = emit_exp((sink - highest).splat(width), positive=False).lane(0).convert(F64)
    factor = (1.0 / (total.sum() + of_sink)).convert(F32).splat(width)

    def quotient(i: Value, _: list[Value]) -> list[Value]:
        place = r + i * (4 * width)
        values.store(place, values.load(place, lanes) * factor)
        return []

    values.loop(whole, [], quotient)
    values.masked_store(r + behind, last * factor, mask)


def _in_f64(sums: Value) -> Value:
    """The sums in f64, half as many lanes."""
    half = sums.count // 2
    return sums.part(0, half).convert(F64) + sums.part(half, half).convert(F64)

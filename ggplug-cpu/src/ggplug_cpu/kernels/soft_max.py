"""The softmax of attention: scale, mask with ALiBi slopes, sinks."""

from __future__ import annotations

import math

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.kernels.nest import share
from ggplug_cpu.kernels.rows import ARGUMENTS, read, write
from ggplug_cpu.parameters import STRIDES, Parameters, integer, real, reals, written
from ggplug_cpu.parameters import read as read_operand


class SoftMax(Parameters):
    """``n`` numbers a row, ``rows`` rows a head; the mask has ``mask_heads`` and ``mask_batches`` of its own."""

    y = written("nb0", "nb1", "convert")
    x = read_operand("nb0", "nb1", "convert")
    mask = read_operand(STRIDES, "convert")
    sinks = read_operand()
    n = integer()
    rows = integer()
    heads = integer()
    batches = integer()
    mask_heads = integer()
    mask_batches = integer()
    scale = real()
    slopes = reals()
    """Of every head, where there is a mask."""


def scratch_bytes(n: int) -> int:
    """What the kernel needs of a thread's scratch for rows of ``n``."""
    return ARGUMENTS + 12 * n


@kernel
def soft_max() -> Body:
    """Rows of any type, each by one thread."""
    shares_of = soft_max_row()

    def body(ctx: int, params: int) -> None:
        n, row_count, heads = SoftMax.n(params), SoftMax.rows(params), SoftMax.heads(params)
        write_y, read_x = SoftMax.y.convert(params), SoftMax.x.convert(params)
        y_room = scratch(ctx) + ARGUMENTS
        x_room = y_room + 4 * n
        row, end = share(ctx, row_count * heads * SoftMax.batches(params))
        while row < end:
            y = SoftMax.y.address(params) + row * SoftMax.y.nb1(params)
            x = SoftMax.x.address(params) + row * SoftMax.x.nb1(params)
            p = read(ctx, read_x, x, SoftMax.x.nb0(params), n, x_room)
            r = y if write_y == 0 else y_room
            above = row // row_count
            shares_of(ctx, params, row - above * row_count, above % heads, above // heads, p, r)
            write(ctx, write_y, y, SoftMax.y.nb0(params), n, r)
            row += 1

    return body


def soft_max_row() -> DeviceFunction:
    """``shares_of(ctx, params, i, h, b, p, r)``: the softmax of the f32 at ``p``, row i of head h of batch b, at ``r``.

    Both may be the same.  Three passes over a row: logits and their maximum; exponentials and their sum, in f64; the
    quotient.
    """
    F, step = simd.vec("f32"), simd.width("f32")
    load, load_first, lanes = simd.load(F), simd.load_first(F), simd.first_lanes(step)
    lowest = simd.splat(F)
    D = simd.vec("f64", step // 2)
    in_f64, no_sum = simd.convert(D), simd.zero(D)

    @device_function
    def shares_of(ctx, params, i, h, b, p, r):  # type: ignore[no-untyped-def]
        n, read_mask = SoftMax.n(params), SoftMax.mask.convert(params)
        masks, sinks, scale = SoftMax.mask.address(params), SoftMax.sinks.address(params), SoftMax.scale(params)
        whole, tail = 4 * (n - n % step), n % step
        rest = lanes(tail)

        top = lowest(-math.inf)
        if masks == 0:
            for at in range(0, whole, 4 * step):
                v = simd.mul(load(p + at), scale)
                simd.store(r + at, v)
                top = simd.maximum(top, v)
            if tail > 0:
                v = simd.mul(load_first(p + whole, tail), scale)
                simd.store_first(r + whole, v, tail)
                top = simd.maximum(top, simd.select(rest, v, -math.inf))
        else:
            slope = SoftMax.slopes(params, h)
            mask = masks + i * SoftMax.mask.nb1(params)
            mask += h % SoftMax.mask_heads(params) * SoftMax.mask.nb2(params)
            mask += b % SoftMax.mask_batches(params) * SoftMax.mask.nb3(params)
            mask_room = scratch(ctx) + ARGUMENTS + 8 * n
            q = read(ctx, read_mask, mask, SoftMax.mask.nb0(params), n, mask_room)
            for at in range(0, whole, 4 * step):
                v = simd.add(simd.mul(load(p + at), scale), simd.mul(load(q + at), slope))
                simd.store(r + at, v)
                top = simd.maximum(top, v)
            if tail > 0:
                v = simd.mul(load_first(p + whole, tail), scale)
                v = simd.add(v, simd.mul(load_first(q + whole, tail), slope))
                simd.store_first(r + whole, v, tail)
                top = simd.maximum(top, simd.select(rest, v, -math.inf))

        highest = simd.hmax(top)
        if sinks != 0:
            highest = max(highest, simd.load_f32(sinks + 4 * h))
        low, high = no_sum(), no_sum()
        for at in range(0, whole, 4 * step):
            v = simd.exp(simd.sub(load(r + at), highest))
            simd.store(r + at, v)
            low += in_f64(simd.low_half(v))
            high += in_f64(simd.high_half(v))
        if tail > 0:
            v = simd.exp(simd.sub(load_first(r + whole, tail), highest))
            simd.store_first(r + whole, v, tail)
            v = simd.select(rest, v, 0.0)
            low += in_f64(simd.low_half(v))
            high += in_f64(simd.high_half(v))
        total = simd.hsum(low + high)
        if sinks != 0:
            total += math.exp(simd.load_f32(sinks + 4 * h) - highest)

        share_of = 1.0 / total
        for at in range(0, whole, 4 * step):
            simd.store(r + at, simd.mul(load(r + at), share_of))
        if tail > 0:
            simd.store_first(r + whole, simd.mul(load_first(r + whole, tail), share_of), tail)

    return shares_of

"""The softmax of attention: scale, mask with ALiBi slopes, sinks."""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.ops import alibi_slopes
from ggplug.tensor import Tensor
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import real, scratch, word
from ggplug_cpu.kernels.nest import share
from ggplug_cpu.kernels.rows import ARGUMENTS, read, read_operand, write, write_operand
from ggplug_cpu.kernels.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.tape import Entry, Ref, Word

# Word indices: places, extents, byte strides of rows, extents and strides of the mask, converters, numbers.
Y, X, MASK, SINKS = 0, 1, 2, 3
N, R, H, B = 4, 5, 6, 7
Y1, X1, M2, M3, MASK1, MASK2, MASK3 = range(8, 15)
WRITE, READ, READ_MASK, Y_STRIDE, X_STRIDE, MASK_STRIDE, SCALE, SLOPES = range(15, 23)


def plan_soft_max(node: Tensor) -> Steps:
    """y = softmax over ne0 of (scale x + slope mask)."""
    op, x, mask, sinks = node.op, given(node, 0), *node.src[1:]
    assert isinstance(op, ops.SoftMax)
    y_operand = write_operand(Ref(RESULT), node.type, node.nb[0])
    x_operand = read_operand(Ref(source(0)), x.type, x.nb[0])
    words: list[Word] = [Ref(RESULT), Ref(source(0))]
    words += [0 if mask is None else Ref(source(1)), 0 if sinks is None else Ref(source(2)), *node.ne]
    # Not nb[1]: of a dimension of one element it says nothing about where the next row is.
    words += [node.type.row_bytes(node.ne[0]), x.type.row_bytes(x.ne[0])]
    if mask is None:
        words += [1, 1, 0, 0, 0, y_operand.convert, x_operand.convert, 0, node.nb[0], x.nb[0], 0, op.scale]
    else:
        read_mask = read_operand(Ref(source(1)), mask.type, mask.nb[0]).convert
        words += [*mask.ne[2:], *mask.nb[1:], y_operand.convert, x_operand.convert, read_mask]
        words += [node.nb[0], x.nb[0], mask.nb[0], op.scale]
        words += [float(slope) for slope in alibi_slopes(node.ne[2], op.max_bias)]
    entry = Entry(soft_max(), words, tasks(node.size, 6))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 12 * node.ne[0])


@kernel
def soft_max() -> Body:
    """Three passes over a row: logits and their maximum; exponentials and their sum, in f64; the quotient."""
    F, step = simd.vec("f32"), simd.width("f32")
    load, load_first, lanes = simd.load(F), simd.load_first(F), simd.first_lanes(step)
    lowest = simd.splat(F)
    D = simd.vec("f64", step // 2)
    in_f64, no_sum = simd.convert(D), simd.zero(D)

    def body(ctx: int, params: int) -> None:
        n, row_count, heads = word(params, N), word(params, R), word(params, H)
        write_y, read_x, read_mask = word(params, WRITE), word(params, READ), word(params, READ_MASK)
        masks, sinks, scale = word(params, MASK), word(params, SINKS), real(params, SCALE)
        y_room = scratch(ctx) + ARGUMENTS
        x_room, mask_room = y_room + 4 * n, y_room + 8 * n
        whole, tail = 4 * (n - n % step), n % step
        rest = lanes(tail)
        row, end = share(ctx, row_count * heads * word(params, B))
        while row < end:
            h, b = row // row_count % heads, row // (row_count * heads)
            y = word(params, Y) + row * word(params, Y1)
            x = word(params, X) + row * word(params, X1)
            p = read(ctx, read_x, x, word(params, X_STRIDE), n, x_room)
            r = y if write_y == 0 else y_room

            top = lowest(-math.inf)
            if masks == 0:
                for i in range(0, whole, 4 * step):
                    v = simd.mul(load(p + i), scale)
                    simd.store(r + i, v)
                    top = simd.maximum(top, v)
                if tail > 0:
                    v = simd.mul(load_first(p + whole, tail), scale)
                    simd.store_first(r + whole, v, tail)
                    top = simd.maximum(top, simd.select(rest, v, -math.inf))
            else:
                slope = real(params, SLOPES + h)
                mask = masks + row % row_count * word(params, MASK1)
                mask += h % word(params, M2) * word(params, MASK2) + b % word(params, M3) * word(params, MASK3)
                q = read(ctx, read_mask, mask, word(params, MASK_STRIDE), n, mask_room)
                for i in range(0, whole, 4 * step):
                    v = simd.add(simd.mul(load(p + i), scale), simd.mul(load(q + i), slope))
                    simd.store(r + i, v)
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
            for i in range(0, whole, 4 * step):
                v = simd.exp(simd.sub(load(r + i), highest))
                simd.store(r + i, v)
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
            for i in range(0, whole, 4 * step):
                simd.store(r + i, simd.mul(load(r + i), share_of))
            if tail > 0:
                simd.store_first(r + whole, simd.mul(load_first(r + whole, tail), share_of), tail)
            write(ctx, write_y, y, word(params, Y_STRIDE), n, r)
            row += 1

    return body

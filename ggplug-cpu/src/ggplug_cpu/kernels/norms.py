"""Normalisation of rows: each is scaled by a number computed from it.

Sums are f64, as in ggml; the rest is f32.  A row is computed by one thread.  Where the number that it is scaled
by, or a distance from its mean, may leave the range of f32, the row is multiplied by a power of two before.
"""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import real, scratch, word
from ggplug_cpu.kernels.nest import (
    CONVERT,
    COUNT,
    OWN,
    ROWS,
    STRIDE,
    A,
    Shape,
    Y,
    locate,
    nest_words,
    row_nest,
    row_strides,
    run_length,
    share,
)
from ggplug_cpu.kernels.rows import ARGUMENTS, read, read_operand, write, write_operand
from ggplug_cpu.kernels.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.kernels.sums import row_sum
from ggplug_cpu.tape import Entry, Ref

_LARGE, _SMALL = 1e33, 1e-36
"""Sizes of rows between which all is in the range of f32: a distance is at most the size times the root of 2**31."""
_DOWN, _UP = 2.0**-64, 2.0**64


def plan_norm(node: Tensor) -> Steps:
    """y = f(row of x) x, perhaps less the row's mean."""
    op, x = node.op, given(node, 0)
    assert isinstance(op, ops.RowNorm)
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    operands = [
        write_operand(Ref(RESULT), node.type, node.nb[0]),
        read_operand(Ref(source(0)), x.type, x.nb[0]),
    ]
    entry = Entry(norm(op.name), nest_words(nest, operands, [op.eps]), tasks(node.size, 2))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 8 * node.ne[0])


@kernel
def norm(name: str) -> Body:
    """(x - mean) / sqrt(var + eps), x / sqrt(mean(x²) + eps) or, for ``l2_norm``, x / max(|x|, eps)."""
    F, step = simd.vec("f32"), simd.width("f32")
    load, load_first = simd.load(F), simd.load_first(F)
    sum_of, sum_of_squares = row_sum("x"), row_sum("(x-c)²" if name == "norm" else "x²")
    large, small, down, up = _LARGE, _SMALL, _DOWN, _UP
    centred, euclidean = name == "norm", name == "l2_norm"

    def body(ctx: int, params: int) -> None:
        n, eps = word(params, COUNT), real(params, OWN)
        write_y, y_stride = word(params, Y + CONVERT), word(params, Y + STRIDE)
        read_x, x_stride = word(params, A + CONVERT), word(params, A + STRIDE)
        y_next, x_next, _ = row_strides(params)
        y_room = scratch(ctx) + ARGUMENTS
        x_room = y_room + 4 * n
        whole = n - n % step
        row, end = share(ctx, word(params, ROWS))
        while row < end:
            y, x, _ = locate(params, row)
            stop = row + run_length(params, row, end)
            while row < stop:
                p = read(ctx, read_x, x, x_stride, n, x_room)
                r = y if write_y == 0 else y_room
                mean = sum_of(p, n, 0.0) / n if centred else 0.0
                squares = sum_of_squares(p, n, mean)
                size = math.sqrt(squares) if euclidean else math.sqrt(squares / n + eps)
                if euclidean and not size > eps:  # also where it is NaN
                    size = eps
                if size > large or size < small:
                    unit = down if size > large else up
                    for i in range(0, 4 * whole, 4 * step):
                        simd.store(r + i, simd.mul(load(p + i), unit))
                    if whole < n:
                        i, tail = 4 * whole, n - whole
                        simd.store_first(r + i, simd.mul(load_first(p + i, tail), unit), tail)
                    p = r
                    mean = mean * unit
                    size = size * unit
                factor = 1.0 / size
                for i in range(0, 4 * whole, 4 * step):
                    v = load(p + i)
                    simd.store(r + i, simd.mul(simd.sub(v, mean) if centred else v, factor))
                if whole < n:
                    i, tail = 4 * whole, n - whole
                    v = load_first(p + i, tail)
                    simd.store_first(r + i, simd.mul(simd.sub(v, mean) if centred else v, factor), tail)
                write(ctx, write_y, y, y_stride, n, r)
                y += y_next
                x += x_next
                row += 1

    return body

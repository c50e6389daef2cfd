"""Sums, means and positions of maxima.  Sums are f64; a row, or a piece of fixed length, is added up by one thread."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import real, scratch, word
from ggplug_cpu.kernels.nest import (
    CONVERT,
    COUNT,
    LAST,
    OWN,
    ROWS,
    STRIDE,
    A,
    Axis,
    Nest,
    Operand,
    Shape,
    Y,
    element_nest,
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
from ggplug_cpu.tape import WORKSPACE, Entry, Ref

_LOWEST = -(2**31)


def plan_sum_rows(node: Tensor) -> Steps:
    """y = the sum of each row, or its mean."""
    x = given(node, 0)
    nest = row_nest(x.ne, Shape.of(node), Shape.of(x))
    divisor = float(x.ne[0]) if isinstance(node.op, ops.Mean) else 1.0
    operands = [write_operand(Ref(RESULT), node.type, 4), read_operand(Ref(source(0)), x.type, x.nb[0])]
    entry = Entry(sum_rows(), nest_words(nest, operands, [divisor]), tasks(x.size))
    return Steps((entry,), scratch_bytes=2 * ARGUMENTS + 4 * x.ne[0])


def plan_sum(node: Tensor) -> Steps:
    """y = the sum of all elements, by way of sums of pieces."""
    x = given(node, 0)
    nest = element_nest(x.ne, Shape.of(x))
    operands = [read_operand(Ref(source(0)), x.type, nest.inner.strides[0])]
    pieces = Entry(sum_pieces(), nest_words(nest, operands, [Ref(WORKSPACE)]), tasks(x.size))
    result = write_operand(Ref(RESULT), node.type, 4)
    total = Entry(sum_up(), [Ref(WORKSPACE), nest.rows, Ref(RESULT), result.convert], 1)
    return Steps((pieces, total), 8 * nest.rows, 2 * ARGUMENTS + 4 * nest.inner.extent)


def plan_argmax(node: Tensor) -> Steps:
    """y = the position of each row's largest element."""
    x = given(node, 0)
    nest = Nest(Axis(x.ne[0], (0, x.nb[0])), (Axis(x.ne[1], (node.nb[0], x.nb[1])),), x.ne[0])
    operands = [Operand(Ref(RESULT)), read_operand(Ref(source(0)), x.type, x.nb[0])]
    entry = Entry(argmax(), nest_words(nest, operands), tasks(x.size))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 4 * x.ne[0])


@kernel
def sum_rows() -> Body:
    """Row by row, divided by a number."""
    sum_of = row_sum("x")

    def body(ctx: int, params: int) -> None:
        n, divisor = word(params, COUNT), real(params, OWN)
        write_y, read_x, x_stride = word(params, Y + CONVERT), word(params, A + CONVERT), word(params, A + STRIDE)
        y_next, x_next, _ = row_strides(params)
        y_room = scratch(ctx) + ARGUMENTS
        x_room = y_room + ARGUMENTS
        row, end = share(ctx, word(params, ROWS))
        while row < end:
            y, x, _ = locate(params, row)
            stop = row + run_length(params, row, end)
            while row < stop:
                r = y if write_y == 0 else y_room
                simd.store_f32(r, sum_of(read(ctx, read_x, x, x_stride, n, x_room), n, 0.0) / divisor)
                write(ctx, write_y, y, 0, 1, r)
                y += y_next
                x += x_next
                row += 1

    return body


@kernel
def sum_pieces() -> Body:
    """The sum of each row as f64; here x is the only operand, in the first place."""
    sum_of = row_sum("x")

    def body(ctx: int, params: int) -> None:
        rows, sums = word(params, ROWS), word(params, OWN)
        read_x, x_stride = word(params, Y + CONVERT), word(params, Y + STRIDE)
        room = scratch(ctx) + ARGUMENTS
        first, end = share(ctx, rows)
        for row in range(first, end):
            n = word(params, LAST) if row == rows - 1 else word(params, COUNT)
            x, _, _ = locate(params, row)
            simd.store_f64(sums + 8 * row, sum_of(read(ctx, read_x, x, x_stride, n, room), n, 0.0))

    return body


@kernel
def sum_up() -> Body:
    """The sum of f64 in their order, in the result's type."""

    def body(ctx: int, params: int) -> None:
        sums, y, write_y = word(params, 0), word(params, 2), word(params, 3)
        total = 0.0
        for i in range(word(params, 1)):
            total += simd.load_f64(sums + 8 * i)
        r = y if write_y == 0 else scratch(ctx) + ARGUMENTS
        simd.store_f32(r, total)
        write(ctx, write_y, y, 0, 1, r)

    return body


@kernel
def argmax() -> Body:
    """Every lane keeps its largest number and where it was; the first of the largest wins.

    Numbers are compared as integers of the same order, below which NaN has the lowest.
    """
    F, I, step = simd.vec("f32"), simd.vec("i32", simd.width("f32")), simd.width("f32")
    load, load_first, lanes = simd.load(F), simd.load_first(F), simd.first_lanes(step)
    bits, number, iota = simd.bitcast(I), simd.splat(I), simd.iota(I)
    lowest = _LOWEST

    @device_function
    def ordered(v):  # type: ignore[no-untyped-def]
        x = bits(simd.add(v, 0.0))  # -0 becomes 0
        return simd.select(simd.unequal(v, v), lowest, x ^ ((x >> number(31)) & number(0x7FFFFFFF)))

    def body(ctx: int, params: int) -> None:
        n, read_x, x_stride = word(params, COUNT), word(params, A + CONVERT), word(params, A + STRIDE)
        room = scratch(ctx) + ARGUMENTS
        whole, tail = 4 * (n - n % step), n % step
        first, end = share(ctx, word(params, ROWS))
        for row in range(first, end):
            y, x, _ = locate(params, row)
            p = read(ctx, read_x, x, x_stride, n, room)
            largest, where, here = number(lowest), iota(), iota()
            for i in range(0, whole, 4 * step):
                v = ordered(load(p + i))
                better = simd.greater(v, largest)
                largest, where = simd.select(better, v, largest), simd.select(better, here, where)
                here = simd.add(here, step)
            if tail > 0:
                v = simd.select(lanes(tail), ordered(load_first(p + whole, tail)), lowest)
                better = simd.greater(v, largest)
                largest, where = simd.select(better, v, largest), simd.select(better, here, where)
            winners = simd.equal(largest, simd.hmax(largest))
            simd.store_i32(y, simd.hmin(simd.select(winners, where, 2**31 - 1)))

    return body

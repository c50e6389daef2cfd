"""Sorting within rows: positions in the order of their elements."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch, word
from ggplug_cpu.kernels.nest import (
    CONVERT,
    COUNT,
    ROWS,
    STRIDE,
    A,
    Operand,
    Shape,
    locate,
    nest_words,
    row_nest,
    share,
)
from ggplug_cpu.kernels.rows import ARGUMENTS, read, read_operand
from ggplug_cpu.kernels.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.tape import Entry, Ref

#: Positions that are sorted by insertion before runs are merged.
_RUN = 16


def plan_argsort(node: Tensor) -> Steps:
    """y = positions of x in sorted order; equal elements keep theirs."""
    op, x = node.op, given(node, 0)
    assert isinstance(op, ops.Argsort)
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    operands = [Operand(Ref(RESULT)), read_operand(Ref(source(0)), x.type, x.nb[0])]
    weight = 2 * max(1, node.ne[0].bit_length())
    order = "descending" if op.order == ops.SortOrder.DESC else "ascending"
    entry = Entry(argsort(order), nest_words(nest, operands), tasks(node.size, weight))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 8 * node.ne[0])


@kernel
def argsort(order: str) -> Body:
    """Runs sorted by insertion, then merged in rounds from one half of the memory to the other."""
    descending = order == "descending"

    @device_function
    def before(keys, i, j):  # type: ignore[no-untyped-def]
        """Whether position i has to come before position j."""
        a, b = simd.load_f32(keys + 4 * i), simd.load_f32(keys + 4 * j)
        return a > b if descending else a < b

    def body(ctx: int, params: int) -> None:
        n, read_x, x_stride = word(params, COUNT), word(params, A + CONVERT), word(params, A + STRIDE)
        other = scratch(ctx) + ARGUMENTS
        room = other + 4 * n
        first, end = share(ctx, word(params, ROWS))
        for row in range(first, end):
            y, x, _ = locate(params, row)
            keys = read(ctx, read_x, x, x_stride, n, room)
            for start in range(0, n, _RUN):
                for i in range(start, min(start + _RUN, n)):
                    j = i
                    while j > start and before(keys, i, simd.load_i32(y + 4 * (j - 1))):
                        simd.store_i32(y + 4 * j, simd.load_i32(y + 4 * (j - 1)))
                        j -= 1
                    simd.store_i32(y + 4 * j, i)
            here, there = y, other
            run = _RUN
            while run < n:
                for start in range(0, n, 2 * run):
                    middle, stop = min(start + run, n), min(start + 2 * run, n)
                    i, j = start, middle
                    for k in range(start, stop):
                        right = i == middle
                        if not right and j < stop:
                            right = before(keys, simd.load_i32(here + 4 * j), simd.load_i32(here + 4 * i))
                        if right:
                            simd.store_i32(there + 4 * k, simd.load_i32(here + 4 * j))
                            j += 1
                        else:
                            simd.store_i32(there + 4 * k, simd.load_i32(here + 4 * i))
                            i += 1
                here, there = there, here
                run *= 2
            if here != y:
                simd.copy_bytes(y, here, 4 * n)

    return body

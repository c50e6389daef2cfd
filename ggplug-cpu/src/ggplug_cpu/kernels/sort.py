"""Sorting within rows: positions in the order of their elements."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import aborted, scratch, word
from ggplug_cpu.kernels.nest import (
    CONVERT,
    COUNT,
    OWN,
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

#: Elements that are sorted by insertion before runs are merged.
_RUN = 8


def plan_argsort(node: Tensor) -> Steps:
    """y = positions of x in sorted order, NaN last; equal elements keep theirs."""
    op, x = node.op, given(node, 0)
    assert isinstance(op, ops.Argsort)
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    operands = [Operand(Ref(RESULT)), read_operand(Ref(source(0)), x.type, x.nb[0])]
    flip = -1 if op.order == ops.SortOrder.DESC else 0
    entry = Entry(argsort(), nest_words(nest, operands, [flip]), tasks(node.size, 2 * node.ne[0].bit_length()))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 20 * node.ne[0])


@kernel
def argsort() -> Body:
    """Merge sort of 64-bit words: above the element, as an integer of the same order, below its position."""

    def body(ctx: int, params: int) -> None:
        n, flip = word(params, COUNT), word(params, OWN)
        read_x, x_stride = word(params, A + CONVERT), word(params, A + STRIDE)
        words = scratch(ctx) + ARGUMENTS
        others = words + 8 * n
        room = others + 8 * n
        first, end = share(ctx, word(params, ROWS))
        for row in range(first, end):
            if aborted(ctx):
                return
            y, x, _ = locate(params, row)
            p = read(ctx, read_x, x, x_stride, n, room)
            for i in range(n):
                bits = simd.load_i32(p + 4 * i)
                # of negative floats the larger size is the smaller number
                key = bits ^ (bits >> 31 & 0x7FFFFFFF) ^ flip
                if bits & 0x7FFFFFFF > 0x7F800000:  # NaN is last
                    key = 0x7FFFFFFF
                item = key << 32 | i
                j = 8 * i
                start = j - j % (8 * _RUN)
                while j > start and simd.load_i64(words + j - 8) > item:
                    simd.store_i64(words + j, simd.load_i64(words + j - 8))
                    j -= 8
                simd.store_i64(words + j, item)
            here, there = words, others
            run = 8 * _RUN
            while run < 8 * n:
                for start in range(0, 8 * n, 2 * run):
                    middle, stop = min(start + run, 8 * n), min(start + 2 * run, 8 * n)
                    i, j, k = start, middle, start
                    while i < middle and j < stop:
                        a, b = simd.load_i64(here + i), simd.load_i64(here + j)
                        simd.store_i64(there + k, min(a, b))
                        i += 8 * (a < b)
                        j += 8 * (b < a)
                        k += 8
                    simd.copy_bytes(there + k, here + i, middle - i)
                    simd.copy_bytes(there + k + middle - i, here + j, stop - j)
                here, there = there, here
                run *= 2
            for i in range(n):
                simd.store_i32(y + 4 * i, simd.load_i64(here + 8 * i) & 0x7FFFFFFF)

    return body

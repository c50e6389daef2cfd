"""Operations on every element, of one source or of two; the second may repeat (broadcast) to the first.

Types other than f32 are converted a block at a time.  Whatever the number of threads, an element goes through the same
instructions, so results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import ops
from ggplug.tensor import Tensor, contiguous_strides
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Kernel, kernel
from ggplug_cpu.context import real, scratch, word
from ggplug_cpu.kernels.copy import copy_bytes
from ggplug_cpu.kernels.formulas import BINARY, UNARY
from ggplug_cpu.kernels.nest import (
    BLOCK,
    BLOCK_BYTES,
    CONVERT,
    COUNT,
    LAST,
    OWN,
    ROWS,
    STRIDE,
    A,
    B,
    Shape,
    Y,
    element_nest,
    locate,
    nest_words,
    row_strides,
    run_length,
    share,
)
from ggplug_cpu.kernels.rows import ARGUMENTS, ROOM, read, read_operand, write, write_operand
from ggplug_cpu.kernels.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.tape import WORKSPACE, Entry, Ref, Word

#: How much longer than an addition a formula takes, where it does.
_WEIGHTS = {
    **dict.fromkeys(("exp", "log", "sigmoid", "silu", "gelu", "gelu_quick", "swiglu", "geglu", "geglu_quick"), 4),
    **dict.fromkeys(("tanh", "expm1", "elu", "softplus", "gelu_erf", "geglu_erf", "swiglu_oai", "xielu"), 8),
    **dict.fromkeys(("sin", "cos"), 8),
}


def plan_unary(node: Tensor) -> Steps:
    """y = f(x)."""
    op, x = node.op, given(node, 0)
    assert op is not None
    nest = element_nest(node.ne, Shape.of(node), Shape.of(x))
    operands = [
        write_operand(Ref(RESULT), node.type, nest.inner.strides[0]),
        read_operand(Ref(source(0)), x.type, nest.inner.strides[1]),
    ]
    own = [float(getattr(op, name)) for name in op.parameters]
    return _steps(unary(op.name), nest_words(nest, operands, own), nest.elements, op.name)


def plan_binary(node: Tensor) -> Steps:
    """y = f(a, b), b repeated to a's shape."""
    op, a, b = node.op, given(node, 0), given(node, 1)
    assert op is not None
    place_b, shape_b, repeated = Ref(source(1)), Shape.of(b), Steps(())
    if 1 < b.ne[0] < a.ne[0] and b.ne[0] % a.type.block_size:
        # a row of b ends within a block of a: rows as long as those of a, in the workspace
        repeated, shape_b = repeated_rows(b, a.ne[0])
        place_b = Ref(WORKSPACE)
    nest = element_nest(node.ne, Shape.of(node), Shape.of(a), shape_b)
    strides = nest.inner.strides
    operands = [
        write_operand(Ref(RESULT), node.type, strides[0]),
        read_operand(Ref(source(0)), a.type, strides[1]),
        read_operand(place_b, b.type, strides[2]),
    ]
    steps = _steps(binary(op.name), nest_words(nest, operands), nest.elements, op.name)
    return Steps((*repeated.entries, *steps.entries), repeated.workspace_bytes, steps.scratch_bytes)


def repeated_rows(b: Tensor, n: int) -> tuple[Steps, Shape]:
    """Entries that repeat source 1, ``b``, along ne0 to ``n`` elements in the workspace; and what lies there then."""
    ne = (n, *b.ne[1:])
    shape = Shape(ne, contiguous_strides(b.type, ne))
    entry = copy_bytes(b.type, ne, shape, Shape(b.ne, b.nb), Ref(WORKSPACE), Ref(source(1)))
    return Steps((entry,), b.type.row_bytes(n) * b.nrows), shape


def plan_glu(node: Tensor) -> Steps:
    """y = f(x) gate, from two sources or from the halves of one."""
    op, x, gate = node.op, given(node, 0), node.src[1]
    assert isinstance(op, ops.Glu)
    halves = [Ref(source(0)), Ref(source(0), node.ne[0] * x.nb[0])]
    if gate is None:
        gate = x
        if op.swapped:
            halves.reverse()
    else:
        halves[1] = Ref(source(1))
    nest = element_nest(node.ne, Shape.of(node), Shape(node.ne, x.nb), Shape(node.ne, gate.nb))
    strides = nest.inner.strides
    operands = [
        write_operand(Ref(RESULT), node.type, strides[0]),
        read_operand(halves[0], x.type, strides[1]),
        read_operand(halves[1], gate.type, strides[2]),
    ]
    own = [float(getattr(op, name)) for name in op.parameters if name != "swapped"]
    return _steps(binary(op.name), nest_words(nest, operands, own), nest.elements, op.name)


def _steps(kernel: Kernel, words: Sequence[Word], elements: int, name: str) -> Steps:
    entry = Entry(kernel, words, tasks(elements, _WEIGHTS.get(name, 1)))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 3 * ROOM)


@kernel
def unary(name: str) -> Body:
    """y = f(x): rows of y are split into blocks, blocks into vectors."""
    f = UNARY[name]
    F, step = simd.vec("f32"), simd.width("f32")
    load, load_first = simd.load(F), simd.load_first(F)

    def body(ctx: int, params: int) -> None:
        rows, count, last = word(params, ROWS), word(params, COUNT), word(params, LAST)
        write_y, y_stride, y_block = word(params, Y + CONVERT), word(params, Y + STRIDE), word(params, Y + BLOCK_BYTES)
        read_x, x_stride, x_block = word(params, A + CONVERT), word(params, A + STRIDE), word(params, A + BLOCK_BYTES)
        c0, c1, c2, c3 = real(params, OWN), real(params, OWN + 1), real(params, OWN + 2), real(params, OWN + 3)
        y_next, x_next, _ = row_strides(params)
        y_room = scratch(ctx) + ARGUMENTS
        x_room = y_room + ROOM
        row, end = share(ctx, rows)
        while row < end:
            y_row, x_row, _ = locate(params, row)
            stop = row + run_length(params, row, end)
            while row < stop:
                n = last if row == rows - 1 else count
                y, x = y_row, x_row
                for start in range(0, n, BLOCK):
                    m = min(BLOCK, n - start)
                    whole = m - m % step
                    p = read(ctx, read_x, x, x_stride, m, x_room)
                    r = y if write_y == 0 else y_room
                    for i in range(0, 4 * whole, 4 * step):
                        simd.store(r + i, f(load(p + i), c0, c1, c2, c3))
                    if whole < m:
                        i, tail = 4 * whole, m - whole
                        simd.store_first(r + i, f(load_first(p + i, tail), c0, c1, c2, c3), tail)
                    write(ctx, write_y, y, y_stride, m, r)
                    y += y_block
                    x += x_block
                y_row += y_next
                x_row += x_next
                row += 1

    return body


@kernel
def binary(name: str) -> Body:
    """y = f(a, b), in the same way."""
    f = BINARY[name]
    F, step = simd.vec("f32"), simd.width("f32")
    load, load_first = simd.load(F), simd.load_first(F)

    def body(ctx: int, params: int) -> None:
        rows, count, last = word(params, ROWS), word(params, COUNT), word(params, LAST)
        write_y, y_stride, y_block = word(params, Y + CONVERT), word(params, Y + STRIDE), word(params, Y + BLOCK_BYTES)
        read_a, a_stride, a_block = word(params, A + CONVERT), word(params, A + STRIDE), word(params, A + BLOCK_BYTES)
        read_b, b_stride, b_block = word(params, B + CONVERT), word(params, B + STRIDE), word(params, B + BLOCK_BYTES)
        c0, c1, c2, c3 = real(params, OWN), real(params, OWN + 1), real(params, OWN + 2), real(params, OWN + 3)
        y_next, a_next, b_next = row_strides(params)
        y_room = scratch(ctx) + ARGUMENTS
        a_room, b_room = y_room + ROOM, y_room + 2 * ROOM
        row, end = share(ctx, rows)
        while row < end:
            y_row, a_row, b_row = locate(params, row)
            stop = row + run_length(params, row, end)
            while row < stop:
                n = last if row == rows - 1 else count
                y, a, b = y_row, a_row, b_row
                for start in range(0, n, BLOCK):
                    m = min(BLOCK, n - start)
                    whole = m - m % step
                    p = read(ctx, read_a, a, a_stride, m, a_room)
                    q = read(ctx, read_b, b, b_stride, m, b_room)
                    r = y if write_y == 0 else y_room
                    for i in range(0, 4 * whole, 4 * step):
                        simd.store(r + i, f(load(p + i), load(q + i), c0, c1, c2, c3))
                    if whole < m:
                        i, tail = 4 * whole, m - whole
                        z = f(load_first(p + i, tail), load_first(q + i, tail), c0, c1, c2, c3)
                        simd.store_first(r + i, z, tail)
                    write(ctx, write_y, y, y_stride, m, r)
                    y += y_block
                    a += a_block
                    b += b_block
                y_row += y_next
                a_row += a_next
                b_row += b_next
                row += 1

    return body

"""Rows picked and rows written, by index.

For all positions (i, j, k) of an index tensor, row ``index`` on one side belongs to row i on the other.  For an index
out of range a row that would be picked is zeros, one that would be written is left out; the first such index is noted
as a fault.
"""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug.types import F32, Type
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Kernel, kernel
from ggplug_cpu.context import scratch, word
from ggplug_cpu.kernels.nest import BLOCK, share
from ggplug_cpu.kernels.rows import ARGUMENTS, ROOM, read, read_plain, reader, write, writer
from ggplug_cpu.kernels.steps import FAULTS, POSITION, RESULT, Steps, fault, given, source, tasks
from ggplug_cpu.tape import Entry, Ref, Word

# Word indices: places; extents of a row and of (i, j, k); how far the indices extend along j and k, and their limit;
Y, X, INDICES, N0, NI, NJ, NK, IJ, IK, LIMIT = range(10)
# byte strides, for y and x along i or the index, j and k; the bytes to copy, or how rows are converted; for faults.
Y0, Y1, Y2, Y3, X0, X1, X2, X3, I0, I1, I2 = range(10, 21)
SIZE, WRITE, Y_BLOCK, READ, X_BLOCK, RECORD, NODE = range(21, 28)


def plan_get_rows(node: Tensor) -> Steps:
    """y[:, i, j, k] = a[:, ids[i, j, k], j, k]."""
    a, ids = given(node, 0), given(node, 1)
    words: list[Word] = [Ref(RESULT), Ref(source(0)), Ref(source(1)), *node.ne, *ids.ne[1:3], a.ne[1]]
    words += [*node.nb, *a.nb, *ids.nb[:3], *_conversion(a, node.type)]
    entry = Entry(rows_by_index("get", ids.type.name), words, tasks(node.size))
    return Steps((entry,), scratch_bytes=ARGUMENTS + ROOM)


def plan_set_rows(node: Tensor) -> Steps:
    """dst[:, ids[i, j mod J, k mod K], j, k] = rows[:, i, j, k]."""
    dst, rows, ids = given(node, 0), given(node, 1), given(node, 2)
    words: list[Word] = [Ref(RESULT), Ref(source(1)), Ref(source(2)), *rows.ne, *ids.ne[1:3], dst.ne[1]]
    words += [*node.nb, *rows.nb, *ids.nb[:3], *_conversion(rows, node.type)]
    entry = Entry(rows_by_index("set", ids.type.name), words, tasks(rows.size, 2))
    return Steps((entry,), scratch_bytes=ARGUMENTS + ROOM)


def _conversion(rows: Tensor, y: Type) -> list[Word]:
    """The last words.  Rows of y are contiguous; those of x are, or are converted."""
    x, x_stride = rows.type, rows.nb[0]
    block_x, block_y = BLOCK // x.block_size * x_stride, BLOCK // y.block_size * y.block_bytes
    size = 0
    read_x: Kernel | int | None = 0
    write_y: Kernel | int | None = 0
    if x is y and x_stride == x.block_bytes:
        size = x.row_bytes(rows.ne[0])
    elif x is y:
        read_x = read_plain("f32")  # integers of four bytes are moved like f32
    else:
        read_x = 0 if x is F32 and x_stride == 4 else reader(x)
        write_y = 0 if y is F32 else writer(y)
    return [size, write_y or 0, block_y, read_x or 0, block_x, Ref(FAULTS), Ref(POSITION)]


@kernel
def rows_by_index(direction: str, index_type: str) -> Body:
    """``get``: y's row i from x's row ``index``.  ``set``: y's row ``index`` from x's row i."""
    load_index, getting = simd.LOADS[index_type], direction == "get"

    def body(ctx: int, params: int) -> None:
        n0, ni, nj = word(params, N0), word(params, NI), word(params, NJ)
        limit, size = word(params, LIMIT), word(params, SIZE)
        write_y, read_x, x_stride = word(params, WRITE), word(params, READ), word(params, X0)
        room = scratch(ctx) + ARGUMENTS
        first, end = share(ctx, ni * nj * word(params, NK))
        for row in range(first, end):
            i, jk = row % ni, row // ni
            j, k = jk % nj, jk // nj
            place = word(params, INDICES) + i * word(params, I0)
            place += j % word(params, IJ) * word(params, I1) + k % word(params, IK) * word(params, I2)
            index = load_index(place)
            y = word(params, Y) + j * word(params, Y2) + k * word(params, Y3)
            if index < 0 or index >= limit:
                fault(word(params, RECORD), word(params, NODE), row, index)
                if getting:  # rows of four-byte numbers without gaps
                    simd.fill_bytes(y + word(params, Y1) * i, 0, 4 * n0)
                continue
            y += word(params, Y1) * (i if getting else index)
            x = word(params, X) + j * word(params, X2) + k * word(params, X3)
            x += word(params, X1) * (index if getting else i)
            if size != 0:
                simd.copy_bytes(y, x, size)
                continue
            for start in range(0, n0, BLOCK):
                m = min(BLOCK, n0 - start)
                p = read(ctx, read_x, x, x_stride, m, y if write_y == 0 else room)
                write(ctx, write_y, y, word(params, Y0), m, p)
                x += word(params, X_BLOCK)
                y += word(params, Y_BLOCK)

    return body

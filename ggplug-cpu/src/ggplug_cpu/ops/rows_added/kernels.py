"""Sums of rows selected by index: ``add_id`` adds rows of b to rows of a, ``get_rows_back`` sums rows of a gradient.

For an index out of range ``add_id`` stores a row of zeros and ``get_rows_back`` adds nothing; the first such index is
recorded as a fault.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import CONVERTED, STRIDES, Parameters, destination, integer, source
from ggplug_cpu.parts.faults import fault
from ggplug_cpu.parts.nest import BLOCK, thread_range
from ggplug_cpu.parts.programs import row_program
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, read, write


class AddId(Parameters):
    """Rows of ``n`` numbers at ``ni`` by ``nj`` positions; indices are below ``limit``."""

    y = destination(STRIDES, CONVERTED)
    a = source(STRIDES, CONVERTED)
    b = source(STRIDES, CONVERTED)
    ids = source("nb0", "nb1")
    faults = destination()
    position = integer()
    n = integer()
    ni = integer()
    nj = integer()
    limit = integer()


class GetRowsBack(Parameters):
    """``count`` rows of ``n`` numbers, added to ``limit`` contiguous rows of f32."""

    y = destination()
    dy = source("nb0", "nb1", "convert")
    ids = source("nb0")
    faults = destination()
    position = integer()
    n = integer()
    count = integer()
    limit = integer()


#: Columns of a result that a thread adds up at a time.
PIECE = 256

#: Bytes of scratch memory of the kernels.
SCRATCH_BYTES = ARGUMENTS + 3 * ROW_BYTES


@kernel
def add_id() -> Body:
    """y's row = a's row + b's row ``index``."""
    add, fill = row_program("add(x0,x1)"), row_program("fill(x0)")

    def body(ctx: int, params: AddId) -> None:
        n, ni = params.n, params.ni
        scratch_row = scratch(ctx) + ARGUMENTS
        write_y = params.y.convert
        first, end = thread_range(ctx, ni * params.nj)
        for row in range(first, end):
            i, j = row % ni, row // ni
            index = simd.load_i32(params.ids.address + i * params.ids.nb0 + j * params.ids.nb1)
            inside = index >= 0 and index < params.limit
            if not inside:
                fault(params.faults.address, params.position, row, index)
                index = 0
            y = params.y.row(i, j)
            a = params.a.row(i, j)
            b = params.b.row(index)
            for start in range(0, n, BLOCK):
                m = min(BLOCK, n - start)
                r = y if write_y == 0 else scratch_row
                if inside:
                    p = read(ctx, params.a.convert, a, params.a.nb0, m, scratch_row + ROW_BYTES)
                    q = read(ctx, params.b.convert, b, params.b.nb0, m, scratch_row + 2 * ROW_BYTES)
                    add(r, p, q, m)
                else:
                    fill(r, r, m, 0.0)
                write(ctx, write_y, y, params.y.nb0, m, r)
                y += params.y.block_bytes
                a += params.a.block_bytes
                b += params.b.block_bytes

    return body


@kernel
def get_rows_back() -> Body:
    """y's row ``index`` += dy's row, starting with zeros; each thread computes some of the columns."""
    add = row_program("add(x0,x1)")

    def body(ctx: int, params: GetRowsBack) -> None:
        n, limit, convert = params.n, params.limit, params.dy.convert
        scratch_row = scratch(ctx) + ARGUMENTS
        first, end = thread_range(ctx, (n + PIECE - 1) // PIECE)
        for piece in range(first, end):
            start = piece * PIECE
            m = min(PIECE, n - start)
            y = params.y.address + 4 * start
            for i in range(limit):
                simd.fill_bytes(y + 4 * n * i, 0, 4 * m)
            dy = params.dy.address + start * params.dy.nb0
            for i in range(params.count):
                index = simd.load_i32(params.ids.address + i * params.ids.nb0)
                if index < 0 or index >= limit:
                    fault(params.faults.address, params.position, i, index)
                    continue
                row = dy + i * params.dy.nb1
                p = read(ctx, convert, row, params.dy.nb0, m, scratch_row)
                to = y + 4 * n * index
                add(to, to, p, m)

    return body

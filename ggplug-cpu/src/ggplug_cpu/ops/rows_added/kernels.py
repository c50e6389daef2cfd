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

    def body(ctx: int, params: int) -> None:
        n, ni = AddId.n(params), AddId.ni(params)
        scratch_row = scratch(ctx) + ARGUMENTS
        write_y = AddId.y.convert(params)
        first, end = thread_range(ctx, ni * AddId.nj(params))
        for row in range(first, end):
            i, j = row % ni, row // ni
            index = simd.load_i32(AddId.ids.address(params) + i * AddId.ids.nb0(params) + j * AddId.ids.nb1(params))
            inside = index >= 0 and index < AddId.limit(params)
            if not inside:
                fault(AddId.faults.address(params), AddId.position(params), row, index)
                index = 0
            y = AddId.y.address(params) + i * AddId.y.nb1(params) + j * AddId.y.nb2(params)
            a = AddId.a.address(params) + i * AddId.a.nb1(params) + j * AddId.a.nb2(params)
            b = AddId.b.address(params) + index * AddId.b.nb1(params)
            for start in range(0, n, BLOCK):
                m = min(BLOCK, n - start)
                r = y if write_y == 0 else scratch_row
                if inside:
                    p = read(ctx, AddId.a.convert(params), a, AddId.a.nb0(params), m, scratch_row + ROW_BYTES)
                    q = read(ctx, AddId.b.convert(params), b, AddId.b.nb0(params), m, scratch_row + 2 * ROW_BYTES)
                    add(r, p, q, m)
                else:
                    fill(r, r, m, 0.0)
                write(ctx, write_y, y, AddId.y.nb0(params), m, r)
                y += AddId.y.block_bytes(params)
                a += AddId.a.block_bytes(params)
                b += AddId.b.block_bytes(params)

    return body


@kernel
def get_rows_back() -> Body:
    """y's row ``index`` += dy's row, starting with zeros; each thread computes some of the columns."""
    add = row_program("add(x0,x1)")

    def body(ctx: int, params: int) -> None:
        n, limit, convert = GetRowsBack.n(params), GetRowsBack.limit(params), GetRowsBack.dy.convert(params)
        scratch_row = scratch(ctx) + ARGUMENTS
        first, end = thread_range(ctx, (n + PIECE - 1) // PIECE)
        for piece in range(first, end):
            start = piece * PIECE
            m = min(PIECE, n - start)
            y = GetRowsBack.y.address(params) + 4 * start
            for i in range(limit):
                simd.fill_bytes(y + 4 * n * i, 0, 4 * m)
            dy = GetRowsBack.dy.address(params) + start * GetRowsBack.dy.nb0(params)
            for i in range(GetRowsBack.count(params)):
                index = simd.load_i32(GetRowsBack.ids.address(params) + i * GetRowsBack.ids.nb0(params))
                if index < 0 or index >= limit:
                    fault(GetRowsBack.faults.address(params), GetRowsBack.position(params), i, index)
                    continue
                row = dy + i * GetRowsBack.dy.nb1(params)
                p = read(ctx, convert, row, GetRowsBack.dy.nb0(params), m, scratch_row)
                to = y + 4 * n * index
                add(to, to, p, m)

    return body

"""Rows gathered and scattered by index.

For all positions (i, j, k) of an index tensor, row ``index`` of one tensor is copied from or to row i of the other.
For an index out of range a gathered row is zeros, and a scattered one is not stored; the first such index is recorded
as a fault.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import CONVERTED, STRIDES, Parameters, destination, integer, source
from ggplug_cpu.parts.faults import fault
from ggplug_cpu.parts.nest import BLOCK, thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, read, write


class RowsByIndex(Parameters):
    """Rows of ``n`` numbers selected by ``ni`` by ``nj`` by ``nk`` indices; valid indices are below ``limit``."""

    y = destination(STRIDES, CONVERTED)
    x = source(STRIDES, CONVERTED)
    ids = source(STRIDES)
    faults = destination()
    position = integer()
    """The node's position in its graph."""
    n = integer()
    ni = integer()
    nj = integer()
    nk = integer()
    ids_nj = integer()
    """The extents of the indices along j and k, where they repeat."""
    ids_nk = integer()
    limit = integer()
    size = integer()
    """Bytes of a row that is copied without conversion; 0 if rows are converted."""
    fetched = integer()
    """Bytes of a row that are prefetched: rows gathered by index are in no cache."""


#: Distance of prefetches in rows.
_AHEAD = 4
#: Bytes of scratch memory of the kernel.
SCRATCH_BYTES = ARGUMENTS + ROW_BYTES


@kernel
def rows_by_index(direction: str, index_type: str) -> Body:
    """``get``: y's row i from x's row ``index``.  ``set``: y's row ``index`` from x's row i."""
    load_index, getting, ahead = simd.LOADS[index_type], direction == "get", _AHEAD

    def body(ctx: int, params: RowsByIndex) -> None:
        n0, ni, nj = params.n, params.ni, params.nj
        limit, size = params.limit, params.size
        write_y, y_stride = params.y.convert, params.y.nb0
        read_x, x_stride = params.x.convert, params.x.nb0
        scratch_row = scratch(ctx) + ARGUMENTS
        first, end = thread_range(ctx, ni * nj * params.nk)
        for row in range(first, end):
            i, jk = row % ni, row // ni
            j, k = jk % nj, jk // nj
            place = params.ids.address + i * params.ids.nb0
            place += j % params.ids_nj * params.ids.nb1
            place += k % params.ids_nk * params.ids.nb2
            index = load_index(place)
            if getting and i + ahead < ni:
                later = load_index(place + ahead * params.ids.nb0)
                if later >= 0 and later < limit:
                    later_row = params.x.address + params.x.nb1 * later
                    later_row += j * params.x.nb2 + k * params.x.nb3
                    for line in range(0, params.fetched, 64):
                        simd.prefetch(later_row + line)
            y = params.y.address + j * params.y.nb2 + k * params.y.nb3
            if index < 0 or index >= limit:
                fault(params.faults.address, params.position, row, index)
                if getting:  # rows of four-byte numbers without gaps
                    simd.fill_bytes(y + params.y.nb1 * i, 0, 4 * n0)
                continue
            y += params.y.nb1 * (i if getting else index)
            x = params.x.address + j * params.x.nb2 + k * params.x.nb3
            x += params.x.nb1 * (index if getting else i)
            if size != 0:
                simd.copy_bytes(y, x, size)
                continue
            for start in range(0, n0, BLOCK):
                m = min(BLOCK, n0 - start)
                p = read(ctx, read_x, x, x_stride, m, y if write_y == 0 else scratch_row)
                write(ctx, write_y, y, y_stride, m, p)
                x += params.x.block_bytes
                y += params.y.block_bytes

    return body

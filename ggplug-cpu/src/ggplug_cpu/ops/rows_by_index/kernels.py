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

    def body(ctx: int, params: int) -> None:
        n0, ni, nj = RowsByIndex.n(params), RowsByIndex.ni(params), RowsByIndex.nj(params)
        limit, size = RowsByIndex.limit(params), RowsByIndex.size(params)
        write_y, y_stride = RowsByIndex.y.convert(params), RowsByIndex.y.nb0(params)
        read_x, x_stride = RowsByIndex.x.convert(params), RowsByIndex.x.nb0(params)
        scratch_row = scratch(ctx) + ARGUMENTS
        first, end = thread_range(ctx, ni * nj * RowsByIndex.nk(params))
        for row in range(first, end):
            i, jk = row % ni, row // ni
            j, k = jk % nj, jk // nj
            place = RowsByIndex.ids.address(params) + i * RowsByIndex.ids.nb0(params)
            place += j % RowsByIndex.ids_nj(params) * RowsByIndex.ids.nb1(params)
            place += k % RowsByIndex.ids_nk(params) * RowsByIndex.ids.nb2(params)
            index = load_index(place)
            if getting and i + ahead < ni:
                later = load_index(place + ahead * RowsByIndex.ids.nb0(params))
                if later >= 0 and later < limit:
                    later_row = RowsByIndex.x.address(params) + RowsByIndex.x.nb1(params) * later
                    later_row += j * RowsByIndex.x.nb2(params) + k * RowsByIndex.x.nb3(params)
                    for line in range(0, RowsByIndex.fetched(params), 64):
                        simd.prefetch(later_row + line)
            y = RowsByIndex.y.address(params) + j * RowsByIndex.y.nb2(params) + k * RowsByIndex.y.nb3(params)
            if index < 0 or index >= limit:
                fault(RowsByIndex.faults.address(params), RowsByIndex.position(params), row, index)
                if getting:  # rows of four-byte numbers without gaps
                    simd.fill_bytes(y + RowsByIndex.y.nb1(params) * i, 0, 4 * n0)
                continue
            y += RowsByIndex.y.nb1(params) * (i if getting else index)
            x = RowsByIndex.x.address(params) + j * RowsByIndex.x.nb2(params) + k * RowsByIndex.x.nb3(params)
            x += RowsByIndex.x.nb1(params) * (index if getting else i)
            if size != 0:
                simd.copy_bytes(y, x, size)
                continue
            for start in range(0, n0, BLOCK):
                m = min(BLOCK, n0 - start)
                p = read(ctx, read_x, x, x_stride, m, y if write_y == 0 else scratch_row)
                write(ctx, write_y, y, y_stride, m, p)
                x += RowsByIndex.x.block_bytes(params)
                y += RowsByIndex.y.block_bytes(params)

    return body

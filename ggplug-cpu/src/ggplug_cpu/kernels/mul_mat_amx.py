"""Matrix products in AMX's tile registers: 32 rows of activations by 32 columns, bf16 by bf16, into f32 sums.

Block types are multiplied in bf16 too.  Their int8 numbers would fit AMX's integer products, but their scales change
every 32 numbers, half of what a tile holds, so tiles would work at half their rate and every sum would have to leave
them to be scaled.  Rounding weights and activations to bf16 costs less accuracy than rounding activations to int8 does.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import DeviceFunction, device_function
from ggplug_cpu.context import load_word
from ggplug_cpu.kernels.mul_mat_layout import layout
from ggplug_cpu.simd.tiles import ROW_BYTES, STATE_BYTES, TILE_BYTES

#: Sums of 32 x 32 floats on their way to the result.
_SUMS_BYTES = 4 * TILE_BYTES
#: What a kernel of kind ``amx`` needs in scratch beside what it packs.
STATE_AND_SUMS_BYTES = STATE_BYTES + _SUMS_BYTES


def run_tiles(rows: int) -> DeviceFunction:
    """One panel's columns: ``run(state, table, x, panel, steps, columns, offset, count, accumulate, bias, beside)``.

    ``rows`` is 16 or 32, of which ``count`` are written; the result's rows lie ``offset`` bytes behind the addresses in
    ``table``.  ``bias`` and ``beside`` are as for :func:`~.mul_mat_tiles.tile`.  Tiles 0 to 3 hold sums (first and last
    16 columns of the first rows, then of the last), 4 and 5 activations, 6 and 7 weights.  They must be configured.
    """
    columns = layout("amx").columns
    clear = [simd.tile_zero(i) for i in range(4)]
    load = [simd.tile_load(i) for i in range(8)]
    store = [simd.tile_store(i) for i in range(4)]
    clear_0, clear_1, clear_2, clear_3 = clear
    load_4, load_5, load_6, load_7 = load[4:]
    store_0, store_1, store_2, store_3 = store
    dot_0, dot_1 = simd.tile_dot_bf16(0, 4, 6), simd.tile_dot_bf16(1, 4, 7)
    dot_2, dot_3 = simd.tile_dot_bf16(2, 5, 6), simd.tile_dot_bf16(3, 5, 7)
    both = rows == 32
    row_bytes, sums_row = columns * 4, columns * 4
    weights_step = 16 * row_bytes
    write = _write_rows(rows)

    @device_function
    def run(state, table, x, panel, steps, left, offset, count, accumulate, bias, beside):  # type: ignore[no-untyped-def]
        sums = state + STATE_BYTES
        clear_0(state)
        clear_1(state)
        if both:
            clear_2(state)
            clear_3(state)
        rows_a_step = -(-count // max(steps, 1))
        for step in range(steps):
            for r in range(step * rows_a_step, min((step + 1) * rows_a_step, count)):
                place = load_word(table + 8 * r) + offset
                simd.prefetch(place)
                simd.prefetch(place + 64)
                simd.prefetch(place + beside)
                simd.prefetch(place + beside + 64)
            load_4(state, x, ROW_BYTES)
            load_6(state, panel, row_bytes)
            load_7(state, panel + 64, row_bytes)
            dot_0(state)
            dot_1(state)
            if both:
                load_5(state, x + TILE_BYTES, ROW_BYTES)
                dot_2(state)
                dot_3(state)
            x += rows * ROW_BYTES
            panel += weights_step
        store_0(state, sums, sums_row)
        store_1(state, sums + 64, sums_row)
        if both:
            store_2(state, sums + 16 * sums_row, sums_row)
            store_3(state, sums + 16 * sums_row + 64, sums_row)
        write(table, sums, left, offset, count, accumulate, bias)

    return run


def _write_rows(rows: int) -> DeviceFunction:
    """``write(table, sums, left, offset, count, accumulate, bias)``: the first ``left`` columns of ``count`` rows."""
    F, width, columns = simd.vec("f32"), simd.width(), layout("amx").columns
    load, load_first, store, store_first = simd.load(F), simd.load_first(F), simd.store, simd.store_first

    @device_function
    def write(table, sums, left, offset, count, accumulate, bias):  # type: ignore[no-untyped-def]
        for r in range(count):
            place = load_word(table + 8 * r) + offset
            row = sums + r * columns * 4
            for column in range(0, min(left, columns), width):
                n = left - column
                value = load(row + 4 * column)
                if n >= width:
                    if accumulate:
                        value = value + load(place + 4 * column)
                    if bias != 0:
                        value = value + load(bias + offset + 4 * column)
                    store(place + 4 * column, value)
                else:
                    if accumulate:
                        value = value + load_first(place + 4 * column, n)
                    if bias != 0:
                        value = value + load_first(bias + offset + 4 * column, n)
                    store_first(place + 4 * column, value, n)

    return write

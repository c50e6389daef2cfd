"""Matrix products in AMX's tile registers: 32 rows of activations by 32 columns, bf16 by bf16, into f32 sums.

Block types are multiplied in bf16 too.  Their int8 numbers would fit AMX's integer products, but their scales change
every 32 numbers, half of what a tile holds: tiles would run at half their rate, and every sum would have to be stored
to be scaled.  Rounding weights and activations to bf16 costs less accuracy than rounding activations to int8 does.
"""

from __future__ import annotations

from typing import NamedTuple

from ggplug_cpu import simd
from ggplug_cpu.compiler import DeviceFunction, device_function
from ggplug_cpu.context import load_word
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.tiles import Finish
from ggplug_cpu.simd.tiles import STATE_BYTES, TILE_BYTES

#: Sums of 32 x 32 floats on their way to the result.
_SUMS_BYTES = 4 * TILE_BYTES
#: Bytes of scratch memory of kind ``amx``, without packed numbers.
STATE_AND_SUMS_BYTES = STATE_BYTES + _SUMS_BYTES


class Activations(NamedTuple):
    """bf16: 32 of each row lie from ``first`` on, rows ``row`` bytes apart, and the next 32 ``step`` bytes further."""

    first: int
    row: int
    step: int


class NextRows(NamedTuple):
    """``n`` rows of activations from ``first`` on, ``stride`` bytes apart, that are prefetched."""

    first: int
    stride: int
    n: int


def run_tiles(rows: int, elem_bytes: int) -> DeviceFunction:
    """Computes one panel's columns: ``run(state, table, apart, activations, panel, steps, left, offset, count, finish,
    next_rows)``.

    ``rows`` is 16 or 32, of which ``count`` are written; the result's rows lie ``offset`` bytes behind the addresses in
    ``table``; ``apart``: their distance, or 0 if not all are equally far apart.  Tiles 0 to 3 hold sums (first and last
    16 columns of the first rows, then of the last), 4 and 5 activations, 6 and 7 weights.  They must be configured.

    The tiles begin with what the result holds if ``finish`` says so, so sums do not depend on how K is cut.  They
    are loaded from the result and stored to it directly if all their rows exist and are equally far apart; else by way
    of scratch memory.

    ``next_rows`` are prefetched into the second-level cache, as many numbers of each as are multiplied: memory is idle
    while tiles multiply.
    """
    columns = layout("amx").columns
    clear = [simd.tile_zero(i) for i in range(4)]
    load = [simd.tile_load(i) for i in range(8)]
    store = [simd.tile_store(i) for i in range(4)]
    clear_0, clear_1, clear_2, clear_3 = clear
    load_0, load_1, load_2, load_3, load_4, load_5, load_6, load_7 = load
    store_0, store_1, store_2, store_3 = store
    dot_0, dot_1 = simd.tile_dot_bf16(0, 4, 6), simd.tile_dot_bf16(1, 4, 7)
    dot_2, dot_3 = simd.tile_dot_bf16(2, 5, 6), simd.tile_dot_bf16(3, 5, 7)
    both = rows == 32
    row_bytes = columns * 4
    weights_step, step_bytes = 16 * row_bytes, 32 * elem_bytes
    collect, write = _collect_rows(), _write_rows()

    @device_function
    def run(
        state: int,
        table: int,
        apart: int,
        activations: Activations,
        panel: int,
        steps: int,
        left: int,
        offset: int,
        count: int,
        finish: Finish,
        next_rows: NextRows,
    ) -> None:
        x, ahead = activations.first, next_rows.first
        below = apart if left >= columns else 0
        direct = below != 0
        sums = load_word(table) + offset
        if not direct:
            sums, below = state + STATE_BYTES, row_bytes
        if finish.accumulate:
            if not direct:
                collect(table, sums, left, offset, count)
            load_0(state, sums, below)
            load_1(state, sums + 64, below)
            if both:
                load_2(state, sums + 16 * below, below)
                load_3(state, sums + 16 * below + 64, below)
        else:
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
                simd.prefetch(place + finish.to_residual)
                simd.prefetch(place + finish.to_residual + 64)
            for r in range(next_rows.n):
                for line in range(0, step_bytes, 64):
                    simd.prefetch_second(ahead + r * next_rows.stride + line)
            ahead += step_bytes
            load_4(state, x, activations.row)
            load_6(state, panel, row_bytes)
            load_7(state, panel + 64, row_bytes)
            dot_0(state)
            dot_1(state)
            if both:
                load_5(state, x + 16 * activations.row, activations.row)
                dot_2(state)
                dot_3(state)
            x += activations.step
            panel += weights_step
        store_0(state, sums, below)
        store_1(state, sums + 64, below)
        if both:
            store_2(state, sums + 16 * below, below)
            store_3(state, sums + 16 * below + 64, below)
        if not direct or finish.bias != 0:
            write(table, sums, below, left, offset, count, finish.bias)

    return run


def distance(rows: int) -> DeviceFunction:
    """``distance(table)``: the distance of the addresses in the table in bytes, or 0 if not all are equally far
    apart.
    """

    @device_function
    def between(table: int) -> int:
        found: int = load_word(table + 8) - load_word(table)
        for r in range(2, rows):
            if load_word(table + 8 * r) - load_word(table + 8 * (r - 1)) != found:
                return 0
        return found

    return between


def _collect_rows() -> DeviceFunction:
    """``collect(table, sums, left, offset, count)``: copies back what :func:`_write_rows` stored."""
    F, width, columns = simd.vec("f32"), simd.width(), layout("amx").columns
    load_first, store = simd.load_first(F), simd.store

    @device_function
    def collect(table: int, sums: int, left: int, offset: int, count: int) -> None:
        for r in range(count):
            place = load_word(table + 8 * r) + offset
            for column in range(0, min(left, columns), width):
                store(sums + 4 * (r * columns + column), load_first(place + 4 * column, left - column))

    return collect


def _write_rows() -> DeviceFunction:
    """``write(table, sums, below, left, offset, count, bias)`` stores the first ``left`` columns of ``count`` rows of
    sums.

    The rows of sums lie ``below`` bytes apart, and may be the rows of the result.
    """
    F, width, columns = simd.vec("f32"), simd.width(), layout("amx").columns
    load, load_first, store, store_first = simd.load(F), simd.load_first(F), simd.store, simd.store_first

    @device_function
    def write(table: int, sums: int, below: int, left: int, offset: int, count: int, bias: int) -> None:
        for r in range(count):
            place = load_word(table + 8 * r) + offset
            for column in range(0, min(left, columns), width):
                n = left - column
                value = load(sums + r * below + 4 * column)
                if n >= width:
                    if bias != 0:
                        value = value + load(bias + offset + 4 * column)
                    store(place + 4 * column, value)
                else:
                    if bias != 0:
                        value = value + load_first(bias + offset + 4 * column, n)
                    store_first(place + 4 * column, value, n)

    return write

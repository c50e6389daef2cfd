"""Packing for matrix products: rows of weights into panels, rows of activations into groups, as tiles read them.

The layouts are those of :mod:`.mul_mat_layout`.  Behind the last number of a row, units are zero up to a whole step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir

from ggplug_cpu import compiler
from ggplug_cpu.kernels.mul_mat_layout import activations_are_unsigned, layout
from ggplug_cpu.kernels.mul_mat_weights import BLOCKS, GROUP, PLAIN, Blocks, Plain
from ggplug_cpu.simd import dots, halves, values
from ggplug_cpu.simd.memory import emit_prefetch
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, emitted, loop, vector


def transposed(rows: list[Value]) -> list[Value]:
    """The columns of a matrix given by its rows: ``out[j]`` has lane j of every row.  Counts are powers of two."""
    n, lanes = len(rows), rows[0].count
    if lanes > n:
        parts = [transposed([row.part(start, n) for row in rows]) for start in range(0, lanes, n)]
        return [column for part in parts for column in part]
    # Interleaving the two halves of the list moves the topmost bit of the row's number into the lane's number.
    while rows[0].count < n:
        half, count = len(rows) // 2, rows[0].count
        order = [lane + count * which for lane in range(count) for which in range(2)]
        rows = [a.shuffle(order, b) for a, b in zip(rows[:half], rows[half:], strict=True)]
    # From here on the lane's topmost bit leaves for the list's order each time.
    for _ in range(lanes.bit_length() - 1):
        half = len(rows) // 2
        low = [lane + n * which for lane in range(n // 2) for which in range(2)]
        high = [lane + n // 2 for lane in low]
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [a.shuffle(order, b) for a, b in pairs for order in (low, high)]
    return rows


# -- weights ---------------------------------------------------------------------------------------------


@functools.cache
def pack_weights(kind: str, type_name: str) -> compiler.Intrinsic:
    """``pack_weights(...)(panel, row, stride, rows, numbers)``: one vector's width of rows into a panel.

    Row ``i`` begins at ``row + i * stride``; where there are only ``rows`` of them the last is repeated.  ``numbers``
    are read of each, a whole number of blocks for block types.  ``panel`` is the place of the first of these columns.
    """

    def emit(panel: Value, row: Value, stride: Value, rows: Value, numbers: Value) -> None:
        addresses = [row + stride * (rows - 1).minimum(i) for i in range(layout(kind).width)]
        if kind == "i8":
            _pack_int8(panel, addresses, numbers, BLOCKS[type_name])
        elif type_name in BLOCKS:
            _pack_blocks(kind, panel, addresses, numbers, BLOCKS[type_name])
        else:
            _pack_plain(kind, panel, addresses, numbers, PLAIN[type_name])

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


def _units(kind: str, numbers: Value) -> Value:
    """f32 numbers as the units of a panel: themselves, or as many bf16 as a unit has in an integer lane."""
    s = layout(kind)
    if s.unit == 1:
        return numbers
    return halves.emit_narrow_bf16_for_dot(numbers).bitcast(s.vector_of_units(numbers.count // s.unit))


def _write_columns(kind: str, panel: Value, columns: list[Value]) -> Value:
    """Write vectors of units one panel row after the other; returns the place behind."""
    row_bytes = layout(kind).columns * layout(kind).unit_bytes
    for i, column in enumerate(columns):
        values.store(panel, column, i * row_bytes)
    return panel + len(columns) * row_bytes


def _pack_plain(kind: str, panel: Value, addresses: list[Value], numbers: Value, t: Plain) -> None:
    width = layout(kind).width
    count = width * layout(kind).unit

    def read(address: Value, n: Value | None) -> Value:
        if layout(kind).unit > 1 and t.name == "bf16":  # as it is, NaNs and all
            lanes = vector(I16, count)
            raw = values.load(address, lanes) if n is None else _first(address, lanes, n)
            return raw.bitcast(layout(kind).vector_of_units(width))
        return _units(kind, t.read(address, count) if n is None else t.read_first(address, count, n))

    def pack(place: Value, offset: Value, n: Value | None) -> Value:
        for address in addresses:
            emit_prefetch(address + offset + 512)
        columns = transposed([read(address + offset, n) for address in addresses])
        return _write_columns(kind, place, columns)

    whole = numbers.lshr(count.bit_length() - 1)
    step = count * t.elem_bytes
    (end,) = loop(whole, [panel], lambda i, carried: [pack(carried[0], i * step, None)])
    rest = numbers & (count - 1)
    loop(rest.unequal(0).zext(I64), [end], lambda i, carried: [pack(carried[0], whole * step, rest)])


def _first(address: Value, lanes: ir.VectorType, n: Value) -> Value:
    return values.masked_load(address, lanes, values.first_lanes(lanes.count, n))


def _pack_blocks(kind: str, panel: Value, addresses: list[Value], numbers: Value, t: Blocks) -> None:
    def block(i: Value, carried: list[Value]) -> list[Value]:
        rows = [_units(kind, t.read(address + i * t.block_bytes)) for address in addresses]
        return [_write_columns(kind, carried[0], transposed(rows))]

    loop(numbers.lshr(GROUP.bit_length() - 1), [panel], block)


def _pack_int8(panel: Value, addresses: list[Value], numbers: Value, t: Blocks) -> None:
    b, s = panel.b, layout("i8")
    lanes = vector(I8, 4 * s.width)
    units = s.vector_of_units(GROUP // s.unit)
    scales = s.columns * GROUP

    def block(i: Value, carried: list[Value]) -> list[Value]:
        place = carried[0]
        blocks = [address + i * t.block_bytes for address in addresses]
        columns = transposed([t.signed(address).bitcast(units) for address in blocks])
        offset = constant(b, vector(I32, s.width), 0)
        for unit, column in enumerate(columns):
            values.store(place, column, unit * s.columns * s.unit_bytes)
            if activations_are_unsigned():
                offset = dots.emit_dot("u8i8", offset, constant(b, lanes, -128), column.bitcast(lanes))
        scale = t.scales(blocks).part(0, s.width)
        # as sums lie: columns 0 and 1 for one row, the same for the next, then columns 2 and 3
        lanes_of_pairs = [first + lane for first in range(0, s.width, 2) for lane in (0, 1, 0, 1)]
        values.store(place, scale if s.rows_of_sums == 1 else scale.shuffle(lanes_of_pairs), scales)
        if activations_are_unsigned():
            values.store(place, -offset, scales + s.columns * s.unit_bytes)
        return [place + s.quantum_bytes]

    loop(numbers.lshr(GROUP.bit_length() - 1), [panel], block)


@functools.cache
def pack_columns(type_name: str) -> compiler.Intrinsic:
    """``pack_columns(type)(panel, first, stride, rows, numbers)``: f32 panels of weights whose *rows* are adjacent.

    Number ``k`` of rows 0, 1, ... lies at ``first + k * stride``, one row behind the other: a transposed view.  A
    whole panel is filled; columns from ``rows`` on are zero.
    """
    t = PLAIN[type_name]

    def emit(panel: Value, first: Value, stride: Value, rows: Value, numbers: Value) -> None:
        s = layout("f32")

        def unit(read: Callable[[Value, int], Value]) -> Callable[[Value, list[Value]], list[Value]]:
            def one(k: Value, carried: list[Value]) -> list[Value]:
                for v in range(s.vecs):
                    values.store(carried[0], read(first + k * stride, v * s.width), v * s.width * 4)
                return [carried[0] + s.columns * 4]

            return one

        def some(address: Value, column: int) -> Value:
            return t.read_first(address + column * t.elem_bytes, s.width, rows - column)

        full = (rows >= s.columns).zext(I64)
        whole = unit(lambda address, column: t.read(address + column * t.elem_bytes, s.width))
        (end,) = loop(full * numbers, [panel], whole)
        (end,) = loop((1 - full) * numbers, [end], unit(some))
        nothing = constant(panel.b, vector(F32, s.columns), 0)

        def fill(_: Value, carried: list[Value]) -> list[Value]:
            values.store(carried[0], nothing)
            return [carried[0] + s.columns * 4]

        loop((0 - numbers) & 3, [end], fill)  # up to a whole step

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


# -- activations -----------------------------------------------------------------------------------------


@functools.cache
def pack_activations(kind: str, type_name: str, rows: int) -> compiler.Intrinsic:
    """``pack_activations(...)(place, source, numbers)``: one row of plain activations among ``rows`` of a tile.

    ``place`` is where the row's first units go.
    """
    t = PLAIN[type_name]

    def emit(place: Value, source: Value, numbers: Value) -> None:
        s = layout(kind)
        count = max(s.width, s.step_numbers)  # numbers that are read at once
        groups = count // (s.together * s.unit)

        def write(at: Value, x: Value) -> Value:
            units = _units(kind, x)
            for j in range(groups):
                values.store(at, units.part(s.together * j, s.together), j * rows * s.row_bytes)
            return at + groups * rows * s.row_bytes

        def some(i: Value, carried: list[Value]) -> list[Value]:
            return [write(carried[0], t.read(source + i * (count * t.elem_bytes), count))]

        whole, rest = numbers.lshr(count.bit_length() - 1), numbers & (count - 1)
        (end,) = loop(whole, [place], some)

        def tail(_: Value, carried: list[Value]) -> list[Value]:
            return [write(carried[0], t.read_first(source + whole * (count * t.elem_bytes), count, rest))]

        loop(rest.unequal(0).zext(I64), [end], tail)

    return emitted("void(i64, i64, i64)")(emit)


@functools.cache
def pack_quantized(rows: int) -> compiler.Intrinsic:
    """``pack_quantized(rows)(place, scale_place, quants, scales, blocks)``: one row of int8 activations of a tile."""

    def emit(place: Value, scale_place: Value, quants: Value, scales: Value, blocks: Value) -> None:
        s = layout("i8")
        step, numbers = rows * s.step_bytes, s.together * s.unit

        def block(i: Value, _: list[Value]) -> list[Value]:
            x = values.load(quants + i * GROUP, vector(I8, GROUP))
            if activations_are_unsigned():
                x = x ^ -128
            for group in range(GROUP // numbers):
                values.store(place + i * step, x.part(group * numbers, numbers), group * rows * s.row_bytes)
            scale = values.load(scales + i * 4, F32)
            values.store(scale_place + i * step, scale if s.rows_of_sums == 1 else scale.splat(2))
            return []

        loop(blocks, [], block)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)

"""Packing for matrix products: rows of weights into panels, rows of activations into groups, as tiles read them.

The layouts are those of :mod:`.layout`.  After the last number of a row, units are zero up to a whole step.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from llvmlite import ir

from ggplug_cpu import compiler
from ggplug_cpu.ops.mul_mat.layout import layout, layout_for
from ggplug_cpu.ops.mul_mat.packed import PackedPanel, form_of
from ggplug_cpu.simd import dots, halves, values
from ggplug_cpu.simd.memory import LINE, emit_prefetch
from ggplug_cpu.simd.transposition import transposed
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, emitted, loop, vector
from ggplug_cpu.types import BLOCKS, GROUP, PLAIN, Blocks, Plain

#: Distance of prefetches of packed blocks in bytes.
_AHEAD = 4096

# -- weights ---------------------------------------------------------------------------------------------


@functools.cache
def pack_weights(kind: str, type_name: str) -> compiler.Intrinsic:
    """``pack_weights(...)(panel, row, stride, rows, numbers)`` packs a vector's width of rows into a panel.

    Row ``i`` begins at ``row + i * stride``; if there are only ``rows`` rows, the last one is repeated.  ``numbers``
    numbers of each are read, whole blocks for block types.  ``panel``: address of the first of these columns.
    """

    def emit(panel: Value, row: Value, stride: Value, rows: Value, numbers: Value) -> None:
        addresses = [row + stride * (rows - 1).minimum(i) for i in range(layout(kind).width)]
        if layout(kind).kind == "i8":
            _pack_int8(kind, panel, addresses, numbers, BLOCKS[type_name])
        elif type_name in BLOCKS:
            _pack_blocks(kind, panel, addresses, numbers, BLOCKS[type_name])
        else:
            _pack_plain(kind, panel, addresses, numbers, PLAIN[type_name])

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


def _units(kind: str, numbers: Value) -> Value:
    """f32 numbers as units of a panel: unchanged, or converted to bf16, with as many in an integer lane as a unit
    has.
    """
    s = layout(kind)
    if s.unit == 1:
        return numbers
    return halves.emit_narrow_bf16_for_dot(numbers).bitcast(s.vector_of_units(numbers.count // s.unit))


def _write_columns(kind: str, panel: Value, columns: list[Value]) -> Value:
    """Stores vectors of units in consecutive panel rows; returns the address after them."""
    row_bytes = layout(kind).columns * layout(kind).unit_bytes
    for i, column in enumerate(columns):
        values.store(panel, column, i * row_bytes)
    return panel + len(columns) * row_bytes


def _pack_plain(kind: str, panel: Value, addresses: list[Value], numbers: Value, t: Plain) -> None:
    width = layout(kind).width
    count = width * layout(kind).unit

    def read(address: Value, n: Value | None) -> Value:
        if layout(kind).unit > 1 and t.name == "bf16":  # bits as they are, NaNs included
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
        blocks = [address + i * t.block_bytes for address in addresses]
        factors = [t.factors([address]) for address in blocks]

        def part(j: Value, carried: list[Value]) -> list[Value]:
            read = [t.read(address, j, each) for address, each in zip(blocks, factors, strict=True)]
            return [_write_columns(kind, carried[0], transposed([_units(kind, row) for row in read]))]

        return _for_parts(t, carried, part)

    loop(numbers.lshr(t.block_size.bit_length() - 1), [panel], block)


def _for_parts(t: Blocks, carried: list[Value], part: Callable[[Value, list[Value]], list[Value]]) -> list[Value]:
    """Calls ``part(j, carried)`` for every part of a block, in a loop if there are several."""
    count = constant(carried[0].b, I64, t.parts)
    return loop(count, carried, part) if t.parts > 1 else part(count - 1, carried)


def _pack_int8(kind: str, panel: Value, addresses: list[Value], numbers: Value, t: Blocks) -> None:
    b, s = panel.b, layout(kind)
    lanes = vector(I8, 4 * s.width)
    units = s.vector_of_units(GROUP // s.unit)
    # in the order of sums: columns 0 and 1 for one row, the same for the next, then columns 2 and 3
    lanes_of_pairs = [first + lane for first in range(0, s.width, 2) for lane in (0, 1, 0, 1)]

    def write(place: Value, of_groups: list[Value], at: int) -> None:
        """Stores for each group of a block a number of every row, ``at`` bytes after the group's address."""
        for group, each in enumerate(of_groups):
            ordered = each if s.rows_of_sums == 1 else each.shuffle(lanes_of_pairs)
            values.store(place, ordered, group * s.quantum_bytes + at)

    def block(i: Value, carried: list[Value]) -> list[Value]:
        place = carried[0]
        blocks = [address + i * t.block_bytes for address in addresses]
        scales, minima = _factors_of_groups(t, blocks)
        write(place, scales, s.columns * s.quantum)
        write(place, minima, s.minima_at)

        def part(j: Value, carried: list[Value]) -> list[Value]:
            place = carried[0]
            columns = transposed([t.signed(address, j).bitcast(units) for address in blocks])
            per_group = s.quantum // s.unit
            for first in range(0, len(columns), per_group):
                offset = constant(b, vector(I32, s.width), 0)
                for unit, column in enumerate(columns[first : first + per_group]):
                    values.store(place, column, unit * s.columns * s.unit_bytes)
                    if s.unsigned:
                        offset = dots.emit_dot("u8i8", offset, constant(b, lanes, -128), column.bitcast(lanes))
                if s.unsigned:
                    values.store(place, -offset, s.offsets_at)
                place = place + s.quantum_bytes
            return [place]

        return _for_parts(t, carried, part)

    loop(numbers.lshr(t.block_size.bit_length() - 1), [panel], block)


def _factors_of_groups(t: Blocks, blocks: list[Value]) -> tuple[list[Value], list[Value]]:
    """Scales and minima (if the type has them) of each group of a block of every row."""
    if t.groups == 1:
        one = t.factors(blocks)
        return [one.scales.part(0, len(blocks))], [one.minima.part(0, len(blocks))] if one.minima is not None else []
    rows = [t.factors([block]) for block in blocks]
    minima = [row.minima for row in rows if row.minima is not None]
    return transposed([row.scales for row in rows]), transposed(minima) if minima else []


@functools.cache
def pack_own_blocks(kind: str, type_name: str) -> compiler.Intrinsic:
    """``pack_own_blocks(...)(panel, row, stride, blocks)`` packs a panel in a type's own blocks (:mod:`.packed`).

    Its rows begin at ``row`` and lie ``stride`` bytes apart; ``blocks`` blocks of each are packed.
    """

    def emit(panel: Value, row: Value, stride: Value, blocks: Value) -> None:
        form = form_of(type_name, kind)
        assert form is not None
        width = form.shape.width

        def block(i: Value, carried: list[Value]) -> list[Value]:
            place, before = carried[0], 0
            rows = [row + i * form.block_bytes + stride * r for r in range(form.rows)]
            for field in form.fields:
                count, first = field.size // field.unit, 0
                while first < count:
                    several = vector(ir.IntType(8 * field.unit), min(width, 1 << (count - first).bit_length() - 1))
                    at = field.offset + first * field.unit
                    for column in range(0, form.rows, width):
                        read = [values.load(each, several, at) for each in rows[column : column + width]]
                        for unit, units in enumerate(transposed(read), first):
                            values.store(place, units, before + (unit * form.rows + column) * field.unit)
                    first += several.count
                before += form.rows * field.size
            return [place + before]

        loop(blocks, [panel], block)

    return emitted("void(i64, i64, i64, i64)")(emit)


@functools.cache
def expand_panel(kind: str, type_name: str) -> compiler.Intrinsic:
    """``expand_panel(...)(panel, packed, numbers)`` makes a panel of int8 from one of a type's own blocks.

    ``numbers`` numbers of each row, whole blocks.  The panel is the same as :func:`pack_weights` makes of the rows.
    """

    def emit(panel: Value, packed: Value, numbers: Value) -> None:
        s, t, source = layout(kind), BLOCKS[type_name], PackedPanel(kind, type_name)
        lanes = vector(I8, 4 * s.width)

        def write(place: Value, of_vectors: list[Value], at: int) -> None:
            for v, each in enumerate(of_vectors):
                values.store(place, each, at + v * s.width * 4)

        def group(place: Value, step: Value, number: int) -> None:
            offsets = [constant(place.b, vector(I32, s.width), 0)] * s.vecs
            for unit, of_vectors in source.numbers(step, number, signed=True):
                write(place, of_vectors, unit * s.columns * s.unit_bytes)
                if s.unsigned:
                    all = constant(place.b, lanes, -128)
                    offsets = [
                        dots.emit_dot("u8i8", sums, all, each) for sums, each in zip(offsets, of_vectors, strict=True)
                    ]
            scales, minima = source.factors(step, number)
            write(place, scales, s.columns * s.quantum)
            write(place, minima, s.minima_at)
            if s.unsigned:
                write(place, [-each for each in offsets], s.offsets_at)

        lines = -(-source.block_bytes // (LINE * t.groups))

        def block(i: Value, carried: list[Value]) -> list[Value]:
            start = packed + i * source.block_bytes
            source.begin(start)

            def some_groups(step: Value, carried: list[Value]) -> list[Value]:
                place = carried[0]
                for number in range(source.groups_at_once):
                    for line in range(lines):
                        ahead = (step * source.groups_at_once + number) * (lines * LINE) + line * LINE
                        emit_prefetch(start + ahead + _AHEAD, locality=2)
                    group(place, step, number)
                    place = place + s.quantum_bytes
                return [place]

            return loop(constant(panel.b, I64, t.groups // source.groups_at_once), carried, some_groups)

        loop(numbers.lshr(t.block_size.bit_length() - 1), [panel], block)

    return emitted("void(i64, i64, i64)")(emit)


@functools.cache
def pack_columns(kind: str, type_name: str, through: str = "") -> compiler.Intrinsic:
    """``pack_columns(...)(panel, first, stride, rows, numbers)``: a panel of weights whose *rows* are adjacent.

    Number ``k`` of rows 0, 1, ... lies at ``first + k * stride``, rows contiguous: a transposed view of a plain type.
    A whole panel is filled; columns from ``rows`` on are zero.  ``through``: a type that numbers are rounded to.
    """
    t, s, rounded = PLAIN[type_name], layout(kind), _rounding(through)
    columns = [v * s.width for v in range(s.vecs)]

    def emit(panel: Value, first: Value, stride: Value, rows: Value, numbers: Value) -> None:
        def whole(address: Value) -> list[Value]:
            return [rounded(t.read(address + column * t.elem_bytes, s.width)) for column in columns]

        def some(address: Value) -> list[Value]:
            places = [(address + column * t.elem_bytes, rows - column) for column in columns]
            return [rounded(t.read_first(place, s.width, present)) for place, present in places]

        full = (rows >= s.columns).zext(I64)
        _write_numbers(kind, [panel], first, stride, full * numbers, whole)
        _write_numbers(kind, [panel], first, stride, (1 - full) * numbers, some)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


@functools.cache
def pack_columns_of_blocks(kind: str, type_name: str, through: str = "") -> compiler.Intrinsic:
    """``pack(panel, panel_bytes, first, part, stride, numbers)``: as :func:`pack_columns`, of a block type.

    Number ``k`` of 32 rows is part number ``part`` of the block at ``first + k * stride``; as many panels as these rows
    have, ``panel_bytes`` apart, are filled.
    """
    t, s, rounded = BLOCKS[type_name], layout(kind), _rounding(through)

    def emit(panel: Value, panel_bytes: Value, first: Value, part: Value, stride: Value, numbers: Value) -> None:
        def read(address: Value) -> list[Value]:
            found = rounded(t.read(address, part, t.factors([address])))
            return [found.part(column, s.width) for column in range(0, GROUP, s.width)]

        panels = [panel + panel_bytes * i for i in range(GROUP // s.columns)]
        _write_numbers(kind, panels, first, stride, numbers, read)

    return emitted("void(i64, i64, i64, i64, i64, i64)")(emit)


def _write_numbers(
    kind: str, panels: list[Value], first: Value, stride: Value, numbers: Value, read: Callable[[Value], list[Value]]
) -> None:
    """Fills adjacent panels with ``numbers`` numbers of each of their columns, and with zeros up to a whole step.

    ``read(address)``: a number of every column, as vectors; those of number ``k`` lie at ``first + k * stride``.
    """
    s = layout(kind)

    def write(unit: Value | int, of_numbers: list[list[Value]]) -> None:
        for i, column in enumerate(range(0, len(panels) * s.columns, s.width)):
            panel, inside = divmod(column, s.columns)
            place = panels[panel] + unit * (s.columns * s.unit_bytes)
            values.store(place, _interleaved(kind, [each[i] for each in of_numbers]), inside * s.unit_bytes)

    def whole(unit: Value, _: list[Value]) -> list[Value]:
        write(unit, [read(first + (unit * s.unit + i) * stride) for i in range(s.unit)])
        return []

    units, rest = numbers.lshr(s.unit.bit_length() - 1), numbers & (s.unit - 1)
    loop(units, [], whole)

    def last(_: Value, __: list[Value]) -> list[Value]:
        present = [read(first + (units * s.unit + (rest - 1).minimum(i)) * stride) for i in range(s.unit)]
        write(units, [[(rest > i).select(x, x.constant(0)) for x in each] for i, each in enumerate(present)])
        return []

    loop(rest.unequal(0).zext(I64), [], last)
    filled = units + rest.unequal(0).zext(I64)
    nothing = [[constant(first.b, vector(F32, s.width), 0)] * (len(panels) * s.vecs)] * s.unit

    def fill(i: Value, _: list[Value]) -> list[Value]:
        write(filled + i, nothing)
        return []

    loop((0 - filled) & (s.step_numbers // s.unit - 1), [], fill)


def _rounding(type_name: str) -> Callable[[Value], Value]:
    """A function that rounds f32 numbers to those of a plain type; without a name, or to f32, it keeps them."""
    narrow = {"f16": halves.emit_narrow_f16, "bf16": halves.emit_narrow_bf16}.get(type_name)
    return (lambda x: x) if narrow is None else lambda x: PLAIN[type_name].widen(narrow(x))


def _interleaved(kind: str, numbers: list[Value]) -> Value:
    """Units of a kind from the vectors of their first numbers, second numbers, and so on."""
    s = layout(kind)
    if s.unit == 1:
        return numbers[0]
    lane = s.vector_of_units(s.width).element
    return functools.reduce(
        operator.or_,
        (halves.emit_narrow_bf16_for_dot(each).zext(lane) << (16 * i) for i, each in enumerate(numbers)),
    )


# -- activations -----------------------------------------------------------------------------------------


@functools.cache
def pack_activations(kind: str, type_name: str, rows: int) -> compiler.Intrinsic:
    """``pack_activations(...)(place, source, numbers)`` packs one row of plain activations of a tile of ``rows``.

    ``place``: the address of the row's first units.
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
def pack_quantized(kind: str, rows: int, stored: str = "") -> compiler.Intrinsic:
    """``pack_quantized(...)(place, scale_place, row, K, k, numbers)`` packs a row of int8 activations of ``rows``.

    ``row``: the address of a row of ``K`` numbers as :mod:`.prepare` makes it; ``numbers`` from ``k`` on are packed.
    ``stored``: the block type of packed weights; then activations stay signed, also where these are unsigned.
    """

    def emit(place: Value, scale_place: Value, row: Value, K: Value, k: Value, numbers: Value) -> None:
        s = layout_for(kind, stored)
        step, numbers_of_row, group = rows * s.step_bytes, s.together * s.unit, s.quantum
        scales, totals = row + K, row + K + K.lshr(3)
        first = k.lshr(group.bit_length() - 1)

        def spread(number: Value) -> Value:
            return number if s.rows_of_sums == 1 else number.splat(2)

        def one(i: Value, _: list[Value]) -> list[Value]:
            index = first + i
            x = values.load(row + index * group, vector(I8, group))
            if stored and s.unsigned:
                offset = constant(x.b, x.type, _as_int8(BLOCKS[stored].offset))
                products = dots.emit_dot("u8i8", constant(x.b, vector(I32, group // 4), 0), offset, x)
                values.store(scale_place + i * step, -products.sum(), (1 + s.has_minima) * rows * s.unit_bytes)
            elif s.unsigned:
                x = x ^ -128
            for unit in range(group // numbers_of_row):
                values.store(place + i * step, x.part(unit * numbers_of_row, numbers_of_row), unit * rows * s.row_bytes)
            scale = values.load(scales + index.lshr((GROUP // group).bit_length() - 1) * 4, F32)
            values.store(scale_place + i * step, spread(scale))
            if s.has_minima:
                total = values.load(totals + index * 4, F32)
                values.store(scale_place + i * step, spread(total), rows * s.unit_bytes)
            return []

        loop(numbers.lshr(group.bit_length() - 1), [], one)

    return emitted("void(i64, i64, i64, i64, i64, i64)")(emit)


def _as_int8(byte: int) -> int:
    return byte - 256 if byte > 127 else byte

"""The micro-kernels of matrix products: tiles of the result that stay in registers.

A tile is ``rows`` rows of activations times ``vecs`` vectors of the weights' rows, which are the result's columns.
Both sides are packed before: see :mod:`.layout`.

Every tile sums in the same order, so results do not depend on the shapes of tiles or on how a product is cut.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from llvmlite import ir

from ggplug_cpu import compiler, features
from ggplug_cpu.ops.mul_mat.layout import Layout, layout, layout_for
from ggplug_cpu.ops.mul_mat.packed import PackedPanel
from ggplug_cpu.simd import dots, values
from ggplug_cpu.simd.memory import emit_prefetch
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, emitted, loop, vector
from ggplug_cpu.types import BLOCKS, PLAIN


class Finish(NamedTuple):
    """What becomes of a tile's sums.

    ``accumulate``: 1 to add them to the result, 0 to overwrite it.  ``bias``: the address of numbers that are added to
    every row then; 0 for none.  ``to_residual``: the distance from the result to the residual in bytes; both are
    prefetched while products are computed.
    """

    accumulate: int
    bias: int
    to_residual: int


@functools.cache
def tile(kind: str, rows: int, vecs: int, masked: bool, stored: str = "", ahead: int = 0) -> compiler.Intrinsic:
    """``tile(...)(panel, x, steps, table, offset, columns, *finish)``: ``rows`` by ``vecs`` vectors.

    Row ``r`` of the result lies ``offset`` bytes after the address in word ``r`` of ``table``; equal rows may have the
    same address.  With ``masked`` only ``columns`` columns are stored.  ``finish``: a :class:`Finish`, whose bias is
    ``offset`` bytes after its address.
    ``stored``: the type in the panels of packed weights (:mod:`.packed`), if another type is multiplied.
    ``ahead``: the distance of prefetches from panels in memory.
    """

    def emit(
        panel: Value,
        x: Value,
        steps: Value,
        table: Value,
        offset: Value,
        columns: Value,
        accumulate: Value,
        bias: Value,
        to_residual: Value,
    ) -> None:
        width = layout(kind).width

        def fetch(step: Value) -> None:
            # one row with every step: many prefetches at once would delay those of the panel
            place = values.load(table + step.minimum(rows - 1) * 8, I64, align=8) + offset
            for line in range(0, vecs * width * 4, 64):
                emit_prefetch(place + line)
                emit_prefetch(place + to_residual + line)

        sides = _Sides(kind, layout_for(kind, stored), rows, vecs, stored)
        sums = (_int8_sums if layout(kind).kind == "i8" else _float_sums)(sides, panel, x, steps, ahead, fetch)
        places = [values.load(table, I64, 8 * r, align=8) + offset for r in range(rows)]
        masks = [values.first_lanes(width, columns - v * width) for v in range(vecs)] if masked else None
        sums = loop(accumulate.unequal(0).zext(I64), sums, lambda _, now: _added(places, now, vecs, masks))
        sums = loop(bias.unequal(0).zext(I64), sums, lambda _, now: _added([bias + offset] * rows, now, vecs, masks))
        _write(places, sums, vecs, masks)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64, i64, i64)")(emit)


def unit_bytes_of(kind: str, stored: str) -> int:
    """Bytes of a unit in a panel of ``stored`` numbers, see :func:`tile`."""
    return PLAIN[stored].elem_bytes if stored in PLAIN else layout(kind).unit_bytes


def _added(places: list[Value], sums: list[Value], vecs: int, masks: list[Value] | None) -> list[Value]:
    """The sums plus the result in memory.

    Everything is loaded before anything is stored, as two rows may be the same.
    """
    out = []
    for i, acc in enumerate(sums):
        place = places[i // vecs] + (i % vecs) * acc.count * 4
        old = values.masked_load(place, acc.type, masks[i % vecs]) if masks else values.load(place, acc.type)
        out.append(old + acc)
    return out


def _write(places: list[Value], sums: list[Value], vecs: int, masks: list[Value] | None) -> None:
    for i, acc in enumerate(sums):
        place = places[i // vecs] + (i % vecs) * acc.count * 4
        if masks:
            values.masked_store(place, acc, masks[i % vecs])
        else:
            values.store(place, acc)


@dataclass(frozen=True)
class _Sides:
    """Loads the operands of a tile: ``vecs`` vectors of a panel, and ``rows`` rows of activations.

    ``shape``: the layout of ``kind``.  ``stored``: the type of numbers that are widened when they are loaded, or an
    empty text.
    """

    kind: str
    shape: Layout
    rows: int
    vecs: int
    stored: str

    @property
    def lanes(self) -> ir.VectorType:
        """The type of a vector of weights, and of the activations it is multiplied with."""
        elem, size = {"f32": (F32, 4), "bf16": (I16, 2), "i8": (I8, 1)}[self.shape.kind]
        return vector(elem, 4 * self.shape.width // size)

    @property
    def across(self) -> int:
        """Vectors of weights in a row of units."""
        return self.vecs * self.shape.rows_of_sums

    @property
    def down(self) -> int:
        """Rows, or pairs of rows, of activations."""
        return self.rows // self.shape.rows_of_sums

    @property
    def units_at_once(self) -> int:
        """Units of a row that are loaded at once: a vector of them if a lane of it can be an operand (NEON)."""
        return 4 if features.has("neon") and self.shape.rows_of_sums == 1 else 1

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit in a panel."""
        return unit_bytes_of(self.shape.kind, self.stored)

    def weights(self, panel: Value, unit: int) -> list[Value]:
        at = unit * self.shape.columns * self.unit_bytes
        if self.stored in PLAIN:
            t, width = PLAIN[self.stored], self.shape.width
            return [t.read(panel + (at + i * width * t.elem_bytes), width) for i in range(self.across)]
        return [values.load(panel, self.lanes, at + i * self.shape.width * 4) for i in range(self.across)]

    def activations(self, x: Value, row: int, unit: int) -> list[Value]:
        """The units of a row (or pair of rows) that are loaded at once, each broadcast to a vector."""
        s = self.shape
        group, inside = divmod(unit, s.together)
        at = (group * self.rows + row * s.rows_of_sums) * s.row_bytes + inside * s.unit_bytes
        if s.rows_of_sums == 2:
            return [values.load(x, self.lanes, at)]
        single = F32 if s.kind == "f32" else I32
        if self.units_at_once == 1:
            return [values.load(x, single, at).splat(s.width).bitcast(self.lanes)]
        units = values.load(x, vector(single, self.units_at_once), at)
        return [units.shuffle([i] * s.width).bitcast(self.lanes) for i in range(self.units_at_once)]

    def add_products(
        self, sums: list[Value], panel: Value, x: Value, units: int, meanwhile: Meanwhile | None = None
    ) -> list[Value]:
        """The products of the next ``units`` units, added to the sums of row after row.

        ``meanwhile``: see :class:`_Sums`.
        """
        way = self.shape.way
        largest = dots.LARGEST_BYTE * self.shape.magnitude if self.shape.unsigned else dots.LARGEST_ROUNDED
        total = _Sums(sums, way, largest, meanwhile)
        for first in range(0, units, self.units_at_once):
            w = [self.weights(panel, first + i) for i in range(self.units_at_once)]
            for row in range(self.down):
                for i, y in enumerate(self.activations(x, row, first)):
                    for v in range(self.across):
                        # Of NEON's second operand only a lane can be selected, and LLVM does not exchange the operands.
                        last = self.units_at_once > 1 or (way is not None and way.signs)
                        operands = (w[i][v], y) if last else (y, w[i][v])
                        total.add(row * self.across + v, *operands)
            total.next_unit()
        return total.all()

    def by_rows(self, sums: list[Value]) -> list[Value]:
        """Sums as vectors of the result's rows, ``vecs`` for each: pairs of rows are separated."""
        if self.shape.rows_of_sums == 1:
            return sums
        rows: list[Value] = []
        for first in range(0, len(sums), self.across):
            row = sums[first : first + self.across]
            pairs = list(zip(row[0::2], row[1::2], strict=True))
            rows += [low.shuffle([0, 1, 4, 5], high) for low, high in pairs]
            rows += [low.shuffle([2, 3, 6, 7], high) for low, high in pairs]
        return rows


#: What is done after each unit of a tile; its argument is a sum so far.
Meanwhile = Callable[[Value], None]


class _Sums:
    """The sums of a tile, to which products are added unit by unit.

    Where ``way`` adds ``pairs``, int16 hold the products of as many units as fit, each up to ``largest``.
    ``meanwhile(sum)`` is called after each unit, with a sum.
    """

    def __init__(
        self, sums: list[Value], way: dots.Way | None, largest: int, meanwhile: Meanwhile | None = None
    ) -> None:
        self._sums, self._way, self._meanwhile = list(sums), way, meanwhile
        self._most = dots.products_in_int16(largest) // 2 if way is not None and way.pairs else 0
        self._pairs: dict[int, Value] = {}
        self._units = 0

    def add(self, at: int, a: Value, b: Value) -> None:
        """Adds the products of ``a`` and ``b`` to sum number ``at``."""
        if self._way is None:
            self._sums[at] = a.fma(b, self._sums[at])
        elif not self._most:
            self._sums[at] = self._way(self._sums[at], a, b)
        else:
            pairs = self._way.of_pairs(a, b)
            # Opaque, or LLVM adds up column by column and needs more registers than there are.
            self._pairs[at] = values.opaque(self._pairs[at] + pairs if at in self._pairs else pairs, each_time=True)

    def next_unit(self) -> None:
        """All products of a unit were added."""
        if self._meanwhile is not None:
            self._meanwhile(self._pairs.get(0, self._sums[0]))
        self._units += 1
        if self._units == self._most:
            self._sums = self.all()
            self._pairs, self._units = {}, 0

    def all(self) -> list[Value]:
        """The sums of all that was added."""
        return [
            dots.add_pairs(each, self._pairs[at]) if at in self._pairs else each for at, each in enumerate(self._sums)
        ]


def _kept(sides: _Sides) -> int:
    """How long caches are to keep a panel that is prefetched: not at all for the smallest tile.

    One column reads each byte of weights once.  Caches then keep what the next token needs, the program and Python
    among it: a token of 0.85 G weights of Q4_0 takes 0.95 of the time (Zen 5).
    """
    return 0 if sides.rows == sides.shape.fewest_rows else 3


def _float_sums(
    sides: _Sides, panel: Value, x: Value, steps: Value, ahead: int, fetch: Callable[[Value], None]
) -> list[Value]:
    s = sides.shape
    step_bytes, keep = s.columns * s.step_numbers // s.unit * sides.unit_bytes, _kept(sides)

    def step(number: Value, carried: list[Value]) -> list[Value]:
        p, a, sums = carried[0], carried[1], carried[2:]
        fetch(number)
        for line in range(0, step_bytes if ahead else 0, 64):
            emit_prefetch(p + ahead + line, keep)
        sums = sides.add_products(sums, p, a, s.step_numbers // s.unit)
        return [p + step_bytes, a + sides.rows * s.step_bytes, *sums]

    zero = constant(panel.b, vector(F32, s.width), 0)
    return sides.by_rows(loop(steps, [panel, x, *([zero] * (sides.rows * sides.vecs))], step)[2:])


def _int8_sums(
    sides: _Sides, first: Value, x: Value, steps: Value, ahead: int, fetch: Callable[[Value], None]
) -> list[Value]:
    s, rows, vecs = sides.shape, sides.rows, sides.vecs
    floats = vector(F32, s.width)
    across, down = sides.across, sides.down

    def of_rows(a: Value, at: int) -> Value:
        """A number of each row, broadcast to the lanes of its sums."""
        return values.load(a, F32, at).splat(s.width) if s.rows_of_sums == 1 else values.load(a, floats, at)

    group = s.quantum
    panel = _Blocks(sides) if sides.stored else _Groups(sides)

    def of_group(step: Value, i: int, a: Value, sums: list[Value], meanwhile: Meanwhile | None) -> list[Value]:
        dot = panel.dots(step, i, a, meanwhile)
        scale, minima = panel.factors(step, i)
        for row in range(down):
            at = rows * group + row * s.rows_of_sums * s.unit_bytes
            y = of_rows(a, at)
            for v in range(across):
                sum = row * across + v
                sums[sum] = dot[sum].convert(F32).fma(scale[v] * y, sums[sum])
            if minima:
                total = of_rows(a, at + rows * s.unit_bytes)
                for v in range(across):
                    sums[row * across + v] = minima[v].fma(total, sums[row * across + v])
        return sums

    iterations = panel.groups // panel.groups_at_once
    bytes_at_once, keep = panel.block_bytes // iterations, _kept(sides)
    lines_at_once = -(-bytes_at_once // (64 * panel.groups_at_once * (s.quantum // s.unit)))

    def of_block(number: Value, carried: list[Value]) -> list[Value]:
        p = carried[0]
        fetch(number)
        panel.begin(p)

        def some_groups(step: Value, carried: list[Value]) -> list[Value]:
            a, sums = carried[0], carried[1:]
            lines = iter(range(0, bytes_at_once, 64))

            def some_lines(sum: Value) -> None:
                # Not all at once: the processor has buffers for some only, and waits with everything for more.
                place = values.after(p + step * bytes_at_once + ahead, sum)
                for line in itertools.islice(lines, lines_at_once):
                    emit_prefetch(place + line, keep)

            for i in range(panel.groups_at_once):
                sums = of_group(step, i, a, sums, some_lines if ahead else None)
                a = a + rows * s.step_bytes
            return [a, *sums]

        count = constant(p.b, I64, iterations)
        following = loop(count, carried[1:], some_groups) if iterations > 1 else some_groups(count - 1, carried[1:])
        return [p + panel.block_bytes, *following]

    zero = constant(first.b, floats, 0)
    blocks = steps.lshr(panel.groups.bit_length() - 1)
    return sides.by_rows(loop(blocks, [first, x, *([zero] * (rows * vecs))], of_block)[2:])


class _Groups:
    """A panel that a product packed itself: blocks of one group."""

    groups = groups_at_once = 1

    def __init__(self, sides: _Sides) -> None:
        self.sides, self.shape = sides, sides.shape
        self.block_bytes = self.shape.quantum_bytes

    def begin(self, block: Value) -> None:
        """Continues with the block of each row at this address."""
        self._block = block

    def dots(self, step: Value, group: int, x: Value, meanwhile: Meanwhile | None) -> list[Value]:
        """The integer sums of a group's products, row after row.  ``meanwhile``: see :class:`_Sums`."""
        s, sides = self.shape, self.sides
        ints = vector(I32, s.width)
        if s.unsigned:
            start = [values.load(self._block, ints, s.offsets_at + v * s.width * 4) for v in range(sides.across)]
        else:
            start = [constant(x.b, ints, 0)] * sides.across
        return sides.add_products(start * sides.down, self._block, x, s.quantum // s.unit, meanwhile)

    def factors(self, step: Value, group: int) -> tuple[list[Value], list[Value]]:
        """Of each vector of weights the scales, and the minima if there are any."""
        s = self.shape
        return self._factors(s.columns * s.quantum), self._factors(s.minima_at) if s.has_minima else []

    def _factors(self, at: int) -> list[Value]:
        width = self.shape.width
        return [values.load(self._block, vector(F32, width), at + v * width * 4) for v in range(self.sides.across)]


class _Blocks:
    """A panel of packed weights in their own blocks (:mod:`.packed`).

    Unsigned weights are multiplied with signed activations, so sums start with the value that is packed with these.
    """

    def __init__(self, sides: _Sides) -> None:
        self.sides, self.shape = sides, sides.shape
        self._panel, t = PackedPanel(sides.kind, sides.stored), BLOCKS[sides.stored]
        self.groups, self.groups_at_once = t.groups, self._panel.groups_at_once
        self.block_bytes = self._panel.block_bytes
        self._largest = t.limits[1] * 128 if self.shape.unsigned else dots.LARGEST_ROUNDED

    def begin(self, block: Value) -> None:
        self._panel.begin(block)

    def dots(self, step: Value, group: int, x: Value, meanwhile: Meanwhile | None) -> list[Value]:
        s, sides = self.shape, self.sides
        if s.unsigned:
            behind = sides.rows * (s.quantum + s.unit_bytes * (1 + s.has_minima))
            start = [values.load(x, I32, behind + row * s.unit_bytes).splat(s.width) for row in range(sides.down)]
            way = dots.way("u8i8", s.width, largest=self._largest)
        else:
            start, way = [constant(x.b, vector(I32, s.width), 0)] * sides.down, s.way
        sums = [each for each in start for _ in range(sides.across)]
        total = _Sums(sums, way, self._largest, meanwhile)
        for unit, weights in self._panel.numbers(step, group, signed=not s.unsigned):
            for row in range(sides.down):
                (y,) = sides.activations(x, row, unit)
                for v, each in enumerate(weights):
                    total.add(row * sides.across + v, each, y)
            total.next_unit()
        return total.all()

    def factors(self, step: Value, group: int) -> tuple[list[Value], list[Value]]:
        return self._panel.factors(step, group)

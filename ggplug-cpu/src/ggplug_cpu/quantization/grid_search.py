"""The searches of ``ggplug.quants.grid_search``, compiled: the same float32 operations in the same order.

A thread searches for one group after the other.  The caller owns the tables of a :class:`Grid`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import aborted, next_chunk
from ggplug_cpu.parameters import Parameters, destination, emitted_number, integer, real, source
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, constant, constants, emitted, loop, vector
from ggplug_cpu.types.blocks import nearest, sum_in_order
from ggplug_cpu.types.search import between, lanes_of, positive

#: Groups that a thread takes at a time.
AT_ONCE = 64


class Grid(Parameters):
    """Tables of the rows of a grid that are nearest to a point.

    ``rows``: for every code of a point an int32: the number of its row if the point is one, else -1 - w.  Words of
    ``near`` from w on: the number of near rows, then these rows, the nearest first.  ``levels``: the digits of each
    row, a byte each.
    """

    rows = source()
    near = source()
    levels = source()


class Magnitudes(Grid):
    """Contiguous ``groups`` of numbers ``x`` and their ``weights``; and the results for each group."""

    x = source()
    weights = source()
    scale = destination()
    row = destination()
    signs = destination()
    groups = integer()
    step = real()
    least = real()
    """Groups with no number as large have the scale 0; if it is 0, groups of zeros only."""


@functools.cache
def _search(size: int, width: int, tries: int, even: bool, again: str, from_all: bool) -> Intrinsic:
    """``_search(...)(params, group)``; the arguments are fields of ``ggplug.quants.grid_search.Magnitudes``."""
    levels, bits = (3, 2) if width == 8 else (8, 3)
    parts = size // width
    first = float(2 * levels - 1)

    def emit(params: Value, group: Value) -> None:
        table, near = emitted_number(Magnitudes.rows.address, params), emitted_number(Magnitudes.near.address, params)
        digits_of = emitted_number(Magnitudes.levels.address, params)
        lanes = vector(F32, size)
        x = values.load(emitted_number(Magnitudes.x.address, params) + group * (4 * size), lanes)
        weights = values.load(emitted_number(Magnitudes.weights.address, params) + group * (4 * size), lanes)
        magnitude, signs = _with_signs(x, weights, even)
        roots = weights.unary("sqrt")
        largest = magnitude.max()
        least = emitted_number(Magnitudes.least, params).convert(F32)
        step = emitted_number(Magnitudes.step, params).convert(F32)
        nothing = (largest < least) | (least.equal(0.0) & largest.equal(0.0))

        def levels_of(row: Value) -> Value:
            """The levels of a row of the grid."""
            bytes_ = values.load(digits_of + row.convert(I64) * width, vector(I8, width))
            return ((bytes_.convert(I32) << 1) + 1).convert(F32)

        def rows_by(inverse: Value, scale: Value) -> tuple[list[Value], list[Value]]:
            """For each part its row, and whether the point is a row itself."""
            whole = between(0, nearest((inverse.splat(size) * magnitude - 1.0) * 0.5), levels - 1)
            shifted = whole << constants(x.b, I32, [bits * (i % width) for i in range(size)])
            found, are_rows = [], []
            for part in range(parts):
                code = shifted.part(part * width, width).sum()
                entry = values.load(table + code.convert(I64) * 4, I32)
                is_row = entry >= 0
                place = near + is_row.select(entry.constant(0), -1 - entry).convert(I64) * 4
                count = is_row.select(entry.constant(0), values.load(place, I32))
                want, root = magnitude.part(part * width, width), roots.part(part * width, width)

                def closer(
                    i: Value, carried: list[Value], place: Value = place, want: Value = want, root: Value = root
                ) -> list[Value]:
                    row = values.load(place + (i * 4 + 4), I32)
                    difference = scale.splat(width) * levels_of(row) - want
                    lost = sum_in_order(root * difference * difference)
                    better = lost < carried[1]
                    return [better.select(row, carried[0]), better.select(lost, carried[1])]

                nearest_row = is_row.select(entry, values.load(place + 4, I32))
                row, _ = loop(count.convert(I64), [nearest_row, constant(x.b, F32, float("inf"))], closer)
                found.append(row)
                are_rows.append(is_row)
            return found, are_rows

        def sums(rows: Sequence[Value]) -> tuple[Value, Value]:
            q = values.joined([levels_of(row) for row in rows])
            return sum_in_order(weights * magnitude * q), sum_in_order(weights * q * q)

        if from_all:
            scale, _ = positive(lanes_of(magnitude), lanes_of(weights), levels + 1)
            nothing = nothing | ~(scale * float(levels) > 0.0)
            largest = scale * float(levels)
        else:
            scale = largest / first

        def attempt(i: Value, carried: list[Value]) -> list[Value]:
            scale, best, were_rows, *rows = carried
            inverse = ((i - tries).convert(F32) * step + first) / largest
            trial, are_rows = rows_by(inverse, 1.0 / inverse)
            sum_qx, sum_q2 = sums(trial)
            better = (sum_q2 > 0.0) & (sum_qx * sum_qx > best * sum_q2)
            ratio = sum_qx / sum_q2
            kept = [better.select(new, old) for new, old in zip(trial, rows, strict=True)]
            return [
                better.select(ratio, scale),
                better.select(ratio * sum_qx, best),
                better.select(_mask(are_rows), were_rows),
                *kept,
            ]

        start = values.load(table, I32)
        were_rows = start.constant(0 if again == "if any" else (1 << parts) - 1)
        carried = [scale, scale.constant(0), were_rows, *[start] * parts]
        scale, _, were_rows, *rows = loop(constant(x.b, I64, 2 * tries + 1), carried, attempt)
        some = scale > 0.0
        fresh, _ = rows_by(1.0 / scale, scale)
        if again == "all":
            change = [some] * parts
        elif again == "if any":
            change = [some & were_rows.unequal((1 << parts) - 1)] * parts
        else:
            change = [some & (were_rows & (1 << part)).equal(0) for part in range(parts)]
        rows = [each.select(new, old) for each, new, old in zip(change, fresh, rows, strict=True)]
        sum_qx, sum_q2 = sums(rows)
        changed = functools.reduce(operator.or_, change)
        scale = (changed & (sum_q2 > 0.0)).select(sum_qx / sum_q2, scale)
        below = scale < 0.0
        signs = signs ^ below.select(constant(x.b, I8, 127 if even else -1), constant(x.b, I8, 0)).splat(signs.count)
        keep = ~nothing
        target = emitted_number(Magnitudes.scale.address, params) + group * 4
        values.store(target, keep.select(scale.abs(), 0.0))
        target = emitted_number(Magnitudes.row.address, params) + group * (4 * parts)
        for part, row in enumerate(rows):
            values.store(target, keep.select(row, row.constant(0)), 4 * part)
        target = emitted_number(Magnitudes.signs.address, params) + group * (size // 8)
        values.store(target, keep.select(signs, signs.constant(0)))

    return emitted("void(i64, i64)")(emit)


def _with_signs(x: Value, weights: Value, even: bool) -> tuple[Value, Value]:
    """Magnitudes, and the signs of each eight as a byte; ``even``: with an even number of negative ones.

    If there would be an odd number, the number of least weight changes its sign, and its magnitude is negative.
    """
    magnitudes, bytes_ = [], []
    worth = weights * x * x
    for start in range(0, x.count, 8):
        eight = x.part(start, 8)
        size, bits = eight.abs(), (eight < 0.0).bitcast(I8)
        if even:
            each = worth.part(start, 8)
            least = each.equal(each.min().splat(8)).bitcast(I8)
            lowest = least & (0 - least)  # the first of several equal ones
            ones = values.call(bits.b, "llvm.ctpop.i8", I8, bits)
            flip = lowest & (0 - (ones & 1))
            bits = bits ^ flip
            size = flip.bitcast(vector(values.I1, 8)).select(-size, size)
            bits = bits & 127
        magnitudes.append(size)
        bytes_.append(bits)
    return values.joined(magnitudes), values.gathered(bytes_)


def _mask(bits: Sequence[Value]) -> Value:
    return functools.reduce(operator.or_, [bit.convert(I32) << i for i, bit in enumerate(bits)])


@kernel
def search_magnitudes(size: int, width: int, tries: int, even: bool, again: str, from_all: bool) -> Body:
    """The scale, rows and signs of each group; the arguments as in ``ggplug.quants.grid_search.Magnitudes``."""
    search = _search(size, width, tries, even, again, from_all)

    def body(ctx: int, params: Magnitudes) -> None:
        groups = params.groups
        first = next_chunk(ctx) * AT_ONCE
        while first < groups and not aborted(ctx):
            for group in range(first, min(first + AT_ONCE, groups)):
                search(params, group)
            first = next_chunk(ctx) * AT_ONCE

    return body

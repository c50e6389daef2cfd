"""Sorted groups cut into three runs, by trying all borders: ``best_borders`` of ``ggplug.quants.grid_search``."""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import aborted, next_chunk
from ggplug_cpu.parameters import Parameters, destination, emitted_number, integer, source
from ggplug_cpu.quantization.grid_search import AT_ONCE
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I32, I64, Value, constant, emitted, loop, vector


class Runs(Parameters):
    """Sums of contiguous ``groups``, and the results for each group.

    ``terms`` and ``squares``: the result of ``sums_up_to``, [size + 1], or ``terms_apart``, [level, place, way].
    ``levels``: [level, way], for groups that are not apart.  ``scale``: initially that of a group without a
    result.  ``borders``: int32 [3], the two borders and the way, or -1.
    """

    terms = source()
    squares = source()
    levels = source()
    scale = destination()
    borders = destination()
    groups = integer()


@functools.cache
def _search(size: int, ways: int, apart: bool) -> Intrinsic:
    lanes = vector(F32, ways)
    group_bytes = 4 * (3 * size * ways if apart else size + 1)

    def emit(params: Value, group: Value) -> None:
        b = group.b
        terms = emitted_number(Runs.terms.address, params) + group * group_bytes
        squares = emitted_number(Runs.squares.address, params) + group * group_bytes
        of_levels = emitted_number(Runs.levels.address, params)
        target = emitted_number(Runs.scale.address, params) + group * 4
        zero, one = constant(b, lanes, 0), constant(b, I64, 1)

        def term(table: Value, level: int, place: Value) -> Value:
            """The term of the number at a place, for every way."""
            return values.load(table + place * (4 * ways), lanes, 4 * ways * size * level)

        def added(level: int, first: Value, end: Value, sums: list[Value]) -> list[Value]:
            def add(i: Value, carried: list[Value]) -> list[Value]:
                return [
                    total + term(table, level, first + i)
                    for total, table in zip(carried, (terms, squares), strict=True)
                ]

            return loop(end - first, sums, add)

        def run(table: Value, start: Value, end: Value) -> Value:
            of_run = values.load(table + end * 4, F32) - values.load(table + start * 4, F32)
            return of_run.splat(ways)

        def sums(low: Value, high: Value, before: list[Value]) -> list[Value]:
            """Of w q x and w q q; ``before``: those of all that lie before ``high``."""
            last = constant(b, I64, size)
            if apart:
                return added(2, high, last, before)
            found = []
            for power, table in ((1, terms), (2, squares)):
                total = None
                for level, (start, end) in enumerate(((one - 1, low), (low, high), (high, last))):
                    q = values.load(of_levels, lanes, 4 * ways * level)
                    part = run(table, start, end) * q
                    part = part * q if power == 2 else part
                    total = part if total is None else total + part
                assert total is not None
                found.append(total)
            return found

        def with_low(low: Value, carried: list[Value]) -> list[Value]:
            *best, sum_x, sum_q = carried  # sums of what lies before ``low``

            def with_high(i: Value, inner: list[Value]) -> list[Value]:
                scale, most, at_low, at_high, way, before_x, before_q = inner
                high = low + i
                of_x, of_q = sums(low, high, [before_x, before_q])
                for k in range(ways):
                    sum_qx, sum_q2 = of_x.lane(k), of_q.lane(k)
                    better = (sum_q2 > 0.0) & (sum_qx * sum_qx > most * sum_q2)
                    ratio = sum_qx / sum_q2
                    scale, most = better.select(ratio, scale), better.select(ratio * sum_qx, most)
                    at_low, at_high = better.select(low.convert(I32), at_low), better.select(high.convert(I32), at_high)
                    way = better.select(way.constant(k), way)
                if apart:  # the number at ``high`` gets the middle level; there is none after the last
                    inside = high.minimum(size - 1)
                    before_x, before_q = before_x + term(terms, 1, inside), before_q + term(squares, 1, inside)
                return [scale, most, at_low, at_high, way, before_x, before_q]

            *best, _, _ = loop(size + 1 - low, [*best, sum_x, sum_q], with_high)
            if apart:
                inside = low.minimum(size - 1)
                sum_x, sum_q = sum_x + term(terms, 0, inside), sum_q + term(squares, 0, inside)
            return [*best, sum_x, sum_q]

        none = constant(b, I32, -1)
        first = [values.load(target, F32), constant(b, F32, -3.4028234663852886e38), none, none, none, zero, zero]
        scale, _, low, high, way, _, _ = loop(constant(b, I64, size + 1), first, with_low)
        values.store(target, scale)
        borders = emitted_number(Runs.borders.address, params) + group * 12
        for i, each in enumerate((low, high, way)):
            values.store(borders, each, 4 * i)

    return emitted("void(i64, i64)")(emit)


@kernel
def search_runs(size: int, ways: int, apart: bool) -> Body:
    """The best scale, borders and way for each group of ``size`` numbers."""
    search = _search(size, ways, apart)

    def body(ctx: int, params: Runs) -> None:
        groups = params.groups
        first = next_chunk(ctx) * AT_ONCE
        while first < groups and not aborted(ctx):
            for group in range(first, min(first + AT_ONCE, groups)):
                search(params, group)
            first = next_chunk(ctx) * AT_ONCE

    return body

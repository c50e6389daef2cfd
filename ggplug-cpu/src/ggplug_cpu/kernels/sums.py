"""Sums along rows of contiguous f32, in f64 as in ggml."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ggplug_cpu import features
from ggplug_cpu.compiler import Intrinsic
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, F64, Value, constant, emitted, first_lanes, loop, vector

Term = Callable[[Value, Value], Value]


def _plain(x: Value, centre: Value) -> Value:
    return x


def _squared(x: Value, centre: Value) -> Value:
    return x * x


def _squared_distance(x: Value, centre: Value) -> Value:
    return (x - centre) * (x - centre)


TERMS: dict[str, Term] = {"x": _plain, "x²": _squared, "(x-c)²": _squared_distance}


@functools.cache
def row_sum(term: str) -> Intrinsic:
    """``row_sum("x²")(x, n, c)``: the sum over the ``n`` f32 at ``x`` of one of :data:`TERMS`, c being a number in it.

    Sixteen or so partial sums are added up at the end, the same whoever computes the row.
    """
    f = TERMS[term]

    def emit(x: Value, n: Value, c: Value) -> Value:
        centre = c.splat(_lanes() // 2)
        return _emit_sum([x], n, lambda numbers: f(numbers, centre))

    return emitted("f64(i64, i64, f64)")(emit)


@emitted("f64(i64, i64, i64)")
def row_dot(x: Value, y: Value, n: Value) -> Value:
    """``row_dot(x, y, n)``: the sum of the products of the ``n`` f32 at ``x`` and at ``y``."""
    return _emit_sum([x, y], n, lambda a, b: a * b)


def _lanes() -> int:
    return features.target().vector_bytes // 4


def _emit_sum(rows: Sequence[Value], n: Value, f: Callable[..., Value]) -> Value:
    """The sum of ``f`` of the numbers at the same place of each row, as vectors of f64."""
    lanes = _lanes()
    half = lanes // 2
    zero = constant(n.b, vector(F64, half), 0)

    def terms(numbers: Sequence[Value]) -> list[Value]:
        return [f(*(each.part(start, half).convert(F64) for each in numbers)) for start in (0, half)]

    def pair(i: Value, sums: list[Value]) -> list[Value]:
        # two vectors a round, for an addition must wait for the one before
        found = []
        for at in (0, 4 * lanes):
            found += terms([values.load(row + i * (8 * lanes), vector(F32, lanes), at) for row in rows])
        return [total + term for total, term in zip(sums, found, strict=True)]

    pairs = n.lshr((2 * lanes).bit_length() - 1)
    sums = loop(pairs, [zero] * 4, pair)
    done = pairs * (2 * lanes)
    rest = n - done

    def one(i: Value, sums: list[Value]) -> list[Value]:
        mask = first_lanes(lanes, rest - i * lanes)
        numbers = [values.masked_load(row + (done + i * lanes) * 4, vector(F32, lanes), mask) for row in rows]
        chosen = [mask.part(start, half) for start in (0, half)]
        return [
            total + lane.select(term, zero) for total, lane, term in zip(sums, chosen, terms(numbers), strict=True)
        ]

    tail = loop((rest + (lanes - 1)).lshr(lanes.bit_length() - 1), sums[:2], one)
    return ((tail[0] + sums[2]) + (tail[1] + sums[3])).sum()

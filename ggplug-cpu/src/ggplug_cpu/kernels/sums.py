"""Sums along rows of contiguous f32, in f64 as in ggml."""

from __future__ import annotations

import functools
from collections.abc import Callable

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
        lanes = features.target().vector_bytes // 4
        centre = c.splat(lanes // 2)
        zero = constant(x.b, centre.type, 0)

        def add(sums: list[Value], numbers: Value) -> list[Value]:
            halves = [numbers.part(start, lanes // 2) for start in (0, lanes // 2)]
            return [total + f(half.convert(F64), centre) for total, half in zip(sums, halves, strict=True)]

        def pair(i: Value, sums: list[Value]) -> list[Value]:
            # two vectors a round, for an addition must wait for the one before
            first, second = (values.load(x + i * (8 * lanes), vector(F32, lanes), at) for at in (0, 4 * lanes))
            return [*add(sums[:2], first), *add(sums[2:], second)]

        pairs = n.lshr((2 * lanes).bit_length() - 1)
        sums = loop(pairs, [zero] * 4, pair)
        done = pairs * (2 * lanes)
        rest = n - done

        def one(i: Value, sums: list[Value]) -> list[Value]:
            mask = first_lanes(lanes, rest - i * lanes)
            numbers = values.masked_load(x + (done + i * lanes) * 4, vector(F32, lanes), mask)
            counted = []
            for total, start in zip(sums, (0, lanes // 2), strict=True):
                value = f(numbers.part(start, lanes // 2).convert(F64), centre)
                counted.append(total + mask.part(start, lanes // 2).select(value, zero))
            return counted

        tail = loop((rest + (lanes - 1)).lshr(lanes.bit_length() - 1), sums[:2], one)
        return ((tail[0] + sums[2]) + (tail[1] + sums[3])).sum()

    return emitted("f64(i64, i64, f64)")(emit)

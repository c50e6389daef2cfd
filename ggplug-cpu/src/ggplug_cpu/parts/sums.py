"""Sums along rows of contiguous f32, in f64 as in ggml.

Sixteen or so partial sums are added up at the end, the same whichever thread or kernel computes the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ggplug_cpu import simd
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, F64, Value, constant, emitted, first_lanes, loop, vector


def _in_f64(numbers: Value, mask: Value | None, centre: Value | None = None) -> list[Value]:
    """The two halves of a vector of f32, less the centre; zeros where the mask does not choose."""
    half = simd.width() // 2
    found = [numbers.part(start, half).convert(F64) for start in (0, half)]
    if centre is not None:
        found = [each - centre.splat(half) for each in found]
    if mask is None:
        return found
    return [mask.part(start, half).select(each, 0) for start, each in zip((0, half), found, strict=True)]


def _zero(b: ir.IRBuilder) -> Value:
    return constant(b, vector(F64, simd.width() // 2), 0)


@emitted("f64(i64, i64)")
def row_sum(x: Value, n: Value) -> Value:
    """The sum of the ``n`` f32 at ``x``."""
    return _row_total([x], n, lambda numbers: numbers)


@emitted("f64(i64, i64, i64)")
def row_dot(x: Value, y: Value, n: Value) -> Value:
    """The sum of the products of the ``n`` f32 at ``x`` and at ``y``."""
    return _row_total([x, y], n, lambda a, b: a * b)


def _row_total(rows: Sequence[Value], n: Value, term: Callable[..., Value]) -> Value:
    """The sum of ``term`` of the numbers at the same place of each row, which are vectors of f64."""
    lanes = simd.width()

    def add(sums: list[Value], numbers: Sequence[Value], mask: Value | None = None) -> list[Value]:
        halves = zip(*(_in_f64(each, mask) for each in numbers), strict=True)
        return [total + term(*half) for total, half in zip(sums, halves, strict=True)]

    def pair(i: Value, sums: list[Value]) -> list[Value]:
        # two vectors a round, for an addition must wait for the one before
        first, second = (
            [values.load(row + i * (8 * lanes), vector(F32, lanes), at) for row in rows] for at in (0, 4 * lanes)
        )
        return [*add(sums[:2], first), *add(sums[2:], second)]

    pairs = n.lshr((2 * lanes).bit_length() - 1)
    sums = loop(pairs, [_zero(n.b)] * 4, pair)
    done = pairs * (2 * lanes)
    rest = n - done

    def one(i: Value, sums: list[Value]) -> list[Value]:
        mask, at = first_lanes(lanes, rest - i * lanes), (done + i * lanes) * 4
        return add(sums, [values.masked_load(row + at, vector(F32, lanes), mask) for row in rows], mask)

    tail = loop((rest + (lanes - 1)).lshr(lanes.bit_length() - 1), sums[:2], one)
    return ((tail[0] + sums[2]) + (tail[1] + sums[3])).sum()


def no_moments(b: ir.IRBuilder) -> list[Value]:
    """The initial partial sums of :func:`add_to_moments`."""
    return [_zero(b)] * 4


def add_to_moments(moments: list[Value], numbers: Value, mask: Value | None, centre: Value) -> list[Value]:
    """Partial sums of x - c and of (x - c)² with one more vector of f32, of which a mask may choose lanes."""
    low, high = _in_f64(numbers, mask, centre)
    return [moments[0] + low, moments[1] + high, low.fma(low, moments[2]), high.fma(high, moments[3])]


def totals(moments: list[Value]) -> list[Value]:
    """The two sums."""
    return [(moments[i] + moments[i + 1]).sum() for i in (0, 2)]

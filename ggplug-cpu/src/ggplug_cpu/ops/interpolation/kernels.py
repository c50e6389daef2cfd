"""Interpolation: a weighted sum of rows of the image first, then weighted sums of elements of that row.

A thread first converts the list of taps of each new element to the form that vectors read.
"""

from __future__ import annotations

import functools

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, integers, reals, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.simd import values, width
from ggplug_cpu.simd.values import F32, I32, Value, constant, emitted, first_lanes, loop, vector

#: Lists and rows are padded to a multiple of the widest vector.
_PADDING = 16


class Interpolation(Parameters):
    """Rows of ``ne0`` new f32 from rows of ``width``; ``taps0`` and ``taps1`` are mixed along ne0 and ne1."""

    y = destination(STRIDES)
    x = source(STRIDES)
    ne0 = integer()
    ne1 = integer()
    ne2 = integer()
    ne3 = integer()
    width = integer()
    taps0 = integer()
    taps1 = integer()
    at0 = integers()
    """For each tap and each new element, the index of the element that is read."""
    weights0 = reals()
    at1 = integers()
    """For each new row and each tap, the index of the row that is read."""
    weights1 = reals()
    at2 = integers()
    at3 = integers()


def scratch_bytes(new: int, taps: int, width: int) -> int:
    """Bytes of scratch memory: two lists and a row."""
    return 8 * (new + _PADDING) * taps + 4 * (width + _PADDING)


@kernel
def interpolate() -> Body:
    """Computes row after row of y."""
    mix, pick = _mix_rows(), _pick()

    def body(ctx: int, params: Interpolation) -> None:
        n0, n1, n2 = params.ne0, params.ne1, params.ne2
        across, down, wide = params.taps0, params.taps1, params.width
        padded = n0 + _PADDING
        offsets = scratch(ctx)
        weights = offsets + 4 * padded * across
        mixed = weights + 4 * padded * across
        first, end = thread_range(ctx, n1 * n2 * params.ne3)
        if first < end:
            for tap in range(across):
                for i in range(n0):
                    place = 4 * (tap * padded + i)
                    simd.store_i32(offsets + place, 4 * params.at0[tap * n0 + i])
                    simd.store_f32(weights + place, params.weights0[tap * n0 + i])
        for row in range(first, end):
            i1, above = row % n1, row // n1
            i2, i3 = above % n2, above // n2
            x = params.x.address + params.at2[i2] * params.x.nb2
            x += params.at3[i3] * params.x.nb3
            y = params.y.row(i1)
            y += i2 * params.y.nb2 + i3 * params.y.nb3
            source = x + params.at1[i1 * down] * params.x.nb1
            if down > 1:
                for tap in range(down):
                    line = x + params.at1[i1 * down + tap] * params.x.nb1
                    mix(mixed, line, params.weights1[i1 * down + tap], wide, min(tap, 1))
                source = mixed
            pick(y, source, offsets, weights, 4 * padded, across, n0)

    return body


@functools.cache
def _mix_rows() -> Intrinsic:
    """``(sums, x, weight, n, more)``: sums = x weight, or sums += x weight if ``more`` is 1, for ``n`` f32."""
    lanes = width("f32")
    floats = vector(F32, lanes)

    def emit(sums: Value, x: Value, weight: Value, n: Value, more: Value) -> None:
        factor = weight.convert(F32).splat(lanes)
        zero = constant(n.b, floats, 0)

        def some(v: Value, _: list[Value]) -> list[Value]:
            here = v * (4 * lanes)
            product = values.masked_load(x + here, floats, first_lanes(lanes, n - v * lanes)) * factor
            before = values.load(sums + here, floats)
            values.store(sums + here, product + more.unequal(0).select(before, zero))
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

    return emitted("void(i64, i64, f64, i64, i64)")(emit)


@functools.cache
def _pick() -> Intrinsic:
    """``(y, x, offsets, weights, apart, taps, n)`` stores ``n`` f32, each the weighted sum of ``taps`` elements of
    x.
    """
    lanes = width("f32")
    floats, ints = vector(F32, lanes), vector(I32, lanes)

    def emit(y: Value, x: Value, offsets: Value, weights: Value, apart: Value, taps: Value, n: Value) -> None:
        def some(v: Value, _: list[Value]) -> list[Value]:
            here = v * (4 * lanes)
            present = first_lanes(lanes, n - v * lanes)

            def tap(t: Value, carried: list[Value]) -> list[Value]:
                at = values.load(offsets + t * apart + here, ints)
                weight = values.load(weights + t * apart + here, floats)
                return [values.masked_gather(x, at, floats, present).fma(weight, carried[0])]

            (result,) = loop(taps, [constant(n.b, floats, 0)], tap)
            values.masked_store(y + here, result, present)
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)

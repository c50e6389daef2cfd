"""Sums, weighted sums, means, maxima and positions of maxima of sliding windows.

A vector holds neighbouring windows of a row; a loop visits the taps row by row.
"""

from __future__ import annotations

import functools
from typing import Any

from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import (
    CONVERTED,
    STRIDES,
    Number,
    Parameters,
    destination,
    emitted_number,
    integer,
    real,
    source,
)
from ggplug_cpu.parts.nest import BLOCK, thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, write
from ggplug_cpu.parts.sliding import counted, narrow, quotient, scalar_quotient
from ggplug_cpu.simd import values, width
from ggplug_cpu.simd.values import F32, I32, Value, constant, emitted, first_lanes, loop, vector

_LOWEST = -3.4028234663852886e38


class Windows(Parameters):
    """``ne0`` to ``ne3`` windows; window (i, j) of a plane of x has ``taps0`` by ``taps1`` elements of it.

    x is f32, of ``width`` by ``height``; for strides, paddings, dilations and quotients see
    :mod:`ggplug_cpu.parts.sliding`.  ``tap0`` and ``tap1``: offsets in bytes between consecutive taps, in addition to
    their positions.
    """

    y = destination(STRIDES, CONVERTED)
    x = source(STRIDES)
    other = source(STRIDES)
    """Weights of taps (for ``weighted``), or for each element of x the number of a tap (for ``chosen``)."""
    ne0 = integer()
    ne1 = integer()
    ne2 = integer()
    ne3 = integer()
    width = integer()
    height = integer()
    taps0 = integer()
    taps1 = integer()
    stride0 = integer()
    stride1 = integer()
    padding0 = integer()
    padding1 = integer()
    dilation0 = integer()
    dilation1 = integer()
    quotient0 = integer()
    quotient1 = integer()
    step0 = integer()
    """Of gradients: the distance of taps that one element has, where it is known, else 1."""
    step1 = integer()
    tap0 = integer()
    tap1 = integer()
    divisor = real()
    """The divisor of sums."""


#: Bytes of scratch memory of the kernel.
SCRATCH_BYTES = ARGUMENTS + ROW_BYTES


@kernel
def windows(rule: str, reach: str, back: bool) -> Body:
    """``rule``: one of :data:`RULES`.  ``reach``: how a vector of windows reads a tap of each.

    ``adjacent``: contiguous elements of a row of x; ``apart``: elements at a distance; ``stretched``: with quotients.
    ``back``: a gradient, with dilations below 0.  It visits only taps that some element has.
    """
    some = _some_windows(rule, reach, back)

    def body(ctx: int, params: Windows) -> None:
        n0, n1, n2 = params.ne0, params.ne1, params.ne2
        write_y, y_stride = params.y.convert, params.y.nb0
        scratch_row = scratch(ctx) + ARGUMENTS
        first, end = thread_range(ctx, n1 * n2 * params.ne3)
        for row in range(first, end):
            i1, above = row % n1, row // n1
            i2, i3 = above % n2, above // n2
            y = params.y.row(i1)
            y += i2 * params.y.nb2 + i3 * params.y.nb3
            x = params.x.address + i2 * params.x.nb2 + i3 * params.x.nb3
            other = params.other.address + i2 * params.other.nb2 + i3 * params.other.nb3
            for start in range(0, n0, BLOCK):
                m = min(BLOCK, n0 - start)
                place = y if write_y == 0 else scratch_row
                some(params, x, other, i1, start, place, m)
                write(ctx, write_y, y, y_stride, m, place)
                y += params.y.block_bytes

    return body


def _steps(low: Value, high: Value, last: Value, far: Value, most: Value) -> tuple[Value, Value]:
    """The first step at which positions from ``low`` to ``high``, less ``far`` for each step, can be from 0 to
    ``last``, and the number of such steps; ``most``: of all steps.  Beside them there is nothing to sum.
    """
    start = scalar_quotient((low - last).maximum(0), far)
    return start, (scalar_quotient(high, far) + 1).minimum(most) - start


#: In order: the sum; the sum with a weight for each tap; the sum divided by the number of elements inside the image;
#: the maximum; the number of the tap with the maximum, as int32; the sum of elements whose number in ``other`` is that
#: of this tap.
RULES = ("sum", "weighted", "mean", "largest", "place", "chosen")


@functools.cache
def _some_windows(rule: str, reach: str, back: bool) -> Intrinsic:
    """``(params, x, other, i1, first, place, n)`` stores ``n`` windows of row ``i1`` from ``first`` on, as f32."""
    lanes, stretched, adjacent = width("f32"), reach == "stretched", reach == "adjacent"
    floats = vector(F32, lanes)

    def emit(params: Value, x: Value, other: Value, i1: Value, first: Value, place: Value, n: Value) -> None:
        b = params.b

        def number(field: Number[Any]) -> Value:
            return emitted_number(field, params)

        nb0, nb1 = number(Windows.x.nb0), number(Windows.x.nb1)
        taps0, extent0, extent1 = number(Windows.taps0), number(Windows.width), number(Windows.height)
        taps1, dilation0, dilation1 = number(Windows.taps1), number(Windows.dilation0), number(Windows.dilation1)
        q0, q1 = number(Windows.quotient0), number(Windows.quotient1)
        row = i1 * number(Windows.stride1) - number(Windows.padding1)
        zero = constant(b, floats, 0)
        if back:
            step0, step1 = number(Windows.step0), number(Windows.step1)
            far0, far1 = -(dilation0 * step0), -(dilation1 * step1)
            most0, most1 = (scalar_quotient(n + step - 1, step) for n, step in ((taps0, step0), (taps1, step1)))
            start1, count1 = _steps(row, row, (extent1 - 1) * q1, far1, most1)
            residue1 = row - scalar_quotient(row, step1) * step1

        def one_vector(v: Value, _: list[Value]) -> list[Value]:
            begin = (first + v * lanes) * number(Windows.stride0) - number(Windows.padding0)
            begins = counted(first + v * lanes, lanes) * narrow(number(Windows.stride0), lanes)
            begins = begins - narrow(number(Windows.padding0), lanes)
            if back:
                start0, count0 = _steps(begin, begin + (lanes - 1), (extent0 - 1) * q0, far0, most0)
            if stretched:
                residues = begins - quotient(begins, step0) * narrow(step0, lanes)

            def down(ky: Value, carried: list[Value]) -> list[Value]:
                if back:
                    ky = residue1 + (start1 + ky) * step1
                position = row + ky * dilation1
                iy = scalar_quotient(position, q1) if stretched else position
                ok = (position >= 0) & (iy < extent1)
                if stretched:
                    ok = ok & (iy * q1).equal(position) & (ky < taps1)
                line = x + iy * nb1 + ky * number(Windows.tap1)
                other_row = other + iy * nb1

                def across(kx: Value, carried: list[Value]) -> list[Value]:
                    if back:
                        kx = (start0 + kx) * step0
                    far = kx * dilation0
                    positions, taps = begins + narrow(far, lanes), narrow(kx, lanes)
                    if stretched:
                        positions, taps = positions + residues * narrow(dilation0, lanes), taps + residues
                    ix = quotient(positions, q0) if stretched else positions
                    inside = (ix >= 0) & (ix < narrow(extent0, lanes)) & ok.splat(lanes)
                    if stretched:
                        inside = inside & (ix * narrow(q0, lanes)).equal(positions) & (taps < narrow(taps0, lanes))
                    at = line + kx * number(Windows.tap0)
                    offsets = ix * narrow(nb0, lanes)
                    if adjacent:
                        read = values.masked_load(at + (begin + far) * 4, floats, inside)
                    elif stretched:
                        read = values.masked_gather(
                            at, offsets + residues * narrow(number(Windows.tap0), lanes), floats, inside
                        )
                    else:
                        read = values.masked_gather(at, offsets, floats, inside)
                    tap = narrow(ky * taps0, lanes) + taps
                    if rule == "weighted":
                        weight = other + kx * number(Windows.other.nb0) + ky * number(Windows.other.nb1)
                        sums = read.fma(values.load(weight, F32).splat(lanes), carried[0])
                        return [inside.select(sums, carried[0])]  # 0 times an infinite weight would be NaN
                    if rule == "chosen":
                        chosen = values.masked_gather(other_row, offsets, floats, inside).bitcast(tap.type)
                        mine = chosen.equal(tap) & inside
                        return [carried[0] + mine.select(read, zero)]
                    if rule in ("largest", "place"):
                        larger = (read > carried[0]) & inside
                        return [larger.select(read, carried[0]), larger.select(tap, carried[1])]
                    return [carried[0] + read, carried[1] + inside.select(constant(b, floats, 1), zero)]

                return loop(count0 if back else taps0, carried, across)

            start = [zero] if rule in ("weighted", "chosen") else [zero, zero]
            if rule in ("largest", "place"):
                start = [constant(b, floats, _LOWEST), constant(b, vector(I32, lanes), -1)]
            found = loop(count1 if back else taps1, start, down)
            result = found[1].bitcast(floats) if rule == "place" else found[0]
            if rule == "sum":
                result = result / number(Windows.divisor).convert(F32).splat(lanes)
            elif rule == "mean":
                result = found[1].equal(0).select(zero, result / found[1])
            values.masked_store(place + v * (4 * lanes), result, first_lanes(lanes, n - v * lanes))
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], one_vector)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)

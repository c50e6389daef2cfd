"""Partition of images into windows, the reverse, and sums with relative positions."""

from __future__ import annotations

import functools

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.simd import values, width
from ggplug_cpu.simd.values import F32, Value, emitted, first_lanes, loop, vector


class Partition(Parameters):
    """Rows of ``size`` bytes: an image of ``width`` by ``height``, ``across`` by ``down`` windows of ``w`` by ``w``."""

    y = destination(STRIDES)
    x = source(STRIDES)
    size = integer()
    width = integer()
    height = integer()
    across = integer()
    down = integer()
    w = integer()


class RelativePositions(Parameters):
    """Contiguous rows of ``k`` by ``k`` f32; ``pw`` and ``ph`` have ``k`` f32 for each."""

    y = destination()
    a = source()
    pw = source()
    ph = source()
    k = integer()
    rows = integer()


@kernel
def partition(direction: str) -> Body:
    """``apart``: y has the windows of x, padded with zeros.  ``together``: x has the windows of y."""
    apart = direction == "apart"

    def body(ctx: int, params: Partition) -> None:
        w, size, across = params.w, params.size, params.across
        wide, high = params.width, params.height
        first, end = thread_range(ctx, across * params.down * w * w)
        for row in range(first, end):
            i, above = row % w, row // w
            j, window = above % w, above // w
            column, line = window % across * w + i, window // across * w + j
            inside = column < wide and line < high
            if apart:
                y = params.y.row(i, j)
                y += window * params.y.nb3
                x = params.x.row(column, line)
                if inside:
                    simd.copy_bytes(y, x, size)
                else:
                    simd.fill_bytes(y, 0, size)
            elif inside:
                x = params.x.row(i, j)
                x += window * params.x.nb3
                y = params.y.row(column, line)
                simd.copy_bytes(y, x, size)

    return body


@kernel
def add_relative_positions() -> Body:
    """Computes row after row; the result may be in place of ``a``."""
    add = _add_both()

    def body(ctx: int, params: RelativePositions) -> None:
        k = params.k
        y, a = params.y.address, params.a.address
        pw, ph = params.pw.address, params.ph.address
        first, end = thread_range(ctx, params.rows)
        for row in range(first, end):
            for j in range(k):
                place = 4 * (row * k + j) * k
                add(y + place, a + place, pw + 4 * row * k, simd.load_f32(ph + 4 * (row * k + j)), k)

    return body


@functools.cache
def _add_both() -> Intrinsic:
    """``(y, a, b, number, n)``: y = a + b + number, for ``n`` f32."""
    lanes = width("f32")
    floats = vector(F32, lanes)

    def emit(y: Value, a: Value, b: Value, number: Value, n: Value) -> None:
        def some(v: Value, _: list[Value]) -> list[Value]:
            here, present = v * (4 * lanes), first_lanes(lanes, n - v * lanes)
            first, second = (values.masked_load(each + here, floats, present) for each in (a, b))
            values.masked_store(y + here, first + second + number.splat(lanes), present)
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

    return emitted("void(i64, i64, i64, f32, i64)")(emit)

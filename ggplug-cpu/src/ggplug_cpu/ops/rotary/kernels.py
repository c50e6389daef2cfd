"""Rotary position embedding.

Angles, sines and cosines are f64, so long contexts stay exact.  A row of sines and cosines serves all heads of a
position.
"""

from __future__ import annotations

import functools

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, integers, real, reals, source
from ggplug_cpu.parts.faults import fault
from ggplug_cpu.parts.formulas import sine_and_cosine
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, read, write
from ggplug_cpu.simd.values import F32, F64, Value, emitted, load, store, vector

#: Rows of angles, sines and cosines are padded to a multiple of the widest vector.
_PADDING = 16


class Rope(Parameters):
    """``pairs`` pairs of a row's ``n`` numbers, from ``offset`` on, are rotated."""

    y = destination(STRIDES, "convert")
    x = source(STRIDES, "convert")
    ids = source("nb0")
    factors = source("nb0")
    n = integer()
    heads = integer()
    positions = integer()
    batches = integer()
    pairs = integer()
    offset = integer()
    magnitude = real()
    angles = reals()
    """For each pair the angle of position 1."""
    axes = integers()
    """For each pair the index of the position that rotates it (time, height, width, extra)."""


class RopeIntoRows(Rope):
    """The rotated heads of a position are stored one after the other in row ``rows[position, batch]`` of y.

    In ``y`` nb0 and nb1 are those of a head; ``row_bytes`` is the stride of the ``limit`` rows.
    """

    rows = source("nb0", "nb1")
    batches_of_rows = integer()
    """The number of batches of indices; they are repeated beyond it."""
    row_bytes = integer()
    limit = integer()
    faults = destination()
    position = integer()
    """The position of the ``set_rows`` node in its graph."""


def scratch_bytes(n: int, pairs: int) -> int:
    """Bytes of scratch memory for rows of ``n`` elements."""
    return ARGUMENTS + 16 * (pairs + _PADDING) + 8 * n


@functools.cache
def cosines_and_sines(step: int) -> Intrinsic:
    """``cosines_and_sines(step)(angles, cosines, sines, magnitude)``: computes ``step`` f32 of each from f64 angles."""

    @emitted("void(i64, i64, i64, f64)")
    def emit(angles: Value, cosines: Value, sines: Value, magnitude: Value) -> None:
        half = step // 2
        for part in (0, half):
            sine, cosine = sine_and_cosine(load(angles, vector(F64, half), 8 * part))
            for place, value in ((cosines, cosine), (sines, sine)):
                store(place, (value * magnitude.splat(half)).convert(F32), 4 * part)

    return emit


@kernel
def rope(pairing: str, index_type: str = "") -> Body:
    """Pairs are ``neighbours``, elements 2i and 2i + 1, or ``halves``, elements i and i + pairs.

    ``index_type``: the type of the indices of :class:`RopeIntoRows`.  A row whose index is out of range is not stored;
    the first such index is recorded as a fault.
    """
    into_rows, load_index = index_type != "", simd.LOADS[index_type or "i64"]
    F, step = simd.vec("f32"), simd.width("f32")
    load_f32, load_first = simd.load(F), simd.load_first(F)
    neighbours = pairing == "neighbours"
    even = simd.shuffle(F, tuple(range(0, 2 * step, 2)))
    odd = simd.shuffle(F, tuple(range(1, 2 * step, 2)))
    woven = [lane // 2 + step * (lane % 2) for lane in range(2 * step)]
    low, high = simd.shuffle(F, tuple(woven[:step])), simd.shuffle(F, tuple(woven[step:]))

    convert = cosines_and_sines(step)

    def body(ctx: int, params: RopeIntoRows) -> None:
        n, heads, positions = params.n, params.heads, params.positions
        pairs, offset, magnitude = params.pairs, params.offset, params.magnitude
        write_y, read_x, factors = params.y.convert, params.x.convert, params.factors.address
        angles = scratch(ctx) + ARGUMENTS
        cosines = angles + 8 * (pairs + _PADDING)
        sines = cosines + 4 * (pairs + _PADDING)
        x_scratch = sines + 4 * (pairs + _PADDING)
        y_scratch = x_scratch + 4 * n
        computed_i2 = -1
        first, end = thread_range(ctx, heads * positions * params.batches)
        for row in range(first, end):
            i1, i23 = row % heads, row // heads
            i2, i3 = i23 % positions, i23 // positions
            if i2 != computed_i2:
                computed_i2 = i2
                for i in range(pairs):
                    where = params.ids.address + (params.axes[i] * positions + i2) * params.ids.nb0
                    angle = simd.load_i32(where) * params.angles[i]
                    if factors != 0:
                        angle /= simd.load_f32(factors + i * params.factors.nb0)
                    simd.store_f64(angles + 8 * i, angle)
                for i in range(0, pairs, step):
                    convert(angles + 8 * i, cosines + 4 * i, sines + 4 * i, magnitude)

            x = params.x.row(i1, i2, i3)
            y = params.y.row(i1) + i3 * params.y.nb3
            if into_rows:
                at = params.rows.address + i2 * params.rows.nb0
                at += i3 % params.batches_of_rows * params.rows.nb1
                index = load_index(at)
                if index < 0 or index >= params.limit:
                    fault(params.faults.address, params.position, i23, index)
                    continue
                y += index * params.row_bytes
            else:
                y += i2 * params.y.nb2
            p = read(ctx, read_x, x, params.x.nb0, n, x_scratch)
            r = y if write_y == 0 else y_scratch
            if p != r:
                simd.copy_bytes(r, p, 4 * offset)
                behind = 4 * (offset + 2 * pairs)
                simd.copy_bytes(r + behind, p + behind, 4 * n - behind)
            p += 4 * offset
            to = r + 4 * offset
            # Whole vectors without masks: a masked store that misses the cache takes many times as long.
            whole = pairs - pairs % step
            for i in range(0, whole, step):
                c, s = load_f32(cosines + 4 * i), load_f32(sines + 4 * i)
                at, other = (8 * i, 8 * i + 4 * step) if neighbours else (4 * i, 4 * (i + pairs))
                v, w = load_f32(p + at), load_f32(p + other)
                a, b = (even(v, w), odd(v, w)) if neighbours else (v, w)
                v, w = a * c - b * s, a * s + b * c
                simd.store(to + at, low(v, w) if neighbours else v)
                simd.store(to + other, high(v, w) if neighbours else w)
            if whole < pairs:
                left = pairs - whole
                c, s = load_f32(cosines + 4 * whole), load_f32(sines + 4 * whole)
                at, other = (8 * whole, 8 * whole + 4 * step) if neighbours else (4 * whole, 4 * (whole + pairs))
                first_count, second_count = (2 * left, 2 * left - step) if neighbours else (left, left)
                v, w = load_first(p + at, first_count), load_first(p + other, second_count)
                a, b = (even(v, w), odd(v, w)) if neighbours else (v, w)
                v, w = a * c - b * s, a * s + b * c
                simd.store_first(to + at, low(v, w) if neighbours else v, first_count)
                simd.store_first(to + other, high(v, w) if neighbours else w, second_count)
            write(ctx, write_y, y, params.y.nb0, n, r)

    return body

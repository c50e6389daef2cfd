"""Rotary position embedding.

The angle of a pair is its position times a constant of the pair (frequency, interpolation and YaRN's mixing together)
that is known when the node is planned.  Angles, sines and cosines are f64, so long contexts stay exact.  A row of
sines and cosines serves all heads of a position.
"""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import real, scratch, word
from ggplug_cpu.kernels.formulas import sine_and_cosine
from ggplug_cpu.kernels.nest import share
from ggplug_cpu.kernels.rows import ARGUMENTS, read, read_operand, write, write_operand
from ggplug_cpu.kernels.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.simd.values import F32, F64, Value, emitted, load, store, vector
from ggplug_cpu.tape import Entry, Ref, Word

# Word indices: places, extents, byte strides, converters; pairs, where they begin, their magnitude; then a constant and
# an axis for every pair.
Y, X, POSITIONS, FACTORS, N0, N1, N2, N3 = range(8)
Y0, Y1, Y2, Y3, X0, X1, X2, X3, P0, F0 = range(8, 18)
WRITE, READ, PAIRS, OFFSET, MAGNITUDE, CONSTANTS = range(18, 24)

#: Rows of angles, sines and cosines are padded to a multiple of the widest vector.
_PADDING = 16


def plan_rope(node: Tensor) -> Steps:
    """y = x, pairs of elements turned."""
    op, x, pos, factors = node.op, given(node, 0), given(node, 1), node.src[2]
    assert isinstance(op, ops.Rope)
    pairs = op.n_dims if op.mode == RopeMode.VISION else op.n_dims // 2
    magnitude, constants = _constants(op, pairs)
    place, stride = (0, 0) if factors is None else (Ref(source(2)), factors.nb[0])
    words: list[Word] = [Ref(RESULT), Ref(source(0)), Ref(source(1)), place, *node.ne]
    words += [*node.nb, *x.nb, pos.nb[0], stride]
    words += [
        write_operand(Ref(RESULT), node.type, node.nb[0]).convert,
        read_operand(Ref(source(0)), x.type, x.nb[0]).convert,
    ]
    words += [pairs, op.n_offs, magnitude, *constants, *_axes(op, pairs)]
    entry = Entry(rope("neighbours" if op.mode == RopeMode.NORMAL else "halves"), words, tasks(node.size, 3))
    return Steps((entry,), scratch_bytes=ARGUMENTS + 16 * (pairs + _PADDING) + 8 * node.ne[0])


def _axes(op: ops.Rope, pairs: int) -> list[int]:
    """Which of the four positions (time, height, width, extra) turns each pair."""
    if not op.several_axes:
        return [0] * pairs
    time, height, width, _ = op.sections
    axes = []
    for pair in range(pairs):
        sector = pair % sum(op.sections)
        if op.mode == RopeMode.IMROPE:
            axis = sector % 3
            axes.append(axis if sector < 3 * op.sections[axis] else 3)
        else:
            bounds = (time, time + height, time + height + width)
            axes.append(next((axis for axis, bound in enumerate(bounds) if sector < bound), 3))
    return axes


def _constants(op: ops.Rope, pairs: int) -> tuple[float, list[float]]:
    """The magnitude of all pairs, and for each the angle of position 1."""
    starts = (0, op.sections[0], op.sections[0] + op.sections[1], sum(op.sections[:3]))
    low, high = op.correction_range() if op.ext_factor else (0.0, 0.0)
    constants = []
    for pair, axis in enumerate(_axes(op, pairs)):
        # in mode VISION every section has the same frequencies
        power = pair % sum(op.sections) - starts[axis] if op.mode == RopeMode.VISION else pair
        frequency = op.freq_base ** (-2 * power / op.n_dims)
        scale = op.freq_scale
        if op.ext_factor:
            ramp = min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))
            mix = (1 - ramp) * op.ext_factor
            scale = op.freq_scale * (1 - mix) + mix
        constants.append(frequency * scale)
    magnitude = op.attn_factor
    if op.ext_factor:
        magnitude *= 1 + 0.1 * math.log(1 / op.freq_scale)
    return magnitude, constants


@kernel
def rope(pairing: str) -> Body:
    """Pairs are ``neighbours``, elements 2i and 2i + 1, or ``halves``, elements i and i + pairs."""
    F, step = simd.vec("f32"), simd.width("f32")
    load_f32, load_first = simd.load(F), simd.load_first(F)
    neighbours = pairing == "neighbours"
    even = simd.shuffle(F, tuple(range(0, 2 * step, 2)))
    odd = simd.shuffle(F, tuple(range(1, 2 * step, 2)))
    woven = [lane // 2 + step * (lane % 2) for lane in range(2 * step)]
    low, high = simd.shuffle(F, tuple(woven[:step])), simd.shuffle(F, tuple(woven[step:]))

    @emitted("void(i64, i64, i64, f64)")
    def turn(angles: Value, cosines: Value, sines: Value, magnitude: Value) -> None:
        """A vector of sines and cosines from f64 angles."""
        half = step // 2
        for part in (0, half):
            sine, cosine = sine_and_cosine(load(angles, vector(F64, half), 8 * part))
            for place, value in ((cosines, cosine), (sines, sine)):
                store(place, (value * magnitude.splat(half)).convert(F32), 4 * part)

    def body(ctx: int, params: int) -> None:
        n, heads, positions = word(params, N0), word(params, N1), word(params, N2)
        pairs, offset, magnitude = word(params, PAIRS), word(params, OFFSET), real(params, MAGNITUDE)
        write_y, read_x, factors = word(params, WRITE), word(params, READ), word(params, FACTORS)
        angles = scratch(ctx) + ARGUMENTS
        cosines = angles + 8 * (pairs + _PADDING)
        sines = cosines + 4 * (pairs + _PADDING)
        x_room = sines + 4 * (pairs + _PADDING)
        y_room = x_room + 4 * n
        axes = CONSTANTS + pairs
        turned = -1
        first, end = share(ctx, heads * positions * word(params, N3))
        for row in range(first, end):
            i1, i23 = row % heads, row // heads
            i2, i3 = i23 % positions, i23 // positions
            if i2 != turned:
                turned = i2
                for i in range(pairs):
                    where = word(params, POSITIONS) + (word(params, axes + i) * positions + i2) * word(params, P0)
                    angle = simd.load_i32(where) * real(params, CONSTANTS + i)
                    if factors != 0:
                        angle /= simd.load_f32(factors + i * word(params, F0))
                    simd.store_f64(angles + 8 * i, angle)
                for i in range(0, pairs, step):
                    turn(angles + 8 * i, cosines + 4 * i, sines + 4 * i, magnitude)

            x = word(params, X) + i1 * word(params, X1) + i2 * word(params, X2) + i3 * word(params, X3)
            y = word(params, Y) + i1 * word(params, Y1) + i2 * word(params, Y2) + i3 * word(params, Y3)
            p = read(ctx, read_x, x, word(params, X0), n, x_room)
            r = y if write_y == 0 else y_room
            if p != r:
                simd.copy_bytes(r, p, 4 * offset)
                behind = 4 * (offset + 2 * pairs)
                simd.copy_bytes(r + behind, p + behind, 4 * n - behind)
            p += 4 * offset
            to = r + 4 * offset
            for i in range(0, pairs, step):
                left = min(step, pairs - i)
                c, s = load_f32(cosines + 4 * i), load_f32(sines + 4 * i)
                if neighbours:
                    at = 8 * i
                    v, w = load_first(p + at, 2 * left), load_first(p + at + 4 * step, 2 * left - step)
                    a, b = even(v, w), odd(v, w)
                    v, w = a * c - b * s, a * s + b * c
                    simd.store_first(to + at, low(v, w), 2 * left)
                    simd.store_first(to + at + 4 * step, high(v, w), 2 * left - step)
                else:
                    at, other = 4 * i, 4 * (i + pairs)
                    a, b = load_first(p + at, left), load_first(p + other, left)
                    simd.store_first(to + at, a * c - b * s, left)
                    simd.store_first(to + other, a * s + b * c, left)
            write(ctx, write_y, y, word(params, Y0), n, r)

    return body

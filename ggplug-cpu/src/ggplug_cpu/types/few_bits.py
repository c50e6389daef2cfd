"""Q1_0, Q2_0: one or two bits a number, with one F16 scale a block (``quantize_row_q1_0_ref``)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from ggplug import types
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import BYTES, bits_from
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    Blocks,
    Factors,
    bits_at,
    f16_at,
    inverse_of,
    is_finite,
    offset_of,
    shifted,
    size_of,
    store_f16,
    sum_in_order,
)

_QS1, _QS2 = offset_of(types.Q1_0, "qs"), offset_of(types.Q2_0, "qs")


def _scales(parts: int) -> Callable[[Sequence[Value]], Factors]:
    """One for all parts of a block."""
    return lambda addresses: Factors(values.joined([f16_at([at]).lane(0).splat(parts) for at in addresses]))


def _quants_q1(block: Value, part: Value) -> Value:
    """A bit is -1 or 1."""
    return bits_at(block + (part * 4 + _QS1)).select(block.constant(2, vector(I8, GROUP)), 0)


def _quants_q2(block: Value, part: Value) -> Value:
    """Four numbers a byte, one after the other."""
    packed = values.load(block + part * 8, vector(I8, 8), _QS2)
    by_place = values.joined([shifted(packed, 2 * i) & 3 for i in range(4)])
    return by_place.shuffle([i % 4 * 8 + i // 4 for i in range(GROUP)])


def _both_halves_q1(addresses: Sequence[Value]) -> list[list[Value]]:
    return [
        [bits_at(at + (8 * i + _QS1), BYTES).select(at.constant(2, vector(I8, BYTES)), 0) for i in (0, 1)]
        for at in addresses
    ]


def _whole_q2(addresses: Sequence[Value]) -> list[list[Value]]:
    words = [values.load(at, vector(I16, 8), _QS2).zext(I64) for at in addresses]
    return [[bits_from(each, range(0, 16, 2)) & 3] for each in words]


def _parts(place: Value, count: int) -> tuple[list[Value], Value]:
    """The f32 numbers of a block, and the size of the largest."""
    x = [values.load(place, vector(F32, GROUP), 4 * GROUP * part) for part in range(count)]
    return x, functools.reduce(lambda a, b: a.maximum(b), map(size_of, x)).max()


def _encode_q1(block: Value, place: Value) -> None:
    x, size = _parts(place, 4)
    finite = is_finite(size)
    mean = sum_in_order(values.joined([each.abs() for each in x])) / 128.0
    store_f16(block, finite.select(mean, float("nan")))
    for part, each in enumerate(x):
        bits = (each >= 0.0).bitcast(I32)
        values.store(block, finite.select(bits, bits.constant(0)), _QS1 + 4 * part)


def _encode_q2(block: Value, place: Value) -> None:
    x, size = _parts(place, 2)
    finite = is_finite(size)
    largest = size.bitcast(F32)
    store_f16(block, finite.select(largest, float("nan")))
    inverse = finite.select(inverse_of(largest), 0.0).splat(GROUP)
    for part, each in enumerate(x):
        numbers = ((each * inverse).round_away().convert(I32) + 1).convert(I8)
        by_place = [numbers.shuffle(range(i, GROUP, 4)) << 2 * i for i in range(4)]
        packed = functools.reduce(operator.or_, by_place)
        values.store(block, finite.select(packed, packed.constant(0)), _QS2 + 8 * part)


FAMILY = (
    Blocks(types.Q1_0, _quants_q1, _scales(4), offset=1, limits=(0, 2), encode=_encode_q1, at_once=_both_halves_q1),
    Blocks(types.Q2_0, _quants_q2, _scales(2), offset=1, limits=(0, 3), encode=_encode_q2, at_once=_whole_q2),
)

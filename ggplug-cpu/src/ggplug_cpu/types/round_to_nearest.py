"""Q4_0, Q4_1, Q8_0: 32 numbers with one F16 scale, and perhaps a minimum (``quantize_row_*_ref``)."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import types
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I8, Value, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    Blocks,
    Factors,
    SideBySide,
    as_nibbles,
    both_nibbles,
    f16_at,
    first_where,
    inverse_of,
    is_finite,
    nibbles,
    offset_of,
    size_of,
    store_f16,
    to_int8,
)

_QS_4_0, _QS_4_1, _QS_8_0 = (offset_of(type, "qs") for type in (types.Q4_0, types.Q4_1, types.Q8_0))
_M = offset_of(types.Q4_1, "m")


def _scales(addresses: Sequence[Value]) -> Factors:
    return Factors(f16_at(addresses))


def _scales_and_minima(addresses: Sequence[Value]) -> Factors:
    both = f16_at([address + offset for address in addresses for offset in (0, _M)])
    n = len(addresses)
    return Factors(both.shuffle(range(0, 2 * n, 2)), both.shuffle(range(1, 2 * n, 2)))


def _numbers(x: Value) -> Value:
    return values.load(x, vector(F32, GROUP))


def _scaled(x: Value, scale: Value) -> Value:
    """x / scale; zeros of a block with a NaN or an infinity, which its scale alone makes NaN."""
    return (scale.abs() < float("inf")).select(x * inverse_of(scale).splat(GROUP), 0.0)


def _encode_q8_0(block: Value, place: Value) -> None:
    x = _numbers(place)
    scale = size_of(x).max().bitcast(F32) / 127.0
    quants = _scaled(x, scale).round_away()
    store_f16(block, scale)
    values.store(block, to_int8(quants), _QS_8_0)


def _encode_q4_0(block: Value, place: Value) -> None:
    x = _numbers(place)
    size = size_of(x)
    # the first of the numbers that are as far from zero as any, with its sign (of zero always +); -8 stands for it
    scale = (first_where(size.equal(size.max().splat(GROUP)), x) + 0.0) / -8.0
    # truncation towards zero, as C converts to int8
    numbers = to_int8(_scaled(x, scale) + 8.5).minimum(15)
    store_f16(block, scale)
    values.store(block, as_nibbles(numbers), _QS_4_0)


def _encode_q4_1(block: Value, place: Value) -> None:
    x = _numbers(place)
    finite = is_finite(size_of(x).max())
    # the first of the smallest, so that of two zeros it is the first one's sign
    low = first_where(x.equal(x.min().splat(GROUP)), x)
    scale = (x.max() - low) / 15.0
    numbers = to_int8((x - low.splat(GROUP)) * inverse_of(scale).splat(GROUP) + 0.5).minimum(15)
    store_f16(block, finite.select(scale, float("nan")))
    store_f16(block + _M, finite.select(low, 0.0))
    values.store(block, as_nibbles(finite.select(numbers, numbers.constant(0))), _QS_4_1)


FAMILY = (
    Blocks(
        types.Q4_0, lambda block, _: nibbles(block + _QS_4_0), _scales, offset=8, encode=_encode_q4_0,
        side_by_side=SideBySide("qs", both_nibbles, "d"),
    ),
    Blocks(
        types.Q4_1, lambda block, _: nibbles(block + _QS_4_1), _scales_and_minima, has_minima=True, encode=_encode_q4_1,
        side_by_side=SideBySide("qs", both_nibbles, "d", "m"),
    ),
    Blocks(
        types.Q8_0, lambda block, _: values.load(block, vector(I8, GROUP), _QS_8_0) ^ -128, _scales, offset=128,
        encode=_encode_q8_0, side_by_side=SideBySide("qs", lambda stored: (stored ^ -128,), "d"),
    ),
)  # fmt: skip

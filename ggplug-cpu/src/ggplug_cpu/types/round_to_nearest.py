"""Q4_0 to Q8_1: 32 numbers with one F16 scale, and perhaps a minimum (``quantize_row_*_ref``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ggplug import types
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I8, I32, Value, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    UNIT,
    Blocks,
    Factors,
    SideBySide,
    Weigh,
    as_nibbles,
    bits_at,
    both_nibbles,
    f16_at,
    f16_factors,
    first_where,
    inverse_of,
    is_finite,
    nibbles,
    numbers_of_bytes,
    offset_of,
    size_of,
    store_f16,
    to_int8,
)
from ggplug_cpu.types.search import signed, spread_weights, with_minimum

_M = offset_of(types.Q4_1, "m")


def _quants(type: types.Type) -> Callable[[Value, Value], Value]:
    """Four bits of each number, and the fifth from another field if there is one."""
    qs, qh = offset_of(type, "qs"), _fifth(type)
    if qh is None:
        return lambda block, _: nibbles(block + qs)
    return lambda block, _: nibbles(block + qs) | bits_at(block + qh).select(block.constant(16, vector(I8, GROUP)), 0)


def _fifth(type: types.Type) -> int | None:
    """The offset of the fifth bits in a block; None if there are none."""
    return offset_of(type, "qh") if any(field.name == "qh" for field in type.fields) else None


def _write(type: types.Type, block: Value, numbers: Value) -> None:
    values.store(block, as_nibbles(numbers & 15), offset_of(type, "qs"))
    qh = _fifth(type)
    if qh is not None:
        values.store(block, (numbers & 16).unequal(0).bitcast(I32), qh)


def _scales(addresses: Sequence[Value]) -> Factors:
    return Factors(f16_at(addresses))


def _scales_and_minima(addresses: Sequence[Value]) -> Factors:
    both = f16_at([address + offset for address in addresses for offset in (0, _M)])
    n = len(addresses)
    return Factors(both.shuffle(range(0, 2 * n, 2)), both.shuffle(range(1, 2 * n, 2)))


def _numbers(x: Value) -> Value:
    return values.load(x, vector(F32, GROUP))


def _scaled(x: Value, scale: Value, inverse: Value) -> Value:
    """x * inverse; zeros of a block with a NaN or an infinity, which its scale makes NaN."""
    return (scale.abs() < float("inf")).select(x * inverse.splat(GROUP), 0.0)


def _eight_bits(type: types.Type) -> Callable[[Value, Value], Value]:
    qs = offset_of(type, "qs")
    return lambda block, _: values.load(block, vector(I8, GROUP), qs) ^ -128


def _write_eight_bits(type: types.Type, block: Value, scale: Value, numbers: Value) -> None:
    store_f16(block, scale)
    values.store(block, to_int8(numbers), offset_of(type, "qs"))
    if any(field.name == "s" for field in type.fields):
        # the numbers are whole, so their sum is exact in any order, and never -0
        store_f16(block + offset_of(type, "s"), scale * (numbers.sum() + 0.0))


def _store_eight_bits(type: types.Type) -> Callable[[Value, Value], None]:
    """As ggml's kernels for processors: by 127 over the largest, and ties to even."""

    def encode(block: Value, place: Value) -> None:
        x = _numbers(place)
        largest = size_of(x).max().bitcast(F32)
        scale = largest / 127.0
        _write_eight_bits(type, block, scale, _scaled(x, scale, inverse_of(largest, 127.0)).round_even())

    return encode


def _file_eight_bits(type: types.Type) -> Callable[[Value, Value], None]:
    """As ggml's reference: by the scale, and ties away from zero."""

    def encode(block: Value, place: Value) -> None:
        x = _numbers(place)
        scale = size_of(x).max().bitcast(F32) / 127.0
        _write_eight_bits(type, block, scale, _scaled(x, scale, inverse_of(scale)).round_away())

    return encode


def _around_zero(type: types.Type, half: int) -> Callable[[Value, Value], None]:
    """Numbers from 0 to ``2 * half - 1``, of which ``half`` is zero."""

    def encode(block: Value, place: Value) -> None:
        x = _numbers(place)
        size = size_of(x)
        # the first of the numbers that are as far from zero as any, with its sign (of zero always +); 0 stands for it
        scale = (first_where(size.equal(size.max().splat(GROUP)), x) + 0.0) / -float(half)
        # truncation towards zero, as C converts to int8
        numbers = to_int8(_scaled(x, scale, inverse_of(scale)) + (half + 0.5)).minimum(2 * half - 1)
        store_f16(block, scale)
        _write(type, block, numbers)

    return encode


def _from_minimum(type: types.Type, top: int) -> Callable[[Value, Value], None]:
    """Numbers from 0 to ``top``."""

    def encode(block: Value, place: Value) -> None:
        x = _numbers(place)
        finite = is_finite(size_of(x).max())
        # the first of the smallest, so that of two zeros it is the first one's sign
        low = first_where(x.equal(x.min().splat(GROUP)), x)
        scale = (x.max() - low) / float(top) + 0.0  # of zeros with both signs it is +0
        numbers = to_int8((x - low.splat(GROUP)) * inverse_of(scale).splat(GROUP) + 0.5).minimum(top)
        store_f16(block, finite.select(scale, float("nan")))
        store_f16(block + _M, finite.select(low, 0.0))
        _write(type, block, finite.select(numbers, numbers.constant(0)))

    return encode


# -- by an importance matrix ---------------------------------------------------------------------------


def _one_by_one(lanes: Value) -> list[Value]:
    return [lanes.lane(i) for i in range(lanes.count)]


def _weights(x: list[Value], importance: Value, mean: Value) -> list[Value]:
    return spread_weights(x, _one_by_one(_numbers(importance)), mean)


def _weigh_around_zero(type: types.Type, half: int) -> Weigh:
    def encode(block: Value, place: Value, importance: Value, mean: Value) -> None:
        x = _one_by_one(_numbers(place))
        scale, numbers = signed(x, _weights(x, importance, mean), half)
        finite, whole = _all_finite(place), values.gathered(numbers)
        store_f16(block, finite.select(scale, float("nan")))
        _write(type, block, finite.select(whole, whole.constant(0)).convert(I8))

    return Weigh(encode, of_row=1.0)


def _weigh_from_minimum(type: types.Type, top: int) -> Weigh:
    def encode(block: Value, place: Value, importance: Value, mean: Value) -> None:
        x = _one_by_one(_numbers(place))
        scale, minimum, numbers = with_minimum(x, _weights(x, importance, mean), top, -0.9, 0.05, 36)
        finite, whole = _all_finite(place), values.gathered(numbers)
        store_f16(block, finite.select(scale, float("nan")))
        store_f16(block + _M, finite.select(-minimum, -0.0))
        _write(type, block, finite.select(whole, whole.constant(0)).convert(I8))

    return Weigh(encode, of_row=1.0)


def _all_finite(place: Value) -> Value:
    """Whether 32 numbers are finite."""
    return is_finite(size_of(_numbers(place)).max())


FAMILY = (
    Blocks(
        types.Q4_0,
        _quants(types.Q4_0),
        _scales,
        offset=8,
        limits=(0, 15),
        encode=_around_zero(types.Q4_0, 8),
        weigh=_weigh_around_zero(types.Q4_0, 8),
        side_by_side=SideBySide((("qs", UNIT), ("d", 2)), numbers_of_bytes("qs", both_nibbles, 2), f16_factors("d")),
    ),
    Blocks(
        types.Q4_1,
        _quants(types.Q4_1),
        _scales_and_minima,
        has_minima=True,
        limits=(0, 15),
        encode=_from_minimum(types.Q4_1, 15),
        weigh=_weigh_from_minimum(types.Q4_1, 15),
        side_by_side=SideBySide(
            (("qs", UNIT), ("d", 2), ("m", 2)), numbers_of_bytes("qs", both_nibbles, 2), f16_factors("d", "m")
        ),
    ),
    Blocks(
        types.Q5_0,
        _quants(types.Q5_0),
        _scales,
        offset=16,
        limits=(0, 31),
        encode=_around_zero(types.Q5_0, 16),
        weigh=_weigh_around_zero(types.Q5_0, 16),
    ),
    Blocks(
        types.Q5_1,
        _quants(types.Q5_1),
        _scales_and_minima,
        has_minima=True,
        limits=(0, 31),
        encode=_from_minimum(types.Q5_1, 31),
        weigh=_weigh_from_minimum(types.Q5_1, 31),
    ),
    Blocks(
        types.Q8_0,
        _eight_bits(types.Q8_0),
        _scales,
        offset=128,
        encode=_store_eight_bits(types.Q8_0),
        file=_file_eight_bits(types.Q8_0),
        is_activation=True,
        side_by_side=SideBySide(
            (("qs", UNIT), ("d", 2)), numbers_of_bytes("qs", lambda stored: (stored ^ -128,), 1), f16_factors("d")
        ),
    ),
    Blocks(
        types.Q8_1,
        _eight_bits(types.Q8_1),
        _scales,
        offset=128,
        encode=_store_eight_bits(types.Q8_1),
        file=_file_eight_bits(types.Q8_1),
        is_activation=True,
    ),
)

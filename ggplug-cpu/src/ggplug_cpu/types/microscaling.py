"""MXFP4: 32 numbers from 0 to 15 that stand for E2M1's levels, with one power of two for a scale."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import types
from ggplug.quants.microscaling import MXFP4_LEVELS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import constant_words, emit_lookup
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, constant, vector
from ggplug_cpu.types.blocks import GROUP, Blocks, Factors, as_nibbles, is_finite, nibbles, offset_of, size_of

_LEVELS = [int(level) for level in MXFP4_LEVELS]
_E, _QS = offset_of(types.MXFP4, "e"), offset_of(types.MXFP4, "qs")
_OFFSET = -min(_LEVELS)


def _quants(block: Value, _: Value) -> Value:
    return emit_lookup([level + _OFFSET for level in _LEVELS], nibbles(block + _QS))


def _bits(e: int) -> int:
    """``2 ** (e - 128)`` as bits, subnormal for the two smallest ``e`` (``ggml_e8m0_to_fp32_half``)."""
    return 0x0020_0000 << e if e < 2 else (e - 1) << 23


_SCALES = [_bits(e) | _bits(e + 1) << 32 for e in range(0, 256, 2)]


def _scale(e: Value) -> Value:
    """The scale for an ``e`` from 0 to 255 (int64).

    From a table: computed in vectors, lanes that nobody reads would have the scale of ``e = 0``, and multiplying a
    subnormal number takes processors many times as long.
    """
    return values.load(constant_words(e.b, "mxfp4.scales", _SCALES) + e * 4, F32)


def _factors(addresses: Sequence[Value]) -> Factors:
    return Factors(values.gathered([_scale(values.load(address, I8, _E).zext(I64)) for address in addresses]))


def _encode(block: Value, place: Value) -> None:
    x = values.load(place, vector(F32, GROUP))
    largest = size_of(x).max()
    finite = is_finite(largest)
    e = finite.select((largest.lshr(23) - 2).maximum(0), 255)
    scale = _scale(e.convert(I64)).splat(GROUP)
    numbers = constant(x.b, vector(I32, GROUP), 0)
    least = (scale * 0.0 - x).abs()
    for number, level in enumerate(_LEVELS[1:], 1):
        error = (scale * float(level) - x).abs()
        better = error < least
        numbers, least = better.select(numbers.constant(number), numbers), better.select(error, least)
    values.store(block, e.convert(I8), _E)
    values.store(block, as_nibbles(finite.select(numbers, numbers.constant(7)).convert(I8)), _QS)


FAMILY = (Blocks(types.MXFP4, _quants, _factors, offset=_OFFSET, encode=_encode),)

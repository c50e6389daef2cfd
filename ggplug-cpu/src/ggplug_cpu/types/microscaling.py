"""MXFP4, NVFP4: numbers from 0 to 15 that stand for E2M1's levels, with a small float for a scale."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import types
from ggplug.quants.microscaling import MXFP4_LEVELS, NVFP4_SCALES
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import constant_words, emit_lookup
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, constant, loop, vector
from ggplug_cpu.types.blocks import GROUP, Blocks, Factors, as_nibbles, is_finite, nibbles, offset_of, size_of

_LEVELS = [int(level) for level in MXFP4_LEVELS]
_E, _QS = offset_of(types.MXFP4, "e"), offset_of(types.MXFP4, "qs")
_OFFSET = -min(_LEVELS)
_LIMITS = 0, max(_LEVELS) + _OFFSET


def _quants(block: Value, _: Value) -> Value:
    return emit_lookup([level + _OFFSET for level in _LEVELS], nibbles(block + _QS))


def _bits(e: int) -> int:
    """``2 ** (e - 128)`` as bits, subnormal for the two smallest ``e`` (``ggml_e8m0_to_fp32_half``)."""
    return 0x0020_0000 << e if e < 2 else (e - 1) << 23


_SCALES = [_bits(e) | _bits(e + 1) << 32 for e in range(0, 256, 2)]


def _scale(e: Value) -> Value:
    """The scale for an ``e`` from 0 to 255 (int64).

    From a table: computed in vectors, unused lanes would have the scale of ``e = 0``, a subnormal number, which
    processors multiply many times slower.
    """
    return values.load(constant_words(e.b, "mxfp4.scales", _SCALES) + e * 4, F32)


def _factors(addresses: Sequence[Value]) -> Factors:
    return Factors(values.gathered([_scale(values.load(address, I8, _E).zext(I64)) for address in addresses]))


def _encode(block: Value, place: Value) -> None:
    x = values.load(place, vector(F32, GROUP))
    largest = size_of(x).max()
    finite = is_finite(largest)
    e = finite.select((largest.lshr(23) - 2).maximum(0), 255)
    values.store(block, e.convert(I8), _E)
    values.store(block, as_nibbles(_nearest_level(x, _scale(e.convert(I64)), finite)), _QS)


def _nearest_level(x: Value, scale: Value, finite: Value) -> Value:
    """The numbers of the nearest levels as bytes, the first of the nearest; the largest level if not ``finite``."""
    wide = scale.splat(x.count)
    numbers = constant(x.b, vector(I32, x.count), 0)
    least = (wide * 0.0 - x).abs()
    for number, level in enumerate(_LEVELS[1:], 1):
        error = (wide * float(level) - x).abs()
        better = error < least
        numbers, least = better.select(numbers.constant(number), numbers), better.select(error, least)
    return finite.select(numbers, numbers.constant(7)).convert(I8)


# -- NVFP4: 64 numbers, with a scale for every 16 ------------------------------------------------------

_D_NV, _QS_NV = offset_of(types.NVFP4, "d"), offset_of(types.NVFP4, "qs")
_BITS = NVFP4_SCALES.view("<u4").astype(int).tolist()
_HALVES = [low | high << 32 for low, high in zip(_BITS[0::2], _BITS[1::2], strict=True)]


def _scale_nvfp4(e: Value) -> Value:
    """The scale for a byte from 0 to 255 (int64)."""
    return values.load(constant_words(e.b, "nvfp4.scales", _HALVES) + e * 4, F32)


def _quants_nvfp4(block: Value, part: Value) -> Value:
    """Of each 16 numbers the low nibbles of eight bytes, then the high ones."""
    numbers = nibbles(block + (part * 16 + _QS_NV))
    eights = numbers.shuffle([*range(8), *range(16, 24), *range(8, 16), *range(24, 32)])
    return emit_lookup([level + _OFFSET for level in _LEVELS], eights)


def _factors_nvfp4(addresses: Sequence[Value]) -> Factors:
    chosen = [values.load(address, I8, _D_NV + i).zext(I64) for address in addresses for i in range(4)]
    return Factors(values.gathered([_scale_nvfp4(e) for e in chosen]))


def _e4m3(x: Value) -> Value:
    """The nearest number of E4M3 for one from 0 to 448 (``ggml_fp32_to_ue4m3``), as int32."""
    rounded = (x.bits() + (1 << 19)).lshr(20) - (120 << 3)
    small = (x * 512.0 + 0.5).convert(I32).minimum(7)
    return (x < 2.0**-6).select(small, rounded.minimum(126))


def _encode_nvfp4(block: Value, place: Value) -> None:
    def group(i: Value, _: list[Value]) -> list[Value]:
        x = values.load(place + i * 64, vector(F32, 16))
        size = size_of(x).max()
        finite = is_finite(size)
        e = _e4m3((finite.select(size.bitcast(F32), 2688.0) / 6.0).minimum(448.0))
        values.store(block + i, e.convert(I8), _D_NV)
        numbers = _nearest_level(x, _scale_nvfp4(e.zext(I64)), finite)
        values.store(block + i * 8, as_nibbles(numbers), _QS_NV)
        return []

    loop(constant(block.b, I64, 4), [], group)


FAMILY = (
    Blocks(types.MXFP4, _quants, _factors, offset=_OFFSET, limits=_LIMITS, encode=_encode),
    Blocks(types.NVFP4, _quants_nvfp4, _factors_nvfp4, offset=_OFFSET, limits=_LIMITS, group=16, encode=_encode_nvfp4),
)

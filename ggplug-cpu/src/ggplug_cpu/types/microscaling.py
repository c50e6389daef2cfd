"""MXFP4: 32 numbers from 0 to 15 that stand for E2M1's levels, with one power of two for a scale."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import types
from ggplug.quants.microscaling import MXFP4_LEVELS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import emit_lookup
from ggplug_cpu.simd.values import F32, I8, I32, Value, constant, vector
from ggplug_cpu.types.blocks import GROUP, Blocks, Factors, as_nibbles, is_finite, nibbles, offset_of, size_of

_LEVELS = [int(level) for level in MXFP4_LEVELS]
_E, _QS = offset_of(types.MXFP4, "e"), offset_of(types.MXFP4, "qs")
_OFFSET = -min(_LEVELS)


def _quants(block: Value, _: Value) -> Value:
    return emit_lookup([level + _OFFSET for level in _LEVELS], nibbles(block + _QS))


def _scale(e: Value) -> Value:
    """``2 ** (e - 128)`` of int32 lanes, subnormal for the two smallest (``ggml_e8m0_to_fp32_half``)."""
    subnormal = constant(e.b, e.type, 0x0020_0000) << (e & 1)
    bits = (e < 2).select(subnormal, (e - 1) << 23)
    return bits.bitcast(vector(F32, e.count) if e.count > 1 else F32)


def _factors(addresses: Sequence[Value]) -> Factors:
    bytes_read = [values.load(address, I8, _E).zext(I32) for address in addresses]
    scales = _scale(bytes_read[0]).splat(1) if len(addresses) == 1 else _scale(values.gathered(bytes_read))
    return Factors(scales)


def _encode(block: Value, place: Value) -> None:
    x = values.load(place, vector(F32, GROUP))
    largest = size_of(x).max()
    finite = is_finite(largest)
    e = finite.select((largest.lshr(23) - 2).maximum(0), 255)
    scale = _scale(e).splat(GROUP)
    numbers = constant(x.b, vector(I32, GROUP), 0)
    least = (scale * 0.0 - x).abs()
    for number, level in enumerate(_LEVELS[1:], 1):
        error = (scale * float(level) - x).abs()
        better = error < least
        numbers, least = better.select(numbers.constant(number), numbers), better.select(error, least)
    values.store(block, e.convert(I8), _E)
    values.store(block, as_nibbles(finite.select(numbers, numbers.constant(7)).convert(I8)), _QS)


FAMILY = (Blocks(types.MXFP4, _quants, _factors, offset=_OFFSET, encode=_encode),)

"""IQ4_NL: 32 numbers from 0 to 15 that stand for sixteen uneven levels, with one F16 scale."""

from __future__ import annotations

import itertools

from ggplug import types
from ggplug.quants.levels import IQ4_NL_LEVELS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import emit_lookup
from ggplug_cpu.simd.values import F32, I8, I32, Value, vector
from ggplug_cpu.types.blocks import (
    GROUP,
    Blocks,
    Factors,
    SideBySide,
    as_nibbles,
    both_nibbles,
    f16_at,
    first_where,
    is_finite,
    nibbles,
    offset_of,
    size_of,
    store_f16,
    sum_in_order,
)

_LEVELS = [int(level) for level in IQ4_NL_LEVELS]
_QS = offset_of(types.IQ4_NL, "qs")
#: Blocks with no element as large as this have the scale 0 (``GROUP_MAX_EPS``).
_ALL_ZERO = 1e-15


_UNSIGNED = [level - _LEVELS[0] for level in _LEVELS]


def _quants(block: Value, _: Value) -> Value:
    return emit_lookup(_UNSIGNED, nibbles(block + _QS))


def _spread(stored: Value) -> tuple[Value, ...]:
    return tuple(emit_lookup(_UNSIGNED, numbers) for numbers in both_nibbles(stored))


def _encode(block: Value, place: Value) -> None:
    """``quantize_row_iq4_nl_ref``: one scale, by which the largest element is the lowest level."""
    x = values.load(place, vector(F32, GROUP))
    size = size_of(x)
    largest = first_where(size.equal(size.max().splat(GROUP)), x)
    scaled = (1.0 / (largest / float(_LEVELS[0]))).splat(GROUP) * x
    numbers = none = values.constant(x.b, vector(I32, GROUP), 0)
    q = values.constant(x.b, x.type, _LEVELS[0])
    for number, (low, high) in enumerate(itertools.pairwise(_LEVELS), 1):
        below = (scaled - float(low)) < (float(high) - scaled)
        numbers = below.select(numbers, number)
        q = below.select(q, float(high))
    weights = x * x
    scale = sum_in_order(weights * q * x) / sum_in_order(weights * q * q)
    nothing = largest.abs() < _ALL_ZERO
    finite = is_finite(size.max())
    store_f16(block, finite.select(nothing.select(0.0, scale), float("nan")))
    chosen = (finite & ~nothing).select(numbers, none)
    values.store(block, as_nibbles(chosen.convert(I8)), _QS)


FAMILY = (
    Blocks(
        types.IQ4_NL, _quants, lambda at: Factors(f16_at(at)), offset=-_LEVELS[0], encode=_encode,
        side_by_side=SideBySide("qs", _spread, "d"),
    ),
)  # fmt: skip

"""Special values, of which the cases of many ops are made: NaN, infinities, signed zeros, limits of types, ids.

What the ops' references say of them is the answer on every device.
"""

from __future__ import annotations

import numpy as np

from ggplug.ops.base import Array
from ggplug.types import I64, Type

NAN, INF = float("nan"), float("inf")

NUMBERS = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 7.5, -7.5])
"""What is not finite, zeros of both signs, halves, and both sides of where piecewise functions change."""

LONG = 37
"""More than a vector register holds, and no multiple of it."""

ROWS = np.array(
    [
        np.resize([1.0, -2.0, 0.5], LONG),
        np.resize([1.0, -2.0, 0.5, 3.0, 0.25, NAN, 2.0], LONG),
        np.resize([NAN], LONG),
        np.resize([1.0, -2.0, INF, 3.0, 0.25], LONG),
        np.resize([-INF, 1.0, -2.0, 0.5, 3.0], LONG),
        np.resize([1.0, INF, -2.0, -INF, 2.0], LONG),
        np.resize([-INF], LONG),
        np.resize([NAN, -INF], LONG),
        np.resize([-NAN, 3.0, INF, 3.0, NAN, -INF, 0.0, -0.0], LONG),
        np.resize([-0.0, 0.0, -1.0], LONG),
    ]
)
"""Rows with each kind of special value, by itself and together with others."""

WIDE_ROWS = np.array(
    [
        np.resize([3e38, 1e38, -2.5e38], LONG),
        np.resize([3.4e38, 3.3e38, 3.2e38, -3.4e38, -3.3e38, -3.2e38], LONG),
        np.resize([3.4e38, 3.4e38, -3.4e38, 0.0, 1e30, 1.0], LONG),
        np.resize([1e20, -3e19, 5e19], LONG),
        np.resize([1e19, -3e18, 5e18, 1.0], LONG),
        np.resize([1e-22, -3e-22, 2e-21], LONG),
        np.resize([1e-30, -3e-30, 2e-30, 0.0], LONG),
        np.resize([1e-36, -3e-37, 2e-36], LONG),
    ]
)
"""Rows of numbers whose squares, sums or distances from the mean are beyond the range of float32."""


FLOAT_WORDS = np.concatenate(
    [
        [0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFD54321, 0x7FFFFFFF, 0x7F800001, 0xFF810000],
        [0x7F800000, 0xFF800000, 0, 0x80000000],
    ]
).astype(np.uint32)
"""NaNs of both signs with several payloads, also such that a narrower type has no place for; infinities, zeros."""

HALF_WORDS = np.array(
    [0x7E00, 0xFE00, 0x7E01, 0xFFFF, 0x7C01, 0xFD00, 0x7C00, 0xFC00, 0, 0x8000, 1, 0x8001, 0x3FF, 0x7BFF],
    np.uint16,
)

_NARROWED = np.concatenate(
    [
        [65504.0, 65519.996, 65520.0, -65520.0, 65536.0, 1e30],  # f16: its largest number, and ties at it
        [2.0**-14, 2.0**-24, 2.0**-25, 1.0001 * 2.0**-25, -(2.0**-25), 3 * 2.0**-25],  # subnormal ones, ties below
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11],
        [3.3895314e38, 3.3961776e38, 3.4028235e38, -3.4028235e38],  # bf16: its largest, and what becomes infinity
        [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e-38],
    ]
).astype(np.float32)

_WHOLE = np.concatenate(
    [
        [NAN, -NAN, INF, -INF, 2147483647.0, 2147483520.0, -2147483648.0, -2147483904.0, 1e20, -1e20],
        [0.9999, -0.9999, -0.0, 2.5, -2.5, 16777217.0, 3e9, -3e9, 4294967808.0, -8589935616.0],
    ]
).astype(np.float32)

WHOLE_ROWS = np.resize(_WHOLE, (3, LONG))
"""Rows of what becomes of floats in I32: NaN, limits and beyond, also what a cut to 32 bits takes for small."""


def words(count: int = 8) -> Array:
    """Floats of all kinds as their bits, [rows, 32]; the first rows are finite."""
    finite = np.resize(_NARROWED, 64).view(np.uint32)
    return np.concatenate([finite, np.resize(FLOAT_WORDS, 32 * (count - 2))]).reshape(count, 32)


def blocks(type: Type) -> Array:
    """A block a row: finite, with a NaN, an infinity of each sign, both, everything, numbers that are too large."""
    rows = np.resize(np.array([0.5, -1.0, 2.0, 0.25], np.float32), (8, type.block_size))
    rows[1, 7] = NAN
    rows[2, 31] = -NAN
    rows[3, 0] = INF
    rows[4, 12] = -INF
    rows[5, [3, 20]] = -INF, INF
    rows[6, [5, 6]] = INF, NAN
    rows[7] = np.resize(np.array([3e38, -1e38, 9e6], np.float32), type.block_size)
    return np.concatenate([rows, _halves(type.block_size)])


def _halves(length: int) -> Array:
    """Rows whose largest number makes the step 1 in types of 8, 4 and 5 bits; the others lie between two steps."""
    rows = np.resize(np.arange(-6.5, 7), (3, length)).astype(np.float32)
    rows[0, 0] = 127
    rows[1, 0] = -8
    rows[2] = np.abs(rows[2])
    rows[2, :2] = 0, 15
    return rows


def ids_of(type: Type, limit: int) -> Array:
    """Ids in range, and others: just outside, far, and of 64 bits some whose lower half is in range."""
    far = [2**32 + 1, -(2**32) + 1, 2**63 - 1] if type is I64 else [2**31 - 1, -(2**31)]
    return np.array([1, limit, 0, -1, *far, 2])

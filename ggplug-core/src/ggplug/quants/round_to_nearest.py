"""Round-to-nearest types: blocks of 32 elements with an F16 scale, some with a minimum (``quantize_row_*_ref``).

The arithmetic is float32 in ggml's order, so the bytes are the same.  In two cases the result of the C code is
undefined: a block whose scale is so small that its reciprocal overflows is encoded as zeros; and all numbers of a block
with a NaN or an infinity decode as NaN: its scale is not finite (NaN as 0x7E00) and its numbers are zeros.  With an
importance matrix (``quantize_row_*_impl``) the encoders search for the scale (``search``).

Activations are rounded to Q8_0 and Q8_1, for which ggml's kernels use another formula than its reference: 127 divided
by the largest element, and ties to even.  Ops store results of these types so.  ggml has no decoder of Q8_1; here its
numbers are those of Q8_0, and the sum of a block (``s``, for ggml's products) is not read.

The encoders transpose first: with blocks along the last axis every step is one long vector operation, and
a reduction of 32 elements becomes 31 of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register
from ggplug.quants.rounding import Floats, half_away, reciprocal
from ggplug.quants.search import signed, spread_weights, with_minimum

Bytes = npt.NDArray[np.uint8]


def _poison(columns: Floats, scale: Floats) -> None:
    """Sets the numbers of blocks whose scale is not finite to zero, and their scale to one kind of NaN."""
    bad = ~np.isfinite(scale)
    if bad.any():
        columns[:, bad] = 0
        scale[np.isnan(scale)] = np.nan


def _first_extreme(columns: Floats) -> Floats:
    """The element of largest magnitude in each column with its sign; of a tie, the first."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    extreme: Floats = np.where(-low > high, low, high)
    tie = np.flatnonzero((-low == high) & (high != 0))
    if tie.size:
        first = np.abs(columns[:, tie]).argmax(axis=0)
        extreme[tie] = columns[first, tie]
    extreme += 0  # +0 rather than -0
    return extreme


def _write(blocks: Blocks, quants: Bytes) -> None:
    """Writes numbers [32, n]: four bits in ``qs``, and the fifth in ``qh`` if the type has one."""
    blocks["qs"] = ((quants[:16] & 15) | quants[16:] << 4).T
    if "qh" in (blocks.dtype.names or ()):
        blocks["qh"] = np.packbits(quants.T >> 4, axis=1, bitorder="little")


def _read(blocks: Blocks) -> Bytes:
    """The numbers [n, 32]."""
    packed = blocks["qs"]
    quants = np.concatenate([packed & 15, packed >> 4], axis=1)
    if "qh" in (blocks.dtype.names or ()):
        quants |= np.unpackbits(blocks["qh"], axis=1, bitorder="little") << 4
    return quants


# -- around zero: Q4_0, Q5_0 ---------------------------------------------------------------------------


def _encode_around_zero(half: int, values: Values, blocks: Blocks) -> None:
    """Numbers from 0 to ``2 * half - 1``, of which ``half`` is zero."""
    columns: Floats = np.array(values.T, order="C")  # always a copy, because it is changed below
    scale = _first_extreme(columns) / np.float32(-half)
    _poison(columns, scale)
    blocks["d"] = scale
    columns *= reciprocal(scale)
    columns += np.float32(half + 0.5)
    quants = columns.astype(np.uint8)
    _write(blocks, np.minimum(quants, 2 * half - 1, out=quants))


def _weigh_around_zero(half: int, values: Values, blocks: Blocks, importance: Values) -> None:
    weights = spread_weights(values, importance, 1, 32)
    columns: Floats = np.ascontiguousarray(values.reshape(-1, 32).T)
    scale, numbers = signed(columns, weights, half)
    bad = ~np.isfinite(columns).all(axis=0)
    scale[bad], numbers[:, bad] = np.nan, 0
    blocks = blocks.reshape(-1)
    blocks["d"] = scale
    _write(blocks, numbers.astype(np.uint8))


def _decode_around_zero(half: int, blocks: Blocks, values: Values) -> None:
    scale = blocks["d"].astype(np.float32)[:, None]
    np.multiply(_read(blocks).view(np.int8) - np.int8(half), scale, out=values)


# -- from a minimum: Q4_1, Q5_1 ------------------------------------------------------------------------


def _encode_from_minimum(top: int, values: Values, blocks: Blocks) -> None:
    """Numbers from 0 to ``top``."""
    columns: Floats = np.array(values.T, order="C")  # always a copy, because it is changed below
    # the first of the smallest, so that the sign of zero is that of the first one
    low = np.take_along_axis(columns, columns.argmin(axis=0)[None], axis=0)[0]
    scale = (columns.max(axis=0) - low) / np.float32(top) + np.float32(0)  # +0 if there are zeros of both signs
    inverse = reciprocal(scale)
    bad = ~np.isfinite(columns).all(axis=0)
    columns[:, bad] = low[bad] = inverse[bad] = 0
    scale[bad] = np.nan
    blocks["d"] = scale
    blocks["m"] = low
    columns -= low
    columns *= inverse
    columns += np.float32(0.5)
    quants = columns.astype(np.uint8)
    _write(blocks, np.minimum(quants, top, out=quants))


def _weigh_from_minimum(top: int, values: Values, blocks: Blocks, importance: Values) -> None:
    weights = spread_weights(values, importance, 1, 32)
    columns: Floats = np.ascontiguousarray(values.reshape(-1, 32).T)
    scale, minimum, numbers = with_minimum(columns, weights, top, -0.9, 0.05, 36)
    bad = ~np.isfinite(columns).all(axis=0)
    scale[bad], minimum[bad], numbers[:, bad] = np.nan, 0, 0
    blocks = blocks.reshape(-1)
    blocks["d"], blocks["m"] = scale, -minimum
    _write(blocks, numbers.astype(np.uint8))


def _decode_from_minimum(blocks: Blocks, values: Values) -> None:
    scale, low = (blocks[field].astype(np.float32)[:, None] for field in ("d", "m"))
    np.multiply(_read(blocks), scale, out=values)
    values += low


# -- eight bits: Q8_0, Q8_1 ----------------------------------------------------------------------------


def _largest_and_columns(values: Values) -> tuple[Floats, Floats]:
    columns: Floats = np.array(values.T, order="C")  # always a copy, because it is changed below
    # abs: the scale of a block of zeros is +0
    return np.abs(np.maximum(columns.max(axis=0), -columns.min(axis=0))), columns


def _encode_eight_bits(values: Values, blocks: Blocks) -> None:
    largest, columns = _largest_and_columns(values)
    scale = largest / np.float32(127)
    _poison(columns, scale)
    columns *= reciprocal(scale)
    _write_eight_bits(blocks, scale, half_away(columns))


def _store_eight_bits(values: Values, blocks: Blocks) -> None:
    largest, columns = _largest_and_columns(values)
    scale = largest / np.float32(127)
    _poison(columns, scale)
    columns *= reciprocal(largest, 127)
    _write_eight_bits(blocks, scale, np.rint(columns))


def _write_eight_bits(blocks: Blocks, scale: Floats, columns: Floats) -> None:
    blocks["d"] = scale
    blocks["qs"] = columns.astype(np.int8).T
    if "s" in (blocks.dtype.names or ()):
        sums = scale * columns.sum(axis=0)  # a sum of integers, which is exact
        sums[np.isnan(sums)] = np.nan
        blocks["s"] = sums


def _decode_eight_bits(blocks: Blocks, values: Values) -> None:
    np.multiply(blocks["qs"], blocks["d"].astype(np.float32)[:, None], out=values)


register(
    *(
        Codec(
            type,
            partial(_encode_around_zero, half),
            partial(_decode_around_zero, half),
            weighted=partial(_weigh_around_zero, half),
        )
        for type, half in ((types.Q4_0, 8), (types.Q5_0, 16))
    ),
    *(
        Codec(
            type, partial(_encode_from_minimum, top), _decode_from_minimum, weighted=partial(_weigh_from_minimum, top)
        )
        for type, top in ((types.Q4_1, 15), (types.Q5_1, 31))
    ),
    *(
        Codec(type, _encode_eight_bits, _decode_eight_bits, store=_store_eight_bits)
        for type in (types.Q8_0, types.Q8_1)
    ),
)

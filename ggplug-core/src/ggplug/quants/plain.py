"""Plain types: one element per block.

The float conversions are the same as in ggml, bit for bit (``ggml_compute_fp32_to_fp16``, ``ggml_compute_fp32_to_bf16``
and their inverses).  They round to nearest, ties to even, keep subnormals, and differ from NumPy only for NaN:
to F16 every NaN becomes ``sign | 0x7E00``; to BF16 a NaN keeps its upper payload and becomes quiet;
from F16 a NaN keeps its payload and becomes quiet.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ggplug import types
from ggplug.errors import ParameterError
from ggplug.quants.codec import Blocks, Codec, Values, register


def _encode_exact(values: Values, blocks: Blocks) -> None:
    np.copyto(blocks, values[:, 0])


def _decode_exact(blocks: Blocks, values: Values) -> None:
    np.copyto(values[:, 0], blocks, casting="unsafe")


def _encode_f16(values: Values, blocks: Blocks) -> None:
    column = values[:, 0]
    np.copyto(blocks, column, casting="unsafe")
    nan = np.isnan(column)
    if nan.any():
        blocks.view(np.uint16)[nan] = np.where(np.signbit(column[nan]), 0xFE00, 0x7E00)


def _decode_f16(blocks: Blocks, values: Values) -> None:
    column = values[:, 0]
    np.copyto(column, blocks)
    nan = np.isnan(column)
    if nan.any():
        column.view(np.uint32)[nan] |= 0x0040_0000


def _encode_bf16(values: Values, blocks: Blocks) -> None:
    bits = values[:, 0].view(np.uint32)
    # Adding just under half of the last kept bit, and one more if that bit is set, rounds ties to even.
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    np.copyto(blocks, rounded, casting="unsafe")
    nan = np.isnan(values[:, 0])
    if nan.any():
        blocks[nan] = (bits[nan] >> 16) | 0x40


def _decode_bf16(blocks: Blocks, values: Values) -> None:
    np.left_shift(blocks, 16, out=values[:, 0].view(np.uint32), dtype=np.uint32)


def _encode_integer(type: types.Type, values: Values, blocks: Blocks) -> None:
    """Truncates towards zero, as C does; raises ParameterError for values out of range, which C leaves undefined."""
    column = values[:, 0]
    limits = np.iinfo(type.dtype)
    if column.size:
        low, high = column.min(), column.max()
        # Python's integers, since the limits of int64 are no exact floats.
        if not (np.isfinite(low) and np.isfinite(high)) or int(low) < limits.min or int(high) > limits.max:
            raise ParameterError(
                f"values from {low} to {high} do not fit in {type.name} ({limits.min} to {limits.max})",
                got=(low, high),
                wanted=(limits.min, limits.max),
            )
    np.copyto(blocks, column, casting="unsafe")


register(
    Codec(types.F32, _encode_exact, _decode_exact),
    Codec(types.F64, _encode_exact, _decode_exact, values_dtype=np.float64),
    Codec(types.F16, _encode_f16, _decode_f16),
    Codec(types.BF16, _encode_bf16, _decode_bf16),
    *(
        Codec(type, partial(_encode_integer, type), _decode_exact, values_dtype=None)
        for type in (types.I8, types.I16, types.I32, types.I64)
    ),
)

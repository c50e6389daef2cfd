"""What kernels are given for a tensor, and how its elements become numbers and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ggplug import quants
from ggplug.types import BF16, F16, F32, Q4_0, Q8_0, Type

Array = Any
"""An array of NumPy; what formulas make of arrays has whatever dtype they give it."""


class Values(NamedTuple):
    """Elements, or blocks, in place: four axes, outermost first, strided, in the type's storage dtype."""

    type: Type
    bits: Array


def wide(x: Values) -> Array:
    """Values to compute with: float64."""
    if x.type is BF16:
        return (x.bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if x.type.is_quantized:
        return unpacked(x)
    return x.bits.astype(np.float64)


def single(x: Values) -> Array:
    """What products are made of: float32."""
    return wide(x).astype(np.float32)


def unpacked(x: Values) -> Array:
    """The values of blocks."""
    outer, blocks, size = x.bits.shape[:3], x.bits.shape[3], x.type.block_size
    if x.type is Q8_0:
        numbers = x.bits["qs"].astype(np.float64)
    elif x.type is Q4_0:
        pairs = x.bits["qs"]
        numbers = np.concatenate((pairs & 15, pairs >> 4), axis=-1).astype(np.float64) - 8
    else:
        raw = np.ascontiguousarray(x.bits).view(np.uint8).reshape(*outer, blocks * x.type.block_bytes)
        return quants.dequantize(raw, x.type).astype(np.float64)
    scales = x.bits["d"].astype(np.float64)[..., np.newaxis]
    return (numbers * scales).reshape(*outer, blocks * size)


def store(dst: Values, values: Array) -> None:
    """Rounds values to the type of the result.  Floats become integers by cutting; what does not fit, the nearest."""
    if dst.type is BF16:
        dst.bits[...] = to_bf16(values.astype(np.float32).view(np.uint32))
    elif dst.bits.dtype.kind == "i" and values.dtype.kind == "f":
        dst.bits[...] = cut(values, dst.bits.dtype)
    else:
        dst.bits[...] = values


def rounded(values: Array, kind: Type) -> Array:
    """Values as a tensor of this type would hold them."""
    if kind is BF16:
        return (to_bf16(values.astype(np.float32).view(np.uint32)).astype(np.uint32) << 16).view(np.float32)
    return values.astype(kind.dtype)


def to_bf16(raw: Array) -> Array:
    """The bits of float32 rounded to the nearest, halves to even; NaNs keep what there is room for, made quiet."""
    nan = (raw & 0x7FFFFFFF) > 0x7F800000
    nearest = (raw + (0x7FFF + (raw >> 16 & 1))) >> 16
    return np.where(nan, raw >> 16 | 0x40, nearest).astype(np.uint16)


def cut(values: Array, dtype: np.dtype[Any]) -> Array:
    """Floats as integers: towards zero, the nearest limit beyond the range, 0 for NaN."""
    limits = np.iinfo(dtype)
    below, above = values <= limits.min, values >= limits.max
    inside = ~(below | above | np.isnan(values))
    whole = np.where(inside, values, 0).astype(dtype)
    return np.where(below, limits.min, np.where(above, limits.max, whole)).astype(dtype)


def converted(x: Values, kind: Type) -> Array:
    """Floats in a float type that is not theirs."""
    if x.type is BF16:
        values = (x.bits.astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.ascontiguousarray(x.bits).astype(np.float32)
    return to_bf16(values.view(np.uint32)) if kind is BF16 else values.astype(kind.dtype)


def move(dst: Values, x: Values) -> None:
    """Copies elements in the order in which they are counted, converted if the types differ."""
    if dst.type is x.type:
        moved = x.bits
    elif is_float(dst.type) and is_float(x.type):
        moved = converted(x, dst.type)
    elif is_float(x.type):
        moved = cut(wide(x), dst.bits.dtype)
    elif not is_float(dst.type):
        limits = np.iinfo(dst.bits.dtype)
        moved = np.clip(x.bits, limits.min, limits.max)
    elif dst.type is BF16:
        moved = to_bf16(x.bits.astype(np.float32).view(np.uint32))
    else:
        moved = x.bits
    dst.bits[...] = moved.reshape(dst.bits.shape)


def is_float(kind: Type) -> bool:
    return kind in (F32, F16, BF16)


def repeated(x: Array, shape: tuple[int, ...]) -> Array:
    """An array repeated along each axis to a shape that is a multiple of its own."""
    return np.tile(x, [to // n if n else 1 for to, n in zip(shape, x.shape, strict=True)])

"""Reference quantisation and dequantisation in NumPy.

The bytes are the same as those of ggml's reference functions, and so are the decoded floats, bit for bit.  Every module
except ``codec`` is a family of types and registers a :class:`~ggplug.quants.codec.Codec` for each of them.  A new
family is one new file here, which is found automatically.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError, ShapeError, TypeMismatchError
from ggplug.quants.codec import Codec, find
from ggplug.quants.grid_search import Searches
from ggplug.types import TYPES, Type, as_type

__all__ = [
    "block_types",
    "can_dequantize",
    "can_quantize",
    "can_store",
    "dequantize",
    "put_scales",
    "quantize",
    "searched_types",
]

# Elements converted at a time: few enough for the temporaries to stay in the cache.
_CHUNK = 1 << 17


def quantize(
    array: npt.ArrayLike,
    type: Type | str,
    imatrix: npt.ArrayLike | None = None,
    *,
    stored: bool = False,
    searches: Searches | None = None,
) -> npt.NDArray[np.uint8]:
    """Encode ``array`` (``ggml_quantize_chunk``).

    Args:
        array: [..., ne0], converted to float32 first (for F64 to float64; integer types take the values as they
            are).  A block of a quantised type with a NaN or an infinity decodes as NaN (in MXFP4, which has no NaN, as
            infinity).
        type: any type that has a reference encoder.
        imatrix: [ne0], how much the error of each column counts, for all rows; measured by running the model over text.
            Types whose encoders do not search for a scale ignore it.
        stored: encode as ops that store results of this type (``from_float`` in ggml's type traits): IQ4_NL with
            the first scale instead of the best of sixteen, Q8_0 and Q8_1 with ties to even.
        searches: finds rows of grids, with the same results as the references (None); only types with grids use it.

    Returns:
        uint8 [..., ``type.row_bytes(ne0)``]

    Raises:
        ShapeError: ``array`` has no axis, ne0 is not a whole number of blocks, or ``imatrix`` is not [ne0].
        TypeMismatchError: ``type`` has no reference encoder, or none without an importance matrix, or ``array`` holds
            no real numbers.
        ParameterError: a value does not fit in an integer type; ``imatrix`` has a negative number, or one that is not
            finite; there is an ``imatrix`` for what ops store.
    """
    type = as_type(type)
    codec = _codec(type)
    if codec is None or (codec.encode is None and (imatrix is None or codec.weighted is None)):
        raise TypeMismatchError(f"{type.name} has no reference quantiser{_reason(codec)}", got=type)
    values = np.asarray(array)
    if values.dtype.kind not in "fiub":
        raise TypeMismatchError(f"cannot quantise an array of {values.dtype} to {type.name}", got=values.dtype)
    if values.ndim == 0:
        raise ShapeError(f"quantising to {type.name} needs at least one axis, got a scalar", got=())
    row_bytes = type.row_bytes(values.shape[-1])
    importance = None if imatrix is None else _importance(imatrix, type, values.shape[-1], stored)
    if codec.search is not None and searches is not None:
        return _by_rows(values, type, functools.partial(codec.search, searches=searches), importance)
    if importance is not None and codec.weighted is not None:
        return _by_rows(values, type, codec.weighted, importance)
    assert codec.encode is not None
    with _quiet():
        values = np.ascontiguousarray(values, dtype=codec.values_dtype)
        out = np.empty((*values.shape[:-1], row_bytes), np.uint8)
        flat = values.reshape(-1, type.block_size)
        blocks = out.reshape(-1).view(type.dtype)
        step = _CHUNK // type.block_size
        encode = codec.store if stored and codec.store is not None else codec.encode
        for start in range(0, len(flat), step):
            encode(flat[start : start + step], blocks[start : start + step])
    return out


def _importance(imatrix: npt.ArrayLike, type: Type, ne0: int, stored: bool) -> npt.NDArray[np.float32]:
    """``imatrix`` as float32 [ne0], checked."""
    if stored:
        raise ParameterError("quantize: stored=True cannot be combined with an importance matrix", got=imatrix)
    importance = np.ascontiguousarray(imatrix, np.float32)
    if importance.shape != (ne0,):
        raise ShapeError(
            f"an importance matrix for rows of {ne0} elements must be [{ne0}], got {list(importance.shape)}",
            got=importance.shape,
            wanted=ne0,
        )
    if not (np.isfinite(importance) & (importance >= 0)).all():
        raise ParameterError("an importance matrix must hold finite numbers that are not negative", got=imatrix)
    return balanced(importance, type)


def balanced(importance: npt.NDArray[np.float32], type: Type) -> npt.NDArray[np.float32]:
    """The importance of columns, in each block relative to each other, in a range in which squares and sums neither
    overflow nor vanish.

    Multiplied by a power of two, which changes no encoded bit, and only where a block's largest is far from 1.
    """
    blocks = importance.reshape(-1, type.block_size)
    _, exponent = np.frexp(blocks.max(axis=1, keepdims=True, initial=0))
    return np.where(abs(exponent) <= 40, blocks, np.ldexp(blocks, 1 - exponent)).reshape(-1)


def _by_rows(
    values: npt.NDArray[Any],
    type: Type,
    encode: Callable[[npt.NDArray[Any], npt.NDArray[Any], Any], None],
    importance: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.uint8]:
    ne0 = values.shape[-1]
    out = np.empty((*values.shape[:-1], type.row_bytes(ne0)), np.uint8)
    with _quiet():
        rows = np.ascontiguousarray(values, np.float32).reshape(-1, ne0)
        blocks = out.reshape(-1).view(type.dtype).reshape(len(rows), -1)
        step = max(1, _CHUNK // max(ne0, 1))
        for start in range(0, len(rows) if ne0 else 0, step):
            encode(rows[start : start + step], blocks[start : start + step], importance)
    return out


def dequantize(data: Any, type: Type | str, ne0: int | None = None) -> npt.NDArray[np.float32]:
    """Decode rows of ``type`` (``to_float`` in ggml's type traits).

    Args:
        data: uint8 [..., row bytes], or anything with the buffer protocol, taken as one row.
        ne0: number of elements of a row, which is then checked.

    Returns:
        float32 [..., ne0]; for I32, I64 and F64 the nearest float32.

    Raises:
        ShapeError: the last axis is not a whole number of blocks, or not ``ne0`` elements.
        TypeMismatchError: ``type`` has no reference decoder, or ``data`` is not bytes.
    """
    type = as_type(type)
    codec = _codec(type)
    if codec is None or codec.decode is None:
        raise TypeMismatchError(f"{type.name} has no reference decoder{_reason(codec)}", got=type)
    rows = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if rows.dtype != np.uint8:
        raise TypeMismatchError(
            f"dequantising {type.name} needs uint8 bytes, got {rows.dtype}",
            got=rows.dtype,
            remedy="use .view(np.uint8)",
        )
    if rows.ndim == 0:
        raise ShapeError(f"dequantising {type.name} needs at least one axis, got a scalar", got=())
    n_blocks, rest = divmod(rows.shape[-1], type.block_bytes)
    elements = n_blocks * type.block_size
    if rest or (ne0 is not None and ne0 != elements):
        wanted = f"{ne0} elements" if ne0 is not None else f"blocks of {type.block_bytes} bytes"
        raise ShapeError(f"rows of {rows.shape[-1]} bytes are not {wanted} of {type.name}", got=rows.shape, wanted=ne0)
    out = np.empty((*rows.shape[:-1], elements), np.float32)
    flat = out.reshape(-1, type.block_size)
    blocks = np.ascontiguousarray(rows).reshape(-1).view(type.dtype)
    step = _CHUNK // type.block_size
    with _quiet():
        for start in range(0, len(flat), step):
            codec.decode(blocks[start : start + step], flat[start : start + step])
    return out


def _quiet() -> np.errstate:
    """Switches NumPy's warnings off: infinities, NaNs and scales out of range are valid here.

    Some warnings depend on the processor: conversions on AArch64 warn about signalling NaNs.
    """
    return np.errstate(all="ignore")


def put_scales(data: npt.NDArray[np.uint8], type: Type | str, scales: npt.ArrayLike) -> None:
    """Set the scales of encoded blocks of ``type``: for tests.

    Args:
        data: contiguous uint8; all float fields of its blocks are set.
        scales: one number, or one for each block.
    """
    type = as_type(type)
    blocks = data.reshape(-1).view(type.dtype)
    each = np.broadcast_to(np.asarray(scales, np.float32), blocks.shape)
    codec = _codec(type)
    if codec is not None and codec.put_scale is not None:
        codec.put_scale(blocks, each)
    for field in type.fields:
        if field.dtype.startswith("f"):
            blocks[field.name] = each


def can_quantize(type: Type | str, *, imatrix: bool = False) -> bool:
    """Whether :func:`quantize` takes ``type`` without an importance matrix, or with one if ``imatrix`` is True."""
    codec = _codec(type)
    return codec is not None and (codec.encode is not None or (imatrix and codec.weighted is not None))


def can_store(type: Type | str) -> bool:
    """Whether ops store results of ``type``: :func:`quantize` takes it with ``stored``."""
    codec = _codec(type)
    return codec is not None and codec.encode is not None and codec.is_stored


def can_dequantize(type: Type | str) -> bool:
    """Whether :func:`dequantize` takes ``type``."""
    codec = _codec(type)
    return codec is not None and codec.decode is not None


def searched_types() -> tuple[Type, ...]:
    """The types whose encoders search for rows of grids, which take most of their time; by id."""
    return tuple(type for type in TYPES if (codec := _codec(type)) is not None and codec.search is not None)


def block_types() -> tuple[Type, ...]:
    """The block types that have a reference decoder, by id: what devices are tested with."""
    return tuple(type for type in TYPES if type.is_quantized and can_dequantize(type))


def _codec(type: Type | str) -> Codec | None:
    _load_families()
    return find(as_type(type))


@functools.cache
def _load_families() -> None:
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")


def _reason(codec: Codec | None) -> str:
    return f": {codec.missing}" if codec is not None and codec.missing else ""

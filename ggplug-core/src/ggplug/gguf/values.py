"""Encodes metadata values: the GGUF type of a Python value, and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ggplug.errors import ParameterError
from ggplug.gguf.format import MAX_ARRAY_DEPTH, SCALAR_CODES, SCALAR_DTYPES, ValueType

Order = Literal["<", ">"]
Types = tuple[ValueType, ...]

_OF_DTYPE = {dtype: type for type, dtype in SCALAR_DTYPES.items()}


def infer_types(key: str, value: Any) -> Types:
    """The GGUF types of ``value``, as in ``GGUFReader.metadata_types``.

    NumPy values keep their dtype.  Of Python's own: bool is BOOL, str STRING, float FLOAT32; int is the first of
    UINT32, INT32, UINT64, INT64 that holds it; ``bytes`` is an array of UINT8.  A list or tuple is an array of the type
    that holds all items, INT32 for small integers.  These are the types that model files use.

    Raises:
        ParameterError: GGUF has no type for the value, or no single one for all items, or the list is empty.
    """
    if isinstance(value, str):
        return (ValueType.STRING,)
    if isinstance(value, bytes | bytearray | memoryview):
        return (ValueType.ARRAY, ValueType.UINT8)
    if isinstance(value, np.ndarray) and value.ndim:
        if value.dtype.kind == "U":
            return (ValueType.ARRAY,) * value.ndim + (ValueType.STRING,)
        return (ValueType.ARRAY,) * value.ndim + (_of_dtype(key, value.dtype),)
    if isinstance(value, np.generic | np.ndarray):
        return (_of_dtype(key, value.dtype),)
    if isinstance(value, bool):
        return (ValueType.BOOL,)
    if isinstance(value, int):
        return (_of_integers(key, value, value, small=ValueType.UINT32),)
    if isinstance(value, float):
        return (ValueType.FLOAT32,)
    if isinstance(value, Sequence):
        return (ValueType.ARRAY, *_of_items(key, value))
    raise ParameterError(f"{key}: GGUF has no type for a {type(value).__name__}", got=type(value))


def _of_dtype(key: str, dtype: np.dtype[Any]) -> ValueType:
    found = _OF_DTYPE.get(dtype.newbyteorder("="))
    if found is None:
        raise ParameterError(f"{key}: GGUF has no type for {dtype} values", got=dtype)
    return found


def _of_integers(key: str, low: int, high: int, small: ValueType) -> ValueType:
    for type in (small, ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64):
        limits = np.iinfo(SCALAR_DTYPES[type])
        if limits.min <= low and high <= limits.max:
            return type
    raise ParameterError(f"{key}: integers from {low} to {high} fit no GGUF type", got=(low, high))


def _of_items(key: str, items: Sequence[Any]) -> Types:
    if not items:
        raise ParameterError(f"{key}: the item type of an empty list is unknown", remedy="pass type=(ARRAY, item type)")
    if all(isinstance(item, str) for item in items):
        return (ValueType.STRING,)
    if all(type(item) is int for item in items):
        return (_of_integers(key, min(items), max(items), small=ValueType.INT32),)
    if all(type(item) in (int, float) for item in items):
        return (ValueType.FLOAT32,)
    found = {infer_types(key, item) for item in items}
    if len(found) != 1:
        raise ParameterError(f"{key}: the items of an array must have one type", got=sorted(map(str, found)))
    return found.pop()


def encode_value(key: str, value: Any, types: Types, order: Order) -> bytes:
    """The bytes of a value, without its type, which :class:`~ggplug.gguf.metadata.Metadata` decodes.

    Raises:
        ParameterError: the value is not of these types, or does not fit in them.
    """
    try:
        return _encode(value, types, order)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, ParameterError):
            raise ParameterError(f"{key}: {error.message}", **error.fields) from None
        named = " of ".join(type.name for type in types)
        raise ParameterError(f"{key}: {_short(value)} is no {named}: {error}", got=value, wanted=types) from None


def _encode(value: Any, types: Types, order: Order) -> bytes:
    type, inner = types[0], types[1:]
    if type is ValueType.STRING:
        return encode_string(value, order)
    if type is not ValueType.ARRAY:
        return _encode_scalar(value, type, order)
    if len(types) > MAX_ARRAY_DEPTH + 1:
        raise ParameterError(f"arrays can be nested {MAX_ARRAY_DEPTH} deep", got=len(types) - 1)
    if not inner:
        raise ParameterError("the type of an array needs its item type: (ARRAY, item type)", got=types)
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray | bytearray | memoryview):
        raise ParameterError(f"{_short(value)} is no array", got=value, wanted=types)
    if isinstance(value, memoryview):
        value = np.asarray(value)  # whose length is that of its items, whatever they are
    head = struct.pack(order + "IQ", inner[0], len(value))
    if inner[0] is ValueType.STRING:
        return head + b"".join(encode_string(item, order) for item in value)
    if inner[0] is ValueType.ARRAY:
        return head + b"".join(_encode(item, inner, order) for item in value)
    return head + _encode_scalars(value, inner[0], order)


def _encode_scalar(value: Any, type: ValueType, order: Order) -> bytes:
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if type is ValueType.BOOL and not isinstance(value, bool):
        raise ParameterError(f"{_short(value)} is no BOOL", got=value, wanted=type)
    return struct.pack(order + SCALAR_CODES[type], value)


def _encode_scalars(value: Any, type: ValueType, order: Order) -> bytes:
    dtype = SCALAR_DTYPES[type]
    array = np.frombuffer(value, np.uint8) if isinstance(value, bytes | bytearray) else np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        if array.size or array.ndim != 1:
            raise ParameterError(f"{_short(value)} is no array of {type.name}", got=value, wanted=type)
        array = array.astype(dtype)
    if array.size and not _fits(array, dtype):
        raise ParameterError(f"some values of {_short(value)} are no {type.name}", got=value, wanted=type)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.newbyteorder(order)).tobytes()


def _fits(value: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    kind = str(value.dtype.kind)
    if dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            found = value.astype(dtype)
        return kind != "b" and not (np.isinf(found) & np.isfinite(value)).any()
    if dtype.kind == "b" or kind not in "iu":
        return kind == str(dtype.kind)
    limits = np.iinfo(dtype)
    return limits.min <= int(value.min()) and int(value.max()) <= limits.max


def encode_string(text: Any, order: Order) -> bytes:
    """Length and UTF-8 bytes."""
    raw = utf8(text)
    return struct.pack(order + "Q", len(raw)) + raw


def utf8(text: Any) -> bytes:
    """The bytes of a text.  Raises ParameterError for what is none."""
    if not isinstance(text, str):
        raise ParameterError(f"{_short(text)} is no string", got=text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParameterError(f"{_short(text)} is no text: {error.reason}", got=text) from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."

"""The parts of a GGUF file: constants, value types, tensor descriptions, byte order.

A file is, in this order: magic, version, number of tensors, number of metadata pairs; the pairs; the tensor
descriptions; padding to ``alignment``; the tensors' bytes, each at a multiple of ``alignment`` from there.
Numbers are in the file's byte order, which the version field shows; lengths and counts are u64 (u32 in version 1, which
is no longer supported).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug.types import Type

MAGIC = b"GGUF"
VERSION = 3
READABLE_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_RANK = 4
# ggml keeps names in 64 bytes with a terminating zero; longer ones can be read here but not by ggml.
MAX_NAME_BYTES = 63
# GGUF itself has no limit, and ggml reads no nested arrays at all.
MAX_ARRAY_DEPTH = 8

ALIGNMENT_KEY = "general.alignment"
ARCHITECTURE_KEY = "general.architecture"
SPLIT_NO_KEY = "split.no"
SPLIT_COUNT_KEY = "split.count"
SPLIT_TENSORS_KEY = "split.tensors.count"

Endian: TypeAlias = Literal["little", "big"]

#: The Python type of a metadata value.  Arrays of numbers are NumPy arrays, of strings ``list[str]``,
#: of arrays ``list`` of these.
Value: TypeAlias = bool | int | float | str | npt.NDArray[Any] | list[Any]


class ValueType(enum.IntEnum):
    """The type of a metadata value (``enum gguf_type``)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


#: The struct module's letter for each scalar type.
SCALAR_CODES: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}

#: The NumPy dtype of each scalar type, in the host's byte order.
SCALAR_DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype(np.uint8),
    ValueType.INT8: np.dtype(np.int8),
    ValueType.UINT16: np.dtype(np.uint16),
    ValueType.INT16: np.dtype(np.int16),
    ValueType.UINT32: np.dtype(np.uint32),
    ValueType.INT32: np.dtype(np.int32),
    ValueType.FLOAT32: np.dtype(np.float32),
    ValueType.BOOL: np.dtype(np.bool_),
    ValueType.UINT64: np.dtype(np.uint64),
    ValueType.INT64: np.dtype(np.int64),
    ValueType.FLOAT64: np.dtype(np.float64),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as a GGUF file describes it.

    Attributes:
        name: its name.
        type: its GGML type.
        ne: extents as stored, innermost first; one for each dimension.
        offset: position of its first byte in the file that it lies in.
        nbytes: number of bytes.
        shard: number of the file of a split model that it lies in, from 0.
    """

    name: str
    type: Type
    ne: tuple[int, ...]
    offset: int
    nbytes: int
    shard: int = 0

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.ne)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents in NumPy's order, outermost first."""
        return self.ne[::-1]

    @property
    def n_elements(self) -> int:
        """Product of the extents; 1 for a scalar."""
        return math.prod(self.ne)


def padding(position: int, alignment: int) -> int:
    """Bytes from ``position`` to the next multiple of ``alignment``."""
    return -position % alignment


def is_foreign(endian: Endian) -> bool:
    """Whether the byte order of a file differs from this machine's."""
    return (endian == "little") != np.little_endian


def swap_byte_order(data: npt.NDArray[np.uint8], type: Type) -> npt.NDArray[np.uint8]:
    """A copy of ``data``, whole blocks of ``type``, with the bytes of every scalar in a block reversed."""
    swapped = np.array(data, np.uint8, order="C", copy=True)
    blocks = swapped.reshape(-1).view(type.dtype)
    if not type.is_quantized:
        blocks.byteswap(inplace=True)
        return swapped
    for field in type.fields:
        column = blocks[field.name]
        if column.dtype.itemsize > 1:
            column[...] = column.byteswap()
    return swapped

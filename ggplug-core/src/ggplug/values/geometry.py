"""Checks extents and strides, and computes the bytes that a tensor spans."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ggplug.errors import ShapeError, TypeMismatchError
from ggplug.types import Type

Extents = tuple[int, int, int, int]

MAX_RANK = 4


class Geometry(NamedTuple):
    """Validated extents and strides: plain integers, so small that sums and products of them fit into 64 bits.

    ``nbytes``: from the first to the last byte.  ``rank``: number of dimensions up to the last extent that is not 1.
    """

    ne: Extents
    nb: Extents
    nbytes: int
    rank: int


MAX_BYTES = 1 << 50
"""Bytes of the largest tensor: more than any machine has, but sums of offsets fit into 64 bits."""

MAX_ELEMENTS = 1 << 54
"""The number of elements must be less, with extents of 0 counted as 1; NumPy can make arrays of that many blocks."""

_MAX_STRIDE = 1 << 62

_geometries: dict[tuple[Type, Extents, Extents | None], Geometry] = {}


def geometry(type: Type, ne: Extents, nb: Extents | None = None) -> Geometry:
    """Checks extents and strides; results are cached.

    ``nb``: by default those of a contiguous tensor (ggml_new_tensor).  Raises ShapeError, TypeMismatchError.
    """
    try:
        found = _geometries.get((type, ne, nb))
    except TypeError:  # a list, or anything else that cannot be hashed
        raise ShapeError(f"extents and strides must be tuples, got {ne!r} and {nb!r}", got=(ne, nb)) from None
    if found is None:
        found = _check_geometry(type, ne, nb)
        if len(_geometries) > 65536:
            _geometries.clear()
        _geometries[type, ne, nb] = found
    return found


def _check_geometry(type: Type, ne: Extents, nb: Extents | None) -> Geometry:
    if not isinstance(type, Type):
        raise TypeMismatchError(f"a tensor's type must be a ggplug.types.Type, got {type!r}", got=type)
    ne = _four(ne, "extents")
    row = type.row_bytes(ne[0])
    rank = max((i + 1 for i in range(MAX_RANK) if ne[i] != 1), default=0)
    if not is_possible(ne):
        limit = f"their product, zeros counted as ones, must be less than {MAX_ELEMENTS}"
        raise ShapeError(f"the extents {ne} are too large: {limit}", got=ne)
    packed = (type.block_bytes, row, row * ne[1], row * ne[1] * ne[2])
    if nb is None:
        return Geometry(ne, packed, _limited(packed[3] * ne[3], ne, packed), rank)
    nb = _four(nb, "strides")
    if any(stride % type.alignment for stride in nb):
        raise ShapeError(f"strides of {type.name} must be multiples of {type.alignment} bytes, got {nb}", got=nb)
    if type.is_quantized and nb[0] != type.block_bytes:
        raise ShapeError(
            f"blocks of {type.name} must be contiguous: nb[0] must be {type.block_bytes}, got {nb[0]}",
            got=nb[0],
            wanted=type.block_bytes,
        )
    if max(nb) > _MAX_STRIDE:
        raise ShapeError(f"strides must be at most {_MAX_STRIDE} bytes, got {nb}", got=nb)
    nbytes = 0
    if 0 not in ne:
        last = (ne[0] // type.block_size - 1, ne[1] - 1, ne[2] - 1, ne[3] - 1)
        nbytes = type.block_bytes + sum(n * stride for n, stride in zip(last, nb, strict=True))
    return Geometry(ne, nb, _limited(nbytes, ne, nb), rank)


def _limited(nbytes: int, ne: Extents, nb: Extents) -> int:
    if nbytes > MAX_BYTES:
        raise ShapeError(f"extents {ne} with strides {nb} span more than {MAX_BYTES} bytes", got=nbytes)
    return nbytes


def is_possible(ne: Iterable[int]) -> bool:
    """Whether extents are below the limit; also of a tensor without elements, because it has strides."""
    return math.prod(max(extent, 1) for extent in ne) < MAX_ELEMENTS


def _four(values: Any, what: str) -> Extents:
    if not isinstance(values, tuple) or len(values) != MAX_RANK:
        raise ShapeError(f"there must be {MAX_RANK} {what}, got {values!r}", got=values)
    for value in values:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
            raise ShapeError(f"{what} must be non-negative integers, got {values!r}", got=values)
    return int(values[0]), int(values[1]), int(values[2]), int(values[3])


def contiguous_strides(type: Type, ne: Extents) -> Extents:
    """Byte strides of a contiguous tensor; ``nb[0]`` is the bytes of one block (ggml_new_tensor)."""
    return geometry(type, ne).nb


def extents(ne: int | Iterable[int], *, what: str = "ne") -> tuple[Extents, int]:
    """Validated ``(four extents, rank)`` of extents in ``ne`` order."""
    entries = (ne,) if isinstance(ne, int) else tuple(ne)
    if len(entries) > MAX_RANK:
        raise ShapeError(f"{what} has {len(entries)} extents, a tensor has at most {MAX_RANK}", got=entries)
    for n in entries:
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 0:
            raise ShapeError(f"{what} must hold non-negative integers, got {entries!r}", got=entries)
    full = tuple(int(n) for n in entries) + (1,) * (MAX_RANK - len(entries))
    return full, len(entries)  # type: ignore[return-value]

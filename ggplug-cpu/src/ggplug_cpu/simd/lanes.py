"""Names of vector types: an element, ``x`` and a count of lanes, ``f32x16``.

Elements: ``i1`` (masks), ``i8``, ``i16``, ``i32``, ``i64``, ``f32``, ``f64``.  Half-width floats are in ``i16``
lanes: see :mod:`.halves`.
"""

from __future__ import annotations

import functools
import re

from .. import features

_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}
_VECTOR = re.compile(r"(i1|i8|i16|i32|i64|f32|f64)x(\d+)")


def width(elem: str = "f32") -> int:
    """The number of ``elem`` in the target's widest vector register (``f32``: 16, 8 or 4)."""
    return features.target().vector_bytes * 8 // _BITS[elem]


def vec(elem: str, count: int | None = None) -> str:
    """The name of the type of ``count`` lanes; without ``count``, of as many as the widest register holds."""
    name = f"{elem}x{width(elem) if count is None else count}"
    split(name)
    return name


@functools.cache
def split(name: str) -> tuple[str, int]:
    """``f32x16`` -> (``f32``, 16).  Raises ValueError for anything but a vector type."""
    match = _VECTOR.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no vector type; they look like f32x16, of {', '.join(_BITS)}")
    return match[1], int(match[2])


def is_vec(name: str) -> bool:
    return _VECTOR.fullmatch(name) is not None


def elem_of(name: str) -> str:
    """``f32x16`` -> ``f32``; a scalar's name is its own element."""
    return split(name)[0] if is_vec(name) else name


def count_of(name: str) -> int:
    return split(name)[1]


def elem_bytes(elem: str) -> int:
    """Bytes of an element in memory: of those that vectors have, and of ``f16`` and ``bf16``."""
    return _BITS[elem] // 8


def with_elem(name: str, elem: str) -> str:
    """As many lanes of another element: ``with_elem("f32x16", "i1")`` is ``i1x16``."""
    return f"{elem}x{count_of(name)}"


def masks_of(name: str) -> str:
    return with_elem(name, "i1")

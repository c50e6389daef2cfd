"""Codecs: the functions that encode and decode a type, which a family module registers for each of its types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.types import Type

Values = npt.NDArray[Any]
Blocks = npt.NDArray[Any]


@dataclass(frozen=True)
class Codec:
    """The reference conversions of one type.

    The functions convert n blocks at a time and write into their last array:

    * ``encode(values, blocks)``: ``values`` is C-contiguous ``values_dtype`` [n, block_size] (``None``: the caller's
      dtype), and must not be written, because it may be the caller's own; the function fills ``blocks``, ``type.dtype``
      [n], completely.
    * ``decode(blocks, values)``: ``blocks`` is ``type.dtype`` [n] as it lies in the file or buffer, possibly
      read-only; the function fills ``values``, C-contiguous float32 [n, block_size], completely.
    * ``weighted(values, blocks, importance)``: as ``encode``, for whole rows and with an importance matrix: ``values``
      is float32 [rows, ne0], ``blocks`` [rows, ne0 / block_size], ``importance`` float32 [ne0], not negative.
      ``None``: the type ignores importance matrices.
    * ``store``: as ``encode``, for types that ggml's ops encode differently (``from_float`` in its type traits) from
      files (``ggml_quantize_chunk``); ``None`` where both are the same.

    * ``search(values, blocks, importance, searches)``: as ``weighted``, or as ``encode`` if ``importance`` is
      ``None``, with other searches for rows of grids (``grid_search.Searches``); ``None`` for types without grids.
    * ``put_scale(blocks, scales)``: sets the scales of blocks, float32 [n], where they are no float field.

    ``is_stored``: whether ops encode results of this type at all.

    NumPy's floating-point warnings are off while they run.  If ggml has no reference for a function it is ``None``, and
    ``missing`` says why.
    """

    type: Type
    encode: Callable[[Values, Blocks], None] | None
    decode: Callable[[Blocks, Values], None] | None
    values_dtype: npt.DTypeLike | None = np.float32
    missing: str = ""
    store: Callable[[Values, Blocks], None] | None = None
    weighted: Callable[[Values, Blocks, Values], None] | None = None
    put_scale: Callable[[Blocks, Values], None] | None = None
    is_stored: bool = True
    search: Callable[..., None] | None = None


_CODECS: dict[Type, Codec] = {}


def register(*codecs: Codec) -> None:
    """Registers ``codecs``; a family module calls this once, when it is imported."""
    for codec in codecs:
        if codec.type in _CODECS:
            raise RuntimeError(f"two families register a codec for {codec.type.name}")
        _CODECS[codec.type] = codec


def find(type: Type) -> Codec | None:
    """The codec registered for ``type``, or None."""
    return _CODECS.get(type)

"""How one type encodes and decodes: what a family module registers for each of its types."""

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

    The functions work on n blocks at a time and write into what they are given:

    * ``encode(values, blocks)``: ``values`` is C-contiguous ``values_dtype`` [n, block_size] (``None``: whatever
      the caller had), perhaps the caller's own and so not to be written to; ``blocks`` is ``type.dtype`` [n], to
      be filled completely.
    * ``decode(blocks, values)``: ``blocks`` is ``type.dtype`` [n] as it lies in the file or buffer, perhaps
      read-only; ``values`` is C-contiguous float32 [n, block_size], to be filled completely.
    * ``weighted(values, blocks, importance)``: as ``encode``, of whole rows and with an importance matrix: ``values``
      is float32 [rows, ne0], ``blocks`` [rows, ne0 / block_size], ``importance`` float32 [ne0], not negative.
      ``None``: the type takes no notice of an importance matrix.
    * ``store``: as ``encode``, where ggml's ops encode a result in another way than files (``from_float`` in
      its type traits, beside ``ggml_quantize_chunk``); ``None`` where both are the same.

    * ``search(values, blocks, importance, searches)``: as ``weighted``, or as ``encode`` where ``importance`` is
      ``None``, with other searches for rows of grids (``grid_search.Searches``); ``None`` for types without grids.
    * ``put_scale(blocks, scales)``: writes a scale, float32 [n], into blocks, where it lies in no field of its own.

    ``is_stored``: whether ops encode results of this type at all.

    NumPy gives no floating-point warnings while they run.  A function that ggml has no reference for is ``None``, and
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
    """Make ``codecs`` known; a family module calls this once, when it is imported."""
    for codec in codecs:
        if codec.type in _CODECS:
            raise RuntimeError(f"two families register a codec for {codec.type.name}")
        _CODECS[codec.type] = codec


def find(type: Type) -> Codec | None:
    """The codec registered for ``type`` so far."""
    return _CODECS.get(type)

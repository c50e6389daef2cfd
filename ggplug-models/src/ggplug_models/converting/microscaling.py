"""The MXFP4 tensors of published gpt-oss models, as blocks of GGUF's type of the same name, without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.errors import ModelError
from ggplug_models.converting.checkpoint import Stored

_BLOCKS, _SCALES = "_blocks", "_scales"
_HALF = types.MXFP4.block_size // 2
_NAN = 255


def joined(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors, with those of levels and of scales as one.

    It has the name of the levels, the shape of the values, and the type MXFP4; the last axis of its array are the bytes
    of blocks.  Raises ModelError if one of both is missing, or does not fit to the other.
    """
    found = dict(tensors)
    for name in [each for each in found if each.endswith((_BLOCKS, _SCALES))]:
        stem = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
        levels, scales = (tensors.get(stem + end) for end in (_BLOCKS, _SCALES))
        if levels is None or scales is None:
            lacking = stem + (_SCALES if scales is None else _BLOCKS)
            raise ModelError(f"{tensors[name].path} has {name!r}, but no tensor {lacking!r}", tensor=lacking)
        if name.endswith(_SCALES):
            del found[name]
            continue
        for each, shape in ((levels, (*scales.shape, _HALF)), (scales, scales.shape)):
            if each.dtype != "U8" or each.shape != shape:
                raise ModelError(
                    f"{each.path}: tensor {each.name!r} has the shape {list(each.shape)} of {each.dtype}, expected "
                    f"{list(shape)} of U8: 16 bytes for each of the scales {scales.name!r}",
                    tensor=each.name,
                    got=each.shape,
                    wanted=shape,
                )
        shape = (*scales.shape[:-1], scales.shape[-1] * types.MXFP4.block_size)
        found[name] = Stored(levels.path, _Pair(levels, scales), name, types.MXFP4, "MXFP4", shape)
    return found


@dataclass(frozen=True)
class _Pair:
    """Levels ``[..., n, 16]``, two adjacent ones in a byte, and the exponents ``[..., n]`` of their scales."""

    levels: Stored
    scales: Stored

    def get_tensor(self, name: str) -> npt.NDArray[np.uint8]:
        """Blocks in GGUF's order: the exponent, then bytes with a level of the first and one of the second half."""
        pairs, exponents = self.levels.array(), self.scales.array()
        if (exponents == _NAN).any():
            index = [int(axis[0]) for axis in np.nonzero(exponents == _NAN)]
            raise ModelError(
                f"{self.scales.path}: tensor {self.scales.name!r} has {_NAN}, which is NaN, at {index}, expected "
                "finite numbers",
                tensor=self.scales.name,
                index=tuple(index),
                got=_NAN,
                remedy="check the model: the file is damaged, or training diverged",
            )
        blocks: npt.NDArray[Any] = np.empty((*exponents.shape, 1 + _HALF), np.uint8)
        blocks[..., 0] = exponents
        first, second = pairs[..., : _HALF // 2], pairs[..., _HALF // 2 :]
        blocks[..., 1::2] = first & 15 | second << 4
        blocks[..., 2::2] = first >> 4 | second & 0xF0
        return blocks.reshape(*exponents.shape[:-1], -1)

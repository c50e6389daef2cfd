"""Weights in FP8 with scales of blocks, rows or whole matrices, as in models of DeepSeek and Qwen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.errors import ModelError
from ggplug.system.files import open_regular
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.folder import unreadable
from ggplug_models.metadata.values import Values

_TYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_OF_INPUTS = (".input_scale", ".activation_scale", "_activation_scale")
_ROWS = 256


def dequantized(tensors: Mapping[str, Stored], config: Values, scale: str) -> dict[str, Stored]:
    """The tensors, with each weight in FP8 and its scales as one of F32.  Raises ModelError where they do not fit.

    ``config``: the settings of the quantisation.  ``scale``: with what the names of scales end.  Scales of inputs are
    left out: products take inputs as they are.
    """
    found = {name: stored for name, stored in tensors.items() if not name.endswith(_OF_INPUTS)}
    for name in [each for each in found if each.endswith(scale)]:
        of_weight = name.removesuffix("_inv").removesuffix("_scale")
        scales, weight = found.pop(name), found.get(of_weight)
        if weight is None:
            raise ModelError(f"{scales.path} has {name!r}, but no tensor {of_weight!r}", tensor=of_weight)
        if weight.dtype not in _TYPES or scales.type is None or len(weight.shape) < 2:
            raise ModelError(
                f"{weight.path}: tensor {weight.name!r} is {weight.dtype} and its scales {scales.dtype}, expected a "
                f"matrix of {' or '.join(_TYPES)} and scales of F32, F16 or BF16",
                tensor=weight.name,
                got=(weight.dtype, scales.dtype),
            )
        block = _block(weight, scales, config)
        found[weight.name] = weight._replace(file=_Scaled(weight, scales, block), type=types.F32)
    return found


def _block(weight: Stored, scales: Stored, config: Values) -> tuple[int, int]:
    """The rows and columns that have one scale."""
    *outer, rows, columns = weight.shape
    sizes = config.values.get("weight_block_size")
    whole, row = (rows, columns), (1, columns)
    expected = [((), whole), ((1,), whole), ((rows,), row), ((*outer, rows, 1), row)]
    if sizes is not None:
        if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
            raise config.refused("weight_block_size", "two positive integers")
        high, wide = sizes
        expected = [((*outer, -(-rows // high), -(-columns // wide)), (high, wide))]
    for shape, block in expected:
        if scales.shape == shape:
            return block
    raise ModelError(
        f"{scales.path}: tensor {scales.name!r} has the shape {list(scales.shape)}, expected "
        f"{' or '.join(str(list(shape)) for shape, _ in expected)} for {weight.name!r} of {list(weight.shape)}",
        tensor=scales.name,
        got=scales.shape,
        wanted=expected[-1][0],
    )


@dataclass(frozen=True)
class _Scaled:
    """A weight in FP8, and the scale of each ``block`` of rows and columns."""

    weight: Stored
    scales: Stored
    block: tuple[int, int]

    def get_tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The products, some rows at a time, so that only they are as large as the tensor."""
        *_, rows, columns = self.weight.shape
        high, wide = self.block
        levels = _levels(self.weight.dtype)
        stored = _bytes(self.weight).reshape(-1, rows, columns)
        scales = np.asarray(self.scales.array(), np.float32).reshape(-1, -(-rows // high), -(-columns // wide))
        scales = np.broadcast_to(scales, (len(stored), *scales.shape[1:]))
        values = np.empty(stored.shape, np.float32)
        across = np.arange(columns) // wide
        for matrix, of_matrix, into in zip(stored, scales, values, strict=True):
            for start in range(0, rows, _ROWS):
                piece = matrix[start : start + _ROWS]
                down = np.arange(start, start + len(piece)) // high
                np.multiply(levels[piece], of_matrix[down][:, across], out=into[start : start + _ROWS])
        return values.reshape(self.weight.shape)


def _levels(dtype: str) -> npt.NDArray[np.float32]:
    """The number of each byte."""
    import ml_dtypes

    every: npt.NDArray[Any] = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, _TYPES[dtype]))
    return np.asarray(every, np.float32)


def _bytes(stored: Stored) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor: the library ``safetensors`` gives NumPy no FP8."""
    with unreadable(stored.path), open_regular(stored.path) as file:
        length = int.from_bytes(file.read(8), "little")
        entry: Any = json.loads(file.read(length))[stored.name]
        first, last = entry["data_offsets"]
        file.seek(8 + length + first)
        return np.frombuffer(file.read(last - first), np.uint8)

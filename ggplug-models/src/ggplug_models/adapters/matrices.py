"""Reads the tensors of a file as rows: their bytes, and their values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.gguf import GGUFReader, TensorInfo


def rows_in_file(reader: GGUFReader, info: TensorInfo) -> npt.NDArray[np.uint8]:
    """The bytes of each row, in the host's byte order."""
    return np.ascontiguousarray(reader.array(info)).view(np.uint8)


def values_in_file(reader: GGUFReader, info: TensorInfo) -> npt.NDArray[np.float32]:
    """The values, rows first."""
    return quants.dequantize(rows_in_file(reader, info), info.type).reshape(info.shape)

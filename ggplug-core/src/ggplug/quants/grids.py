"""Types whose numbers are rows of a grid, with signs and a scale apart: IQ2_XXS (``dequantize_row_iq2_xxs``).

The grids are data, kept in ``data/`` with their source and licence.  ggml encodes these types with an importance matrix
only, so there are no encoders.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.quants.codec import Blocks, Codec, Values, register


def _grid(name: str, magnitudes: tuple[int, ...], width: int) -> npt.NDArray[np.int8]:
    """The grid in a file of ``data/``, [rows, ``width``]: two bits a number, which count along ``magnitudes``."""
    lines = (files("ggplug.quants") / "data" / f"{name}.txt").read_text("ascii").splitlines()
    packed = np.frombuffer(bytes.fromhex("".join(line for line in lines if not line.startswith("#"))), np.uint8)
    numbers = packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    grid: npt.NDArray[np.int8] = np.array(magnitudes, np.int8)[numbers.reshape(-1, width)]
    return grid


#: ``iq2xxs_grid``: 256 rows of eight magnitudes.
IQ2_XXS_GRID = _grid("iq2_xxs_grid", (8, 25, 43), 8)

_SEVEN = np.arange(128, dtype=np.uint8)
_ODD = np.bitwise_xor.reduce(_SEVEN[:, None] >> np.arange(7, dtype=np.uint8) & 1, axis=1)
#: ``ksigns_iq2xs``: the signs of eight numbers as bits, of which seven are stored; the number of ones is even.
SIGNS: npt.NDArray[np.uint8] = _SEVEN | _ODD << 7


def _decode_iq2_xxs(blocks: Blocks, values: Values) -> None:
    n = len(blocks)
    words = np.ascontiguousarray(blocks["qs"]).astype("<u2").view("<u4").reshape(n, 8, 2)
    rows = np.ascontiguousarray(words[:, :, 0]).view(np.uint8).reshape(n, 8, 4)
    rest = words[:, :, 1]
    negative = SIGNS[rest[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127]
    sign = 1 - 2 * (negative[..., None] >> np.arange(8, dtype=np.uint8) & 1).astype(np.int8)
    scale = blocks["d"].astype(np.float32)[:, None] * (np.float32(0.5) + (rest >> 28).astype(np.float32))
    scale *= np.float32(0.25)
    np.multiply(IQ2_XXS_GRID[rows] * sign, scale[:, :, None, None], out=values.reshape(n, 8, 4, 8))


register(Codec(types.IQ2_XXS, None, _decode_iq2_xxs, missing="ggml quantises it with an importance matrix only"))

"""IQ2_XXS: 256 numbers as rows of a grid of eight magnitudes, with signs, and a scale for every 32.

Nothing encodes it: ggml does so with an importance matrix only.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import types
from ggplug.quants.grids import IQ2_XXS_GRID, SIGNS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.lookup import constant_words
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, vector
from ggplug_cpu.types.blocks import GROUP, Blocks, Factors, f16_at, offset_of

_QS = offset_of(types.IQ2_XXS, "qs")
#: Rows of the grid, and for each byte of signs 0xFF where a number is negative: eight bytes in a word.
_GRID = [int.from_bytes(row.tobytes(), "little") for row in IQ2_XXS_GRID]
_NEGATIVE = [sum(0xFF << 8 * i for i in range(8) if signs >> i & 1) for signs in map(int, SIGNS)]


def _quants(block: Value, part: Value) -> Value:
    """Four indices of a byte, then four of seven bits, of the signs; the scale's four bits are above."""
    place = block + part * 8
    rows, rest = (values.load(place, I32, _QS + 4 * i).zext(I64) for i in (0, 1))
    grid, negative = constant_words(block.b, "iq2_xxs.grid", _GRID), constant_words(block.b, "iq2_xxs.signs", _NEGATIVE)
    magnitudes = values.gathered([values.load(grid + (rows.lshr(8 * i) & 255) * 8, I64) for i in range(4)])
    signs = values.gathered([values.load(negative + (rest.lshr(7 * i) & 127) * 8, I64) for i in range(4)])
    numbers, mask = magnitudes.bitcast(vector(I8, GROUP)), signs.bitcast(vector(I8, GROUP))
    return ((numbers ^ mask) - mask) ^ -128


def _factors(addresses: Sequence[Value]) -> Factors:
    scales = []
    for address in addresses:
        words = values.load(address, vector(I32, 16), _QS).shuffle(range(1, 16, 2))
        d = f16_at([address]).lane(0).splat(8)
        scales.append(d * (words.lshr(28).convert(F32) + 0.5) * 0.25)
    return Factors(values.joined(scales))


FAMILY = (Blocks(types.IQ2_XXS, _quants, _factors, offset=128),)

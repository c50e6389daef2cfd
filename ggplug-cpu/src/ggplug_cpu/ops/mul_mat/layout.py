"""The layouts of packed numbers, and the sizes of tiles, for the inner loops of matrix products on the current target.

Both sides are packed in *units* along K: of four bytes (one f32, two bf16, four int8) where an instruction adds to a
lane the products of that lane, of eight (four bf16, eight int8) where it multiplies matrices of two rows.

- A *panel* holds ``Layout.columns`` rows of weights, which are the result's columns, unit by unit: ``[unit][column]``.
- Activations lie in groups of some units: ``[group][row][units of the group]``.  A group has one unit where rows are
  multiplied in pairs, so that a pair's units are adjacent.
- For int8, the factors of a *group* follow its 32 or 16 numbers on both sides: scales (f32), each in as many bytes as a
  unit has, which is twice in eight; after them, for weights with minima, these minima and
  the activations' totals (f32) alike.  If the instruction takes unsigned activations (x86's), these are ``x + 128``,
  and a panel ends with ``-128 * sum(weights)`` (int32) of every column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llvmlite import ir

from ggplug_cpu import features
from ggplug_cpu.simd import dots
from ggplug_cpu.simd.values import I32, I64, vector
from ggplug_cpu.types import BLOCKS, GROUP, Blocks

#: Bytes of a row's units that are packed at a time: a panel of f32 then has 64 KiB at most.
K_BYTES = 2048
#: Most bytes of a chunk's packed weights: they fit a second-level cache, with the activations that stream through it.
PANEL_BYTES = 640 << 10
#: The numbers along K that are packed at a time are a multiple of the first one, and at least the second one where K is
#: cut so that a chunk has whole rows.
_LEAST_STEP, _LEAST_PART = 128, 384


@dataclass(frozen=True)
class Layout:
    """The layout of packed numbers of one ``kind``, and the sizes of its tiles, which fit the target's registers.

    Tiles are ``vecs`` vectors of ``width`` f32 of the result by some rows.  ``tiles``: (rows of a tile, least remaining
    rows for which it is used), the largest first; the last one is used for any number.  A unit holds ``unit`` numbers
    in ``unit_bytes``.  ``together`` units of a row are adjacent in packed activations.  A step of the inner loop takes
    ``step_numbers`` numbers of each row, which are ``step_bytes`` bytes of packed activations.  A panel grows by
    ``quantum_bytes`` with every ``quantum`` numbers, the last padded.  Of int8, ``has_minima`` says whether weights
    have them.  ``magnitude``: the largest of weights.  ``unsigned``: whether activations are packed as ``x + 128``.
    ``way``: how vectors of bf16 and int8 are multiplied and added.
    """

    kind: str
    unit: int
    unit_bytes: int
    width: int
    vecs: int
    tiles: tuple[tuple[int, int], ...]
    together: int
    step_numbers: int
    step_bytes: int
    quantum: int
    quantum_bytes: int
    has_minima: bool = False
    way: dots.Way | None = None
    magnitude: int = 128
    unsigned: bool = False

    @property
    def rows(self) -> int:
        """Rows of the largest tile."""
        return self.tiles[0][0]

    @property
    def fewest_rows(self) -> int:
        """Rows of the smallest tile."""
        return self.tiles[-1][0]

    def is_one_tile(self, rows: int) -> bool:
        """Whether there is a tile of exactly ``rows`` rows."""
        return any(least <= rows <= size for size, least in self.tiles)

    @property
    def columns(self) -> int:
        """The number of columns of a panel."""
        return self.width * self.vecs

    @property
    def rows_of_sums(self) -> int:
        """Rows of the result in a vector of sums: 2 where it is a matrix of 2 x 2."""
        return self.unit_bytes // 4

    def vector_of_units(self, count: int) -> ir.VectorType:
        """The vector type of ``count`` units of a kind other than f32."""
        return vector(I32 if self.unit_bytes == 4 else I64, count)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's adjacent units in packed activations."""
        return self.together * self.unit_bytes

    @property
    def k_numbers(self) -> int:
        """Most numbers along K that are packed at a time."""
        return K_BYTES // self.unit_bytes * self.unit

    def k_block(self, K: int, M: int, block_size: int = 1) -> int:
        """Numbers along K that are packed at a time of ``M`` rows of weights: equal parts of K, of whole blocks.

        As few parts as possible, or up to twice as many if the packed weights of all rows then fit a chunk.
        """
        step = max(block_size, _LEAST_STEP)
        parts = max(1, -(-K // self.k_numbers))
        for_all_rows = -(-(-(-M // self.columns) * self.panel_bytes(K)) // PANEL_BYTES)
        if for_all_rows <= 2 * parts and for_all_rows * _LEAST_PART <= K:
            parts = max(parts, for_all_rows)
        return max(1, -(-K // (parts * step))) * step

    @property
    def minima_at(self) -> int:
        """For int8: offset of the minima in a group of a panel, after numbers and scales."""
        return self.columns * (self.quantum + self.unit_bytes)

    @property
    def offsets_at(self) -> int:
        """For int8 with unsigned activations: offset of the sums in a group of a panel."""
        return self.columns * (self.quantum + self.unit_bytes * (1 + self.has_minima))

    def panel_bytes(self, numbers: int) -> int:
        return -(-numbers // self.quantum) * self.quantum_bytes

    @property
    def x_bytes(self) -> int:
        """Most bytes of the packed activations of a tile."""
        return self.rows * self.step_bytes * (self.k_numbers // self.step_numbers)


def int8_kind(t: Blocks) -> str:
    """The kind of integer products with weights of a block type: ``i8``, with suffixes.

    ``to`` a magnitude, if the target multiplies only numbers up to it fast; ``by`` a group other than 32; ``with
    minima``.
    """
    small = f" to {1 << (t.magnitude - 1).bit_length()}" if not way_of("i8")[0].is_instruction else ""
    return f"i8{small}" + (f" by {t.group}" if t.group != GROUP else "") + (" with minima" if t.has_minima else "")


def _magnitude(kind: str) -> int:
    """The largest magnitude of weights of a kind of integer products."""
    words = kind.split()
    return int(words[2]) if words[1:2] == ["to"] else 128


def base_of(kind: str) -> str:
    """``i8`` for every kind that :func:`int8_kind` returns; another kind itself."""
    return kind.partition(" ")[0]


def layout_for(kind: str, stored: str) -> Layout:
    """As :func:`layout`, for weights packed as ``stored``: see :func:`~.tiles.tile`.

    For blocks, a group of activations has one more unit: the start value of its sums (int32).
    """
    s = layout(kind)
    return replace(s, step_bytes=s.step_bytes + s.unit_bytes) if stored in BLOCKS else s


def layout(kind: str) -> Layout:
    """The layout of ``kind`` for the current target.

    ``kind`` is ``f32``, ``bf16``, ``amx`` (bf16 in tile registers), or one of :func:`int8_kind`.
    """
    width = _width()
    name, kind = kind, base_of(kind)
    columns = 2 * width
    if kind == "amx":
        return Layout(kind, 2, 4, width, 2, ((32, 17), (16, 1)), 16, 32, 64, 2 * width, 4 * columns * width)
    unit_bytes = 8 if _multiplies_matrices(kind) else 4
    unit = unit_bytes // {"f32": 4, "bf16": 2, "i8": 1}[kind]
    has_minima = name.endswith("with minima")
    way, unsigned = way_of(name) if unit > 1 else (None, False)
    if kind == "i8":
        step = 16 if "by 16" in name else GROUP
        together, step_bytes = step // unit, step + unit_bytes * (1 + has_minima)
        quantum, column_bytes = step, step_bytes + 4 * unsigned
    else:
        together, step, step_bytes = 4, 4 * unit, 4 * unit_bytes
        quantum, column_bytes = unit * width, unit_bytes * width
    if unit_bytes == 8:
        together = 1
    return Layout(
        kind,
        unit,
        unit_bytes,
        width,
        2,
        _tiles(kind),
        together,
        step,
        step_bytes,
        quantum,
        columns * column_bytes,
        has_minima,
        way,
        _magnitude(name),
        unsigned,
    )


def _width() -> int:
    return features.target().vector_bytes // 4


def _tiles(kind: str) -> tuple[tuple[int, int], ...]:
    """:attr:`Layout.tiles`: accumulators must leave registers for the operands.

    Of 16 registers they may take 12.  Of AVX-512's 32 they may take 24, for activations are operands in memory.  Of
    AArch64's 32 they may take 16, next to the weights of four units, and 24 where a pair of rows is one operand.  int8
    needs two for each sum, the integer one and the scaled one; of AVX-512's all 32 are taken, since a scaled sum that
    is stored and loaded again, once for 32 products, costs less than reading weights again for rows that are left.
    A larger tile is used for fewer rows than it has where reading the weights once more would take longer.
    """
    if features.has("avx512f"):
        return ((8, 5), (4, 3), (2, 2), (1, 1)) if kind == "i8" else ((12, 9), (8, 5), (4, 1))
    if features.has("sse2"):
        return ((3, 3), (2, 2), (1, 1)) if kind == "i8" else ((6, 5), (4, 3), (2, 1))
    if kind == "bf16" and _multiplies_matrices(kind):
        return (12, 9), (4, 1)
    return ((4, 3), (2, 1)) if kind == "i8" else ((8, 5), (4, 1))


# -- the instructions of a kind --------------------------------------------------------------------------


def has_fast_instruction(kind: str) -> bool:
    """Whether the target's instructions multiply and add numbers of ``kind`` (``bf16`` or int8) faster than f32."""
    found, _ = way_of(kind)
    return found.is_fast and features.target().slow.isdisjoint(found.needs)


def takes_any_int8(kind: str) -> bool:
    """Whether products of ``kind`` are right for activations that are -128, too, which no rounding makes."""
    found, unsigned = way_of(kind)
    return unsigned or not found.signs


def way_of(kind: str) -> tuple[dots.Way, bool]:
    """The way by which products of ``kind`` (``bf16`` or int8) are added to sums, by matrices of two rows or else by
    lanes; and whether activations are unsigned for it.
    """
    width, product, largest = _width(), "bf16" if kind == "bf16" else "i8i8", dots.LARGEST
    found = dots.way(product, width, 2)
    if found is None and kind != "bf16" and dots.int8_product(width) == "u8i8":
        largest = dots.LARGEST_BYTE * _magnitude(kind)
        if dots.signed_is_faster(width, largest):
            largest = dots.LARGEST_ROUNDED
        else:
            product = "u8i8"
    found = found or dots.way(product, width, largest=largest)
    assert found is not None
    return found, product == "u8i8"


def _multiplies_matrices(kind: str) -> bool:
    product = {"i8": "i8i8", "bf16": "bf16"}.get(kind)
    return product is not None and dots.way(product, _width(), 2) is not None

"""Sizes of kernels for a device: widths of vectors, sizes of work-groups and of tiles.

Everything is read from the device's properties, so one source serves GPUs, where a work-group is many narrow lanes,
and CPUs, where it is one lane that computes with the widest vectors there are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ggplug_simt.properties import Properties


@dataclass(frozen=True)
class Tile:
    """The tile of a work-group, ``m`` x ``n`` in slices of ``k``; a work-item computes ``item_m`` x ``item_n``.

    ``k`` is a multiple of the vector, and of the group of elements that share a scale in most types; products of other
    types are declined.
    """

    m: int
    n: int
    k: int
    item_m: int
    item_n: int

    @property
    def local_bytes(self) -> int:
        """Local memory of the two slices, in bytes."""
        return 4 * self.k * (self.m + self.n)

    @property
    def blocks(self) -> int:
        """The number of blocks, one for each work-item."""
        return (self.m // self.item_m) * (self.n // self.item_n)

    @property
    def halves(self) -> bool:
        """Whether half the tile in both directions is still a tile."""
        return self.m % (2 * self.item_m) == 0 and self.n % (2 * self.item_n) == 0

    def fitted(self, m: int, n: int) -> Tile:
        """A tile with less padding for a product of ``m`` x ``n``: a quarter as long where that fits better.

        Each size of a tile is another program, so there are few.
        """
        return Tile(_fitted(m, self.m, self.item_m), _fitted(n, self.n, self.item_n), self.k, self.item_m, self.item_n)


def _fitted(extent: int, tile: int, item: int) -> int:
    short = tile // 4
    if short % item:
        return tile
    padded, short_padded = (-(-extent // size) * size for size in (tile, short))
    return short if 4 * short_padded <= 3 * padded else tile


@dataclass(frozen=True)
class Profile:
    """The sizes that kernels are compiled with.  All numbers of lanes are powers of two: work-groups sum by halves.

    ``vec``: floats that an item handles at once.  ``unit_lanes``: work-items of a group if each computes a unit.
    ``row_lanes``: items that share a row.  ``dot_lanes``, ``dot_rows``: items that share a product of two rows, and
    how many rows a group multiplies, ``dot_together`` of them at once.  ``tile_lanes``: items of a tile at most.
    ``products``: the vendor's library multiplies matrices.  ``local_bytes``: local memory of a group, in bytes.
    """

    vec: int
    unit_lanes: int
    row_lanes: int
    dot_lanes: int
    dot_rows: int
    dot_together: int
    tile: Tile
    tile_lanes: int
    products: bool = False
    local_bytes: int = 0

    @classmethod
    def of(cls, properties: Properties) -> Profile:
        """The profile that suits a device."""
        profile = _PROCESSORS[_width(properties.vector_width)] if properties.processor else _GPU
        most = 1 << max(1, properties.max_lanes).bit_length() - 1
        lanes = {name: min(getattr(profile, name), most) for name in _LANES}
        tile = profile.tile
        # If a work-group has fewer items than wanted, each item still computes as many blocks of a tile as there are.
        blocks = tile.blocks * lanes["tile_lanes"] // profile.tile_lanes
        while tile.halves and (tile.local_bytes > properties.local_bytes or tile.blocks > blocks):
            tile = Tile(tile.m // 2, tile.n // 2, tile.k, tile.item_m, tile.item_n)
        return dataclasses.replace(
            profile, tile=tile, products=properties.products, local_bytes=properties.local_bytes, **lanes
        )


def _width(reported: int) -> int:
    return 16 if reported >= 16 else 8 if reported >= 8 else 4


# On a CPU an item keeps as many sums as fit the registers: 2 x 12 of 32, or 2 x 6 of 16.
_PROCESSORS = {
    16: Profile(16, 64, 1, 1, 8, 1, Tile(128, 96, 32, 32, 12), 1),
    8: Profile(8, 64, 1, 1, 8, 1, Tile(64, 48, 32, 16, 6), 1),
    4: Profile(4, 64, 1, 1, 8, 1, Tile(32, 48, 32, 8, 6), 1),
}
_GPU = Profile(4, 128, 128, 64, 2, 2, Tile(64, 64, 32, 8, 4), 128)
_LANES = ("unit_lanes", "row_lanes", "dot_lanes", "tile_lanes")

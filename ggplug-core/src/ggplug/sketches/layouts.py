"""How a source may lie in memory, and sources without values."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

from ggplug.errors import ParameterError
from ggplug.ops.base import Array
from ggplug.ops.views import permute, transpose, view
from ggplug.tensor import Extents, Spec, Tensor, contiguous_strides, extents
from ggplug.types import Type

Layout = Literal[
    "packed", "offset", "rows apart", "window", "permuted", "transposed", "elements apart", "ones outermost"
]

LAYOUTS: tuple[Layout, ...] = ("packed", "offset", "rows apart", "window", "permuted", "transposed")
"""How a source may lie in memory.

``packed``: contiguous, from the first byte of its root.  ``offset``: contiguous, further in.  ``rows apart``: a gap
after each row.  ``window``: a part of a larger tensor in every dimension.  ``permuted``: dimensions 1 and 2 exchanged.
``transposed``: dimensions 0 and 1 exchanged, so that elements of a row are apart (plain types only).  Beside these
there is ``elements apart``, for tensors of up to three dimensions of plain types: every third element of a larger one;
and ``ones outermost``: contiguous, but extents of one have strides of their own, as if they lay outside of all others.
"""


class Sources(Protocol):
    """What makes the sources of a node, with values or without."""

    def tensor(
        self, type: Type, *ne: int, layout: Layout = "packed", low: float | None = None, high: float | None = None
    ) -> Tensor:
        """A tensor of these extents; what values it has are from ``low`` to ``high``."""

    def array(self, type: Type, values: Array, layout: Layout = "packed") -> Tensor:
        """A tensor of the extents of these values, given in NumPy order."""


class Outlines:
    """Sources without values."""

    def tensor(self, type: Type, *ne: int, layout: Layout = "packed", **values: Any) -> Tensor:
        full, rank = extents(ne)
        return laid(type, full, rank, layout)

    def array(self, type: Type, values: Array, layout: Layout = "packed") -> Tensor:
        full, rank = extents(values.shape[::-1])
        return laid(type, full, rank, layout)


def laid(type: Type, ne: Extents, rank: int, layout: Layout) -> Tensor:
    """A tensor of these extents, perhaps a view of a larger leaf."""
    block = type.block_size
    if layout == "packed":
        return Tensor(Spec(type, ne, rank))
    if layout == "transposed":
        return transpose(Tensor(Spec(type, (ne[1], ne[0], ne[2], ne[3]), max(rank, 2))))
    if layout == "elements apart":
        if ne[3] != 1 or block > 1:
            raise ParameterError("elements apart: for three dimensions at most, and no blocks", got=ne)
        root = Tensor(Spec(type, (3, *ne[:3]), 4))
        return permute(view(root, 1, *ne[:3], nb=root.nb[1:], offset=type.block_bytes), 3, 0, 1, 2)
    if layout == "ones outermost":
        order = sorted(range(4), key=lambda dim: ne[dim] == 1 and not (dim == 0 and block > 1))
        return permute(Tensor(Spec(type, extents([ne[dim] for dim in order])[0], 4)), *order)
    if layout == "permuted":
        return permute(Tensor(Spec(type, (ne[0], ne[2], ne[1], ne[3]), max(rank, 3))), 0, 2, 1, 3)
    if layout == "offset":
        root = Tensor(Spec(type, (block * (math.prod(ne) // block + 3), 1, 1, 1), 1))
        nb = contiguous_strides(type, ne)
        return view(root, *ne[: max(rank, 1)], nb=nb[1:], offset=3 * type.block_bytes)
    gap = block * (2 if block > 1 else 5)
    if layout == "rows apart":
        root = Tensor(Spec(type, (ne[0] + gap, ne[1], ne[2], ne[3]), rank))
        return view(root, *ne[: max(rank, 1)], nb=root.nb[1:])
    if layout == "window":
        root = Tensor(Spec(type, (ne[0] + gap, ne[1] + 1, ne[2] + 1, ne[3] + 2), 4))
        start = root.nb[0] + root.nb[1] + root.nb[2] + root.nb[3]
        return view(root, *ne[: max(rank, 1)], nb=root.nb[1:], offset=start)
    raise ParameterError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}", got=layout)

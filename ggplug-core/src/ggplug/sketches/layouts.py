"""How a source may lie in memory: which root it is a view of, and by which steps; and sources without values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, apply
from ggplug.ops.views import Permute, Transpose, View
from ggplug.tensor import Extents, Spec, Tensor, contiguous_strides, extents
from ggplug.types import Type

Layout = Literal[
    "packed", "offset", "rows apart", "window", "permuted", "transposed", "elements apart", "ones outermost"
]

LAYOUTS: tuple[Layout, ...] = ("packed", "offset", "rows apart", "window", "permuted", "transposed")
"""The layouts that an op is tried with.  The others are for those whose extents they fit."""

Pick = Callable[[str, Sequence[Any]], Any]
"""Chooses one of several options, by the name of what is chosen."""


class Lay(NamedTuple):
    """The extents and the rank of a root, and the views that lead from it to the source."""

    root: Extents
    steps: tuple[Op, ...] = ()
    rank: int = 4

    def of(self, root: Tensor) -> Tensor:
        """The view at the end of the steps."""
        for step in self.steps:
            root = apply(step, (root,))
        return root


def packed(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Contiguous, from the first byte of its root."""
    return Lay(ne, rank=rank)


def offset(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Contiguous, some blocks into its root."""
    skip = pick("skip", (1, 3, 4, 8))
    root = (type.block_size * (math.prod(ne) // type.block_size + skip), 1, 1, 1)
    return Lay(root, (View(ne[: rank or 1], contiguous_strides(type, ne)[1:], skip * type.block_bytes),), 1)


def rows_apart(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """A gap after each row."""
    root = (ne[0] + type.block_size * pick("gap", (1, 3, 8)), *ne[1:])
    return Lay(root, (View(ne[: rank or 1], contiguous_strides(type, root)[1:]),), rank)


def window(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """A part of a larger tensor in every dimension."""
    root = (ne[0] + type.block_size * pick("gap", (1, 2, 5)), ne[1] + 1, ne[2] + 1, ne[3] + 2)
    nb = contiguous_strides(type, root)
    start = min(sum(nb), root[3] * nb[3])
    return Lay(root, (View(ne[: rank or 1], nb[1:], start),))


def permuted(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Rows are contiguous, the dimensions above are in another order."""
    return _by(ne, max(rank, 3), pick("axes", ((0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2))))


def transposed(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """The elements of a row are apart (of block types its blocks, which no view but this shows)."""
    options = (1, 0, 2, 3), (2, 1, 0, 3), (3, 1, 2, 0), (1, 2, 0, 3), (2, 0, 1, 3), (3, 2, 1, 0)
    axes = pick("axes", options)
    lay = _by(ne, max(rank, 2), axes)
    return lay._replace(steps=(Transpose(),)) if axes == options[0] else lay


def elements_apart(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Every third element of a larger tensor; for plain types and at most three dimensions."""
    if ne[3] != 1 or type.block_size > 1:
        raise ParameterError("the layout 'elements apart' needs a plain type and at most three dimensions", got=ne)
    root = (3, *ne[:3])
    steps = View((1, *ne[:3]), contiguous_strides(type, root)[1:], type.block_bytes), Permute((3, 0, 1, 2))
    return Lay(root, steps)


def ones_outermost(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Contiguous, but extents of one have strides of their own, as if they lay outside of all others."""
    order = sorted(range(4), key=lambda dim: ne[dim] == 1 and not (dim == 0 and type.block_size > 1))
    return Lay(extents([ne[dim] for dim in order])[0], (Permute(tuple(order)),))


def zero_stride(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """The same bytes again and again along one dimension or several."""
    still = pick("still", ((1,), (2,), (3,), (1, 2), (1, 2, 3)))
    root, _ = extents([1 if i in still else n for i, n in enumerate(ne)])
    strides = tuple(0 if i in still else stride for i, stride in enumerate(contiguous_strides(type, root)))
    return Lay(root, (View(ne, strides[1:]),))


def overlapping(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Each row begins within the row before it."""
    blocks = pick("step", (1, 2, 3))
    step = type.block_bytes * blocks
    total = ne[0] // type.block_size + ne[1] * ne[2] * ne[3] * blocks
    nb = (step, step * max(ne[1], 1), step * max(ne[1], 1) * max(ne[2], 1))
    return Lay((total * type.block_size, 1, 1, 1), (View(ne, nb),))


def misaligned(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """Contiguous, beginning at an address that is no multiple of the element's size: no view may do that."""
    skip = pick("skip", (1, 2, 3, 5))
    root = (math.prod(ne) + 8 * type.block_size, 1, 1, 1)
    return Lay(root, (View(ne, contiguous_strides(type, ne)[1:], skip),))


def nested(type: Type, ne: Extents, rank: int, pick: Pick) -> Lay:
    """A window into a permuted window: views of views."""
    n0 = ne[0] + type.block_size * pick("gap", (1, 3))
    root = (n0, ne[2] + 2, ne[1] + 1, ne[3])
    nb = contiguous_strides(type, root)
    first, second = (nb[1], nb[0] + nb[2]) if 0 not in ne else (0, 0)
    outer = View((n0, ne[2] + 1, ne[1] + 1, ne[3]), nb[1:], first)
    return Lay(root, (outer, Permute((0, 2, 1, 3)), View(ne, (nb[2], nb[1], nb[3]), second)))


def _by(ne: Extents, rank: int, axes: tuple[int, ...]) -> Lay:
    return Lay(extents([ne[axis] for axis in axes])[0], (Permute(axes),), rank)


LAYS: dict[str, Callable[[Type, Extents, int, Pick], Lay]] = {
    "packed": packed,
    "offset": offset,
    "rows apart": rows_apart,
    "window": window,
    "permuted": permuted,
    "transposed": transposed,
    "zero stride": zero_stride,
    "overlapping": overlapping,
    "misaligned": misaligned,
    "nested": nested,
    "elements apart": elements_apart,
    "ones outermost": ones_outermost,
}
"""All layouts, the simplest first: ``(type, extents, rank, pick)``."""


def laid(type: Type, ne: Extents, rank: int, layout: Layout) -> Tensor:
    """A tensor of these extents, perhaps a view of a larger leaf; what may be chosen of the layout is fixed."""
    if layout not in LAYS:
        raise ParameterError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}", got=layout)
    fixed = {"skip": 3, "gap": 2 if type.block_size > 1 else 5}
    lay = LAYS[layout](type, ne, rank, lambda what, options: fixed.get(what, options[0]))
    return lay.of(Tensor(Spec(type, lay.root, lay.rank)))


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

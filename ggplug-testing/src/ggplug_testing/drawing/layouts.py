"""How a source lies in memory: which leaf it is a view of, and by which steps.

A layout turns type and extents into a root and a chain of view ops that end in just these extents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ggplug.ops.base import apply
from ggplug.ops.views import Permute, Reshape, Transpose, View
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import Type
from ggplug_testing.drawing.choices import Choices

Ne = tuple[int, int, int, int]
Step = tuple[str, tuple[Any, ...]]


class Lay(NamedTuple):
    """The extents of the root, and the views that lead from it to the source, each as (name, parameters)."""

    root: Ne
    steps: tuple[Step, ...] = ()


PACKED = "packed"


def lay(choices: Choices, source: str, layout: str, type: Type, ne: Ne) -> Lay:
    """A root and view steps for a source of these extents."""
    return LAYOUTS[layout](choices, source, type, ne)


def packed(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """Contiguous, from the first byte of its root."""
    return Lay(ne)


def offset(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """Contiguous, some blocks into its root."""
    skip = choices.pick(f"{source}.skip", (1, 3, 4, 8))
    root = (type.block_size * (math.prod(ne) // type.block_size + skip), 1, 1, 1)
    return Lay(root, (("view", (ne, contiguous_strides(type, ne)[1:], skip * type.block_bytes)),))


def rows_apart(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """A gap after each row."""
    gap = type.block_size * choices.pick(f"{source}.gap", (1, 3, 8))
    root = (ne[0] + gap, ne[1], ne[2], ne[3])
    return Lay(root, (("view", (ne, contiguous_strides(type, root)[1:], 0)),))


def window(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """A part of a larger tensor in every dimension."""
    gap = type.block_size * choices.pick(f"{source}.gap", (1, 2, 5))
    root = (ne[0] + gap, ne[1] + 1, ne[2] + 1, ne[3] + 1)
    nb = contiguous_strides(type, root)
    start = sum(nb) if 0 not in ne else 0
    return Lay(root, (("view", (ne, nb[1:], start)),))


def permuted(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """Rows are contiguous, the dimensions above are in another order."""
    axes = choices.pick(f"{source}.axes", ((0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2)))
    return _permute(ne, axes)


def transposed(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """The elements of a row are apart (of block types its blocks, which no view but this shows)."""
    axes = choices.pick(
        f"{source}.axes", ((1, 0, 2, 3), (2, 1, 0, 3), (3, 1, 2, 0), (1, 2, 0, 3), (2, 0, 1, 3), (3, 2, 1, 0))
    )
    return _permute(ne, axes)


def zero_stride(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """The same bytes again and again along one dimension or several."""
    which = choices.pick(f"{source}.still", ((1,), (2,), (3,), (1, 2), (1, 2, 3)))
    kept = tuple(1 if i in which else n for i, n in enumerate(ne))
    root = (kept[0], kept[1], kept[2], kept[3])
    nb = contiguous_strides(type, root)
    strides = tuple(0 if i in which else nb[i] for i in (1, 2, 3))
    return Lay(root, (("view", (ne, strides, 0)),))


def overlapping(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """Each row begins within the row before it."""
    blocks = ne[0] // type.block_size
    step = type.block_bytes * choices.pick(f"{source}.step", (1, 2, 3))
    total = blocks + (ne[1] * ne[2] * ne[3]) * (step // type.block_bytes)
    nb = (step, step * max(ne[1], 1), step * max(ne[1], 1) * max(ne[2], 1))
    return Lay((total * type.block_size, 1, 1, 1), (("view", (ne, nb, 0)),))


def misaligned(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """Contiguous, beginning at an address that is no multiple of the element's size: no view may do that."""
    skip = choices.pick(f"{source}.skip", (1, 2, 3, 5))
    root = (math.prod(ne) + 8 * type.block_size, 1, 1, 1)
    return Lay(root, (("view", (ne, contiguous_strides(type, ne)[1:], skip)),))


def nested(choices: Choices, source: str, type: Type, ne: Ne) -> Lay:
    """A window into a permuted window: views of views."""
    gap = type.block_size * choices.pick(f"{source}.gap", (1, 3))
    outer: Ne = (ne[0] + gap, ne[2] + 2, ne[1] + 1, ne[3])
    nb = contiguous_strides(type, outer)
    steps: list[Step] = [("view", ((ne[0] + gap, ne[2] + 1, ne[1] + 1, ne[3]), nb[1:], nb[1] if 0 not in ne else 0))]
    steps.append(("permute", ((0, 2, 1, 3),)))
    strides = (nb[2], nb[1], nb[3])
    steps.append(("view", (ne, strides, nb[0] + nb[2] if 0 not in ne else 0)))
    return Lay(outer, tuple(steps))


LAYOUTS: dict[str, Callable[[Choices, str, Type, Ne], Lay]] = {
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
}
"""All layouts, the simplest first."""

ANY = tuple(name for name in LAYOUTS if name != "misaligned")
"""What an op that takes any strides takes."""

ROWS = tuple(name for name in ANY if name != "transposed")
"""Those whose rows are contiguous."""

CONTIGUOUS = ("packed", "offset")

ONCE = tuple(name for name in ANY if name not in ("zero stride", "overlapping"))
"""Those in which no two elements share bytes, so that writing them has one outcome."""

ONCE_ROWS = tuple(name for name in ONCE if name != "transposed")
"""Of those the ones whose rows are contiguous."""


def show(root: Tensor, steps: Sequence[Step]) -> Tensor:
    """The view at the end of ``steps``."""
    made = root
    for name, parameters in steps:
        made = apply(_STEPS[name](*parameters), (made,))
    return made


_STEPS: dict[str, Any] = {"view": View, "permute": Permute, "transpose": Transpose, "reshape": Reshape}


def _permute(ne: Ne, axes: Ne) -> Lay:
    root = tuple(ne[axes[i]] for i in range(4))
    return Lay((root[0], root[1], root[2], root[3]), (("permute", (axes,)),))

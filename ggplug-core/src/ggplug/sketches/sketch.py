"""Sources of an op, sketched by names of extents, and the nodes that are made of a sketch.

The conformance suite's cases that are made alike for all ops start from these: an extent that is zero, or one, is so in
all sources that have it, and one source after the other lies in memory in another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.ops.base import Op, apply
from ggplug.ops.copy import Cont
from ggplug.sketches.layouts import Layout, Sources
from ggplug.sketches.trials import parameters_of
from ggplug.tensor import Tensor
from ggplug.types import F32, Type

EXTENTS = {"n": 32, "m": 64, "K": 64, "M": 5, "N": 2, "E": 3, "r": 3, "b": 2, "c": 2}
"""Extents that are not zero; n, m and K are whole numbers of blocks."""

Sizes = Mapping[str, int]


class Sketch(NamedTuple):
    """The sources of a case by the names of their extents; integers are extents that stay as they are.

    ``types``: of each source, ids too (0, 1, 2, ..., in each batch from another one on).  ``parameters``: of the op,
    from the extents, as far as the op's own (:func:`~ggplug.sketches.trials.parameters_of`) do not say them.
    """

    sources: tuple[str, ...]
    types: tuple[Type, ...] = (F32,)
    parameters: Callable[[Sizes], Mapping[str, Any]] = lambda sizes: {}
    zeros: str = ""
    """The extents to make zero, one after the other; empty is all."""
    layout: Layout = "packed"
    view: Callable[[Tensor, Sizes], Tensor] | None = None
    """For view ops, which take no parameters from here: the view of the only source."""

    def type_of(self, position: int) -> Type:
        return self.types[min(position, len(self.types) - 1)]

    def kinds(self) -> tuple[Type, ...]:
        """The type of each source."""
        return tuple(self.type_of(position) for position in range(len(self.sources)))

    def label(self, special: str) -> str:
        """What is special about extents, such as ``n = 0``, and in which sources."""
        sources = [f"{self.type_of(i).name}[{each.replace(' ', 'x')}]" for i, each in enumerate(self.sources)]
        return f"{special} in {', '.join(sources)}" + ("" if self.layout == "packed" else f" {self.layout}")

    def names(self) -> list[str]:
        """The names of the extents."""
        words = [word for source in self.sources for word in source.split() if not word.isdigit()]
        return list(dict.fromkeys(words))

    def extents(self, sizes: Sizes) -> list[list[int]]:
        """The extents of each source."""
        return [[int(word) if word.isdigit() else sizes[word] for word in source.split()] for source in self.sources]

    def layouts(self) -> list[Layout]:
        """How each source lies in memory."""
        return [self.layout] * len(self.sources)


def node(cls: type[Op], *sources: Tensor | None, **parameters: object) -> Tensor:
    """``cls`` with these parameters applied to these sources; those that are left out at the end are absent."""
    return apply(cls(**parameters), (*sources, *(None for _ in cls.sources[len(sources) :])))


def maker(op: type[Op], sketch: Sketch, sizes: Sizes, layouts: Sequence[Layout]) -> Callable[[Sources], Tensor]:
    """What makes the node of a sketch with these extents, its sources in these layouts."""

    def make(leafs: Sources) -> Tensor:
        sources = []
        for position, ne in enumerate(sketch.extents(sizes)):
            type = sketch.type_of(position)
            if op.indexes is not None and position == op.indexes.ids:
                # of each batch others, so that a kernel that takes another batch's is wrong
                rows = np.arange(math.prod(ne[1:]))[:, None]
                ids = (np.arange(ne[0]) + rows) % max(ne[0], 1)
                sources.append(leafs.array(type, ids.reshape(ne[::-1]), layouts[position]))
            else:
                # positions within a long text: a device need not know the sine of any angle
                most = 100 if op.sources[position] == "pos" else None
                low = None if most is None else 0
                sources.append(leafs.tensor(type, *ne, low=low, high=most, layout=layouts[position]))
        if sketch.view is not None:
            return node(Cont, sketch.view(sources[0], sizes))
        return node(op, *sources, **{**parameters_of(op)[0], **sketch.parameters(sizes)})

    return make

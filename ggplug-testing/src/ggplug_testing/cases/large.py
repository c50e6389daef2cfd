"""Cases with one extent of more than 65,535, as vocabularies and long texts have, and all others one.

A kernel that counts in 16 bits, or launches as many groups as a GPU has no place for along an axis, is wrong here, and
so is one that keeps ids in 16 bits: a single id is the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ggplug.backend import limit_of_ids
from ggplug.ops.base import Op
from ggplug.sketches import EXTENTS, first_sketch, maker
from ggplug.tensor import Tensor
from ggplug.values.arrays import encode
from ggplug_testing.cases.case import Case, Leafs
from ggplug_testing.cases.making import taken
from ggplug_testing.description import description_of

LARGE = 65568
"""A whole number of blocks."""

_MOST = 4 * LARGE
"""Numbers of a tensor, so that a case takes milliseconds."""


def large_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent of the first sketch of an op made large, where the op's shape rule takes that."""
    sketch = first_sketch(op)
    if sketch is None or not description_of(op).large:
        return
    for name in sketch.names():
        sizes = {**dict.fromkeys(EXTENTS, 1), name: LARGE}
        label = sketch.label(f"{name} = {LARGE}, all others 1")
        case = Case(op.name, label, _with_the_last_id(maker(op, sketch, sizes, sketch.layouts())))
        if _fits(case):
            yield case


def _with_the_last_id(make: Callable[[Leafs], Tensor]) -> Callable[[Leafs], Tensor]:
    """The same node, but where it has a single id, that is the largest there is."""

    def made(leafs: Leafs) -> Tensor:
        node = make(leafs)
        indexes = node.op.indexes if node.op is not None else None
        ids = None if indexes is None else node.src[indexes.ids]
        if ids is not None and ids.size == 1 and ids.root is ids:
            last = encode(np.full(ids.ne[::-1], limit_of_ids(node) - 1), ids.type)
            leafs.change(lambda values: values.update({ids: last}))
        return node

    return made


def _fits(case: Case) -> bool:
    """Whether the op takes such extents, and no tensor has too many numbers."""
    made = taken(case)
    return made is not None and all(tensor is None or tensor.size <= _MOST for tensor in (made, *made.src))

"""Cases of numbers that are not finite: one in each source of floats in turn, of every op of core.

Everything that does not depend on that element has to stay as it is: what pads a vector, a window or a tile must not be
multiplied with it.  So rows end within a vector where the types let them, and windows reach beyond the image; all other
numbers are positive, as sums of infinities of both signs are NaN, behind which faults hide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Op
from ggplug.ops.custom import PythonCall
from ggplug.ops.matrix import MulMat, MulMatId
from ggplug.sketches import EXTENTS, Sketch, maker, sketches
from ggplug.tensor import Tensor
from ggplug.types import KERNEL_FLOATS
from ggplug.values.arrays import decode, encode
from ggplug_testing.cases.case import Bytes, Case, Leafs
from ggplug_testing.cases.making import taken

NUMBERS = (math.nan, math.inf, -math.inf)

_SIZES = {**EXTENTS, "n": 38, "m": 70, "K": 70}, EXTENTS
"""Extents of rows that end within a vector, and those for ops and types that need others."""


def wild_cases(op: type[Op]) -> Iterator[Case]:
    """A case for each of :data:`NUMBERS` in each source of each sketch with other types; none for views."""
    seen = set()
    for sketch in sketches(op):
        kinds = tuple(sketch.type_of(position) for position in range(len(sketch.sources)))
        if kinds in seen or sketch.shown is not None or issubclass(op, PythonCall):
            continue
        seen.add(kinds)
        lost = issubclass(op, (MulMat, MulMatId)) and any(kind.is_quantized for kind in kinds)
        make = _accepted(op, sketch)
        if make is None:
            continue  # these types are not for every op that has the sketch
        for position, kind in enumerate(kinds):
            for number in NUMBERS if kind in KERNEL_FLOATS else ():
                label = f"special: {number} in {op.sources[position]} of {', '.join(each.name for each in kinds)}"
                # where products round activations to blocks, another number that is not finite may take its place
                yield Case(op.name, label, _with(make, position, number), "not finite" if lost else "values")


def _accepted(op: type[Op], sketch: Sketch) -> Callable[[Leafs], Any] | None:
    """What makes the node of a sketch, with the first of :data:`_SIZES` that the op takes; None where it takes none."""
    for sizes in _SIZES:
        make = maker(op, sketch, sizes, sketch.layouts())
        if taken(Case(op.name, "", make)) is not None:
            return make
    return None


def _with(make: Callable[[Leafs], Any], position: int, number: float) -> Callable[[Leafs], Any]:
    """What makes the same node of positive floats, with ``number`` in the middle of the source at ``position``."""

    def put(values: dict[Tensor, Bytes]) -> None:
        for each in values:
            if each.type in KERNEL_FLOATS:
                values[each] = encode(np.abs(decode(values[each], each)), each.type)
        root = list(values)[position]
        elements = values[root].view(root.type.dtype)
        elements[len(elements) // 2] = encode(np.array([number]), root.type).view(root.type.dtype)[0]

    def changed(leafs: Leafs) -> Any:
        made = make(leafs)
        leafs.change(put)
        return made

    return changed

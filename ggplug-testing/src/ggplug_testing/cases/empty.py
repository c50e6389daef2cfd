"""Cases without elements: of each op, every extent that its sources have is zero in turn.

What the shape rule of the op refuses is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from ggplug.ops.base import Op
from ggplug.sketches import EXTENTS, maker, sketches
from ggplug_testing.cases.case import Case
from ggplug_testing.cases.making import taken


def empty_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent of each sketch of an op made zero, where the op's shape rule takes that."""
    for sketch in sketches(op):
        for zero in sketch.zeros or sketch.names():
            case = Case(op.name, sketch.label(f"{zero} = 0"), maker(op, sketch, {**EXTENTS, zero: 0}, sketch.layouts()))
            if taken(case) is not None:
                yield case

"""Cases of sources that lie elsewhere: each source of each op in turn, in the middle of a larger tensor, and apart.

A kernel that takes a second or third source for contiguous, or for the first bytes of its buffer, is wrong here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ggplug.ops.base import Op
from ggplug.sketches import EXTENTS, Sketch, maker, sketches
from ggplug_testing.cases.case import Case, Layout
from ggplug_testing.cases.making import taken

_APART: tuple[Layout, ...] = ("elements apart", "rows apart")
"""Elements that are not adjacent, or rows, whichever an op takes first."""


def source_cases(op: type[Op]) -> Iterator[Case]:
    """The cases of an op with several sources; none of others, whose own cases have all layouts."""
    seen = set()
    for sketch in sketches(op):
        kinds = tuple(sketch.type_of(position) for position in range(len(sketch.sources)))
        if len(kinds) < 2 or kinds in seen or sketch.shown is not None:
            continue
        seen.add(kinds)
        for position in range(len(kinds)):
            yield from _first_taken(op, sketch, position, _APART)
            yield from _first_taken(op, sketch, position, ("offset",))


def _first_taken(op: type[Op], sketch: Sketch, position: int, layouts: tuple[Layout, ...]) -> Iterator[Case]:
    """The case of the first of these layouts that the op's shape rule takes for a source, if any."""
    names = [sketch.type_of(each).name for each in range(len(sketch.sources))]
    for layout in layouts:
        if layout == "elements apart" and sketch.type_of(position).is_quantized:
            continue
        chosen = sketch.layouts()
        chosen[position] = layout
        where = "in the middle of a larger tensor" if layout == "offset" else f"with its {layout}"
        label = f"{op.sources[position]} {where}, {', '.join(names)}"
        # Every third element of a tensor takes one of four dimensions.
        case = Case(op.name, label, maker(op, sketch, {**EXTENTS, "c": 1}, chosen))
        if taken(case) is not None:
            yield case
            return

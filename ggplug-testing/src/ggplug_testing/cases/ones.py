"""Cases with extents of one whose strides are their own: contiguous tensors all the same.

No element is reached by such a stride. A kernel that takes several axes together and goes by the stride of the first,
or that takes ``nb[0]`` for the size of an element, is wrong here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ggplug.ops.base import Op
from ggplug.sketches import EXTENTS, maker, sketches
from ggplug.tensor import contiguous_strides
from ggplug_testing.cases.case import Case, Layout
from ggplug_testing.cases.making import taken


def ones_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent of each sketch of an op made one, and all but each, where the op's shape rule takes that."""
    seen = set()
    for sketch in sketches(op):
        if sketch.sources in seen or sketch.shown is not None:
            continue
        seen.add(sketch.sources)
        names = sketch.names()
        layouts: list[Layout] = ["ones outermost"] * len(sketch.sources)
        for name in names:
            for which, ones in ((f"{name} = 1", [name]), (f"all but {name} = 1", [n for n in names if n != name])):
                case = Case(
                    op.name, sketch.label(which), maker(op, sketch, {**EXTENTS, **dict.fromkeys(ones, 1)}, layouts)
                )
                made = taken(case)
                sources = () if made is None else made.src
                if any(each.nb != contiguous_strides(each.type, each.ne) for each in sources if each is not None):
                    yield case

"""Draws sources for ops without a description of their own: their sketches in other sizes, types and layouts."""

from __future__ import annotations

from ggplug.ops.base import Op
from ggplug.ops.custom import PythonCall
from ggplug.sketches import EXTENTS, Sketch, sketches
from ggplug_testing.drawing.draw import FEW, Draw, Drawn, Source
from ggplug_testing.drawing.layouts import CONTIGUOUS


def drawable_sketches(op: type[Op]) -> list[Sketch]:
    """The sketches of an op; none of Python functions, which no name of a case can hold, and of views."""
    return [] if issubclass(op, PythonCall) else [each for each in sketches(op) if each.view is None]


def sketched(c: Draw, op: type[Op]) -> Drawn:
    """The sources of one of an op's sketches in other sizes, types and layouts.

    Which of these the op takes the sketch does not say, so nothing is promised; what is computed has to be right.
    """
    found = drawable_sketches(op)
    sketch = found[c.pick("sketch", tuple(range(len(found))))]
    types = []
    for position, name in enumerate(op.sources[: len(sketch.sources)]):
        types.append(c.type(name, (sketch.type_of(position),)))
    sizes = {name: c.row(name, *types) if name in ("n", "m", "K") else c.extent(name, FEW) for name in sketch.names()}
    sources: list[Source | None] = []
    for position, (name, ne) in enumerate(zip(op.sources, sketch.sources, strict=False)):
        drawn = [int(word) if word.isdigit() else sizes[word] for word in ne.split()]
        sources.append(c.source(name, types[position], drawn, CONTIGUOUS, ("normal", "constant", "small")))
    c.promised = False
    there = [*sources, *(None for _ in op.sources[len(sources) :])]
    return Drawn(there, dict(sketch.parameters({**EXTENTS, **sizes})))

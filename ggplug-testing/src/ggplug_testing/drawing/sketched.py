"""Which drawer an op has, and what is drawn for an op whose description has none."""

from __future__ import annotations

from ggplug.ops.base import OPS, Op
from ggplug.ops.custom import PythonCall
from ggplug.sketches import EXTENTS, Sketch, sketches
from ggplug.types import FLOATS
from ggplug_testing.description import description_of
from ggplug_testing.drawing.draw import FEW, NUMBERS, Draw, Drawer, Drawn, Source
from ggplug_testing.drawing.layouts import CONTIGUOUS


def drawer_of(op: type[Op]) -> Drawer:
    """What draws the sources of an op: what its description says, else its sketches, else sources of equal shape."""
    return description_of(op).draw or (sketched if _drawable(op) else alike)


def drawable() -> list[str]:
    """The ops of which it is known how to draw their sources."""
    return [name for name, op in OPS.items() if drawer_of(op) is not alike]


def alike(c: Draw, op: type[Op]) -> Drawn:
    """Sources of one shape and type, and parameters by their annotations, of an op that nothing is known about."""
    c.promised = False
    first = c.type(c.target[0], FLOATS)
    ne = c.shape(first)
    there = [s for s in op.sources if s not in op.optional or c.optional(s)]
    sources = [c.source(s, first, ne, CONTIGUOUS) if s in there else None for s in op.sources]
    parameters = {n: c.pick(n, NUMBERS) for n in op.parameters if op.__dataclass_fields__[n].type == "float"}
    return Drawn(sources, parameters)


def _drawable(op: type[Op]) -> list[Sketch]:
    """The sketches of an op; none of Python functions, which no name of a case can hold, and of views."""
    return [] if issubclass(op, PythonCall) else [each for each in sketches(op) if each.shown is None]


def sketched(c: Draw, op: type[Op]) -> Drawn:
    """The sources of one of an op's sketches in other sizes, types and layouts.

    Which of these the op takes the sketch does not tell, so nothing is promised; what is computed has to be right.
    """
    found = _drawable(op)
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

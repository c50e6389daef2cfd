"""Finds the function that draws the sources of an op."""

from __future__ import annotations

import ggplug_testing.ops  # noqa: F401  (describes the ops of core)
from ggplug.ops.base import OPS, Op
from ggplug.types import FLOATS
from ggplug_testing.description import description_of
from ggplug_testing.drawing.draw import NUMBERS, Draw, Drawer, Drawn, drawable_sketches, sketched
from ggplug_testing.drawing.layouts import CONTIGUOUS


def drawer_of(op: type[Op]) -> Drawer:
    """What draws the sources of an op: what its description says, else its sketches, else sources of equal shape."""
    return description_of(op).draw or (sketched if drawable_sketches(op) else alike)


def drawable() -> list[str]:
    """The ops whose sources can be drawn."""
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

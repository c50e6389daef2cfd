"""The sources and parameters of an op, drawn at random.

An op's description says which types, layouts and values the op takes; what it is made to take beyond that (the fuzzer
aims at one type and layout after the other) is not promised, so the op may refuse it, but only by a typed error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ggplug.ops.base import Op
from ggplug.ops.custom import PythonCall
from ggplug.sketches import EXTENTS, Sketch, sketches
from ggplug.types import FLOATS, I8, I16, I32, I64, TYPES, Type, by_name
from ggplug_testing.drawing.choices import Choices
from ggplug_testing.drawing.layouts import ANY, CONTIGUOUS, LAYOUTS, ONCE, Ne
from ggplug_testing.drawing.values import BITS, FINITE, MODERATE

WHOLE = (I32, I64, I16, I8)
NOT_WHOLE = (*FLOATS, *(type for type in TYPES if type.is_quantized))
EVERY = (*FLOATS, *WHOLE, *NOT_WHOLE[len(FLOATS) :])

ROW_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 129, 257)
BLOCKS = (1, 2, 3, 4, 5, 9)
COUNTS = (1, 2, 3, 5, 8, 9, 17, 33)
FEW = (1, 2, 3, 5)
BATCHES = (1, 2, 3)

NUMBERS = (1.0, 0.0, -1.0, 0.5, -0.25, 3.0, 1e-6, 100.0, 1e6, -1e6, 1e30)
"""Parameters."""


@dataclass
class Source:
    """A source of the op under test: extents, and how its leaf is made.

    ``values``: its numbers where the recipe decides them, such as indices.
    """

    name: str
    type: Type
    ne: Ne
    layout: str
    kind: str
    values: Any = None


@dataclass
class Drawn:
    """Sources in the op's order (None for absent ones) and parameters."""

    sources: list[Source | None]
    parameters: dict[str, Any] = field(default_factory=dict)


class Draw(Choices):
    """The choices of one case that aims at one source of one op, in one layout and one type."""

    def __init__(self, name: str, target: tuple[str, str, Type], fixed: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, fixed)
        self.target = target
        self.promised = True
        """Whether the op's docstring says that it takes what was drawn."""

    def aims_at(self, source: str) -> bool:
        """Whether the case must have this source."""
        return self.target[0] == source

    def type(self, source: str, promised: Sequence[Type]) -> Type:
        """The type that the case aims at, or one that the op promises to take."""
        if self.aims_at(source):
            self.promised &= self.target[2] in promised
            return self.target[2]
        return by_name(self.pick(f"{source}.type", tuple(t.name for t in promised)))

    def layout(self, source: str, promised: Sequence[str]) -> str:
        """The layout that the case aims at, or one that the op promises to take, mostly a contiguous one."""
        if self.aims_at(source):
            layout = self.pick(f"{source}.layout", (*promised, *(l for l in LAYOUTS if l not in promised)))
            if f"{source}.layout" not in self.fixed:
                layout = self.target[1]
        else:
            layout = self.pick(f"{source}.layout", promised, [len(promised), *[1] * (len(promised) - 1)])
        self.promised &= layout in promised
        return layout

    def extent(self, what: str, options: Sequence[int] = COUNTS) -> int:
        """An extent, sometimes zero."""
        chosen = self.pick(what, (*options, 0), [48 // len(options) + 1] * len(options) + [4])
        return int(chosen)

    def row(self, what: str, *types: Type, options: Sequence[int] = ROW_LENGTHS) -> int:
        """An extent along ne0 that is a whole number of blocks of all types."""
        block = math.lcm(*(t.block_size for t in types))
        return self.extent(what, options) if block == 1 else block * self.extent(f"{what}.blocks", BLOCKS)

    def shape(self, *types: Type, what: str = "n") -> Ne:
        """Four extents, drawn at random."""
        return (
            self.row(f"{what}0", *types),
            self.extent(f"{what}1"),
            self.extent(f"{what}2", FEW),
            self.extent(f"{what}3", BATCHES),
        )

    def kind(self, source: str, type: Type, kinds: Sequence[str]) -> str:
        """The kind of values of a source."""
        if type.is_quantized:
            # Blocks of finite numbers, or any bits; a NaN has no place in a block.
            kinds = [k for k in kinds if k in FINITE or k == BITS]
        return self.pick(f"{source}.values", kinds, [len(kinds), *[1] * (len(kinds) - 1)])

    def source(
        self, name: str, type: Type, ne: Sequence[int], layouts: Sequence[str] = ANY, kinds: Sequence[str] = MODERATE
    ) -> Source:
        """A source with values of one of these kinds."""
        n0, n1, n2, n3 = (*ne, 1, 1, 1, 1)[:4]
        if type.block_size > 1:
            # Of a block type a view never takes elements of a row apart.
            layouts = [each for each in layouts if each != "transposed"]
        layout = self.layout(name, layouts)
        return Source(name, type, (n0, n1, n2, n3), layout, self.kind(name, type, kinds))

    def optional(self, source: str) -> bool:
        """Whether an optional source is passed."""
        return self.aims_at(source) or self.pick(f"{source}.present", (False, True))

    def indices(
        self,
        name: str,
        types: Sequence[Type],
        count: Sequence[int],
        below: int,
        *,
        distinct: bool = False,
        layouts: Sequence[str] = ONCE,
    ) -> Source:
        """Indices below a limit; some may be out of range.  ``distinct`` along the first dimension."""
        type = self.type(name, types)
        ne = (*count, 1, 1, 1, 1)[:4]
        random = np.random.default_rng(self.number(f"{name}.numbers"))
        shape = ne[::-1]
        if distinct and ne[0] <= below:
            rows = [random.permutation(below)[: ne[0]] for _ in range(math.prod(ne[1:]))]
            values = np.array(rows, np.int64).reshape(shape)
        else:
            values = random.integers(0, max(below, 1), shape)
        how = self.pick(f"{name}.range", ("inside", "one beyond", "negative", "far", "extreme"), (12, 1, 1, 1, 1))
        if how == "inside" and distinct and ne[0] > below:
            self.promised = False
        values = np.asarray(values, np.int64)
        if values.size and (how != "inside" or not below):
            limit = np.iinfo(np.int64 if type is I64 else np.int32)
            options = {
                "inside": (below,),
                "one beyond": (below,),
                "negative": (-1, -below, -below - 1),
                "far": (below + 1000, 1 << 20, -(1 << 20)),
                "extreme": (limit.min, limit.max),
            }[how]
            some = random.uniform(size=shape) < 0.3
            some.reshape(-1)[random.integers(values.size)] = True
            values = np.where(some, random.choice(np.array(options, np.int64), shape), values)
        layout = self.layout(name, layouts)
        return Source(name, type, (ne[0], ne[1], ne[2], ne[3]), layout, "indices", values)


Drawer = Callable[[Draw, type[Op]], Drawn]
"""Draws the sources of an op, or of an op that is derived from it."""


def of_one(types: Sequence[Type], layouts: Sequence[str], kinds: Sequence[str], **parameters: Sequence[Any]) -> Drawer:
    """Draws the one source of an op, ``x``, and each parameter out of these."""

    def draw(c: Draw, op: type[Op]) -> Drawn:
        type = c.type("x", types)
        x = c.source("x", type, c.shape(type), layouts, kinds)
        return Drawn([x], {name: c.pick(name, options) for name, options in parameters.items()})

    return draw


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
    for name, type, ne in zip(op.sources, types, sketch.extents(sizes), strict=False):
        sources.append(c.source(name, type, ne, CONTIGUOUS, ("normal", "constant", "small")))
    c.promised = False
    there = [*sources, *(None for _ in op.sources[len(sources) :])]
    return Drawn(there, dict(sketch.parameters({**EXTENTS, **sizes})))

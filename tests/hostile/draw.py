"""A case: a small graph around one op, and how it is computed.  All of it follows from the case's name.

A name is ``op/source/layout/type/number``: the op under test, and the source, layout and type that the case aims at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.ops.base import OPS, Op, apply
from ggplug.ops.copy import Cont, Cpy
from ggplug.ops.elementwise import Add
from ggplug.ops.rows import SetRows
from ggplug.ops.sort import Argsort
from ggplug.ops.unary import Neg
from ggplug.ops.views import Reshape, Transpose, View
from ggplug.sketches.layouts import Lay
from ggplug.tensor import Spec, Tensor, contiguous_strides, strided
from ggplug.types import F64, FLOATS, by_name
from ggplug_testing.drawing import values
from ggplug_testing.drawing.draw import Draw, Drawn, Source
from ggplug_testing.drawing.drawers import drawer_of
from ggplug_testing.drawing.layouts import LAYOUTS, lay

from . import guard

ROUTES = ("plan", "stream", "scheduler", "fallback", "compute")
"""Who computes: a plan, a stream, a scheduler, one that has the CPU behind the device, or ``gg.compute``."""

THEN = ("nothing", "cont", "neg", "twice", "permuted", "window", "flat")
"""What is done with the op's result."""


class Target(NamedTuple):
    """What a case aims at."""

    op: str
    source: str
    layout: str
    type: str

    def case(self, number: int) -> str:
        """The name of the case with this number."""
        return "/".join((*self, str(number)))


def target_of(name: str) -> Target:
    """What the case of this name aims at.  Raises ParameterError."""
    parts = name.split("/")
    if len(parts) != 5 or parts[0] not in OPS or parts[2] not in LAYOUTS:
        raise ParameterError(f"{name!r} is no case: they are called op/source/layout/type/number", got=name)
    by_name(parts[3])
    return Target(*parts[:4])


@dataclass
class Case:
    """What was drawn, before any tensor is made."""

    name: str
    cls: type[Op]
    draw: Draw
    drawn: Drawn
    lays: list[Lay | None]
    route: str = "plan"
    threads: int = 1
    then: str = "nothing"
    made_by: list[str] = field(default_factory=list)
    """For each source whether its root is a leaf, or what computes it."""
    inplace: int | None = None
    """The source in whose place the result lies."""
    where: list[str] = field(default_factory=list)
    """For each source where its leaf lies; see :data:`guard.WHERE`."""
    owned: list[bool] = field(default_factory=list)
    """For each source whether its leaf has a place of its own, or one from the allocation."""
    read_only: str = ""
    """What memory the op is to write into, if it may not be written; see :data:`guard.READ_ONLY`."""
    first_writable: bool = False
    """Whether an equal graph is computed over writable memory before."""
    outside: int | None = None
    """An offset beyond the buffer to place the first leaf at, or None."""
    together: int | None = None
    """Both what is read and what is written are rows of one leaf: so many rows apart, or None."""
    vast: int = 0
    """An extent of the tensor without elements that is looked at in addition to the case, or 0."""

    @property
    def promised(self) -> bool:
        """Whether the op's docstring says that it takes this."""
        return self.draw.promised

    @property
    def uses(self) -> list[Target]:
        """Each source with its layout and type."""
        op = self.cls.name
        return [Target(op, s.name, s.layout, s.type.name) for s in self.drawn.sources if s is not None]


def draw(name: str, fixed: Mapping[str, Any] | None = None) -> Case:
    """The case of this name, with some choices fixed."""
    target = target_of(name)
    cls = OPS[target.op]
    choices = Draw(name, (target.source, target.layout, by_name(target.type)), fixed)
    drawn = drawer_of(cls)(choices, cls)
    _misshape(choices, drawn)
    case = Case(name, cls, choices, drawn, [])
    case.lays = [None if s is None else lay(choices, s.name, s.layout, s.type, s.ne) for s in drawn.sources]
    case.route = choices.pick("route", ROUTES, (8, 5, 3, 1, 1))
    case.threads = choices.pick("threads", (1, 2), (3, 1))
    case.then = choices.pick("then", THEN, (8, *[1] * (len(THEN) - 1)))
    for s in drawn.sources:
        label = "" if s is None else s.name
        case.made_by.append("leaf" if s is None else _made_by(choices, s))
        case.where.append(choices.pick(f"{label}.where", guard.WHERE, (6, 3, 3, 1)))
        case.owned.append(choices.pick(f"{label}.owned", (True, False)))
    if cls.inplace and choices.rarely("in place", 2):
        case.inplace = choices.pick("inplace", cls.inplace)
    if cls.writes and choices.rarely("read only", 6):
        case.read_only = choices.pick("read-only memory", guard.READ_ONLY)
        case.first_writable = choices.pick("first writable", (False, True))
        case.made_by[cls.writes[0]] = "leaf"
        case.owned[cls.writes[0]] = True
    if cls in (Cpy, SetRows) and not case.read_only and choices.rarely("together", 8):
        _together(case, choices)
    case.vast = choices.pick("vast", (0, 1 << 20, 1 << 40, 1 << 62), (60, 1, 1, 1))
    if choices.rarely("place outside", 16):
        case.outside = choices.pick("outside", (1, -1, 64, -64, 1 << 20, -(1 << 20), 1 << 62))
    return case


def _together(case: Case, choices: Draw) -> None:
    """What an op reads and what it writes become rows of one leaf, if their types and extents allow it."""
    dst = case.cls.writes[0]
    src = 1 - dst
    read, written = case.drawn.sources[src], case.drawn.sources[dst]
    if read is None or written is None or read.type is not written.type or read.ne[0] != written.ne[0]:
        return
    if read.ne[2:] != written.ne[2:] or read.layout != "packed" or written.layout != "packed" or 0 in written.ne:
        return
    case.together = choices.pick("apart", (written.ne[1], 0, 1))
    rows = max(written.ne[1], case.together + read.ne[1])
    root = (written.ne[0], rows, written.ne[2], written.ne[3])
    nb = contiguous_strides(read.type, root)
    case.lays[dst] = Lay(root, (View(written.ne, nb[1:]),))
    case.lays[src] = Lay(root, (View(read.ne, nb[1:], case.together * nb[1]),))
    case.made_by[src] = case.made_by[dst] = "leaf"


def _made_by(choices: Draw, source: Source) -> str:
    """The op whose result a source is, or ``leaf``."""
    made = choices.pick(f"{source.name}.made", ("leaf", "cont", "neg"), (8, 1, 1))
    # Where a source does not begin at an element of its root, negating those elements would make anything of it.
    negates = source.layout != "misaligned" and source.type in FLOATS and source.type is not F64
    return "cont" if made == "neg" and not negates else made


def _misshape(choices: Draw, drawn: Drawn) -> None:
    """Now and then one extent does not fit."""
    if choices.rarely("misshapen", 24):
        there = [s for s in drawn.sources if s is not None and s.values is None]
        if there:
            which = there[choices.pick("misshapen.source", (0, 1, 2)) % len(there)]
            dim = choices.pick("misshapen.dim", (0, 1, 2, 3))
            ne, unit = list(which.ne), which.type.block_size if dim == 0 else 1
            ne[dim] = max(0, ne[dim] + choices.pick("misshapen.by", (1, -1)) * unit)
            which.ne = (ne[0], ne[1], ne[2], ne[3])
            choices.promised = False


@dataclass
class Built:
    """The tensors of a case."""

    graph: Graph
    node: Tensor
    """The op under test."""
    result: Tensor
    """The end of the graph."""
    leafs: list[tuple[Tensor, int]]
    """The leafs, each with the number of its source; two sources may have one leaf."""
    viewed: list[Tensor | None]
    """The sources of the op."""


def build(case: Case) -> Built:
    """Makes the tensors.  Raises what the ops' shape rules raise."""
    leafs: list[tuple[Tensor, int]] = []
    sources: list[Tensor | None] = []
    for number, (source, how) in enumerate(zip(case.drawn.sources, case.lays, strict=True)):
        if source is None or how is None:
            sources.append(None)
            continue
        if case.together is not None and number < 2 and leafs:
            leaf = root = leafs[0][0]
        else:
            leaf = root = Tensor(Spec(source.type, how.root, 4), name=source.name)
        leafs.append((leaf, number))
        if case.made_by[number] != "leaf":
            root = apply(OPS[case.made_by[number]](), (leaf,))
        sources.append(how.of(root))
    node = apply(case.cls(**case.drawn.parameters), tuple(sources))
    result = _then(case.then, node)
    return Built(Graph(result), node, result, leafs, sources)


def _then(how: str, node: Tensor) -> Tensor:
    """What is done with the op's result."""
    plain = node.type in FLOATS and node.type is not F64
    if isinstance(node.op, Argsort):  # which of two equal elements comes first is up to the device
        return node
    if node.op is not None and node.op.is_view and how in ("nothing", "neg", "twice"):
        how = "cont"
    if how == "neg" and plain and node.is_contiguous_from(1):
        return apply(Neg(), (node,))
    if how == "twice" and plain:
        return apply(Add(), (node, node))
    if how == "permuted" and node.type.block_size == 1:
        return apply(Cont(), (apply(Transpose(), (node,)),))
    if how == "window" and node.ne[1] > 1 and node.nb[0] == node.type.block_bytes:
        ne = (node.ne[0], node.ne[1] - 1, node.ne[2], node.ne[3])
        return apply(Cont(), (apply(View(ne, node.nb[1:], node.nb[1] if 0 not in node.ne else 0), (node,)),))
    if how == "flat" and node.is_contiguous():
        return apply(Cont(), (apply(Reshape((node.size,)), (node,)),))
    if how == "cont":
        return apply(Cont(), (node,))
    return node


def content(case: Case, built: Built, leaf: Tensor, garbage: int) -> values.Array:
    """The bytes of a leaf: the values of its sources where they are, and garbage around them."""
    raw = np.full(leaf.nbytes, garbage, np.uint8)
    for other, number in built.leafs:
        source, how = case.drawn.sources[number], case.lays[number]
        if other is not leaf or source is None or how is None:
            continue
        random = np.random.default_rng(case.draw.number(f"{source.name}.content"))
        shown = how.of(Tensor(Spec(source.type, how.root, 4)))
        elements = values.raw(source.kind, random, Tensor(Spec(source.type, source.ne, 4)), source.values)
        if elements.size:
            target = strided(raw[shown.view_offset :], shown)
            target[...] = elements.view(target.dtype).reshape(target.shape)
    return raw


def describe(case: Case) -> str:
    """The case in words."""
    lines = [f"case {case.name}", f"  {case.cls.name}({spell(case.drawn.parameters)})"]
    for number, (source, how) in enumerate(zip(case.drawn.sources, case.lays, strict=True)):
        if source is None or how is None:
            continue
        steps = "".join(f" -> {step!r}" for step in how.steps)
        made = "" if case.made_by[number] == "leaf" else f", made by {case.made_by[number]}"
        place = f"{'placed' if case.owned[number] else 'from the allocation'}, at the {case.where[number]}"
        lines.append(
            f"  {source.name}: {source.type.name} {list(source.ne)} {source.layout}, {source.kind} values{made}; "
            f"root {list(how.root)}{steps}; {place}"
        )
        if source.values is not None:
            lines.append(f"    values {np.asarray(source.values).reshape(-1)[:32].tolist()}")
    lines.append(f"  computed by {case.route} with {case.threads} thread(s), then {case.then}")
    if case.inplace is not None:
        lines.append(f"  the result in the place of {case.cls.sources[case.inplace]}")
    if case.read_only:
        before = ", first over writable memory" if case.first_writable else ""
        lines.append(f"  writes into read-only memory ({case.read_only}){before}")
    if case.together is not None:
        lines.append(f"  what is read lies in the leaf that is written, {case.together} rows on")
    if case.vast:
        lines.append(f"  before, a tensor [0, {case.vast}] is made, read and set")
    if case.outside is not None:
        lines.append(f"  first places a leaf {case.outside} bytes outside of its buffer")
    if not case.promised:
        lines.append("  the op's docstring does not promise this")
    return "\n".join(lines)


def spell(parameters: Mapping[str, Any]) -> str:
    """Parameters as arguments of a call."""
    return ", ".join(f"{name}={value!r}" for name, value in parameters.items())

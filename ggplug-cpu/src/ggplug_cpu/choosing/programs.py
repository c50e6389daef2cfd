"""Nodes that work on every element, as one program: the text, what it reads, and the parameters of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Extents, Tensor
from ggplug.types import F32
from ggplug_cpu.choosing.nest import Shape
from ggplug_cpu.choosing.places import PLAIN

#: How much longer than an addition a formula takes, where it does.
_WEIGHTS = {
    **dict.fromkeys(("exp", "log", "sigmoid", "silu", "gelu", "gelu_quick", "swiglu", "geglu", "geglu_quick"), 4),
    **dict.fromkeys(("tanh", "expm1", "elu", "softplus", "gelu_erf", "geglu_erf", "swiglu_oai", "xielu"), 8),
    **dict.fromkeys(("sin", "cos"), 8),
}

#: The classes of ops that can be steps of a program.
KINDS = (ops.Binary, ops.Unary, ops.Glu)


class Source(NamedTuple):
    """What a program reads: a tensor, or the half of one that begins ``offset`` bytes behind its first element."""

    tensor: Tensor
    offset: int
    ne: Extents

    @property
    def shape(self) -> Shape:
        return Shape(self.ne, self.tensor.nb, self.tensor.type.block_size)

    def spread(self, ne: Extents) -> Shape | None:
        """Its shape as one of these extents, with strides of 0 where it is repeated; None where whole runs repeat."""
        if any(1 < mine < wanted for mine, wanted in zip(self.ne, ne, strict=True)):
            return None
        nb = tuple(0 if mine < wanted else b for mine, wanted, b in zip(self.ne, ne, self.tensor.nb, strict=True))
        return Shape(ne, nb, self.tensor.type.block_size)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Chained:
    """A program's ``text``, its ``sources`` in order, its steps' ``constants``, and how costly an element is."""

    text: str
    sources: tuple[Source, ...]
    constants: tuple[float, ...]
    weight: int


#: No nodes at all.
NOTHING = Chained("", (), (), 0)


def sources_of(node: Tensor) -> list[Source]:
    """What one node reads, in the order of its formula's operands."""
    op = node.op
    tensors = [tensor for tensor in node.src if tensor is not None]
    if isinstance(op, ops.Glu) and len(tensors) == 1:  # the halves of one
        (x,) = tensors
        halves = [Source(x, 0, node.ne), Source(x, node.ne[0] * x.nb[0], node.ne)]
        return halves[::-1] if op.swapped else halves
    return [Source(tensor, 0, tensor.ne) for tensor in tensors]


def chained(
    nodes: Sequence[Tensor],
    known: Mapping[Tensor, str] | None = None,
    *,
    before: str = "",
    sources: int = 0,
    rounded: bool = False,
) -> Chained | Decline:
    """Nodes in order as a program whose result is the last one's.

    ``known``: names of results that are computed before, by the steps that ``before`` is the text of; these read
    ``sources`` sources.  Inner results, and the last one if it is to be ``rounded``, are rounded to their tensor's
    type; declines those of a type it cannot round to.
    """
    names = dict(known or {})
    steps = before.split(";") if before else []
    found: list[Source] = []
    constants: list[float] = []
    weight = 0
    for node in nodes:
        op = node.op
        assert isinstance(op, KINDS)
        operands = []
        for source in sources_of(node):
            name = names.get(source.tensor)
            if name is None:
                # of a single node even the same twice, so that x + x needs no kernel of its own
                at = found.index(source) if source in found and len(nodes) > 1 else len(found)
                found += [source] * (at == len(found))
                name = f"x{sources + at}"
            elif source.tensor.ne != node.ne:  # a half has the node's extents, and what it is half of has not
                return Decline(f"{node!r} repeats a result of the group, or reads a half of it")
            operands.append(name)
        constants += [float(getattr(op, name)) for name in op.parameters if name != "swapped"]
        weight += _WEIGHTS.get(op.name, 1)
        inner = rounded or node is not nodes[-1]
        if node.type not in PLAIN and inner:
            return Decline(f"a result inside of a group cannot be {node.type.name}")
        names[node] = f"r{len(steps)}"
        to = f">{node.type.name}" if inner and node.type is not F32 else ""
        steps.append(f"{op.name}({','.join(operands)}){to}")
    return Chained(";".join(steps), tuple(found), tuple(constants), weight)

"""A chain of elementwise nodes as one program: its text, its sources, and the parameters of its steps."""

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

#: The cost of a formula in additions, where it is more than one.
_WEIGHTS = {
    **dict.fromkeys(("exp", "log", "sigmoid", "silu", "gelu", "gelu_quick"), 4),
    **dict.fromkeys(("swiglu", "swiglu_clamp", "geglu", "geglu_quick"), 4),
    **dict.fromkeys(("tanh", "expm1", "elu", "softplus", "gelu_erf", "geglu_erf", "swiglu_oai", "xielu"), 8),
    **dict.fromkeys(("sin", "cos"), 8),
}

#: The classes of ops that can be steps of a program.
KINDS = (ops.Binary, ops.Unary, ops.Glu)


class Source(NamedTuple):
    """A source of a program: a tensor, or the half of a tensor that begins ``offset`` bytes after its first element."""

    tensor: Tensor
    offset: int
    ne: Extents

    @property
    def shape(self) -> Shape:
        return Shape(self.ne, self.tensor.nb, self.tensor.type.block_size)

    def spread(self, ne: Extents) -> Shape | None:
        """The source broadcast to the extents ``ne``, with stride 0 where an extent of 1 repeats.

        None if a larger extent would have to repeat, which a stride cannot express.
        """
        if any(1 < mine < wanted for mine, wanted in zip(self.ne, ne, strict=True)):
            return None
        nb = tuple(0 if mine < wanted else b for mine, wanted, b in zip(self.ne, ne, self.tensor.nb, strict=True))
        return Shape(ne, nb, self.tensor.type.block_size)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Chained:
    """A program: its ``text``, its ``sources`` in order, the ``constants`` of its steps, and the cost of an element."""

    text: str
    sources: tuple[Source, ...]
    constants: tuple[float, ...]
    weight: int


#: The program of no nodes.
NOTHING = Chained("", (), (), 0)


def sources_of(node: Tensor) -> list[Source]:
    """The sources of one node, in the order of its formula's operands."""
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
    """Makes one program of a chain of nodes; its result is that of the last node.

    ``before``: the text of steps that precede the nodes, which read ``sources`` sources; ``known``: the names of their
    results.  Inner results are rounded to their tensor's type, and so is the last one if ``rounded``; a type that
    programs cannot round to is declined.
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
            return Decline(f"a result inside a group cannot be {node.type.name}")
        names[node] = f"r{len(steps)}"
        to = f">{node.type.name}" if inner and node.type is not F32 else ""
        steps.append(f"{op.name}({','.join(operands)}){to}")
    return Chained(";".join(steps), tuple(found), tuple(constants), weight)

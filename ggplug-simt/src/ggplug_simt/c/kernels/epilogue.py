"""Epilogues: runs of elementwise ops on a value that a kernel has computed, before it is stored.

The run becomes C text (``EPILOGUE``) in the kernels of several families; each other tensor that it reads is a tensor of
the launch, repeated to the result's extents by strides of 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggplug.backend import Decline, Group
from ggplug.patterns import Names
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_simt.c.kernels.accepted import FLOATS
from ggplug_simt.c.kernels.elementwise import ONE, TWO, Expression
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, TensorArgument, argument

STEPS = (*ONE, *TWO)
"""Classes of op that a run may have.  A gated unit whose halves are one tensor declines."""

GroupChooser = Callable[[Profile, Group, Names], Launches | Decline]
"""Chooses the launches of a group of several nodes, which a pattern named."""


@dataclass(frozen=True)
class Epilogue:
    """What a run of elementwise ops adds to the launch of a kernel: ``defines``, tensors and ``values``."""

    defines: dict[str, object]
    tensors: dict[str, TensorArgument]
    values: dict[str, float]


NONE = Epilogue({}, {}, {})
"""The empty run."""


def position(group: Group, tensor: Tensor) -> int:
    """The position of a launch's tensor in the group."""
    return next(n for n, operand in enumerate(group.operands) if operand is tensor) + DST


def run_of(group: Group, start: Sequence[Tensor]) -> list[Tensor]:
    """The nodes of a group that are none of ``start``'s, in order."""
    return [node for node in group.nodes if not any(node is other for other in start)]


def epilogue(
    group: Group, value: Tensor, run: Sequence[Tensor], within: Mapping[Tensor, TensorArgument | str] | None = None
) -> Epilogue | Decline:
    """The run of ops on ``value``, each on the result of the one before.

    ``within``: other results of the group that the run may read: their tensor arguments, or their names in the kernel.
    """
    texts: list[str] = []
    defines: dict[str, object] = {}
    tensors: dict[str, TensorArgument] = {}
    values: dict[str, float] = {}
    for number, node in enumerate(run):
        if node.type is not F32:
            return Decline(f"{node.op.name if node.op else ''} rounds to {node.type.name} within a group")
        sources = [source for source in node.src if source is not None]
        two = type(node.op) in TWO
        if value.ne != node.ne:
            return Decline(f"{node.op.name if node.op else ''} repeats the value to its extents")
        if len(sources) != 1 + two:
            return Decline(f"{node.op.name if node.op else ''} of halves of one tensor is not part of a run")
        expression: Expression = (TWO if two else ONE)[type(node.op)]  # type: ignore[index]
        defines[f"F{number}({'x, y' if two else 'x'})"] = re.sub(r"\bP(\d)\b", rf"args.s{number}_\1", expression.text)
        for n, name in enumerate(expression.parameters):
            values[f"s{number}_{n}"] = float(getattr(node.op, name))
        if not two:
            texts.append(f"STEP_ONE(v, F{number})")
        else:
            swapped = sources[0] is not value
            other = sources[0] if swapped else sources[1]
            kind = "STEP_SWAPPED" if swapped else "STEP_TWO"
            place = "v" if other is value else (within or {}).get(other) or _repeated(group, other, node)
            if isinstance(place, Decline):
                return place
            if isinstance(place, str):
                texts.append(f"{kind}(v, F{number}, {place})")
            else:
                name = f"e{number}"
                tensors[name] = place
                read = f"FETCH({other.type.name})(ROW({name}, i1, i2, i3), args.{name}.nb[0], at, count, 0.0f)"
                texts.append(f"{kind}(v, F{number}, {read})")
        value = node
    defines["EPILOGUE(v, at, count, i1, i2, i3)"] = " ".join(texts)
    defines["FUSED"] = "_".join(node.op.name for node in run if node.op)
    return Epilogue(defines, tensors, values)


def _repeated(group: Group, source: Tensor, node: Tensor) -> TensorArgument | Decline:
    """A source of a node, with the node's extents and strides of 0 where it has extent one."""
    if any(source.root is node for node in group.nodes):
        return Decline("a result of the group is read in more than one place")
    if source.type not in FLOATS:
        return Decline(f"{source.type.name} is read by no run of elementwise ops")
    if any(have not in (1, want) for have, want in zip(source.ne, node.ne, strict=True)):
        return Decline("a source that is repeated several times is read by no run of elementwise ops")
    nb: Any = tuple(0 if have == 1 else step for have, step in zip(source.ne, source.nb, strict=True))
    return argument(position(group, source), source)._replace(ne=node.ne, nb=nb)


def checked(group: Group, value: Tensor | None) -> Decline | None:
    """Why a group declines, or None: inner results have to be float32 and read by no other nodes, except for
    ``value``.
    """
    for node, kept in zip(group.nodes[:-1], group.kept, strict=False):
        assert node.op is not None
        if kept and node is not value:
            return Decline(f"the result of {node.op.name} is needed too")
        if node.type is not F32:
            return Decline(f"{node.op.name} rounds to {node.type.name} within a group")
    return None

"""The result of a comparison of two devices: nodes, wrong nodes, and how the difference grows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple


class Element(NamedTuple):
    """One element of a wrong node: where it is (``ne`` order), what it should be, and what the device computed.

    ``reference``: what the op's reference computes from the same sources.  ``low``, ``high``: its bounds.
    """

    place: tuple[int, ...]
    wanted: float
    got: float
    reference: float
    low: float
    high: float


@dataclass(frozen=True)
class Node:
    """A node of the graph: its number in the order of computation, its name and its op.

    The name of one that has none is that of a weight that it reads, if it does.
    ``nmse``: how far the devices are apart there when each computes from its own values; None where that says nothing.
    """

    number: int
    name: str
    op: str
    nmse: float | None = None


@dataclass(frozen=True)
class WrongNode:
    """A node that a device computes wrongly from right values.

    ``sources``: their names, types and extents.  ``group``: what ``kernel`` computes together, if it is several nodes;
    ``alone``: those of them that are wrong as well when the device computes them one by one.  ``reason``: what is
    wrong, in words.  ``nmse``: how far it is off.  ``blamed``: the devices whose results the reference does not
    confirm.  ``elements``: those that are furthest off.
    """

    node: Node
    type: str
    ne: tuple[int, ...]
    sources: str
    device: str
    kernel: str
    group: tuple[Node, ...]
    alone: tuple[Node, ...]
    reason: str
    nmse: float
    blamed: tuple[str, ...]
    elements: tuple[Element, ...]

    def __str__(self) -> str:
        made = f"{self.node.op} {self.type} [{'x'.join(map(str, self.ne)) or 'scalar'}]"
        return f"node {self.node.number} {self.node.name!r} = {made} of {self.sources} on {self.device}: {self.reason}"


class Declined(NamedTuple):
    """A node that a device does not compute, and why; the reference computed it in its place."""

    node: Node
    device: str
    reason: str


@dataclass(frozen=True)
class Differences:
    """What :func:`compare` found: nothing if ``ok``.

    ``wrong``: nodes that are wrong from right values, the first one first.  ``follows``: nodes that depend on the first
    and are not wrong themselves.  ``growth``: how far the devices are apart when each computes from its own values: the
    first node, those where the difference has become ten times as large, and the last one.  ``n_nodes`` of the graph
    compute something.  ``against``: whose values were handed on, a device's name or ``"references"``.
    """

    a: str
    b: str
    against: str
    n_nodes: int
    wrong: tuple[WrongNode, ...]
    follows: tuple[Node, ...]
    growth: tuple[Node, ...]
    declined: tuple[Declined, ...]

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def first(self) -> WrongNode | None:
        """The first node that is wrong."""
        return self.wrong[0] if self.wrong else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "ok": self.ok,
            **dataclasses.asdict(self),
            "declined": [each._asdict() for each in self.declined],
        }

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.n_nodes} nodes agree on {self.a} and {self.b}"
        lines = [str(self.first)]
        lines += [f"  {list(each.place)}: got {each.got}, want {each.wanted}" for each in self.first.elements]
        lines += [f"{len(self.follows)} nodes follow from it", *(f"also {each}" for each in self.wrong[1:])]
        return "\n".join(lines)

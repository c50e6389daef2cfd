"""A graph divided between the members of a combined device: states, stages, and which nodes they compute together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ggplug.backend import UNGROUPED, Decline, Device, Group, Groups
from ggplug.combined.cuts import State
from ggplug.combined.listed import Complete, Listed
from ggplug.combined.local import Local
from ggplug.combined.states import Exchange, Held, States
from ggplug.errors import UnsupportedOpError
from ggplug.graph import Graph
from ggplug.interface.grouping import Tried, form_groups
from ggplug.patterns import Pattern
from ggplug.tensor import Tensor


class Stage(NamedTuple):
    """Nodes between two exchanges, by position, and the exchanges after them."""

    nodes: list[int]
    exchanges: list[int]


class Work(NamedTuple):
    """What a member computes in a stage, and which of these nodes together."""

    member: int
    graph: Graph
    groups: Groups


def stages(graph: Listed, states: States) -> list[Stage]:
    """The nodes of a graph until a node reads a result that has to be exchanged first, and so on."""
    read = {graph.roots[source] for position in graph.order for source in graph.sources[position] if source >= 0}
    found: list[Stage] = [Stage([], [])]
    pending: set[int] = set()
    for position in graph.order:
        node = graph.tensors[position]
        assert node.op is not None
        sources = {graph.roots[source] for source in graph.sources[position] if source >= 0}
        if not pending.isdisjoint(sources):
            found.append(Stage([], []))
            pending.clear()
        found[-1].nodes.append(position)
        if position in states.exchanges and node.nbytes:
            root = graph.roots[position]
            found[-1].exchanges.append(position)
            pending.add(root)
            if root not in read:  # its bytes may be those of the next node
                found.append(Stage([], []))
                pending.clear()
    return [stage for stage in found if stage.nodes]


class Divided:
    """A graph divided between members.

    ``whole``: the graph with all views.  ``local``: each member's tensors.
    """

    def __init__(self, whole: Complete, members: Sequence[Device], held: Held, states: States) -> None:
        self.whole, self.states, self.members = whole, states, members
        self.stages = stages(whole, states)
        places: list[State] = [held(tensor) for tensor in whole.tensors]
        self.local = [Local(whole, states, places, member) for member in range(len(members))]
        self._stage = {position: number for number, stage in enumerate(self.stages) for position in stage.nodes}

    def declined(self, group: Group) -> str | None:
        """Why the members do not compute nodes together; None if they do."""
        positions = [self.whole.position(node) for node in group.nodes]
        if len({self._stage[position] for position in positions}) > 1:
            return "the members exchange a result in between"
        if any(self.states.exchanges.get(position) is Exchange.SEND for position in positions):
            return "one of its nodes is computed by the first member alone"
        for member, mine in zip(self.members, self._parts(positions, group.kept), strict=True):
            found = member.chosen(mine)
            if isinstance(found, Decline):
                return f"{member.name}: {found.reason}"
        return None

    def check(self, graph: Graph, groups: Groups) -> None:
        """Raises UnsupportedOpError for nodes that the members do not compute together."""
        for group in groups.of(graph) if groups else ():
            reason = self.declined(group) if len(group) > 1 else None
            if reason is not None:
                raise UnsupportedOpError(
                    f"{group!r} cannot be computed together: {reason}",
                    op=group.node.op,
                    tensor=group.node,
                    reason=reason,
                )

    def groups(self, graph: Graph, patterns: Sequence[Pattern], leaving: Collection[int], tried: Tried) -> Groups:
        """The groups that all members compute, of those that patterns form of a graph's nodes."""
        found = form_groups(graph, patterns, self.declined, leaving, tried)
        inplace = {
            last: tuple(source for source in sources if self._overwritten(graph, found, last, source))
            for last, sources in found.inplace.items()
        }
        inplace = {last: sources for last, sources in inplace.items() if sources}
        return Groups(found.members, found.inner, inplace, found.missed) if found else found

    def _overwritten(self, graph: Graph, groups: Groups, last: int, source: int) -> bool:
        """Whether each member's part of a group's result may take the bytes of its part of a source."""
        members = next(members for members in groups.members if members[-1] == last)
        positions = [self.whole.position(graph.tensors[member]) for member in members]
        target = self.whole.position(graph.tensors[source])
        kept = tuple(member not in groups.inner for member in members)
        for device, local, mine in zip(self.members, self.local, self._parts(positions, kept), strict=True):
            named = ((pattern, pattern.names(mine)) for pattern in device.patterns)
            allowed = next((pattern.inplace(names, mine) for pattern, names in named if names is not None), ())
            if local.tensors[target] not in allowed:
                return False
        return True

    def _parts(self, positions: Sequence[int], kept: tuple[bool, ...]) -> list[Group]:
        """Each member's part of a group."""
        return [Group(tuple(local.nodes[each][-1] for each in positions), kept) for local in self.local]

    def work(self, graph: Graph, groups: Groups, stage: Stage) -> Iterator[Work]:
        """What the members compute in a stage; without those that compute nothing."""
        for member, local in enumerate(self.local):
            found: dict[Tensor, None] = {}
            for position in stage.nodes:
                if member == 0 or self.states.exchanges.get(position) is not Exchange.SEND:
                    found.update(dict.fromkeys(local.nodes[position]))
            if any(node.op is not None and not node.op.is_view for node in found):
                part = Graph.part(list(found), f"of {self.members[member].name}")
                yield Work(member, part, self._within(graph, groups, part, local))

    def _within(self, graph: Graph, groups: Groups, part: Graph, local: Local) -> Groups:
        """A graph's groups in a part of a member's nodes, by the part's own positions."""
        index, computing = part.index, set(part.order)
        found: list[tuple[int, ...]] = []
        inner: set[int] = set()
        inplace: dict[int, tuple[int, ...]] = {}
        for members in groups.members:
            nodes = [local.nodes[self.whole.position(graph.tensors[each])][-1] for each in members]
            if index.get(nodes[-1]) in computing:
                here = tuple(index[node] for node in nodes)
                found.append(here)
                inner.update(number for number, each in zip(here, members, strict=True) if each in groups.inner)
                sources = [self.whole.position(graph.tensors[each]) for each in groups.inplace.get(members[-1], ())]
                read = map(local.tensors.__getitem__, sources)
                inplace[here[-1]] = tuple(index[each] for each in read if each in index)
        return Groups(found, frozenset(inner), inplace) if found else UNGROUPED

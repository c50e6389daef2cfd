"""Finds the nodes of a graph that a device may compute as a group, and checks groups.

A group runs at the place of its last node.  So no node between its nodes may depend on one of them, or have to follow
one; :mod:`ggplug.nodes.hazards` decides that.  A result of a group is *inner* (it takes no memory and is not written)
only if nothing else can need it: no node outside of the group reads it or a view of it, it is no output, no other part
of the graph needs it, and it is not persistent.  All other results are kept: the group's kernel writes them too.  (An
op that writes into a result has a view of it as its own result, which is read or an output.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from ggplug.errors import GraphError
from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Group, Groups, Missed
from ggplug.patterns import Pattern, is_one_of
from ggplug.tensor import Operation, Tensor
from ggplug.types import TensorFlag

_OUTPUT = int(TensorFlag.OUTPUT)


def form_groups(
    graph: Graph, patterns: Sequence[Pattern], declined: Callable[[Group], str | None], leaving: Collection[int] = ()
) -> Groups:
    """The groups of a graph, or of a part of one, that a device's patterns form.

    From the last node to the first: of the patterns that end at the node, the first in the list that may be a group and
    is not declined.  A node belongs to at most one group.  ``declined``: returns why the device does not compute a
    group, or None.  ``leaving``: positions of results that are needed outside of the part.
    """
    uses = _Uses(graph, leaving=leaving)
    ending: dict[type[Operation], list[Pattern]] = {}
    taken: dict[int, tuple[int, ...]] = {}
    free = _Free(graph, taken)
    inner: set[int] = set()
    inplace: dict[int, tuple[int, ...]] = {}
    missed: dict[int, Missed] = {}
    for position in reversed(graph.order):
        node = graph.tensors[position]
        if node not in free:
            continue
        assert node.op is not None
        kind = type(node.op)
        if kind not in ending:
            ending[kind] = [pattern for pattern in patterns if is_one_of(node.op, pattern.kinds)]
        for pattern, members, group in _candidates(graph, node, ending[kind], free, uses):
            reason: str | None = uses.conflict(members)
            if not reason:
                reason = declined(group)
                names = pattern.names(group) if reason is None else None
                if names is not None:
                    taken.update(dict.fromkeys(members, members))
                    inner.update(p for p, kept in zip(members, group.kept, strict=True) if not kept)
                    inplace[position] = tuple(graph.index[source] for source in pattern.inplace(names, group))
                    break
                reason = reason or "the pattern found these nodes, but its names() returned None for the group"
                reason = "; ".join([*uses.why_kept_all(members), reason])
            missed.setdefault(position, Missed(members, pattern.name, reason))
    if not taken and not missed:
        return UNGROUPED
    return Groups(
        [taken[position] for position in graph.order if position in taken and taken[position][-1] == position],
        frozenset(inner),
        {position: sources for position, sources in inplace.items() if sources},
        # If a shorter group was found, this is the reason why the other nodes are single.
        [each for _, each in sorted(missed.items()) if any(member not in taken for member in each.nodes)],
    )


def check_groups(
    graph: Graph, groups: Groups, order: Sequence[int] | None = None, leaving: Collection[int] = ()
) -> None:
    """Raises GraphError, which names the rule and the nodes, unless a graph's nodes may be computed in these groups.

    Core checks all groups of devices and callers with it before they are used.  ``order``: positions of the nodes as
    they will be computed, by default the graph's.  ``leaving``: as for :func:`form_groups`.  The check is skipped if
    these groups were checked last for a graph with the same signature.
    """
    if groups is UNGROUPED:
        return
    checked = graph.signature(), None if order is None else tuple(order), frozenset(leaving)
    if groups.checked == checked:
        return
    wrong = _misshapen(graph, groups)
    if wrong:
        raise GraphError(f"invalid groups of {graph!r}: {wrong}", got=groups)
    seen: set[int] = set()
    if groups.members:
        uses = _Uses(graph, order=order, leaving=leaving)
        for members in groups.members:
            wrong = uses.misplaced(members, seen) or uses.conflict(members) or uses.mistaken(members, groups)
            if wrong:
                named = ", ".join(repr(graph.tensors[p]) for p in members if 0 <= p < len(graph.tensors))
                raise GraphError(f"{named or members} cannot be a group: {wrong}", got=members)
            seen.update(members)
    stray = sorted(groups.inner - seen)
    if stray:
        raise GraphError(f"{_called(graph, stray[0])} is marked as inner, but is in no group", got=stray[0])
    for position in groups.inplace.keys() - {members[-1] for members in groups.members}:
        node = _called(graph, position)
        raise GraphError(f"inplace has an entry for {node}, which is not the last node of a group", got=position)
    groups.checked = checked


def _misshapen(graph: Graph, groups: Groups) -> str:
    """Which field of groups has a type that :class:`Groups` does not allow; empty if none."""

    def whole(numbers: object) -> bool:
        return isinstance(numbers, tuple) and all(type(number) is int for number in numbers)

    for members in groups.members:
        if not whole(members):
            return f"a group must be a tuple of positions, got {members!r}"
    if not isinstance(groups.inner, frozenset) or not whole(tuple(groups.inner)):
        return f"inner must be a frozenset of positions, got {groups.inner!r}"
    for position, sources in groups.inplace.items():
        if type(position) is not int or not whole(sources):
            return f"inplace must map positions to tuples of positions, got {position!r}: {sources!r}"
    there = range(len(graph.tensors))
    for missed in groups.missed:
        if not (isinstance(missed, Missed) and whole(missed.nodes) and all(node in there for node in missed.nodes)):
            return f"missed must hold objects of class Missed with positions of nodes, got {missed!r}"
    return ""


def _called(graph: Graph, position: int) -> str:
    return repr(graph.tensors[position]) if 0 <= position < len(graph.tensors) else f"position {position}"


class _Free:
    """The nodes that compute something and are in no group so far."""

    def __init__(self, graph: Graph, taken: dict[int, tuple[int, ...]]) -> None:
        self._graph = graph
        self._taken = taken
        self._nodes = frozenset(graph.order)

    def __contains__(self, tensor: object) -> bool:
        position = self._graph.index.get(tensor, -1)  # type: ignore[call-overload]
        if position not in self._nodes or position in self._taken:
            return False
        node = self._graph.tensors[position]
        return node.op is not None and not node.op.is_view and node.size > 0


def _candidates(
    graph: Graph, last: Tensor, patterns: Iterable[Pattern], free: _Free, uses: _Uses
) -> Iterable[tuple[Pattern, tuple[int, ...], Group]]:
    """Possible groups that end at a node: the pattern, positions of the nodes in order, and the group."""
    for pattern in patterns:
        for found in pattern.find(last, free, uses.is_lone):
            members = tuple(sorted((graph.index[node] for node in found.nodes), key=uses.place.__getitem__))
            if len(members) < 2 or members[-1] != graph.index[last]:
                continue
            kept = tuple(p == members[-1] or bool(uses.why_kept(p, members)) for p in members)
            yield pattern, members, Group(tuple(graph.tensors[p] for p in members), kept)


class _Uses:
    """The nodes that need each result of a graph, by position; ``place``: each node's number in the order."""

    def __init__(self, graph: Graph, *, order: Sequence[int] | None = None, leaving: Collection[int] = ()) -> None:
        from ggplug.nodes.hazards import Hazards  # needed where nodes are grouped, and for nothing that imports this

        self.graph = graph
        self.order = graph.order if order is None else order
        self.place = {position: number for number, position in enumerate(self.order)}
        self._hazards = Hazards(graph, order)
        roots = graph.roots
        self._leaving = {roots[position] for position in leaving}
        self._outputs = {roots[p] for p, tensor in enumerate(graph.tensors) if tensor.flags & _OUTPUT}
        self._readers: dict[int, list[int]] = {}
        # In a part of a graph a view may be a leaf whose root is computed there.
        used = {root for position, root in enumerate(roots) if position not in self.place and root != position}
        for position in self.order:
            used.update(graph.sources[position])
            if not graph.tensors[position].op.is_view:  # type: ignore[union-attr]
                for root in {roots[source] for source in graph.sources[position] if source >= 0}:
                    self._readers.setdefault(root, []).append(position)
        # A result that no node reads is for the caller, and so is the root of such a view.
        self._outputs.update(roots[position] for position in self.order if position not in used)

    def why_kept(self, position: int, members: Collection[int]) -> str:
        """Why the result of a node has to be written; empty if only these nodes need it."""
        tensor = self.graph.tensors[position]
        if self.graph.roots[position] != position:
            return "writes into a source"
        if position in self._outputs:
            return "is an output, or has a view that is one"
        if position in self._leaving:
            return "is needed by another part of the graph"
        if tensor.buffer is not None:
            return "has a place of its own"
        for reader in self._readers.get(position, ()):
            if reader not in members:
                return f"is also read by {self.graph.tensors[reader]!r}"
        return ""

    def why_kept_all(self, members: tuple[int, ...]) -> list[str]:
        """For each node except the last whose result must be written, the reason."""
        found = ((self.graph.tensors[p], self.why_kept(p, members)) for p in members[:-1])
        return [f"{tensor!r} {why}" for tensor, why in found if why]

    def is_lone(self, tensor: Tensor) -> bool:
        """Whether one node of the graph needs a result, and nothing else does."""
        readers = self._readers.get(self.graph.index[tensor], ())
        return len(readers) == 1 and not self.why_kept(self.graph.index[tensor], readers)

    def misplaced(self, members: tuple[int, ...], seen: Collection[int]) -> str:
        """Why positions cannot be a group's: they must be nodes, in order, in no other group.  Empty if they can."""
        for position in members:
            if position not in self.place:
                return f"position {position} is not that of a node"
            node = self.graph.tensors[position]
            if node.op.is_view or not node.size:  # type: ignore[union-attr]
                return f"{node!r} computes nothing"
            if position in seen:
                return f"{node!r} is also in another group"
        places = [self.place[position] for position in members]
        if len(members) < 2 or any(b <= a for a, b in pairwise(places)):
            return "a group must have two or more nodes, in the order in which they are computed"
        return ""

    def mistaken(self, members: tuple[int, ...], groups: Groups) -> str:
        """What is wrong with the fields ``inner`` and ``inplace`` of the group's results; empty if nothing is."""
        graph = self.graph
        for position in members:
            if position in groups.inner:
                why = "is the group's result" if position == members[-1] else self.why_kept(position, members)
                if why:
                    return f"{graph.tensors[position]!r} {why}, so it has to be written"
        read = {source for member in members for source in graph.sources[member] if source >= 0}
        for source in groups.inplace.get(members[-1], ()):
            if source not in read or graph.roots[source] in members:
                return f"its result would take the bytes of {_called(graph, source)}, which is not one of its sources"
        return ""

    def conflict(self, members: tuple[int, ...]) -> str:
        """Why nodes cannot be computed at the place of the last one; empty if they can."""
        graph = self.graph
        end = self.place[members[-1]]
        for member in members:
            for number, kind in self._hazards.between(self.place[member], end):
                if self.order[number] not in members:
                    between, before = graph.tensors[self.order[number]], graph.tensors[member]
                    return f"{between!r} is computed in between and must follow {before!r}: {kind.value}"
        return self._overwritten(members)

    def _overwritten(self, members: tuple[int, ...]) -> str:
        """Why a group is refused that reads and writes the same bytes, in an order that is not defined; else empty.

        Compares byte ranges, which are the same in a graph and in a part of it that lacks a root that others share.
        """
        graph, hazards = self.graph, self._hazards
        for member in members:
            op = graph.tensors[member].op
            assert op is not None
            targets = [graph.sources[member][i] for i in op.writes]
            if not targets and member in hazards.shared:
                targets = [member]
            for target in targets:
                if target < 0:
                    continue
                written = hazards.access(target)
                for reader in members:
                    for which, source in enumerate(graph.sources[reader]):
                        if source < 0 or (reader == member and which in op.writes):
                            continue
                        # The kernel does not read results of its own group from memory.
                        computed = target == member and graph.roots[source] == member
                        if not computed and hazards.access(source).overlaps(written):
                            before, after = graph.tensors[graph.roots[source]], graph.tensors[member]
                            return f"{after!r} writes into bytes of {before!r}, which the group also reads"
        return ""

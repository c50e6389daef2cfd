"""Which nodes of a graph may be computed as a group, and why not.

A group runs at the place of its last node.  Then nothing that comes in between may depend on one of its nodes, or be
overtaken by one; :mod:`ggplug.nodes.hazards` decides.  A result inside of a group is *inner*, that is, takes no memory
and is not written, only if nothing else can need it: no node outside reads it or a view of it, it is no output, it does
not leave its part of a graph, and it has no place of its own.  All other results are kept: the group's kernel writes
them too.  (An op that writes into a result has a view of it as its own result, which is read or an output.)
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
    """The groups of a graph, or of a part of one, by a device's patterns.

    From the last node to the first, each node ends the first pattern in the list that is found there, may be a group,
    and is not declined; a node belongs to one group at most.  ``declined``: why the device does not compute a group, or
    None.  ``leaving``: positions of results that are needed outside of the part.
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
                reason = reason or "the pattern has no names for what it found"
                reason = "; ".join([*uses.why_kept_all(members), reason])
            missed.setdefault(position, Missed(members, pattern.name, reason))
    if not taken and not missed:
        return UNGROUPED
    return Groups(
        [taken[position] for position in graph.order if position in taken and taken[position][-1] == position],
        frozenset(inner),
        {position: sources for position, sources in inplace.items() if sources},
        # Of a shorter group that was found instead the rest is alone, and that is why.
        [each for _, each in sorted(missed.items()) if any(member not in taken for member in each.nodes)],
    )


def check_groups(
    graph: Graph, groups: Groups, order: Sequence[int] | None = None, leaving: Collection[int] = ()
) -> None:
    """Raises GraphError, which names the rule and the nodes, unless a graph's nodes may be computed in these groups.

    Whatever a device or a caller says of groups is asked this before it is used.  ``order``: positions of the nodes as
    they will be computed, by default the graph's.  ``leaving``: as for :func:`form_groups`.  Costs nothing that counts
    where these groups were asked last for a graph with the same signature.
    """
    if groups is UNGROUPED:
        return
    asked = graph.signature(), None if order is None else tuple(order), frozenset(leaving)
    if groups.checked == asked:
        return
    wrong = _misshapen(graph, groups)
    if wrong:
        raise GraphError(f"these are no groups of {graph!r}: {wrong}", got=groups)
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
        raise GraphError(f"{_called(graph, stray[0])} is inside of no group", got=stray[0])
    for position in groups.inplace.keys() - {members[-1] for members in groups.members}:
        raise GraphError(f"{_called(graph, position)} is the result of no group, and lies on no source", got=position)
    groups.checked = asked


def _misshapen(graph: Graph, groups: Groups) -> str:
    """What in groups is not of the kind that :class:`Groups` states; empty if all is."""

    def whole(numbers: object) -> bool:
        return isinstance(numbers, tuple) and all(type(number) is int for number in numbers)

    for members in groups.members:
        if not whole(members):
            return f"a group is a tuple of positions, got {members!r}"
    if not isinstance(groups.inner, frozenset) or not whole(tuple(groups.inner)):
        return f"inner results are a frozenset of positions, got {groups.inner!r}"
    for position, sources in groups.inplace.items():
        if type(position) is not int or not whole(sources):
            return f"inplace has tuples of positions by position, got {position!r}: {sources!r}"
    there = range(len(graph.tensors))
    for missed in groups.missed:
        if not (isinstance(missed, Missed) and whole(missed.nodes) and all(node in there for node in missed.nodes)):
            return f"what was missed is a Missed with positions of nodes, got {missed!r}"
    return ""


def _called(graph: Graph, position: int) -> str:
    return repr(graph.tensors[position]) if 0 <= position < len(graph.tensors) else f"position {position}"


class _Free:
    """The nodes that compute something and are in no group yet."""

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
    """What could be a group that ends at a node: the pattern, positions of the nodes in order, and the group."""
    for pattern in patterns:
        for found in pattern.find(last, free, uses.is_lone):
            members = tuple(sorted((graph.index[node] for node in found.nodes), key=uses.place.__getitem__))
            if len(members) < 2 or members[-1] != graph.index[last]:
                continue
            kept = tuple(p == members[-1] or bool(uses.why_kept(p, members)) for p in members)
            yield pattern, members, Group(tuple(graph.tensors[p] for p in members), kept)


class _Uses:
    """Who needs which result of a graph, by position; ``place`` is that of each node in the order of computation."""

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
        # A result that no node reads is there to be read in the end, and so is the root of such a view.
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
                return f"is read by {self.graph.tensors[reader]!r}, too"
        return ""

    def why_kept_all(self, members: tuple[int, ...]) -> list[str]:
        """For each node but the last whose result has to be written, why."""
        found = ((self.graph.tensors[p], self.why_kept(p, members)) for p in members[:-1])
        return [f"{tensor!r} {why}" for tensor, why in found if why]

    def is_lone(self, tensor: Tensor) -> bool:
        """Whether nothing but one node of the graph needs a result."""
        readers = self._readers.get(self.graph.index[tensor], ())
        return len(readers) == 1 and not self.why_kept(self.graph.index[tensor], readers)

    def misplaced(self, members: tuple[int, ...], seen: Collection[int]) -> str:
        """Why positions are not those of nodes in order that are in no other group; empty if they are."""
        for position in members:
            if position not in self.place:
                return f"position {position} is none of a node"
            node = self.graph.tensors[position]
            if node.op.is_view or not node.size:  # type: ignore[union-attr]
                return f"{node!r} computes nothing"
            if position in seen:
                return f"{node!r} is in another group, too"
        places = [self.place[position] for position in members]
        if len(members) < 2 or any(b <= a for a, b in pairwise(places)):
            return "a group has two nodes or more, in the order in which they are computed"
        return ""

    def mistaken(self, members: tuple[int, ...], groups: Groups) -> str:
        """What is wrong with what is said of the group's results: that they are inner, or may lie on a source."""
        graph = self.graph
        for position in members:
            if position in groups.inner:
                why = "is the group's result" if position == members[-1] else self.why_kept(position, members)
                if why:
                    return f"{graph.tensors[position]!r} {why}, so it has to be written"
        read = {source for member in members for source in graph.sources[member] if source >= 0}
        for source in groups.inplace.get(members[-1], ()):
            if source not in read or graph.roots[source] in members:
                return f"its result would lie on {_called(graph, source)}, which is none of its sources"
        return ""

    def conflict(self, members: tuple[int, ...]) -> str:
        """Why nodes cannot be computed at the place of the last one; empty if they can."""
        graph = self.graph
        end = self.place[members[-1]]
        for member in members:
            for number, kind in self._hazards.between(self.place[member], end):
                if self.order[number] not in members:
                    between, before = graph.tensors[self.order[number]], graph.tensors[member]
                    return f"{between!r} comes in between, and has to follow {before!r}: {kind.value}"
        return self._overwritten(members)

    def _overwritten(self, members: tuple[int, ...]) -> str:
        """Which bytes a group both reads and writes: its kernel may do that in any order.

        By bytes, which are the same in a graph and in a part of it, where the root that joins others may be missing.
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
                        # A result that the group itself computes is not read from its bytes.
                        computed = target == member and graph.roots[source] == member
                        if not computed and hazards.access(source).overlaps(written):
                            before, after = graph.tensors[graph.roots[source]], graph.tensors[member]
                            return f"{after!r} writes into bytes of {before!r}, which the group reads, too"
        return ""

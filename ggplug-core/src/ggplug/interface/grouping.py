"""Finds the nodes of a graph that a device may compute as a group, and checks groups.

A group runs at the place of its last node.  So no node between its nodes may depend on one of them, or have to follow
one; :mod:`ggplug.nodes.hazards` decides that.  A result of a group is *inner* (it takes no memory and is not written)
only if nothing else can need it: no node outside of the group reads it or a view of it, it is no output, no other part
of the graph needs it, and it is not persistent.  All other results are kept: the group's kernel writes them too.  (An
op that writes into a result has a view of it as its own result, which is read or an output.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ggplug.errors import GraphError
from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Group, Groups, Missed
from ggplug.patterns import Pattern, is_one_of
from ggplug.tensor import Operation, Tensor
from ggplug.types import TensorFlag

if TYPE_CHECKING:
    from ggplug.nodes.hazards import Hazards

_OUTPUT = int(TensorFlag.OUTPUT)


Tried = dict[Any, "list[_Trial]"]
"""What was tried to form groups, by what the decision depends on besides the answers of the device; see
:func:`form_groups`.  A device keeps one of these, and may clear it."""

ALIKE = 64
"""The maximum number of graphs in :data:`Tried`."""


class _Why(NamedTuple):
    """A reason; ``{}`` in it stand for the tensors at these positions.  False if there is none."""

    text: str = ""
    positions: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text)

    def of(self, graph: Graph) -> str:
        return self.text.format(*(repr(graph.tensors[position]) for position in self.positions))


class _Trial(NamedTuple):
    """Nodes that a pattern found, by position; ``kept``: for each whether its result has to be written.

    ``why``: why they are no group whatever the device answers.  ``reasons``: why results are kept, for explanations.
    ``declined``: whether the device declined.  ``inplace``: what :class:`Groups` says of the last node.
    """

    pattern: str
    members: tuple[int, ...]
    kept: tuple[bool, ...]
    why: _Why
    reasons: tuple[_Why, ...] = ()
    declined: bool = False
    inplace: tuple[int, ...] = ()

    def group(self, graph: Graph) -> Group:
        return Group(tuple(graph.tensors[position] for position in self.members), self.kept)


def form_groups(
    graph: Graph,
    patterns: Sequence[Pattern],
    declined: Callable[[Group], str | None],
    leaving: Collection[int] = (),
    tried: Tried | None = None,
) -> Groups:
    """The groups of a graph, or of a part of one, that a device's patterns form.

    From the last node to the first: of the patterns that end at the node, the first in the list that may be a group and
    is not declined.  A node belongs to at most one group.  ``declined``: returns why the device does not compute a
    group, or None.  ``leaving``: positions of results that are needed outside of the part.

    ``tried``: what was tried with earlier graphs.  For a graph that differs from one of them in extents alone, such as
    that of a longer context, nothing is searched: if the device gives the same answers, the groups are the same.
    """
    hazards = _hazards(graph)
    if tried is None:
        return _groups(graph, *_search(graph, hazards, patterns, declined, leaving))
    key = tuple(patterns), frozenset(leaving), _likeness(graph, hazards)
    known = tried.get(key)
    reasons = None if known is None else _answers(graph, known, declined)
    if known is None or reasons is None:
        known, reasons = _search(graph, hazards, patterns, declined, leaving)
        if len(tried) >= ALIKE:
            tried.clear()
        tried[key] = known
    return _groups(graph, known, reasons)


def _likeness(graph: Graph, hazards: Hazards) -> tuple[Any, ...]:
    """What the groups of a graph depend on besides the answers of the device: all but names, extents and strides."""
    tensors = graph.tensors
    entries = []
    for tensor, source, root in zip(tensors, graph.sources, graph.roots, strict=True):
        op, ne = tensor.op, tensor.ne
        entries.append(
            (
                op if op is None else type(op) if op.is_view else op.key,
                tensor.type.id,
                tensor.flags,
                tensor.buffer is None,
                0 in ne,
                source,
                root,
                tuple([each >= 0 and tensors[each].ne == ne for each in source]),
            )
        )
    return tuple(entries), tuple(graph.order), hazards.overlaps


def _answers(
    graph: Graph, trials: Sequence[_Trial], declined: Callable[[Group], str | None]
) -> list[str | None] | None:
    """Why the device declines the groups that were tried; None if it declines others than before."""
    reasons = [None if trial.why else declined(trial.group(graph)) for trial in trials]
    same = all((reason is not None) == trial.declined for reason, trial in zip(reasons, trials, strict=True))
    return reasons if same else None


def _search(
    graph: Graph,
    hazards: Hazards,
    patterns: Sequence[Pattern],
    declined: Callable[[Group], str | None],
    leaving: Collection[int],
) -> tuple[list[_Trial], list[str | None]]:
    """The groups that may be tried, in the order in which they were, and why the device declines them."""
    uses = _Uses(graph, hazards, leaving=leaving)
    ending: dict[type[Operation], list[Pattern]] = {}
    taken: set[int] = set()
    free = _Free(graph, taken)
    trials: list[_Trial] = []
    reasons: list[str | None] = []
    for position in reversed(graph.order):
        node = graph.tensors[position]
        if node not in free:
            continue
        assert node.op is not None
        kind = type(node.op)
        if kind not in ending:
            ending[kind] = [pattern for pattern in patterns if is_one_of(node.op, pattern.kinds)]
        for pattern, trial in _candidates(graph, node, ending[kind], free, uses):
            reason: str | None = None
            if not trial.why:
                group = trial.group(graph)
                reason = declined(group)
                names = pattern.names(group) if reason is None else None
                if names is not None:
                    inplace = tuple(graph.index[source] for source in pattern.inplace(names, group))
                    trial = trial._replace(inplace=inplace)
                elif reason is None:
                    trial = trial._replace(why=_UNNAMED)
                else:
                    trial = trial._replace(declined=True)
                if names is None:
                    trial = trial._replace(reasons=tuple(uses.why_kept_all(trial.members)))
            trials.append(trial)
            reasons.append(reason)
            if not trial.why and not trial.declined:
                taken.update(trial.members)
                break
    return trials, reasons


_UNNAMED = _Why("the pattern found these nodes, but its names() returned None for the group")


def _groups(graph: Graph, trials: Sequence[_Trial], reasons: Sequence[str | None]) -> Groups:
    """The groups that were tried and not declined; ``reasons``: why the others were."""
    formed: dict[int, _Trial] = {}
    missed: dict[int, Missed] = {}
    for trial, reason in zip(trials, reasons, strict=True):
        last = trial.members[-1]
        if not trial.why and reason is None:
            formed[last] = trial
        elif last not in missed:
            whole = [why.of(graph) for why in trial.reasons]
            missed[last] = Missed(trial.members, trial.pattern, "; ".join([*whole, reason or trial.why.of(graph)]))
    if not formed and not missed:
        return UNGROUPED
    taken = {member for trial in formed.values() for member in trial.members}
    return Groups(
        [formed[position].members for position in graph.order if position in formed],
        frozenset(p for each in formed.values() for p, kept in zip(each.members, each.kept, strict=True) if not kept),
        {last: trial.inplace for last, trial in formed.items() if trial.inplace},
        # If a shorter group was found, this is the reason why the other nodes are single.
        [each for _, each in sorted(missed.items()) if any(member not in taken for member in each.nodes)],
    )


def _hazards(graph: Graph, order: Sequence[int] | None = None) -> Hazards:
    from ggplug.nodes.hazards import Hazards  # needed where nodes are grouped, and for nothing that imports this

    return Hazards(graph, order)


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
        uses = _Uses(graph, _hazards(graph, order), leaving=leaving)
        for members in groups.members:
            wrong = uses.misplaced(members, seen) or uses.conflict(members).of(graph) or uses.mistaken(members, groups)
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

    def __init__(self, graph: Graph, taken: Container[int]) -> None:
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
) -> Iterable[tuple[Pattern, _Trial]]:
    """Possible groups that end at a node, each with the pattern that found it."""
    for pattern in patterns:
        for found in pattern.find(last, free, uses.is_lone):
            members = tuple(sorted((graph.index[node] for node in found.nodes), key=uses.place.__getitem__))
            if len(members) < 2 or members[-1] != graph.index[last]:
                continue
            kept = tuple(p == members[-1] or bool(uses.why_kept(p, members)) for p in members)
            yield pattern, _Trial(pattern.name, members, kept, uses.conflict(members))


class _Uses:
    """The nodes that need each result of a graph, by position; ``place``: each node's number in the order."""

    def __init__(self, graph: Graph, hazards: Hazards, *, leaving: Collection[int] = ()) -> None:
        self.graph = graph
        self.order = hazards.order
        self.place = {position: number for number, position in enumerate(self.order)}
        computing = (not graph.tensors[position].op.is_view for position in self.order)  # type: ignore[union-attr]
        self._before = list(accumulate(computing, initial=0))
        """How many nodes that compute something come before each one."""
        self._hazards = hazards
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

    def why_kept(self, position: int, members: Collection[int]) -> _Why:
        """Why the result of a node has to be written; false if only these nodes need it."""
        tensor = self.graph.tensors[position]
        if self.graph.roots[position] != position:
            return _Why("{} writes into a source", (position,))
        if position in self._outputs:
            return _Why("{} is an output, or has a view that is one", (position,))
        if position in self._leaving:
            return _Why("{} is needed by another part of the graph", (position,))
        if tensor.buffer is not None:
            return _Why("{} has a place of its own", (position,))
        for reader in self._readers.get(position, ()):
            if reader not in members:
                return _Why("{} is also read by {}", (position, reader))
        return _Why()

    def why_kept_all(self, members: tuple[int, ...]) -> list[_Why]:
        """For each node except the last whose result must be written, the reason."""
        return list(filter(None, (self.why_kept(position, members) for position in members[:-1])))

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
                last = _Why("{} is the group's result", (position,))
                why = last if position == members[-1] else self.why_kept(position, members)
                if why:
                    return f"{why.of(graph)}, so it has to be written"
        read = {source for member in members for source in graph.sources[member] if source >= 0}
        for source in groups.inplace.get(members[-1], ()):
            if source not in read or graph.roots[source] in members:
                return f"its result would take the bytes of {_called(graph, source)}, which is not one of its sources"
        return ""

    def conflict(self, members: tuple[int, ...]) -> _Why:
        """Why nodes cannot be computed at the place of the last one; false if they can."""
        begin, end = self.place[members[0]], self.place[members[-1]]
        apart = self._before[end] - self._before[begin] >= len(members)
        for member in members if apart else ():
            for number, kind in self._hazards.between(self.place[member], end):
                between = self.order[number]
                if between not in members:
                    return _Why(f"{{}} is computed in between and must follow {{}}: {kind.value}", (between, member))
        return self._overwritten(members)

    def _overwritten(self, members: tuple[int, ...]) -> _Why:
        """Why a group is refused that reads and writes the same bytes, in an order that is not defined; else false.

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
                            which_bytes = member, graph.roots[source]
                            return _Why("{} writes into bytes of {}, which the group also reads", which_bytes)
        return _Why()

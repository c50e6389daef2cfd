"""Cuts an assigned graph into splits, and finds the tensors that are copied for each of them.

A split is a sequence of nodes on one stream.  A source in memory that the stream cannot access is copied to it before
the split begins: once for all nodes that read it there, in later splits too, until a node writes into the original.
Only the tensor that is read is copied: for a view of a large cache, the bytes of the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ggplug.backend import Backend
from ggplug.errors import GraphError
from ggplug.graph import Graph
from ggplug.nodes.groups import Groups
from ggplug.nodes.hazards import Hazards, Latest
from ggplug.scheduler.assign import Assignment
from ggplug.scheduler.overlap import overlapping
from ggplug.scheduler.support import Streams
from ggplug.types import BufferUsage


@dataclass
class Copy:
    """A tensor that is copied to a stream's memory before split ``split`` begins.

    ``position``: that of the tensor.  ``nbytes``: copied bytes, gaps included.  ``last``: number of the last node that
    reads the copy.
    """

    position: int
    stream: int
    split: int
    nbytes: int
    last: int = -1


@dataclass
class Split:
    """Nodes ``first`` to ``end`` (exclusive) in the order of computation, on one stream.

    ``nodes``: positions of those that compute something, and of the views that they read.  ``copies``: numbers of the
    copies that are made before it begins.  ``reads``: position of a source -> number of the copy that is read instead.
    """

    number: int
    stream: int
    first: int
    end: int
    nodes: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)

    def part(self, graph: Graph, nodes: Sequence[int] | None = None) -> Graph:
        """The split, or some nodes of it, as a part of the whole graph."""
        tensors = graph.tensors
        chosen = [tensors[position] for position in (self.nodes if nodes is None else nodes)]
        apart = {tensors[position] for position in self.reads}
        return Graph.part(chosen, f"split {self.number}", whole=graph, apart=apart)


@dataclass(frozen=True)
class Cut:
    """A graph's splits and copies, and the order of its nodes by position."""

    order: list[int]
    splits: list[Split]
    copies: list[Copy]


@dataclass(frozen=True)
class Decided:
    """Which stream computes which node, in which order, in which groups, and what is copied.

    ``groups``: the groups of all splits, by positions in the whole graph.
    """

    assignment: Assignment
    cut: Cut
    groups: Groups


def cut(graph: Graph, streams: Streams, assignment: Assignment, hazards: Hazards, *, reorder: bool = True) -> Cut:
    """Cuts an assigned graph into splits (ggml_backend_sched_split_graph, pass 5).

    The order of nodes is one of :mod:`.overlap`, which streams may change further; without ``reorder`` the graph's.
    """
    order = list(overlapping(graph, streams, assignment, hazards) if reorder else graph.order)
    if order != graph.order:
        hazards.check_order(order)
        hazards = Hazards(graph, order)
    splits, copies = _splits(graph, streams, assignment, hazards)
    optimizing = [reorder and type(backend).optimize is not Backend.optimize for backend in streams]
    if any(optimizing[split.stream] for split in splits):
        order = _optimized(graph, streams, splits, order, optimizing)
        hazards.check_order(order)
    number_of = {position: number for number, position in enumerate(order)}
    sources = graph.sources
    for split in splits:
        split.nodes.sort(key=number_of.__getitem__)
        if split.reads:
            for position in split.nodes:
                for source in sources[position]:
                    copy = split.reads.get(source)
                    if copy is not None:
                        copies[copy].last = max(copies[copy].last, number_of[position])
    return Cut(order, splits, copies)


def _splits(graph: Graph, streams: Streams, assignment: Assignment, hazards: Hazards) -> tuple[list[Split], list[Copy]]:
    tensors, sources, roots, at = graph.tensors, graph.sources, graph.roots, assignment.streams
    splits: list[Split] = []
    copies: list[Copy] = []
    latest: dict[tuple[int, int], int] = {}  # (source, stream) -> number of its last copy
    written = Latest(hazards)
    views: set[int] = set()
    current: Split | None = None
    for number, position in enumerate(hazards.order):
        op = tensors[position].op
        assert op is not None
        if op.is_view:
            continue
        stream = at[position]
        away: list[int] = []
        for source in sources[position]:
            if source < 0:
                continue
            root = roots[source]
            memory = tensors[root].buffer_type or streams.buffer_types[at[root]]
            if not streams.works_in(stream, memory):
                away.append(source)
        if current is None or current.stream != stream or _begins_anew(graph, current, away):
            if current is not None:
                current.end = number
            current = Split(len(splits), stream, number, number)
            splits.append(current)
            views = set()
        for source in away:
            if source in current.reads:
                continue
            copy = latest.get((source, stream))
            if copy is None or written.of(hazards.access(source)) >= splits[copies[copy].split].first:
                copy = latest[source, stream] = len(copies)
                copies.append(Copy(source, stream, current.number, tensors[source].nbytes))
                current.copies.append(copy)
            current.reads[source] = copy
        for source in sources[position]:
            if source >= 0 and source not in current.reads and source not in views:
                maker = tensors[source].op
                if maker is not None and maker.is_view:
                    views.add(source)
                    current.nodes.append(source)
        current.nodes.append(position)
        if len(streams) > 1 and hazards.memory(position) in hazards.rewritten:
            for access in hazards.writes(number):
                written.note(access, number)
    if splits:
        # Views at the beginning and end compute nothing, but must belong to a split.
        splits[0].first, splits[-1].end = 0, len(graph.order)
    return splits, copies


def _begins_anew(graph: Graph, current: Split, away: Sequence[int]) -> bool:
    """Whether a node whose weights must be copied begins a new split.

    Then the memory of weights that were copied for earlier nodes can be reused.
    """
    if not current.copies:
        return False
    for source in away:
        buffer = graph.tensors[graph.roots[source]].buffer
        if buffer is not None and buffer.usage is BufferUsage.WEIGHTS and source not in current.reads:
            return True
    return False


def _optimized(
    graph: Graph, streams: Streams, splits: Sequence[Split], given: Sequence[int], optimizing: Sequence[bool]
) -> list[int]:
    """The order of all nodes after each stream has optimized the order in its splits; ``given``: the one before."""
    order: list[int] = []
    done: set[int] = set()

    def add(position: int) -> None:
        # A view comes directly before the first node that needs it.
        for source in graph.sources[position]:
            if source >= 0 and source not in done and source in nodes and graph.tensors[source].op.is_view:  # type: ignore[union-attr]
                add(source)
        if position not in done:
            done.add(position)
            order.append(position)

    nodes = set(graph.order)
    for split in splits:
        begin, arranged = len(order), split.nodes
        if optimizing[split.stream]:
            answer = streams[split.stream].optimize(split.part(graph))
            arranged = [graph.index.get(node, -1) for node in answer.nodes]
            if sorted(arranged) != sorted(split.nodes):
                name = streams[split.stream].name
                raise GraphError(f"{name}: optimize() must return the same nodes in another order", got=len(arranged))
        for position in arranged:
            add(position)
        for position in given[split.first : split.end]:
            add(position)
        split.first, split.end = begin, len(order)
    return order

"""Which stream computes which node so that the graph takes the least predicted time.

Nodes that pins, policies, places or writes decide stay where ggml's rules put them, and so do those that read weights
if the scheduler does not offload.  For each other node, in order, and for each stream that can compute it, the cheapest
way to get there is kept: what the nodes until then take, the copies that they need, and the splits.  For a chain, in
which each node reads the one before and leafs, that is the optimum; where nodes read earlier ones, too, it is an
approximation, because of the ways to a stream only one is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ggplug.graph import Graph
from ggplug.nodes.hazards import Hazards
from ggplug.scheduler.assign import Assignment, Reason
from ggplug.scheduler.support import Streams, kinds
from ggplug.types import BufferUsage

if TYPE_CHECKING:  # the scheduler imports the cost model when a policy needs it
    from ggplug.costs.model import CostModel

_FREE = (Reason.WEIGHT, Reason.OFFLOADED, Reason.FOLLOWS, Reason.UPGRADED, Reason.SOURCES, Reason.FIRST)
"""The reasons of assignments that another one may replace."""

SPLITS = (1.0, 4.0, 16.0)
"""What a split counts, in the time that it takes: with more, the nodes of a stream follow each other more often."""


class _Way(NamedTuple):
    """The cheapest way to a stream: its time, the stream of each node until then, and the copies made."""

    seconds: float
    at: list[int]
    copied: frozenset[tuple[int, int]]


def ways(
    graph: Graph, streams: Streams, hazards: Hazards, ruled: Assignment, costs: CostModel, *, op_offload: bool
) -> Iterator[dict[int, int]]:
    """Assignments to consider, by position, for the nodes that are free to move: by time, and all on one stream.

    ``ruled``: the assignment by ggml's rules.
    """
    search = _Search(graph, streams, hazards, ruled, costs, op_offload)
    if not search.free:
        return
    for weight in SPLITS:
        yield search.least(weight)
    for stream in range(len(streams)):
        yield {position: stream for position, able in search.free.items() if stream in able}


class _Search:
    """The nodes that are free to move, and what each of them takes where."""

    def __init__(
        self,
        graph: Graph,
        streams: Streams,
        hazards: Hazards,
        ruled: Assignment,
        costs: CostModel,
        op_offload: bool,
    ) -> None:
        self.graph = graph
        self.streams = streams
        self.ruled = ruled
        self.costs = costs
        self.kinds = kinds(graph)
        self.op_offload = op_offload
        self._able: dict[int, tuple[int, ...]] = {}
        self._seconds: dict[tuple[int, int], float] = {}
        self._copies: dict[tuple[int, int, int], float] = {}
        self.free = {
            position: self.able(position)
            for position in self.kinds
            if ruled.reasons[position] in _FREE and position not in hazards.written and self._may_leave(position)
        }

    def _may_leave(self, position: int) -> bool:
        """Whether a node may be computed far from its weights."""
        if self.op_offload:
            return True
        buffers = (source.root.buffer for source in self.graph.tensors[position].src if source is not None)
        return all(buffer is None or buffer.usage is not BufferUsage.WEIGHTS for buffer in buffers)

    def able(self, position: int) -> tuple[int, ...]:
        """The streams that can compute a node."""
        kind = self.kinds[position]
        found = self._able.get(kind)
        if found is None:
            node, count = self.graph.tensors[position], len(self.streams)
            found = self._able[kind] = tuple(s for s in range(count) if self.streams.supports(s, node))
        return found

    def seconds(self, stream: int, position: int) -> float:
        """The predicted time of a node on a stream."""
        key = stream, self.kinds[position]
        found = self._seconds.get(key)
        if found is None:
            node = self.graph.tensors[position]
            found = self.costs.kernel(self.streams[stream], [node]) if node.size else 0.0
            self._seconds[key] = found
        return found

    def copied(self, stream: int, position: int, way: _Way) -> float | None:
        """The predicted time of the copy of a source that a stream needs; None if it reads the source where it lies."""
        root = self.graph.roots[position]
        memory = self.graph.tensors[root].buffer_type
        if memory is None:
            home = way.at[root]
            if home < 0:  # a leaf without a place lies where it is read first
                return None
            memory = self.streams.buffer_types[home]
        if self.streams.works_in(stream, memory):
            return None
        if (position, stream) in way.copied:
            return 0.0
        return self.costs.copy(self.streams[stream], memory, self.graph.tensors[position].nbytes)

    def least(self, weight: float) -> dict[int, int]:
        """The streams of the free nodes by which the graph takes the least time.  ``weight``: what a split counts."""
        fixed = Reason.INPUT, Reason.PINNED
        begin = [
            stream if self.ruled.reasons[position] in fixed and self.graph.tensors[position].op is None else -1
            for position, stream in enumerate(self.ruled.streams)
        ]
        found: Mapping[int, _Way] = {-1: _Way(0.0, begin, frozenset())}
        for position in self.kinds:
            choices = self.free.get(position) or (self.ruled.streams[position],)
            found = {stream: self._reach(stream, position, found, weight) for stream in choices}
        best = min(found.values(), key=lambda way: way.seconds)
        return {position: best.at[position] for position in self.free}

    def _reach(self, stream: int, position: int, before: Mapping[int, _Way], weight: float) -> _Way:
        """The cheapest way to compute a node on a stream, after one of the ways until the node before."""
        best, least, made = None, float("inf"), frozenset[tuple[int, int]]()
        split = weight * self.costs.split(self.streams[stream])
        for last, way in before.items():
            seconds = way.seconds + (0.0 if last == stream else split)
            copies = []
            for source in self.graph.sources[position]:
                copy = self.copied(stream, source, way) if source >= 0 else None
                if copy is not None:
                    seconds += copy
                    copies.append((source, stream))
            if seconds < least:
                best, least, made = way, seconds, frozenset(copies)
        assert best is not None
        at = list(best.at)
        at[position] = stream
        for source in self.graph.sources[position]:
            root = self.graph.roots[source] if source >= 0 else -1
            if root >= 0 and at[root] < 0:
                at[root] = stream
        return _Way(least + self.seconds(stream, position), at, best.copied | made if made else best.copied)

"""How long a schedule will take, by the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ggplug.backend import BufferType
from ggplug.graph import Graph
from ggplug.nodes.groups import Groups
from ggplug.scheduler.assign import Assignment
from ggplug.scheduler.split import Copy, Decided, Split
from ggplug.scheduler.support import Streams
from ggplug.tensor import Tensor

if TYPE_CHECKING:  # the scheduler imports the cost model when a policy needs it
    from ggplug.costs.model import CostModel


class Seconds(NamedTuple):
    """For each split of a schedule the seconds of its copies and those of its kernels; and those of the call itself."""

    copies: tuple[float, ...]
    splits: tuple[float, ...]
    call: float = 0.0

    def of(self, split: int) -> float:
        """Seconds of a split with its copies."""
        return self.copies[split] + self.splits[split]

    def scaled(self, factor: float) -> Seconds:
        """All of them, multiplied."""
        return Seconds(
            tuple(factor * each for each in self.copies),
            tuple(factor * each for each in self.splits),
            factor * self.call,
        )

    @property
    def total(self) -> float:
        """Seconds of one computation, one split after the other."""
        return self.call + sum(self.copies) + sum(self.splits)


def predict(graph: Graph, streams: Streams, decided: Decided, costs: CostModel) -> Seconds:
    """The predicted times of what the scheduler decided about a graph."""
    cut = decided.cut
    copies = tuple(
        sum(
            costs.copy(streams[split.stream], memory_of(graph, streams, decided.assignment, cut.copies[number]), nbytes)
            for number in split.copies
            if (nbytes := cut.copies[number].nbytes)
        )
        for split in cut.splits
    )
    splits = tuple(
        costs.split(streams[split.stream])
        + sum(seconds for _, seconds in kernel_times(graph, streams, split, decided.groups, costs))
        for split in cut.splits
    )
    return Seconds(copies, splits, costs.call(streams[cut.splits[0].stream]) if splits else 0.0)


def kernel_times(
    graph: Graph, streams: Streams, split: Split, groups: Groups, costs: CostModel
) -> Iterator[tuple[list[Tensor], float]]:
    """The nodes of each kernel of a split, and its predicted seconds."""
    stream = streams[split.stream]
    return ((nodes, costs.kernel(stream, nodes)) for nodes in kernels_of(graph, split, groups))


def memory_of(graph: Graph, streams: Streams, assignment: Assignment, copy: Copy) -> BufferType:
    """The memory that a copy reads."""
    root = graph.roots[copy.position]
    placed = graph.tensors[root].buffer_type
    return placed if placed is not None else streams.buffer_types[assignment.streams[root]]


def kernels_of(graph: Graph, split: Split, groups: Groups) -> Iterator[list[Tensor]]:
    """The nodes of each kernel of a split, in the order of their last nodes; those without elements are left out."""
    tensors = graph.tensors
    for members in groups.by_place(split.nodes):
        nodes = [tensors[p] for p in members if not tensors[p].op.is_view]  # type: ignore[union-attr]
        if nodes and nodes[-1].size:
            yield nodes


def kernel_parts(graph: Graph, split: Split, groups: Groups) -> Iterator[tuple[list[Tensor], Graph, Groups]]:
    """The nodes of each kernel of a split, and the part of the graph with them and the views that they read."""
    sources = graph.sources
    for nodes in kernels_of(graph, split, groups):
        computing = {graph.index[node] for node in nodes}
        read = {source for position in computing for source in sources[position]}
        part = split.part(graph, [p for p in split.nodes if p in computing or (p in read and _is_view(graph, p))])
        yield nodes, part, groups.within(part)


def _is_view(graph: Graph, position: int) -> bool:
    op = graph.tensors[position].op
    return op is not None and op.is_view

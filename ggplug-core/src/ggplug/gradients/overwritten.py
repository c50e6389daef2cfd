"""Refuses gradients that depend on bytes which the graph overwrites."""

from __future__ import annotations

from collections.abc import Collection

from ggplug.errors import GradientError
from ggplug.graph import Graph
from ggplug.nodes.hazards import Access, Hazards
from ggplug.tensor import Tensor


def check_overwritten(graph: Graph, forward: int, needed: Collection[Tensor]) -> None:
    """Raises GradientError if gradients depend on a node that reads bytes through a tensor from before a write to them.

    The rules take each tensor as the value that its source has in the graph.  But a node that reads a tensor after
    another one has written into its bytes reads what was written.  ``forward``: the number of nodes before those of the
    backward pass.  ``needed``: the tensors that gradients pass.

    Raises it also for a write that the backward pass would repeat.
    """
    hazards = Hazards(graph)
    if not hazards.written:
        return
    _check_repeated(hazards, forward)
    writes: dict[int, list[int]] = {}
    """For each root into which nodes write, the positions of these nodes so far."""
    known: dict[int, int] = {}
    """For each tensor of such a root, by position, how many of these nodes its value follows from."""
    for number, position in enumerate(graph.order):
        node = graph.tensors[position]
        assert node.op is not None
        if not node.op.is_view:
            for source in graph.sources[position]:
                if source < 0:
                    continue
                later = writes.get(hazards.memory(source), [])[known.get(source, 0) :]
                read = hazards.access(source)
                for write in later:
                    overwriting = graph.tensors[write]
                    flows = overwriting in needed or graph.tensors[source] in needed
                    if (number >= forward or flows) and any(read.overlaps(each) for each in _written(hazards, write)):
                        raise _error(graph.tensors[source], node, overwriting, number >= forward)
        if node.op.is_view:
            known[position] = known.get(graph.sources[position][0], 0)
        elif node.op.writes:
            for memory in {access.root for access in _written(hazards, position)}:
                writes.setdefault(memory, []).append(position)
            known[position] = len(writes[hazards.memory(position)])


def _check_repeated(hazards: Hazards, forward: int) -> None:
    graph = hazards.graph
    for position in graph.order[forward:]:
        node = graph.tensors[position]
        assert node.op is not None
        if node.op.writes and graph.roots[position] < graph.order[forward]:
            raise GradientError(
                f"the backward pass would compute {node!r} again, which writes into {node.root!r}",
                tensor=node,
                op=node.op,
                remedy="leave writes out of functions for gg.remat",
            )


def _written(hazards: Hazards, position: int) -> list[Access]:
    """The bytes that the node at a position writes."""
    node, sources = hazards.graph.tensors[position], hazards.graph.sources[position]
    assert node.op is not None
    return [hazards.access(sources[which]) for which in node.op.writes if sources[which] >= 0]


def _error(source: Tensor, node: Tensor, overwriting: Tensor, backward: bool) -> GradientError:
    assert node.op is not None
    assert overwriting.op is not None
    if backward:
        what = f"a gradient needs the value of {source!r}, which {overwriting.op.name} overwrites"
        remedy = "write into another tensor, or write after the gradients"
    else:
        what = f"{node.op.name} reads {source!r} after {overwriting.op.name} wrote into its bytes"
        remedy = f"read the result of {overwriting.op.name}, so that gradients pass it"
    return GradientError(what, tensor=source, op=node.op, remedy=remedy)

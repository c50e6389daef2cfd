"""Pictures of graphs that were computed: their splits, and where their intermediates lay in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ggplug.graph import Graph
from ggplug.memory import Allocation
from ggplug.tensor import Tensor


class SplitPicture(NamedTuple):
    """Some nodes in a row that ``device`` computes: how many, the names of the first and last one, and the bytes that
    are copied to it before."""

    device: str
    nodes: int
    range: str
    copied: int


class BufferPicture(NamedTuple):
    """A buffer for intermediates."""

    memory: str
    size: int


class Block(NamedTuple):
    """``size`` bytes at ``offset`` of the buffer number ``slot``, needed from the node ``first`` to the node ``last``.

    ``names``: of the tensors that have their values there, one after the other.
    """

    slot: int
    offset: int
    size: int
    first: int
    last: int
    names: str


@dataclass
class GraphPicture:
    """A graph that was computed ``times`` times."""

    name: str
    nodes: int
    splits: list[SplitPicture]
    buffers: list[BufferPicture]
    blocks: list[Block]
    times: int = 1


def picture_of(graph: Graph, splits: Sequence[SplitPicture]) -> GraphPicture:
    """The picture of a graph that was computed just now."""
    buffers: list[BufferPicture] = []
    blocks: list[Block] = []
    allocation = None if graph.run is None else graph.run.allocation
    if isinstance(allocation, Allocation) and allocation.layout is not None:
        buffers = [BufferPicture(buffer.type.name, buffer.size) for buffer in allocation.buffers]
        for storage in allocation.layout.storages:
            names = dict.fromkeys(graph.tensors[member].name for member in storage.members)
            if storage.range.size and 0 <= storage.range.slot < len(buffers):
                blocks.append(Block(*storage.range, storage.first, storage.last, ", ".join(filter(None, names))))
    return GraphPicture(graph.name or "graph", len(graph.nodes), list(splits), buffers, blocks)


def range_of(nodes: Sequence[Tensor]) -> str:
    """The names of the first and the last node that has one."""
    names = [node.name for node in nodes if node.name]
    return "" if not names else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

"""Checks, for a graph and its allocation, that no two tensors share bytes while both are needed.

Independent of the allocator's code: it uses only the graph, the ops' declarations and the final places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ggplug.errors import OverlapError
from ggplug.graph import Graph
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import NOWHERE, PERSISTENT
from ggplug.nodes.groups import Groups
from ggplug.tensor import Tensor
from ggplug.types import TensorFlag


class NeededBytes(NamedTuple):
    """Bytes that are needed while nodes ``first`` to ``last`` compute, both inclusive."""

    what: str
    slot: int
    start: int
    size: int
    first: int
    last: int
    root: int = -1


def check_overlaps(
    graph: Graph, allocation: Allocation, *, order: Sequence[int] | None = None, extra: Iterable[NeededBytes] = ()
) -> int:
    """Raises OverlapError, which names both, if two tensors share bytes while both are needed.

    Returns the number of compared pairs.
    ``order``: positions of the nodes as they are computed, by default the graph's.  ``extra``: other bytes in use,
    such as copies of split inputs.  A result may lie in the place of a source only if the op allows it and the source
    is not needed any more.
    """
    numbers = graph.order if order is None else order
    held = [*_needs(graph, allocation, numbers), *extra]
    compared = 0
    alive: list[NeededBytes] = []
    for entry in sorted((h for h in held if h.size), key=lambda h: h.first):
        end = allocation.buffers[entry.slot].size
        stop = entry.start + entry.size
        if entry.start < 0 or stop > end:
            raise OverlapError(
                f"{entry.what}, bytes {entry.start} to {stop}, is not inside of its buffer of {end} bytes"
            )
        alive = [other for other in alive if other.last >= entry.first]
        for other in alive:
            compared += 1
            apart = other.slot != entry.slot or other.start >= stop or entry.start >= other.start + other.size
            if not apart and not _takes_over(graph, allocation.groups, entry, other):
                raise OverlapError(
                    f"{entry.what} shares bytes {max(entry.start, other.start)} to "
                    f"{min(stop, other.start + other.size)} of buffer {entry.slot} with {other.what}, which is needed "
                    f"until node {other.last}",
                    tensor=(entry.what, other.what),
                )
        alive.append(entry)
    return compared


def _needs(graph: Graph, allocation: Allocation, order: Sequence[int]) -> list[NeededBytes]:
    """From which node to which each root is needed, by the nodes' sources."""
    first: dict[Tensor, int] = {leaf.root: -1 for leaf in graph.leafs}
    last: dict[Tensor, int] = {}
    read: set[Tensor] = set()
    number_of = {position: number for number, position in enumerate(order)}
    # What a group reads is needed until its last node.
    until = {position: number_of[members[-1]] for members in allocation.groups.members for position in members}
    for number, position in enumerate(order):
        node = graph.tensors[position]
        if node.view_src is None:
            first[node] = last[node] = number
        number = until.get(position, number)
        for source in node.src:
            if source is not None:
                read.add(source)
                # A view computes nothing, so it needs no bytes of its source.
                if node.op is not None and not node.op.is_view:
                    last[source.root] = max(last.get(source.root, -1), number)
    for tensor in graph.tensors:
        if tensor.flags & TensorFlag.OUTPUT or tensor not in read or tensor.root.op is None:
            last[tensor.root] = len(order)
    found = []
    for root, begin in first.items():
        position = graph.index[root]
        slot = int(allocation.slots[position])
        if slot == PERSISTENT or (slot == NOWHERE and position in allocation.groups.inner):
            continue
        if slot == NOWHERE:
            raise OverlapError(f"{root!r} has no bytes, but is no inner result of a group", tensor=root)
        size = allocation.buffers[slot].type.alloc_size(root)
        offset = int(allocation.offsets[position])
        found.append(NeededBytes(repr(root), slot, offset, size, begin, last[root], position))
    return found


def _takes_over(graph: Graph, groups: Groups, entry: NeededBytes, other: NeededBytes) -> bool:
    """Whether the result ``entry`` may lie where ``other``, a source of its node or group, lies."""
    if entry.root < 0 or other.root < 0 or other.last != entry.first or entry.first < 0:
        return False
    node, root = graph.tensors[entry.root], graph.tensors[other.root]
    if node.op is None or (entry.slot, entry.start) != (other.slot, other.start):
        return False
    members = next((each for each in groups.members if each[-1] == entry.root), (entry.root,))
    readers = [graph.tensors[position] for position in members]
    whose = [(reader, i, s) for reader in readers for i, s in enumerate(reader.src) if s is not None and s.root is root]
    if len(whose) != 1:
        return False
    reader, which, source = whose[0]
    if reader is node and which not in node.op.inplace:
        return False
    if len(members) > 1 and graph.index[source] not in groups.inplace.get(entry.root, ()):
        return False
    return source.type is node.type and (source.ne, source.nb) == (node.ne, node.nb) and source.view_offset == 0

"""Lifetimes: from which node to which node a tensor's bytes are needed, and which results may take a source's bytes.

Time is counted in nodes, in order of computation.  Only roots have bytes: a view extends the lifetime of its root.  An
intermediate is needed from the node that computes it to the last node that reads or writes any of its bytes.  Until the
end are needed: outputs; results that no node reads; and leafs that are not persistent.  Such leafs are also needed from
before the first node, so that a graph can be computed again without setting its inputs again.

A group runs at the place of its last node: what any of its nodes reads is needed until then.  Inner results take no
bytes.  All others are needed at least as long as without groups, so the same places can be used node by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.types import TensorFlag

BEFORE = -1
"""The number from which a leaf is needed: before the first node."""

_OUTPUT = int(TensorFlag.OUTPUT)


@dataclass(frozen=True)
class Lifetimes:
    """By position of the root: numbers of the first and the last node that need its bytes, both inclusive.

    Persistent roots are left out.  ``end`` is the number of nodes: the bytes of a root with this last number are never
    reused.
    """

    first: dict[int, int]
    last: dict[int, int]
    end: int


def lifetimes(graph: Graph, order: Sequence[int] | None = None, groups: Groups = UNGROUPED) -> Lifetimes:
    """The lifetimes of all roots that are neither persistent nor inner results of groups.

    ``order``: positions of the nodes in the order in which they will be computed, by default the graph's.
    """
    tensors, sources, roots = graph.tensors, graph.sources, graph.roots
    order = graph.order if order is None else order
    end = len(order)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    kept: set[int] = set()
    used: set[int] = set()
    ends, inner = _ends(order, groups), groups.inner
    for position, tensor in enumerate(tensors):
        if tensor.flags & _OUTPUT:
            kept.add(roots[position])
        if tensor.op is None and tensor.view_src is None and tensor.buffer is None:
            first[position] = BEFORE
            last[position] = end
    for number, position in enumerate(order):
        tensor = tensors[position]
        used.update(sources[position])
        if roots[position] == position:
            if tensor.buffer is None and position not in inner:
                first[position] = last[position] = number
        elif tensor.op is not None and tensor.op.is_view:
            continue
        if ends:
            number = ends.get(position, number)
        for source in sources[position]:
            if source >= 0:
                root = roots[source]
                if root in first:
                    last[root] = max(last[root], number)
    kept.update(roots[position] for position in order if position not in used)
    for root in kept:
        if root in last:
            last[root] = end
    return Lifetimes(first, last, end)


def _ends(order: Sequence[int], groups: Groups) -> dict[int, int]:
    """For each node in a group of several, by position, the number of the group's last node."""
    if not groups:
        return {}
    number_of = {position: number for number, position in enumerate(order)}
    return {position: number_of[members[-1]] for members in groups.members for position in members}


def in_place(
    graph: Graph,
    lives: Lifetimes,
    sizes: Mapping[int, tuple[int, int]],
    order: Sequence[int] | None = None,
    groups: Groups = UNGROUPED,
) -> dict[int, int]:
    """The results that may take the bytes of a source: position of the result -> position of the source's root.

    ``Op.inplace`` says which sources an op may overwrite, and ``groups.inplace`` says it for groups of several nodes.
    The source must have the same layout as the result and cover its root, no later node may need the root, and the
    node, or the group, must read it only once.  ``sizes``: for each root in ``lives`` its memory, and the bytes that it
    takes there; both must be equal for source and result.
    """
    tensors, sources, roots = graph.tensors, graph.sources, graph.roots
    taken: dict[int, int] = {}
    together = {members[-1]: members for members in groups.members}
    for number, position in enumerate(graph.order if order is None else order):
        node = tensors[position]
        assert node.op is not None
        members = together.get(position)
        if position not in sizes or not (node.op.inplace or members):
            continue
        read = [roots[source] for member in members or (position,) for source in sources[member] if source >= 0]
        mine = sources[position]
        allowed = [mine[which] for which in node.op.inplace if which < len(mine)]
        if members:
            # This also holds node by node: the last node then overwrites the source only if its op allows it.
            allowed = [source for source in groups.inplace.get(position, ()) if source in allowed or source not in mine]
        for source in allowed:
            if source < 0:
                continue
            root, tensor = roots[source], tensors[source]
            if (
                lives.last.get(root) == number
                and lives.first[root] != BEFORE
                and sizes[root] == sizes[position]
                and sizes[root][1] > 0
                and read.count(root) == 1
                and tensor.type is node.type
                and tensor.ne == node.ne
                and tensor.nb == node.nb
                and (source == root or tensor.view_offset == 0)
            ):
                taken[position] = root
                break
    return taken

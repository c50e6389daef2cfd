"""From which node to which the bytes of each tensor are needed, and which results may take a source's bytes over.

Time is counted in nodes, in order of computation.  Only roots have bytes: a view extends the life of its root.  An
intermediate lives from the node that computes it to the last node that reads or writes any of its bytes.  To the end
live: what is marked as output; results that no node reads; and leafs without a place of their own, which live from
before the first node too, so that a graph can be computed again without setting its inputs anew.

A group runs at the place of its last node: what any of its nodes reads is needed until then.  Results inside of groups
take no bytes.  The others live at least as long as without groups, so that the same places are right for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.types import TensorFlag

BEFORE = -1
"""First node number of a leaf: it is there before the first node."""

_OUTPUT = int(TensorFlag.OUTPUT)


@dataclass(frozen=True)
class Lifetimes:
    """By position of the root: numbers of the first and the last node that need its bytes, both inclusive.

    Roots with a place of their own are not listed.  ``end`` is the number of nodes: who lives until then is never
    reused.
    """

    first: dict[int, int]
    last: dict[int, int]
    end: int


def lifetimes(graph: Graph, order: Sequence[int] | None = None, groups: Groups = UNGROUPED) -> Lifetimes:
    """The lifetimes of all roots without a place of their own, results inside of groups left out.

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
    """Which results may lie where a source lies.

    Answers position of the result -> position of the root whose bytes it takes over.
    An op says which sources it may overwrite (``inplace``), and ``groups.inplace`` says it for groups of several nodes.
    The source has to have just the result's layout and cover its root, no node may need the root afterwards, and the
    node, or the group, must read it only once.  ``sizes``: for each root in ``lives`` which memory it belongs to, and
    how many bytes it takes there; both have to agree.
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
            # Right also where the nodes run one by one: the last one then reads the source only if its op allows it.
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

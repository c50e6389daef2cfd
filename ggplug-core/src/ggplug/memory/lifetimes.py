"""From which node to which the bytes of each tensor are needed, and which results may take a source's bytes over.

Time is counted in nodes, in order of computation.  Only roots have bytes: a view extends the life of its root.  An
intermediate lives from the node that computes it to the last node that reads or writes any of its bytes.  To the end
live: what is marked as output; results that nobody reads; and leafs without a place of their own, which live from
before the first node too, so that a graph can be computed again without setting its inputs anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggplug.graph import Graph
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


def lifetimes(graph: Graph, order: Sequence[int] | None = None) -> Lifetimes:
    """The lifetimes of all roots without a place of their own.

    ``order``: positions of the nodes in the order in which they will be computed, by default the graph's.
    """
    tensors, sources, roots = graph.tensors, graph.sources, graph.roots
    order = graph.order if order is None else order
    end = len(order)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    kept: set[int] = set()
    used: set[int] = set()
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
            if tensor.buffer is None:
                first[position] = last[position] = number
        elif tensor.op is not None and tensor.op.is_view:
            continue
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


def in_place(
    graph: Graph, lives: Lifetimes, sizes: Mapping[int, tuple[int, int]], order: Sequence[int] | None = None
) -> dict[int, int]:
    """Which results may lie where a source lies.

    Answers position of the result -> position of the root whose bytes it takes over.
    An op says which sources it may overwrite (``inplace``).  The source has to have just the result's layout and
    cover its root, nobody may need the root afterwards, and the node must read it only once.  ``sizes``: for each
    root in ``lives`` which memory it belongs to, and how many bytes it takes there; both have to agree.
    """
    tensors, sources, roots = graph.tensors, graph.sources, graph.roots
    taken: dict[int, int] = {}
    for number, position in enumerate(graph.order if order is None else order):
        node = tensors[position]
        assert node.op is not None
        if not node.op.inplace or position not in sizes:
            continue
        read = [roots[source] for source in sources[position] if source >= 0]
        for which in node.op.inplace:
            source = sources[position][which] if which < len(sources[position]) else -1
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

"""The order of nodes in which streams that run on by themselves work while others compute.

A stream that is done when its call returns keeps the caller from giving work to others.  So of nodes that do not depend
on each other, those of asynchronous streams are given first.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from ggplug.graph import Graph
from ggplug.nodes.hazards import Hazards
from ggplug.scheduler.assign import Assignment
from ggplug.scheduler.ordering import is_asynchronous
from ggplug.scheduler.support import Streams


def overlapping(graph: Graph, streams: Streams, assignment: Assignment, hazards: Hazards) -> list[int]:
    """The positions of a graph's nodes, in the order in which they are given to their streams.

    Nodes are ordered by the number of changes between asynchronous and other streams before them, and then the
    asynchronous ones first.  It is the graph's order if no asynchronous stream could work meanwhile.
    """
    runs_on = [is_asynchronous(stream) for stream in streams]
    if len({runs_on[stream] for stream in set(assignment.streams) if stream >= 0}) < 2:
        return graph.order
    depths = _depths(graph, runs_on, assignment.streams, hazards)
    kinds = {(depth, waits) for depth, waits, _ in depths}
    if len(kinds) == len({depth for depth, _ in kinds}):
        return graph.order  # of each depth there are nodes of one kind only
    return with_views(graph, [position for _, _, position in sorted(depths, key=itemgetter(0, 1))])


def _depths(graph: Graph, runs_on: Sequence[bool], at: Sequence[int], hazards: Hazards) -> list[tuple[int, bool, int]]:
    """For each node that computes something: the changes before it, whether its stream is waited for, its position.

    All accesses to the bytes of a root count as if they were to the same bytes.
    """
    found: list[tuple[int, bool, int]] = []
    # By memory: the most changes before its writers and readers so far, on streams that run on and on others; -1: none.
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    memory = hazards.memory
    for position in graph.order:
        op = graph.tensors[position].op
        if op is None or op.is_view:
            continue
        waits, sources = not runs_on[at[position]], graph.sources[position]
        reads = {memory(source) for source in sources if source >= 0}
        writes = {memory(sources[which]) for which in op.writes} if op.writes else {memory(position)}
        depth = 0
        for users, roots in ((writers, reads | writes), (readers, writes)):
            for root in roots:
                for other, before in enumerate(users.get(root, ())):
                    if before >= 0:
                        depth = max(depth, before + (other != waits))
        for users, roots in ((writers, writes), (readers, reads)):
            for root in roots:
                before_of = users.setdefault(root, [-1, -1])
                before_of[waits] = max(before_of[waits], depth)
        found.append((depth, waits, position))
    return found


def with_views(graph: Graph, order: Sequence[int]) -> list[int]:
    """An order of the nodes that compute something, with each view directly before the first node that needs it.

    Views that no node needs come last.
    """
    found: dict[int, None] = {}
    nodes = set(graph.order)

    def add(position: int) -> None:
        for source in graph.sources[position]:
            if source in nodes and source not in found and graph.tensors[source].op.is_view:  # type: ignore[union-attr]
                add(source)
        found[position] = None

    for position in order:
        add(position)
    for position in graph.order:
        if position not in found:
            add(position)
    return list(found)

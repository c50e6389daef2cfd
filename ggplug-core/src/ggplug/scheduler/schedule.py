"""A schedule: everything that can be decided about a graph from its structure alone.

Equal graphs share it.  It holds no tensor and no byte; :mod:`.execution` binds it to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ggplug.graph import Graph
from ggplug.hazards import Hazards
from ggplug.memory.graph_allocator import GraphAllocator
from ggplug.memory.layout import PERSISTENT, Layout, Range, Request
from ggplug.memory.lifetimes import BEFORE
from ggplug.scheduler.assign import Assignment, Policy, assign
from ggplug.scheduler.split import Cut, cut
from ggplug.scheduler.support import Streams


@dataclass(frozen=True)
class Version:
    """Places by position in the whole graph, and those of the copies, for one of several computations under way.

    Versions differ in the places of leafs and copies; intermediates are the same bytes, which streams use in order.
    """

    slots: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    copies: tuple[Range, ...]


@dataclass(frozen=True)
class Schedule:
    """Who computes what, in which order, where, and what is copied."""

    assignment: Assignment
    cut: Cut
    layout: Layout
    versions: tuple[Version, ...]


def make_schedule(
    graph: Graph, streams: Streams, allocator: GraphAllocator, *, n_copies: int = 1,
    pins: Mapping[int, int] | None = None, policy: Policy | None = None, op_offload: bool = True,
) -> Schedule:  # fmt: skip
    """Assigns, cuts and lays a graph out.  ``pins``: position -> stream number.

    Raises PlacementError, OutOfMemoryError (a tensor is larger than its memory's largest buffer).
    """
    hazards = Hazards(graph)
    assignment = assign(graph, streams, hazards=hazards, pins=pins, policy=policy, op_offload=op_offload)
    found = cut(graph, streams, assignment, hazards)
    requests, leafs = _requests(graph, streams, assignment, found, n_copies)
    order = None if found.order == graph.order else found.order
    layout = allocator.plan(graph, assignment.streams, order=order, extra=requests)
    return Schedule(assignment, found, layout, _versions(graph, layout, leafs, len(found.copies), n_copies))


def _requests(
    graph: Graph, streams: Streams, assignment: Assignment, found: Cut, n_copies: int
) -> tuple[list[Request], list[int]]:
    """Bytes beyond those of the tensors: copies first, one version after the other, then further versions of leafs.

    Also answers the positions of these leafs.
    """
    end = len(found.order)
    requests = []
    for _ in range(n_copies):
        for copy in found.copies:
            tensor = graph.tensors[copy.position]
            size = streams.buffer_types[copy.stream].alloc_size(tensor)
            # With several versions a copy may be written while nodes of an earlier computation still run.
            first, last = (found.splits[copy.split].first, copy.last) if n_copies == 1 else (BEFORE, end)
            requests.append(Request(copy.stream, size, first, last, f"the copy of {tensor!r}"))
    leafs = []
    if n_copies > 1:
        leafs = [
            graph.index[leaf] for leaf in graph.leafs if leaf.view_src is None and leaf.buffer_type is None
        ]  # fmt: skip
        for _ in range(1, n_copies):
            for position in leafs:
                stream, tensor = assignment.streams[position], graph.tensors[position]
                size = streams.buffer_types[stream].alloc_size(tensor)
                requests.append(Request(stream, size, BEFORE, end, repr(tensor)))
    return requests, leafs


def _versions(graph: Graph, layout: Layout, leafs: list[int], copies: int, n_copies: int) -> tuple[Version, ...]:
    versions = []
    roots = np.asarray(graph.roots, np.int64)
    for number in range(n_copies):
        slots, offsets = layout.slots, layout.offsets
        if number and leafs:
            slots, offsets = slots.copy(), offsets.copy()
            begin = copies * n_copies + (number - 1) * len(leafs)
            for position, place in zip(leafs, layout.extra[begin : begin + len(leafs)], strict=True):
                shared = (roots == position) & (slots != PERSISTENT)
                offsets[shared] += place.offset - layout.offsets[position]
                slots[shared] = place.slot
        versions.append(Version(slots, offsets, layout.extra[number * copies : (number + 1) * copies]))
    return tuple(versions)

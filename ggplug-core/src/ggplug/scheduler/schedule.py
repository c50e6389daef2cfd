"""Schedules: all decisions about a graph that depend on its structure only.

Equal graphs share a schedule.  It holds no tensors and no memory; :mod:`.execution` binds it to both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ggplug.backend import forms_groups, groups_of
from ggplug.errors import OutOfMemoryError, PlacementError
from ggplug.graph import Graph
from ggplug.memory.graph_allocator import GraphAllocator
from ggplug.memory.layout import PERSISTENT, Layout, Range, Request
from ggplug.memory.lifetimes import BEFORE
from ggplug.nodes.groups import UNGROUPED, Groups, Missed
from ggplug.nodes.hazards import Hazards
from ggplug.scheduler.assign import Assignment, Policy, assign
from ggplug.scheduler.prediction import predict
from ggplug.scheduler.split import Cut, Decided, cut
from ggplug.scheduler.support import Streams
from ggplug.types import TensorFlag

if TYPE_CHECKING:  # the scheduler imports the cost model when a policy needs it
    from ggplug.costs.model import CostModel


@dataclass(frozen=True)
class Version:
    """Places by position in the whole graph, and those of the copies, for one of several pipelined computations.

    Versions have different places for leafs and copies; their intermediates use the same bytes, in order.
    """

    slots: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    copies: tuple[Range, ...]


@dataclass(frozen=True)
class Schedule(Decided):
    """All decisions: also where tensors and copies lie."""

    layout: Layout
    versions: tuple[Version, ...]


def make_schedule(
    graph: Graph,
    streams: Streams,
    allocator: GraphAllocator,
    *,
    n_copies: int = 1,
    pins: Mapping[int, int] | None = None,
    policy: Policy | None = None,
    op_offload: bool = True,
    groups: bool = True,
    reorder: bool = True,
    costs: CostModel | None = None,
) -> Schedule:
    """Assigns a graph's nodes, cuts splits, forms groups, and lays out memory.  ``pins``: position -> stream number.

    ``groups``: whether devices may form groups of nodes.  ``reorder``: whether nodes may be computed in another order
    than the graph's.  ``costs``: chooses the streams by predicted time, where that
    is clearly less than by ggml's rules, takes no more splits, and fits into memory.

    Raises PlacementError, OutOfMemoryError (a tensor is larger than its memory's largest buffer), and GraphError for
    groups that break a rule.
    """
    hazards = Hazards(graph)

    def decided(wanted: Mapping[int, int] | None = None) -> Decided:
        how = {"pins": pins, "policy": policy, "op_offload": op_offload, "wanted": wanted}
        assignment = assign(graph, streams, hazards=hazards, **how)  # type: ignore[arg-type]
        found = cut(graph, streams, assignment, hazards, reorder=reorder)
        return Decided(assignment, found, _groups(graph, streams, found) if groups and allocator.reuse else UNGROUPED)

    ruled = decided()
    if costs is not None and len(streams) > 1 and costs.ready([*streams], streams.buffer_types):
        # The scheduler imports the cost model, and what chooses by it, when a policy needs them.
        from ggplug.scheduler.fastest import ways

        others = ways(graph, streams, hazards, ruled.assignment, costs, op_offload=op_offload)
        for faster in _faster(graph, streams, ruled, others, decided, costs):
            with contextlib.suppress(OutOfMemoryError):
                found = _laid_out(graph, streams, allocator, faster, n_copies)
                if _fits(streams, allocator, found.layout):
                    return found
    return _laid_out(graph, streams, allocator, ruled, n_copies)


GAIN = 0.9
"""The part of the time by ggml's rules that another assignment has to be predicted to take, at most."""


def _faster(
    graph: Graph,
    streams: Streams,
    ruled: Decided,
    others: Iterable[Mapping[int, int]],
    decide: Callable[[Mapping[int, int]], Decided],
    costs: CostModel,
) -> list[Decided]:
    """The decisions with no more splits than ggml's rules give that are predicted to take less time, fastest first."""
    limit = GAIN * predict(graph, streams, ruled, costs).total
    found: dict[tuple[int, ...], tuple[float, Decided]] = {}
    for wanted in others:
        with contextlib.suppress(PlacementError):
            other = decide(wanted)
            if len(other.cut.splits) <= len(ruled.cut.splits):
                seconds = predict(graph, streams, other, costs).total
                if seconds <= limit:
                    found[tuple(other.assignment.streams)] = seconds, other
    return [other for _, other in sorted(found.values(), key=itemgetter(0))]


def _fits(streams: Streams, allocator: GraphAllocator, layout: Layout) -> bool:
    """Whether the devices have the memory that a layout needs in addition to what is allocated."""
    needed = zip(streams, allocator.sizes(layout), allocator.sizes(), strict=True)
    free = [(stream.device.memory().free, size - held) for stream, size, held in needed if size > held]
    return all(there is None or size <= there for there, size in free)


def _laid_out(graph: Graph, streams: Streams, allocator: GraphAllocator, decided: Decided, n_copies: int) -> Schedule:
    assignment, found, formed = decided.assignment, decided.cut, decided.groups
    requests, leafs = _requests(graph, streams, assignment, found, formed, n_copies)
    order = None if found.order == graph.order else found.order
    layout = allocator.lay_out(graph, assignment.streams, order=order, extra=requests, groups=formed)
    return Schedule(assignment, found, formed, layout, _versions(graph, layout, leafs, len(found.copies), n_copies))


def _groups(graph: Graph, streams: Streams, found: Cut) -> Groups:
    """The groups that the devices form of their splits."""
    splits = [split for split in found.splits if forms_groups(streams[split.stream].device)]
    if not splits:
        return UNGROUPED
    leaving = _leaving(graph, found)
    members: list[tuple[int, ...]] = []
    inner: set[int] = set()
    inplace: dict[int, tuple[int, ...]] = {}
    missed: list[Missed] = []
    for split in splits:
        part = split.part(graph)
        whole = part.positions
        assert whole is not None
        here = [number for number, position in enumerate(whole) if graph.roots[position] in leaving]
        formed = groups_of(streams[split.stream].device, part, here)
        members += [tuple(whole[p] for p in each) for each in formed.members]
        inner.update(whole[p] for p in formed.inner)
        inplace |= {whole[p]: tuple(whole[s] for s in sources) for p, sources in formed.inplace.items()}
        missed += [each._replace(nodes=tuple(whole[p] for p in each.nodes)) for each in formed.missed]
    return Groups(members, frozenset(inner), inplace, missed) if members or missed else UNGROUPED


def _leaving(graph: Graph, found: Cut) -> set[int]:
    """Positions of the roots that other splits, or the caller, need."""
    roots, sources = graph.roots, graph.sources
    leaving = {roots[p] for p, tensor in enumerate(graph.tensors) if tensor.flags & int(TensorFlag.OUTPUT)}
    leaving.update(roots[copy.position] for copy in found.copies)
    used = {source for position in found.order for source in sources[position]}
    leaving.update(roots[position] for position in found.order if position not in used)
    home = {position: split.number for split in found.splits for position in split.nodes}
    for split in found.splits:
        for position in split.nodes:
            if not graph.tensors[position].op.is_view:  # type: ignore[union-attr]
                read = (roots[source] for source in sources[position] if source >= 0)
                leaving.update(root for root in read if home.get(root) != split.number)
    return leaving


def _requests(
    graph: Graph, streams: Streams, assignment: Assignment, found: Cut, groups: Groups, n_copies: int
) -> tuple[list[Request], list[int]]:
    """Requests for bytes that are not a tensor's: copies, version by version, then further versions of leafs.

    Also returns the positions of these leafs.
    """
    end = len(found.order)
    read_until = _read_until(graph, found, groups)
    requests = []
    for _ in range(n_copies):
        for number, copy in enumerate(found.copies):
            tensor = graph.tensors[copy.position]
            size = streams.buffer_types[copy.stream].alloc_size(tensor)
            # With several versions a copy may be written while nodes of an earlier computation still run.
            first, last = (found.splits[copy.split].first, read_until[number]) if n_copies == 1 else (BEFORE, end)
            requests.append(Request(copy.stream, size, first, last, f"the copy of {tensor!r}"))
    leafs = []
    if n_copies > 1:
        leafs = [graph.index[leaf] for leaf in graph.leafs if leaf.view_src is None and leaf.buffer_type is None]
        for _ in range(1, n_copies):
            for position in leafs:
                stream, tensor = assignment.streams[position], graph.tensors[position]
                size = streams.buffer_types[stream].alloc_size(tensor)
                requests.append(Request(stream, size, BEFORE, end, repr(tensor)))
    return requests, leafs


def _read_until(graph: Graph, found: Cut, groups: Groups) -> list[int]:
    """For each copy, the number of the last node that reads it; a group reads until its last node."""
    until = [copy.last for copy in found.copies]
    if groups:
        number_of = {position: number for number, position in enumerate(found.order)}
        ends = {position: number_of[members[-1]] for members in groups.members for position in members}
        for split in found.splits:
            for position in split.nodes if split.reads else ():
                for source in graph.sources[position]:
                    copy = split.reads.get(source)
                    if copy is not None and position in ends:
                        until[copy] = max(until[copy], ends[position])
    return until


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

"""A schedule bound to a graph's tensors and to memory: plans, copies, and how they are run.

Everything per node happens when a schedule is first executed.  For an equal graph, or after tensors were placed anew,
the parts are taken over and the plans rebound: a few calls for each split.

A binding is made as a whole.  While it is made there is none, so where that breaks off nothing is left that mixes two
graphs: whoever computes next binds all plans anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ggplug.backend import Backend, Buffer, Event, Plan
from ggplug.errors import TimeLimitError
from ggplug.graph import Graph, RunPlaces
from ggplug.interface.faults import late
from ggplug.memory.allocation import Allocation
from ggplug.memory.graph_allocator import GraphAllocator, poison_after, poison_before
from ggplug.memory.layout import NOWHERE
from ggplug.memory.runs import Run
from ggplug.nodes.groups import Groups
from ggplug.scheduler.ordering import Ordering, is_asynchronous
from ggplug.scheduler.prediction import Seconds
from ggplug.scheduler.schedule import Schedule
from ggplug.scheduler.split import Split
from ggplug.scheduler.support import Streams
from ggplug.scheduler.timing import Timing
from ggplug.scheduler.under_way import Computation, Work
from ggplug.system.copying import Uncopied
from ggplug.tensor import Tensor

EvalCallback = Callable[[Tensor, bool], bool]
"""``callback(tensor, ask)`` as ggml_backend_sched_eval_callback.

With ``ask`` true: whether the caller wants to see the tensor.  Then, once it is computed, with ``ask`` false: whether
to go on.
"""

Touched: TypeAlias = tuple[set[Any], set[Any], set[Any], set[Any]]
_NOTHING: Touched = set(), set(), set(), set()

_CHUNKS = 256
"""Plans of observed pieces that are kept."""


class BoundCopy:
    """A copy between two places."""

    __slots__ = ("nbytes", "plain", "source", "source_offset", "target", "target_offset", "tensor")

    def __init__(self, tensor: Tensor, source: Buffer, source_offset: int, target: Buffer, target_offset: int):
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self.source, self.source_offset = source, source_offset
        self.target, self.target_offset = target, target_offset
        # Memory with a layout of its own (packed weights) is read through the tensor.
        self.plain = not source.type.has_own_layout


class PlannedSplit:
    """A split with its plan: one for each split and version.

    ``token``: stands for the places of the split's copies where a stream of its own makes them.  ``done``,
    ``copied``: marks of the computation and of the copies, on streams that run on by themselves.
    """

    __slots__ = ("allocation", "copied", "done", "mover", "planned", "split", "stream", "token")

    def __init__(self, split: Split, stream: Backend, mover: Backend) -> None:
        self.split = split
        self.stream = stream
        self.mover = mover
        self.planned: tuple[Graph, Groups, Plan] | None = None
        """The part of the graph that was bound last, the groups by positions in it, and the plan."""
        self.allocation: Allocation | None = None
        """Where the part's tensors lie in the memory of ``Execution``'s generation."""
        self.token = object()
        self.done: Event | None = stream.device.event() if is_asynchronous(stream) else None
        self.copied: Event | None = mover.device.event() if is_asynchronous(mover) and split.copies else None

    def free(self) -> None:
        """Gives the plan and the events back."""
        planned, self.planned = self.planned, None
        if planned is not None:
            planned[2].free()
        for event in (self.done, self.copied):
            if event is not None:
                event.free()


class BoundSplit(NamedTuple):
    """A split whose plan is bound to the places of a graph's tensors.

    ``reads``, ``writes``, ``copy_reads``, ``copy_writes``: what the computation touches, and the copies before it, for
    streams that run on by themselves.
    """

    planned: PlannedSplit
    part: Graph
    plan: Plan
    copies: list[BoundCopy]
    reads: set[Any]
    writes: set[Any]
    copy_reads: set[Any]
    copy_writes: set[Any]


class Bound(NamedTuple):
    """The splits of a :class:`Version` after they were bound to a graph.

    ``bound_at``: the number of the graph's revision when they were bound.
    """

    graph: Graph
    bound_at: int
    version: int
    splits: list[BoundSplit]


class Version:
    """The memory and plans of one computation of a schedule; several versions may compute at the same time.

    ``allocation``: the places of tensors if groups are computed; ``observed``: their places if each node is computed
    alone, so that inner results of groups have places, too.  ``bound``: None until all plans are bound.
    """

    __slots__ = ("allocation", "bound", "observed", "splits")

    def __init__(self, splits: list[PlannedSplit]) -> None:
        self.splits = splits
        self.allocation: Allocation | None = None
        self.observed: Allocation | None = None
        self.bound: Bound | None = None

    def forget_places(self) -> None:
        """Memory has changed."""
        self.bound = self.allocation = self.observed = None
        for split in self.splits:
            split.allocation = None


class Execution(Uncopied):
    """A schedule, its plans, and the graph that they are bound to.

    ``movers``: for each stream, the stream that copies to its memory: itself, or a separate one of the same device.
    """

    def __init__(
        self, schedule: Schedule, streams: Streams, movers: Sequence[Backend], allocator: GraphAllocator
    ) -> None:
        self.schedule = schedule
        self.streams = streams
        self.allocator = allocator
        self.version = 0
        """Number of the version that was used last."""
        self.late: TimeLimitError | None = None
        """That a split of the last computation took longer than its stream's limit, and was not aborted."""
        self.timing: Timing | None = None
        """The times of its first computations, while a cost model learns from them."""
        self.measured: Seconds | None = None
        """The times that it learnt."""
        self._generation = -1
        self._asynchronous = any(map(is_asynchronous, streams))
        self._chunks: dict[tuple[int, int, int, bool], tuple[Graph, Plan, Allocation]] = {}
        self._versions = [
            Version([PlannedSplit(s, streams[s.stream], movers[s.stream]) for s in schedule.cut.splits])
            for _ in schedule.versions
        ]

    @property
    def n_splits(self) -> int:
        """How many splits the schedule has."""
        return len(self.schedule.cut.splits)

    # -- binding -----------------------------------------------------------------------------------

    def allocation(self, graph: Graph, version: int) -> Allocation:
        """Where a version puts the tensors of the whole graph, in memory that is there.  Raises OutOfMemoryError."""
        self._ensure()
        bound = self._versions[version]
        if bound.allocation is None:
            places, layout = self.schedule.versions[version], self.schedule.layout
            buffers = self.allocator.chunks(layout)
            bound.allocation = Allocation(
                graph,
                buffers,
                places.slots,
                places.offsets,
                layout=layout,
                arena=self.allocator.arena,
                groups=layout.groups,
            )
        return bound.allocation

    def observed(self, graph: Graph, version: int) -> Allocation:
        """As :meth:`allocation`, for going node by node: everything lies where it does there, and what is inside of
        groups has a place, too."""
        whole, bound = self.allocation(graph, version), self._versions[version]
        layout = self.schedule.layout.ungrouped
        if layout is self.schedule.layout:
            return whole
        if bound.observed is None:
            self.allocator.ensure(layout)
            inside = whole.slots == NOWHERE
            bound.observed = Allocation(
                graph,
                self.allocator.chunks(layout),
                np.where(inside, layout.slots, whole.slots),
                np.where(inside, layout.offsets, whole.offsets),
                layout=layout,
                arena=self.allocator.arena,
            )
        return bound.observed

    def version_of(self, allocation: RunPlaces) -> int | None:
        """The version that an allocation belongs to, or None if it is none of this execution as memory is now."""
        if self._generation != self.allocator.generation:
            return None
        for number, bound in enumerate(self._versions):
            if allocation in (bound.allocation, bound.observed):
                return number
        return None

    def _ensure(self) -> None:
        if self._generation != self.allocator.generation:
            self.allocator.ensure(self.schedule.layout)
            for version in self._versions:
                version.forget_places()
            self._generation = self.allocator.generation

    def bind(self, graph: Graph, version: int) -> Bound:
        """Binds a version's plans to the places of a graph's tensors (:meth:`allocation`), unless they are already.

        Raises OutOfMemoryError, TensorStateError (a persistent tensor has no place), and what plans raise.
        """
        kept = self._versions[version]
        bound = kept.bound
        if bound is not None and bound.graph is graph and bound.bound_at == graph.revision.now:
            return bound
        kept.bound = None
        now = graph.watch()
        whole = self.allocation(graph, version)
        whole.check_set(graph)
        splits = [self._bind_split(graph, version, split, whole) for split in kept.splits]
        kept.bound = bound = Bound(graph, now, version, splits)
        return bound

    def _bind_split(self, graph: Graph, version: int, planned: PlannedSplit, whole: Allocation) -> BoundSplit:
        split = planned.split
        if planned.planned is None:
            part = split.part(graph)
            groups = self.schedule.groups.within(part)
            plan = planned.stream.plan(part, groups)
        else:
            before, groups, plan = planned.planned
            part = before.over(graph)
        planned.planned = part, groups, plan
        if planned.allocation is None:
            planned.allocation = self._place(part, version, split, whole, groups)
        allocation = planned.allocation
        # ggplug's own plans check this, too; other plans may not, and must not write either.
        allocation.check(part, groups)
        plan.rebind(part, allocation)
        ranges = self.schedule.versions[version].copies
        copies = []
        for number in split.copies:
            copy, place = self.schedule.cut.copies[number], ranges[number]
            if copy.nbytes:
                source, offset = whole.where(graph, copy.position)
                target = whole.buffers[place.slot]
                target.check_write(place.offset, copy.nbytes)
                copies.append(BoundCopy(graph.tensors[copy.position], source, offset, target, place.offset))
        touched = self._touched(planned, part, allocation, copies) if self._asynchronous else _NOTHING
        return BoundSplit(planned, part, plan, copies, *touched)

    def _place(self, part: Graph, version: int, split: Split, whole: Allocation, groups: Groups) -> Allocation:
        """A part's allocation: places of the whole, and copies where sources were copied."""
        assert part.positions is not None
        copies = self.schedule.versions[version].copies
        slots, offsets = whole.slots[part.positions], whole.offsets[part.positions]
        if split.reads:
            for here, position in enumerate(part.positions):
                copy = split.reads.get(position)
                if copy is not None:
                    slots[here], offsets[here], _ = copies[copy]
        return Allocation(part, whole.buffers, slots, offsets, arena=self.allocator.arena, groups=groups)

    @staticmethod
    def _touched(planned: PlannedSplit, part: Graph, allocation: Allocation, copies: list[BoundCopy]) -> Touched:
        """Which buffers a split reads and writes, and its copies, for the order between streams."""
        writes = allocation.used_buffers() | allocation.written_buffers(part)
        reads: set[Any] = {*allocation.persistent_buffers(part)} - writes
        copy_reads = {copy.source for copy in copies}
        if planned.mover is planned.stream:
            return reads, writes, copy_reads, {copy.target for copy in copies}
        # The copies' bytes belong to this split and version alone.
        return {*reads, planned.token}, writes, copy_reads, {planned.token}

    # -- running -----------------------------------------------------------------------------------

    def run(self, bound: Bound, ordering: Ordering, computation: Computation | None = None) -> None:
        """Gives all splits to their streams; a few calls for each.

        As one of several computations, each split is computed when its order allows it, and waited for.
        """
        for split in bound.splits if computation is None else waited_for(bound, computation):
            if split.copies:
                self.copy(split, ordering)
            if computation is not None:
                computation.enter(split.planned.split.number)
            self.compute(split, ordering, split.plan)

    def compute(self, split: BoundSplit, ordering: Ordering, plan: Plan) -> None:
        """Gives a split's plan, or that of a piece of it, to its stream, and waits if that has a time limit."""
        stream, done = split.planned.stream, split.planned.done
        limit = stream.time_limit
        if self._asynchronous:
            ordering.wait(stream, split.reads, split.writes)
        if limit is None:
            plan.compute()
        else:
            stream.synchronize()  # what the split waits for is not counted
            start = time.monotonic()
            plan.compute()
            stream.synchronize()
            self.check_time(stream, limit, time.monotonic() - start)
        if self._asynchronous:
            if done is not None:
                done.record(stream)
            ordering.note(stream, done, split.reads, split.writes)

    def check_time(self, stream: Backend, limit: float | None, seconds: float) -> None:
        """Notes it if a split took longer than the limit of its stream."""
        if limit is not None and seconds > limit:
            self.late = self.late or late(stream.device, limit, seconds)

    def raise_late(self) -> None:
        """Raises TimeLimitError if a split took longer than the limit of its stream, and was not aborted."""
        error, self.late = self.late, None
        if error is not None:
            raise error

    def copy(self, split: BoundSplit, ordering: Ordering) -> None:
        """Copies what a split reads from other splits' memory."""
        mover, copied = split.planned.mover, split.planned.copied
        ordering.wait(mover, (), split.copy_writes)
        for copy in split.copies:
            writers = [stream for stream in ordering.writers(copy.source) if stream is not mover]
            if not copy.plain:
                for stream in (*writers, mover):
                    stream.synchronize()
                staging = np.empty(copy.nbytes, np.uint8)
                copy.source.get_tensor(copy.tensor, staging, copy.source_offset)
                copy.target.set_tensor(copy.tensor, staging, copy.target_offset)
                continue
            source_stream: Backend | None = None
            if len(writers) == 1 and mover is split.planned.stream:
                source_stream = writers[0]
            elif writers:
                ordering.wait(mover, (copy.source,), ())
            mover.copy_async(
                copy.source, copy.source_offset, copy.target, copy.target_offset, copy.nbytes, source_stream
            )
        if self._asynchronous:
            if copied is not None:
                copied.record(mover)
            ordering.note(mover, copied, split.copy_reads, split.copy_writes)

    def run_observed(
        self,
        graph: Graph,
        bound: Bound,
        ordering: Ordering,
        whole: Allocation,
        run: Run,
        callback: EvalCallback | None,
        poison: bool,
        computation: Computation | None = None,
    ) -> None:
        """Computes the splits in pieces, each up to a node that the callback observes.

        ``whole``: the places; they say whether groups are computed, which no callback sees.  ``run`` counts the
        nodes that were computed.  ``poison``: goes node by node or group by group, and fills bytes with NaNs before
        they are first used and as soon as no node needs them.
        """
        layout, buffers = whole.layout, whole.buffers
        assert layout is not None
        order = self.schedule.cut.order
        computed = list(whole.groups.by_place(order))
        if poison:
            poison_before(layout, buffers)
        for split in bound.splits if computation is None else waited_for(bound, computation):
            self.copy(split, ordering)
            if computation is not None:
                computation.enter(split.planned.split.number)
            begin, end = split.planned.split.first, split.planned.split.end
            for number in range(begin, end):
                node = graph.tensors[order[number]]
                wanted = callback is not None and callback(node, True)
                if not (wanted or poison or number + 1 == end):
                    continue
                positions = [position for piece in computed[begin : number + 1] for position in piece]
                self._run_chunk(graph, bound, split, ordering, positions, (begin, number + 1), whole)
                split.planned.stream.synchronize()
                begin = number + 1
                run.progress = begin
                go_on = not wanted or callback is None or callback(node, False)
                if poison:
                    poison_after(layout, buffers, number)
                if not go_on:
                    return
        run.progress = len(order)

    def _run_chunk(
        self,
        graph: Graph,
        bound: Bound,
        split: BoundSplit,
        ordering: Ordering,
        positions: Sequence[int],
        span: tuple[int, int],
        whole: Allocation,
    ) -> None:
        """Computes some nodes of a split: those that belong to the numbers ``span`` (the second exclusive)."""
        pieces = split.planned.split
        if span == (pieces.first, pieces.end) and whole is self._versions[bound.version].allocation:
            self.compute(split, ordering, split.plan)
            return
        tensors = graph.tensors
        computing = {p for p in positions if not tensors[p].op.is_view}  # type: ignore[union-attr]
        if not computing:
            return
        read = {source for position in computing for source in graph.sources[position]}
        key = (bound.version, *span, bool(whole.groups))
        known = self._chunks.get(key)
        if known is None:
            # The views that are read come along, as they do in the split.
            nodes = [p for p in pieces.nodes if p in computing or (p in read and tensors[p].op.is_view)]  # type: ignore[union-attr]
            part = pieces.part(graph, nodes)
            groups = whole.groups.within(part)
            plan = split.planned.stream.plan(part, groups)
            if len(self._chunks) >= _CHUNKS:
                self._free_chunks()
        else:
            part, plan, groups = known[0].over(graph), known[1], known[2].groups
        # A plan may hold the graph and the allocation that it is bound to weakly.
        allocation = self._place(part, bound.version, pieces, whole, groups)
        self._chunks[key] = part, plan, allocation
        allocation.check(part, groups)
        plan.rebind(part, allocation)
        self.compute(split, ordering, plan)

    def _free_chunks(self) -> None:
        for _, plan, _ in self._chunks.values():
            plan.free()
        self._chunks.clear()

    def free(self) -> None:
        """Gives plans and events back; nothing of this may be under way."""
        self._free_chunks()
        for version in self._versions:
            version.bound = None
            for split in version.splits:
                split.free()


def waited_for(bound: Bound, computation: Computation) -> Iterator[BoundSplit]:
    """The splits in their order, each waited for.  The caller copies, enters the split and computes it."""
    works = [_work(split) for split in bound.splits]
    computation.begin(works)
    for number, split in enumerate(bound.splits):
        if works[number].copies:
            computation.enter(number)
        yield split
        split.planned.stream.synchronize()
        computation.leave()


def _work(split: BoundSplit) -> Work:
    """What other computations may have to wait for."""
    allocation = split.planned.allocation
    assert allocation is not None
    writes = allocation.written_buffers(split.part)
    copied = {copy.source for copy in split.copies}
    touches = {*allocation.persistent_buffers(split.part), *writes, *copied}
    return Work(split.planned.stream.device, touches, writes, not copied.issubset(allocation.buffers))

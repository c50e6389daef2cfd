"""The plan of a combined device: for each member a graph up to the next exchange, and so on."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.backend import Backend, Buffer, Device, Group, Groups, Places, Plan
from ggplug.combined.cuts import State
from ggplug.combined.divided import Divided, Work
from ggplug.combined.exchange import AllReduce, Exchanged, exchange
from ggplug.combined.listed import alike, label
from ggplug.combined.local import Local
from ggplug.combined.memory import CombinedBuffer, MirroredBuffer, Part, SplitBuffer, Spread, free_all
from ggplug.combined.ranges import Ranges
from ggplug.combined.states import Exchange
from ggplug.errors import BufferUseError, GGPlugError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.interface.faults import beyond_limit
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import NOWHERE, PERSISTENT
from ggplug.sharing import NOTHING, using
from ggplug.tensor import Tensor

Numbers = npt.NDArray[np.int64]

if TYPE_CHECKING:  # only annotations name them

    class Over(Protocol):
        """A combined device, as its plans use it."""

        name: str

        def divided(self, graph: Graph) -> Divided: ...
        def matches(self, graph: Graph, groups: Groups) -> Iterator[tuple[Group, Any]]: ...

    class Stream(Protocol):
        """A stream of a combined device, as its plans use it."""

        @property
        def device(self) -> Over: ...

        name: str
        members: list[Backend]
        all_reduce: AllReduce
        time_limit: float | None


class Piece:
    """What a member computes in a stage: its graph, its plan, and the places of its tensors.

    ``positions``, ``inside``: for each tensor the position of the tensor of the whole graph at whose place it lies, and
    the bytes from there.
    """

    def __init__(self, work: Work, stream: Backend, at: dict[Tensor, int]) -> None:
        self.member, graph, self.groups = work
        self.stream, self.graph = stream, graph
        self.positions = np.array([at[tensor.root] for tensor in graph.tensors], np.int64)
        self.inside = np.array([tensor.view_offset for tensor in graph.tensors], np.int64)
        self._packed = [n for n, tensor in enumerate(graph.tensors) if tensor.buffer_type is not None]
        self.plan = stream.plan(graph, self.groups)
        self.allocation: Allocation | None = None

    def bind(self, buffers: Sequence[Buffer], which: Numbers, offsets: Numbers) -> None:
        """Binds the plan to the places of the whole graph's tensors on this member."""
        slots, starts = which[self.positions], offsets[self.positions] + self.inside
        for number in self._packed:  # only persistent tensors lie in memory with a layout of its own
            self.graph.tensors[number].place(buffers[slots[number]], int(starts[number]))
            slots[number], starts[number] = PERSISTENT, 0
        allocation = Allocation(self.graph, buffers, slots, starts, groups=self.groups)
        self.plan.rebind(self.graph, allocation)
        self.allocation = allocation


@dataclass
class Bound:
    """The places to which a plan is bound.

    ``reads``: ranges that are read and that no node has written before.  ``written``: by buffer what is split after
    the computation, and the ranges that nodes have written.
    """

    buffers: frozenset[Buffer]
    parts: list[list[Part]]
    reads: list[tuple[MirroredBuffer, int, int]]
    written: dict[MirroredBuffer, tuple[tuple[Spread, ...], Ranges]]


class CombinedPlan(Plan):
    """Computes a graph on all members of a combined device.

    A tensor lies at the same place in the memory of each member; a part of it takes the first of its bytes.
    """

    def __init__(self, stream: Stream, graph: Graph, groups: Groups) -> None:
        device = stream.device
        self._names = [kernel.name for _, kernel in device.matches(graph, groups)]
        divided = device.divided(graph)
        divided.check(graph, groups)
        self.stream, self.groups = stream, groups
        self._structure, self._layouts = graph.structure, graph.layouts()
        self._whole = whole = divided.whole
        self.states, self.stages, members = divided.states, divided.stages, divided.local
        self._pieces: list[list[Piece]] = []
        try:
            for stage in self.stages:
                pieces: list[Piece] = []
                self._pieces.append(pieces)
                for work in divided.work(graph, groups, stage):
                    pieces.append(Piece(work, stream.members[work.member], members[work.member].at))
                pieces.sort(key=lambda piece: not piece.stream.device.capabilities.asynchronous)
        except BaseException:
            self.free()
            raise
        self.exchanges = [[self._exchanged(position, members) for position in stage.exchanges] for stage in self.stages]
        self._bound = Bound(NOTHING, [], [], {})
        self._origin = {tensor: position for local in members for position, tensor in local.origins()}
        self._graph: Callable[[], Graph | None] = lambda: None
        whole.forget()

    def _exchanged(self, position: int, members: Sequence[Local]) -> Exchanged:
        kind, answer = self.states.exchanges[position], self.states.answers.get(position)
        results = tuple(local.nodes[position][-1] for local in members)
        state = answer.result if answer is not None and kind is Exchange.JOIN else None
        return Exchanged(kind, position, alike(self._whole.tensors[position]), results, state)

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        graph.check_layouts(self._layouts, "the plan")
        places = allocation.places(graph, self.groups)
        there = places.which >= 0
        used = np.unique(places.which[there])
        own: list[CombinedBuffer] = []
        for buffer in map(places.buffers.__getitem__, used.tolist()):
            if not isinstance(buffer, CombinedBuffer) or buffer.type.device is not self.stream.device:
                raise BufferUseError(f"{buffer!r} is not memory of {self.stream.name}", device=self.stream.device)
            own.append(buffer)
        numbers = np.where(there, np.searchsorted(used, places.which), NOWHERE)
        which, whole = self._whole.places(numbers, places.offsets)
        offsets = [self._offsets(member, own, which, whole) for member in range(len(self.stream.members))]
        for piece in (piece for pieces in self._pieces for piece in pieces):
            piece.bind([buffer.members[piece.member] for buffer in own], which, offsets[piece.member])
        parts = [
            [
                Part(own[which[each.position]].members[member], int(offset[each.position]), tensor.nbytes)
                for member, (offset, tensor) in enumerate(zip(offsets, each.tensors, strict=True))
            ]
            for exchanges in self.exchanges
            for each in exchanges
        ]
        self._bound = Bound(frozenset(own), parts, *self._ranges(own, which.tolist(), whole.tolist()))
        self._graph = weakref.ref(graph)

    def _offsets(self, member: int, buffers: Sequence[CombinedBuffer], which: Numbers, offsets: Numbers) -> Numbers:
        """Where the tensors of the graph lie on a member."""
        found = offsets.copy()
        for number, buffer in enumerate(buffers):
            if isinstance(buffer, SplitBuffer):
                for position in np.flatnonzero(which == number).tolist():
                    found[position] = buffer.type.offset_of(member, int(found[position]))
        return found

    def _ranges(
        self, buffers: Sequence[CombinedBuffer], which: Sequence[int], offsets: Sequence[int]
    ) -> tuple[list[tuple[MirroredBuffer, int, int]], dict[MirroredBuffer, tuple[tuple[Spread, ...], Ranges]]]:
        """What is read from outside, and what is written and split, as :class:`Bound` has it."""
        reads: list[tuple[MirroredBuffer, int, int]] = []
        split: dict[MirroredBuffer, list[Spread]] = {}
        covered: dict[MirroredBuffer, Ranges] = {}
        graph = self._whole
        computing = set(graph.order)
        for position, tensor in enumerate(graph.tensors):
            if position not in computing and tensor.nbytes and which[position] >= 0:
                buffer = buffers[which[position]]
                if isinstance(buffer, MirroredBuffer):
                    reads.append((buffer, offsets[position], tensor.nbytes))
        for position in reversed(graph.order):
            node = graph.tensors[position]
            if node.op is None or node.op.is_view or not node.nbytes or which[position] < 0:
                continue
            buffer = buffers[which[position]]
            if not isinstance(buffer, MirroredBuffer):
                continue
            state: State = self.states.states[position]
            ranges = covered.setdefault(buffer, Ranges())
            spread = split.setdefault(buffer, [])
            first, end = offsets[position], offsets[position] + node.nbytes
            if state is not None and not ranges.overlap(first, end):
                spread.append(Spread(first, node.nbytes, node.type, node.ne, state))
            ranges.add(first, end)
        return reads, {buffer: (tuple(split[buffer]), ranges) for buffer, ranges in covered.items()}

    def compute(self) -> None:
        bound, stream = self._bound, self.stream
        limit, begin = stream.time_limit, time.monotonic()
        noted = "ggplug_member_worked" in HOOKS.callers

        def worked(member: Device | None, what: str, nodes: int, nbytes: int, start: int) -> None:
            about = {"device": stream.device, "member": member, "what": what, "nodes": nodes, "nbytes": nbytes}
            HOOKS.notify("ggplug_member_worked", **about, start=start, end=time.perf_counter_ns())

        with using(bound.buffers):
            for buffer in bound.buffers:
                buffer.check_there()
            try:
                for read, offset, nbytes in bound.reads:
                    if read.spread:
                        read.mirror(offset, nbytes)
                parts = iter(bound.parts)
                for number, stage in enumerate(self.stages):
                    start = time.perf_counter_ns()
                    for piece in self._pieces[number]:
                        piece.plan.compute()
                    for piece in self._pieces[number]:
                        piece.stream.synchronize()
                        if noted:
                            worked(piece.stream.device, "compute", len(piece.graph.nodes), 0, start)
                    for each in self.exchanges[number]:
                        before = time.perf_counter_ns()
                        exchange(each, next(parts), stream.all_reduce)
                        if noted:
                            worked(None, f"{each.kind.value} {label(each.node)}", 0, each.nbytes, before)
                    if limit is not None and time.monotonic() - begin > limit:
                        raise beyond_limit(stream.device, limit, self._given(stage.nodes[-1]), f"stage {number}")
            except BaseException as error:
                self._settle()
                self._name(error)
                raise
            for mirrored, (split, written) in bound.written.items():
                kept = (each for each in mirrored.spread if not written.overlap(each.offset, each.end))
                mirrored.spread = (*kept, *split)

    def _settle(self) -> None:
        """Waits for all members after an error, which is being raised."""
        for member in self.stream.members:
            try:
                member.synchronize()
            except GGPlugError:
                continue

    def _name(self, error: BaseException) -> None:
        """Replaces the members' tensors in an error by those of the graph."""
        for field in ("tensor", "ids", "indexed"):
            value = getattr(error, field, None)
            if isinstance(value, Tensor) and value in self._origin:
                setattr(error, field, self._given(self._origin[value]))

    def _given(self, number: int) -> Tensor:
        """The tensor of the graph for one of the divided graph; that one itself, if the graph was freed."""
        graph = self._graph()
        return self._whole.tensors[number] if graph is None else graph.tensors[self._whole.origin(number)]

    def kernel_names(self) -> list[str]:
        return self._names

    def free(self) -> None:
        free_all([piece.plan.free for pieces in self._pieces for piece in pieces])

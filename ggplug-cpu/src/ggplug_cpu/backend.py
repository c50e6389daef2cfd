"""Streams of the CPU device, and plans: a graph flattened into a tape once, bound to memory, and walked natively.

Computing is synchronous: when :meth:`CpuPlan.compute` returns, the results are there.  The number of Python calls in it
is constant, nothing is allocated, and results are bit-identical for every number of threads.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ggplug.backend import (
    UNGROUPED,
    Backend,
    Buffer,
    Group,
    Groups,
    NodeTime,
    Places,
    Plan,
    Transfers,
    beyond_limit,
    id_out_of_range,
    node_times,
)
from ggplug.errors import ComputeAborted, ComputeError, TensorStateError, TimeLimitError
from ggplug.graph import Graph
from ggplug.sharing import NOTHING, locked
from ggplug.values.revisions import Revision
from ggplug_cpu import interrupted
from ggplug_cpu.choosing.entries import FAULTS, POSITION, Entries
from ggplug_cpu.interrupted import Stamp
from ggplug_cpu.parameters import Ref
from ggplug_cpu.parts.faults import Fault
from ggplug_cpu.tape import BoundTape, Entry, Span, Tape, TraceRing
from ggplug_cpu.team import Stop

if TYPE_CHECKING:
    from ggplug_cpu.threaded import ThreadedDevice


class CpuBackend(Backend):
    """A stream of the CPU device.  Streams share the device's threads; one computation runs at a time.

    ``n_threads``, ``abort_callback``: see the methods that set them.
    """

    device: ThreadedDevice

    def __init__(
        self, device: ThreadedDevice, *, n_threads: int | None = None, abort_callback: Callable[[], Any] | None = None
    ) -> None:
        super().__init__(device)
        self._stop = Stop(abort_callback)
        if n_threads is not None:
            self.set_n_threads(n_threads)

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> CpuPlan:
        """The graph as a tape; compiles kernels that are not ready.  Raises UnsupportedOpError, KernelCompileError."""
        return CpuPlan(self.device, graph, groups, self._stop)

    @property
    def n_threads(self) -> int:
        """The number of threads that compute, the calling one included."""
        return self.device.n_threads

    def set_n_threads(self, n_threads: int) -> None:
        """Sets how many threads compute from now on, on all streams of the device (ggml_backend_cpu_set_n_threads)."""
        self.device.with_team(lambda team: team.set_n_threads(n_threads))

    def set_abort_callback(self, callback: Callable[[], Any] | None) -> None:
        """Has computations of this stream call ``callback()`` regularly; they raise ComputeAborted when it returns
        true.

        It applies from the stream's next computation on.  None removes it.  ``device.team.set_abort_callback`` sets the
        callback of all streams that have none of their own.
        """
        self._stop.callback = callback

    def set_time_limit(self, seconds: float | None) -> None:
        super().set_time_limit(seconds)
        self._stop.limit = self.time_limit

    def set_limits_of(self, other: Backend) -> None:
        super().set_limits_of(other)
        if isinstance(other, CpuBackend):
            self._stop.callback = other._stop.callback

    def abort(self) -> None:
        """Stops the current computation of the device, whichever its stream; it raises ComputeAborted.

        For other threads.
        """
        self.device.team.abort()

    def pause(self) -> None:
        """Lets the threads sleep instead of waiting for work (ggml_threadpool_pause)."""
        self.device.with_team(lambda team: team.pause())

    def resume(self) -> None:
        """Lets the threads wait for work actively again (ggml_threadpool_resume)."""
        self.device.with_team(lambda team: team.resume())


class CpuPlan(Plan):
    """A graph's groups as entries of a tape.  Views and empty tensors have none."""

    def __init__(
        self, device: ThreadedDevice, graph: Graph, groups: Groups = UNGROUPED, stop: Stop | None = None
    ) -> None:
        self.device = device
        self.stop = Stop() if stop is None else stop
        self._n_tensors = len(graph.tensors)
        self._groups = groups
        self._structure, self._layouts = graph.structure, graph.layouts()
        entries: list[Entry] = []
        stops: list[interrupted.Stop] = []
        self._positions: list[int] = []
        """For each entry the position in the graph of the last node of its group."""
        workspace = scratch = 0
        for group, chosen in device.matches(graph, groups):
            if chosen.python:
                stops.append(interrupted.Stop(len(entries), graph.index[group.node]))
            placed = _placed(chosen, graph, group)
            entries += placed
            self._positions += [graph.index[group.node]] * len(placed)
            workspace = max(workspace, chosen.workspace_bytes)
            scratch = max(scratch, chosen.scratch_bytes)
        self._tape = Tape(entries, self._n_tensors + 1, workspace, scratch)
        device.with_team(lambda team: team.reserve(workspace, scratch))
        self._faults = (ctypes.c_int64 * (Fault.bytes // 8))()
        self._bases = np.zeros(self._n_tensors + 1, np.int64)
        self._bases[-1] = ctypes.addressof(self._faults)
        self._bound = self._tape.bind(self._bases)
        self._interruptions = interrupted.Interruptions(self._bound, stops) if stops else None
        self.buffers: frozenset[Buffer] = NOTHING
        """The buffers that the addresses point into.

        Released with the graph: a plan may live longer than its graph.
        """
        self.revision, self.bound_at = Revision(), 0
        self._graph: Callable[[], Graph | None] = _no_object
        self._allocation: Callable[[], Places | None] = _no_object

    def rebind(self, graph: Graph, allocation: Places) -> None:
        """Stores the tensors' addresses; does nothing if they cannot have changed since the last call.

        Waits while another thread computes this plan; raises BusyError if this thread does.
        """
        if self._graph() is graph and self._allocation() is allocation and self.bound_at == graph.revision.now:
            return
        self._structure = graph.check_structure(self._structure, "the plan")
        with locked(self._bound):
            self._bind(graph, allocation)

    def renew(self) -> None:
        """Binds the same graph again.  The team calls it while it holds its lock."""
        graph, allocation = self.memory()
        self._bind(graph, allocation)

    def _bind(self, graph: Graph, allocation: Places) -> None:
        now = graph.watch()
        graph.check_layouts(self._layouts, "the plan")
        buffers: set[Buffer] = set()
        addresses = allocation.addresses(graph, buffers, self._groups)
        # Without a graph until the end: the last graph may be freed meanwhile, which must not clear the new buffers.
        self._graph = _no_object
        self.bound_at = 0
        self._bases[:-1] = addresses
        self._bound.rebind(self._bases)
        if self._interruptions is not None:
            self._interruptions.bind(graph, allocation, self._groups)
        self.buffers = frozenset(buffers)
        # weakly: a plan kept for the next equal graph must not keep a model's weights alive
        self._graph, self._allocation = (
            weakref.ref(graph, partial(_graph_was_freed, weakref.ref(self))),
            weakref.ref(allocation),
        )
        self.revision, self.bound_at = graph.revision, now

    def compute(self) -> None:
        if self.stop.limit is not None or self.stop.running is not None:
            self.stop.begin()
        if self._interruptions is None:
            self.walk(self._bound)
        else:
            self._interruptions.compute(self)

    def compute_with(self, transfers: Transfers) -> bool:
        if self._interruptions is not None:
            return False
        if self.stop.limit is not None or self.stop.running is not None:
            self.stop.begin()
        self.walk(self._bound, transfers=transfers)
        return True

    def compute_traced(self) -> list[NodeTime]:
        """Computes, and returns when each node ran: from the start of its first kernel to the end of its last.

        A kernel after which threads do not wait for each other ends when the first thread has ended its part.
        """
        stamps: list[Stamp] = []
        if self.stop.limit is not None or self.stop.running is not None:
            self.stop.begin()
        try:
            if self._interruptions is not None:
                self._interruptions.compute(self, stamps)
            else:
                self.walk_traced(self._bound, stamps)
        except BaseException:
            self.times_before_error = _times_of_nodes(stamps)
            raise
        return _times_of_nodes(stamps)

    def walk_traced(self, tape: BoundTape | Span, stamps: list[Stamp]) -> None:
        """Computes as :meth:`walk`, and adds when each entry ran; if it was aborted in one, that ran until now."""
        ring = TraceRing(max(1, len(tape)))
        first = tape.first if isinstance(tape, Span) else 0
        begin, aborted = time.perf_counter_ns(), False
        try:
            self.walk(tape, ring)
        except (ComputeAborted, KeyboardInterrupt):
            aborted = ring.rows_written < len(tape)
            raise
        finally:
            _, starts, ends = ring.rows().T.tolist()
            positions = self._positions[first : first + len(ends)]
            stamps.extend(zip(positions, starts, ends, strict=True))
            if aborted:
                last = ends[-1] if ends else begin
                stamps.append((self._positions[first + len(ends)], last, time.perf_counter_ns()))

    def kernel_names(self) -> list[str]:
        return [entry.kernel.name for entry in self._tape.entries]

    def free(self) -> None:
        self._graph = self._allocation = _no_object
        self.release_memory()

    def release_memory(self) -> None:
        """Drops the references to the buffers and tensors of the bound graph."""
        self.buffers = NOTHING
        self.bound_at = 0
        if self._interruptions is not None:
            self._interruptions.release_operands()

    def memory(self) -> tuple[Graph, Places]:
        """The graph and the allocation that the plan is bound to; they own the memory.

        Raises TensorStateError if there are none.
        """
        graph, allocation = self._graph(), self._allocation()
        if graph is None or allocation is None:
            raise TensorStateError("the plan is bound to no memory: call rebind(graph, allocation) and keep both")
        return graph, allocation

    def walk(self, tape: BoundTape | Span, ring: TraceRing | None = None, transfers: Transfers | None = None) -> None:
        """Computes the tape, or a span of it.  Raises ComputeError for an id that was out of range in it."""
        # held while computing: graph and allocation own the memory
        held = self.memory()
        try:
            while True:
                team = self.device.team
                try:
                    team.run(tape, ring, self, transfers)
                    break
                except ComputeError:
                    if team is self.device.team:
                        raise  # else the team was replaced while this thread waited for the lock
        except BaseException as error:
            self._faults[Fault.noted.number] = 0  # a fault of the computation that was stopped
            if isinstance(error, ComputeAborted) and self.stop.expired:
                entry = self.stop.row + (tape.first if isinstance(tape, Span) else 0)
                raise self.beyond_limit(self._positions[entry], self._tape.entries[entry].kernel.name) from None
            raise
        if self._faults[Fault.noted.number]:
            self._faults[Fault.noted.number] = 0
            node = held[0].tensors[self._faults[Fault.at.number]]
            raise id_out_of_range(self.device, node, self._faults[Fault.got.number], self._faults[Fault.order.number])

    def beyond_limit(self, position: int, kernel: str = "") -> TimeLimitError:
        """The error of a computation that took longer than the stream's limit, and was aborted at a node.

        ``kernel``: its name, by default the op's.
        """
        node, limit = self.memory()[0].tensors[position], self.stop.running
        self.stop.expired = False
        assert node.op is not None
        return beyond_limit(self.device, 0.0 if limit is None else limit, node, kernel or node.op.name)

    def __repr__(self) -> str:
        return f"<CpuPlan: {len(self._tape)} kernels for {self._n_tensors} tensors>"


def _times_of_nodes(stamps: list[Stamp]) -> list[NodeTime]:
    """The times of nodes, each from the start of its first entry to the end of its last."""
    nodes, starts, ends = zip(*stamps, strict=True) if stamps else ((), (), ())
    first = dict(zip(reversed(nodes), reversed(starts), strict=True))
    return node_times([(node, first[node], end) for node, end in dict(zip(nodes, ends, strict=True)).items()])


def _no_object() -> None:
    return None


def _graph_was_freed(plan: Callable[[], CpuPlan | None], graph: object) -> None:
    """Called when the graph that a plan is bound to is freed."""
    found = plan()
    if found is not None:
        found.release_memory()


def _placed(chosen: Entries, graph: Graph, group: Group) -> list[Entry]:
    """Entries whose references count the graph's tensors instead of the group's operands."""
    index = graph.index
    slots = [-1 if tensor is None else index[tensor] for tensor in group.operands]
    placed = []
    for entry, references in zip(chosen.entries, chosen.references, strict=True):
        words = list(entry.words)
        for i in references:
            slot, offset = words[i].slot, words[i].offset  # type: ignore[union-attr]
            if slot >= 0:
                words[i] = Ref(slots[slot], offset)
            elif slot == FAULTS:
                words[i] = Ref(len(graph.tensors), offset)
            elif slot == POSITION:
                words[i] = index[group.nodes[offset]]
        placed.append(Entry(entry.kernel, words, entry.tasks, entry.barrier_before))
    return placed

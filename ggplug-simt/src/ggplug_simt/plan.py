"""Plans: kernels chosen and arguments bound once, launches replayed."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ggplug.backend import UNGROUPED, BufferOffsets, Groups, NodeTime, Places, Plan
from ggplug.errors import BufferUseError, ComputeError, TensorStateError
from ggplug.graph import Graph
from ggplug.ops.base import Op
from ggplug.sharing import Claim, turn
from ggplug_simt.driver import Bound
from ggplug_simt.guard import Guard
from ggplug_simt.launch import DST, FAULTS, SCRATCH
from ggplug_simt.memory import SimtBuffer

if TYPE_CHECKING:
    from ggplug_simt.stream import SimtBackend

_STRUCT_ALIGNMENT = 8


class SimtPlan(Plan):
    """The launches of a graph.

    The arguments structs of all launches lie in one array, so taking over an allocation is arithmetic on whole arrays;
    only a launch whose buffers or offsets changed is told so.  When a plan is computed again with the same places, the
    queue may capture its launches and from then on replay them at once.
    """

    def __init__(self, stream: SimtBackend, graph: Graph, groups: Groups = UNGROUPED) -> None:
        self._stream = stream
        self._structure = graph.structure
        self._groups = groups
        device = stream.device
        self._bound: list[Bound] = []
        self._launchers: list[Callable[[], object]] = []
        self._nodes: list[int] = []
        self._names: list[str] = []
        self._ops: list[Op] = []
        self._count: list[int] = []
        self._number = 0
        """Of a plan with indices, what its kernels call it in the stream's record of faults."""
        self._graph: Callable[[], Graph | None] = lambda: None
        spans: list[tuple[int, int]] = []
        owner, position, delta, field, argument = [], [], [], [], []
        structs = []
        end = 0
        for group, kernel in device.matches(graph, groups):
            node = group.node
            assert node.op is not None
            scratch = stream.scratch(kernel.scratch) if kernel.scratch else None
            for launch in kernel.launches:
                if not launch.groups:
                    continue
                number = len(self._bound)
                bound = device.bind(launch.source, node.op)
                self._bound.append(bound)
                self._launchers.append(stream.queue.launcher(bound, launch.groups, launch.lanes))
                self._nodes.append(graph.index[node])
                self._names.append(str(launch.source))
                self._ops.append(node.op)
                self._count.append(len(launch.operands))
                struct = launch.arguments()
                if any(place.position == FAULTS for place in launch.operands):
                    self._number = self._number or stream.faults.number()
                    indexed = next(n for n in group.nodes if n.op is not None and n.op.indexes is not None)
                    struct["plan"], struct["node"] = self._number, graph.index[indexed]
                structs.append(np.frombuffer(struct.tobytes(), np.uint8))
                assert struct.dtype.fields is not None
                for n, (name, place) in enumerate(zip(launch.source.tensors, launch.operands, strict=True)):
                    if place.position == SCRATCH:
                        bound.set_buffer(n, scratch)
                        continue
                    if place.position == FAULTS:
                        bound.set_buffer(n, stream.faults.memory)
                        continue
                    tensor = group.operands[place.position - DST]
                    assert tensor is not None
                    owner.append(number)
                    position.append(graph.index[tensor])
                    delta.append(place.delta)
                    field.append((end + struct.dtype.fields[name][1]) // _STRUCT_ALIGNMENT)
                    argument.append(n)
                spans.append((end, end + struct.nbytes))
                end += struct.nbytes
        self._spans = spans
        self._arguments = np.concatenate(structs) if structs else np.empty(0, np.uint8)
        self._owner = np.array(owner, np.int64)
        self._position = np.array(position, np.int64)
        self._delta = np.array(delta, np.int64)
        self._field = np.array(field, np.int64)
        self._argument = argument
        self._buffers: list[SimtBuffer] = []
        self._claimed: frozenset[SimtBuffer] = frozenset()
        self._which: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._ready = False
        self._computed = 0
        self._steps: list[tuple[int, Callable[[], object]]] = []

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        places = allocation.places(graph, self._groups)
        with turn(self._stream):
            self._bind(graph, places)

    def _bind(self, graph: Graph, places: BufferOffsets) -> None:
        device = self._stream.device
        buffers: list[SimtBuffer] = []
        known: dict[int, int] = {}
        numbers = np.empty(len(places.buffers), np.int64)
        for n, buffer in enumerate(places.buffers):
            if not isinstance(buffer, SimtBuffer) or buffer.device is not device:
                if np.isin(n, places.which[self._position]):
                    raise self._foreign(graph, places.which, n, buffer)
                numbers[n] = -1
                continue
            number = known.setdefault(id(buffer), len(buffers))
            if number == len(buffers):
                buffers.append(buffer)
            numbers[n] = number
        which = numbers[places.which[self._position]]
        offsets = places.offsets[self._position] + self._delta
        words = self._arguments.view(np.int64)
        self._ready = False
        # A buffer's number means something only together with the list that it counts.
        moved = np.ones(len(which), bool)
        if self._which is not None and len(buffers) == len(self._buffers):
            same = np.array([new is old for new, old in zip(buffers, self._buffers, strict=True)], bool)
            moved = (which != self._which) | ~same[which]
        shifted = offsets != words[self._field]
        words[self._field] = offsets
        with device.guarded("binding"):
            for n in np.flatnonzero(moved).tolist():
                self._bound[self._owner[n]].set_buffer(self._argument[n], buffers[which[n]].handle)
            stale = set(self._owner[shifted].tolist()) if self._which is not None else range(len(self._bound))
            for number in stale:
                start, end = self._spans[number]
                self._bound[number].set_arguments(self._count[number], self._arguments[start:end])
        if stale or moved.any():
            self._steps = list(enumerate(self._launchers))
            self._computed = 0
        self._buffers, self._which, self._claimed = buffers, which, frozenset(buffers)
        self._graph = weakref.ref(graph)  # weakly: a plan that is kept must not keep a model's weights alive
        self._ready = True

    def compute(self) -> None:
        # From the check of the buffers to the last launch nobody frees one of them; freeing waits for the queue, too.
        guard = Guard(self._stream.device, "launching", own=(self._stream,), shared=self._claimed)
        with guard:
            self._check()
            self._computed += 1
            if self._computed == 2:
                guard.what = "capturing"
                self._steps = self._captured()
                guard.what = "launching"
            if self._number:
                with self._noted():
                    self._launch(guard)
            else:
                self._launch(guard)

    def _check(self) -> None:
        """Raises what keeps the plan from being launched."""
        if self._stream.freed:
            self._stream.check_open()
        if not self._ready:
            device = self._stream.device
            raise ComputeError(f"{device.name}: the plan was not bound to an allocation", device=device)
        for buffer in self._buffers:
            if buffer.freed:
                buffer._check(0, 0)

    def _launch(self, guard: Guard) -> None:
        number = 0
        try:
            for number, start in self._steps:  # noqa: B007 - read by the handler
                start()
            self._stream.queue.flush()
        except Exception:
            guard.op, guard.kernel = self._ops[number], self._names[number]
            raise

    def _noted(self) -> AbstractContextManager[object]:
        """While launches are given to the queue: tells the stream's faults which graph with indices that is."""
        graph = self._graph()
        if graph is None:
            raise TensorStateError("the plan is bound to a graph that is gone: keep the graph that is computed")
        return self._stream.faults.computing(self._number, graph)

    def _captured(self) -> list[tuple[int, Callable[[], object]]]:
        """The launches, runs of them as one where the queue can do that; each with the number of its first."""
        steps: list[tuple[int, Callable[[], object]]] = []
        by_kind = itertools.groupby(enumerate(self._launchers), lambda each: self._bound[each[0]].capturable)
        for capturable, run in by_kind:
            launches = list(run)
            together = None
            if capturable and len(launches) > 1:
                together = self._stream.queue.capture([start for _, start in launches])
            steps += launches if together is None else [(launches[0][0], together)]
        return steps

    def compute_traced(self) -> list[NodeTime]:
        """One entry a node.  The queue is finished after each launch, so times hold its latency too."""
        self._stream.synchronize()
        with Claim((self._stream,), self._claimed):
            self._check()
            with self._noted() if self._number else nullcontext():
                return self._launch_traced()

    def _launch_traced(self) -> list[NodeTime]:
        times: list[NodeTime] = []
        for node, name, op, launch in zip(self._nodes, self._names, self._ops, self._launchers, strict=True):
            begin = time.perf_counter_ns()
            with self._stream.device.guarded("launching", op=op, kernel=name):
                launch()
                self._stream.queue.finish()
            end = time.perf_counter_ns()
            if times and times[-1].node == node:
                begin = times.pop().start
            times.append(NodeTime(node, begin, end))
        return times

    def kernel_names(self) -> list[str]:
        return list(self._names)

    def _foreign(
        self, graph: Graph, which: np.ndarray[tuple[int], np.dtype[np.int64]], number: int, buffer: object
    ) -> BufferUseError:
        position = next(p for p in self._position.tolist() if which[p] == number)
        tensor = graph.tensors[position]
        device = self._stream.device
        return BufferUseError(
            f"{device.name} cannot reach {tensor!r} in {buffer!r}: copy it over first", device=device, tensor=tensor
        )

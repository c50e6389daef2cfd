"""Plans: launches that are chosen and bound once, and submitted many times."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import numpy as np

from ggplug.backend import UNGROUPED, Backend, BufferOffsets, Group, Groups, NodeTime, Places, Plan
from ggplug.errors import BufferUseError, ComputeError, TensorStateError
from ggplug.graph import Graph
from ggplug.sharing import Claim, locked
from ggplug.tensor import Operation
from ggplug_simt.binding import Arguments, Changed, Indexes
from ggplug_simt.driver import Dispatch, LaunchSequence
from ggplug_simt.guard import Call
from ggplug_simt.ledger import DeviceMemory
from ggplug_simt.library import DST, FAULTS, SCRATCH, Launch, Program, VendorProgram
from ggplug_simt.limits import grid_of
from ggplug_simt.memory import SimtBuffer
from ggplug_simt.workspace import Workspace


class _PlannedLaunch:
    """One launch of a plan: its name, its node, and the tensors that its bound variant may alias."""

    __slots__ = ("aliased", "launch", "name", "node", "op")

    def __init__(self, launch: Launch, node: int, op: Operation) -> None:
        self.launch = launch
        self.name = str(launch.program)
        self.node = node
        self.op = op
        self.aliased: frozenset[int] = frozenset()


class SimtPlan(Plan):
    """The launches of a graph, which ``stream`` submits to the queue of its ``workspace``.

    All argument structs lie in one array (:mod:`ggplug_simt.binding`), so binding to an allocation is arithmetic on
    whole arrays; the queue gets only the changes.
    """

    def __init__(self, stream: Backend, workspace: Workspace, graph: Graph, groups: Groups = UNGROUPED) -> None:
        self._stream = stream
        self._own = (stream,)
        self._workspace = workspace
        self._runtime = workspace.runtime
        self._queue = workspace.lane.queue
        self._structure = graph.structure
        self._groups = groups
        driver = self._driver = self._runtime.driver
        self._arguments = Arguments(driver.library, driver.properties)
        self._launches: list[_PlannedLaunch] = []
        self._number = 0
        """The plan's number in the stream's record of faults; 0 without ids."""
        self._graph: Callable[[], Graph | None] = lambda: None
        positions: list[int] = []
        scratch = 0
        for group, found in stream.device.matches(graph, groups):
            scratch = max(scratch, found.scratch)
            for launch in found.launches:
                if launch.groups:
                    self._add(graph, group, launch)
                    positions += [_position(graph, group, each.position) for each in launch.tensors]
        self._arguments.close()
        self._positions = np.array(positions, np.int64)
        self._placed = np.flatnonzero(self._positions >= 0)
        """The numbers of the graph's tensors among all; the others are scratch memory or the record of faults."""
        self._tensors = self._positions[self._placed]
        self._scratch = max(scratch, 1) if SCRATCH in positions else 0
        self._special()  # allocates now, so that lack of memory shows here
        self._sequence = self._new_sequence()
        self._memories: list[DeviceMemory] = []
        self._claimed: frozenset[SimtBuffer] = frozenset()
        self._ready = False

    def _add(self, graph: Graph, group: Group, launch: Launch) -> None:
        op = group.node.op
        assert op is not None
        noted = {}
        if any(each.position == FAULTS for each in launch.tensors):
            self._number = self._number or self._workspace.faults.number()
            indexed = next(n for n in group.nodes if n.op is not None and n.op.indexes is not None)
            noted = {"plan": self._number, "node": graph.index[indexed]}
        self._arguments.add(launch, **noted)
        self._launches.append(_PlannedLaunch(launch, graph.index[group.node], op))

    def _new_sequence(self) -> LaunchSequence:
        dispatches = [self._dispatch(number, planned.aliased) for number, planned in enumerate(self._launches)]
        with self._runtime.guard.guarded("binding"):
            return self._queue.sequence(dispatches)

    def _dispatch(self, number: int, aliased: frozenset[int]) -> Dispatch:
        """The dispatch of a launch; compiles the variant of its program for ``aliased`` tensors.

        Raises KernelCompileError.
        """
        planned = self._launches[number]
        launch = planned.launch
        program: Program | VendorProgram = launch.program
        if aliased and not isinstance(program, VendorProgram):
            program = self._driver.library.aliased(program, aliased)
        written = tuple(each.written or n in aliased for n, each in enumerate(launch.tensors))
        compiled = self._runtime.programs.get(program, planned.op)
        grid = grid_of(self._driver.properties, launch)
        return Dispatch(compiled, program.kernel, grid, launch.lanes, written, self._arguments.spans[number])

    # -- binding -----------------------------------------------------------------------------------

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        places = allocation.places(graph, self._groups)
        with locked(self._stream):
            self._workspace.check_open()
            self._bind(graph, places)

    def _bind(self, graph: Graph, places: BufferOffsets) -> None:
        buffers, memories, which, offsets = self._placed_in(graph, places)
        self._ready = False
        changed = self._arguments.place(memories, which, offsets)
        if changed.bindings or changed.structs:
            self._take_over(changed)
        self._arguments.bound = True
        self._memories, self._claimed = memories, frozenset(buffers)
        self._graph = weakref.ref(graph)  # weakly: a plan that is kept must not keep a model's weights alive
        self._ready = True

    def _take_over(self, changed: Changed) -> None:
        with self._runtime.guard.guarded("binding"):
            for owner, binding in changed.bindings:
                self._sequence.bind(owner.launch, owner.tensor, binding)
            stale = set(changed.structs)
            if self._driver.properties.exclusive_writes:
                stale |= self._choose_variants()
            if stale:
                self._sequence.set_arguments(self._arguments.data, sorted(stale))

    def _placed_in(
        self, graph: Graph, places: BufferOffsets
    ) -> tuple[list[SimtBuffer], list[DeviceMemory], Indexes, Indexes]:
        """(buffers; all memories; for each tensor the number of its memory; its offset)."""
        buffers: list[SimtBuffer] = []
        known: dict[int, int] = {}
        numbers = np.empty(len(places.buffers), np.int64)
        for n, buffer in enumerate(places.buffers):
            if not isinstance(buffer, SimtBuffer) or buffer.runtime is not self._runtime:
                if np.isin(n, places.which[self._tensors]):
                    raise self._foreign(graph, places.which, n, buffer)
                numbers[n] = -1
                continue
            number = known.setdefault(id(buffer), len(buffers))
            if number == len(buffers):
                buffers.append(buffer)
            numbers[n] = number
        memories = [buffer.memory for buffer in buffers]
        which, offsets = np.empty(len(self._positions), np.int64), np.zeros(len(self._positions), np.int64)
        which[self._placed] = numbers[places.which[self._tensors]]
        offsets[self._placed] = places.offsets[self._tensors]
        for position, memory in self._special():
            which[self._positions == position] = len(memories)
            memories.append(memory)
        return buffers, memories, which, offsets

    def _special(self) -> list[tuple[int, DeviceMemory]]:
        """Scratch memory and the record of faults, if the plan needs them, with their positions."""
        found = []
        if self._scratch:
            found.append((SCRATCH, self._workspace.scratch(self._scratch)))
        if self._number:
            found.append((FAULTS, self._workspace.faults.memory))
        return found

    def _choose_variants(self) -> set[int]:
        """Replaces each launch whose aliased tensors have changed by another variant of its program.

        Returns the numbers of these launches, whose arguments have to be set again.
        """
        replaced = set()
        aliased = self._arguments.aliased()
        for number, planned in enumerate(self._launches):
            wanted = aliased.get(number, frozenset())
            if wanted == planned.aliased:
                continue
            self._sequence.replace(number, self._dispatch(number, wanted))
            planned.aliased = wanted  # only now: if this raises, the launch is replaced again later
            for n in self._arguments.tensors_of(number):
                self._sequence.bind(number, self._arguments.owners[n].tensor, self._arguments.binding(n))
            replaced.add(number)
        return replaced

    # -- computing ---------------------------------------------------------------------------------

    def compute(self) -> None:
        # From the check of the memory to the last launch no thread frees any of it; freeing waits for the queue, too.
        call = Call(self._runtime.guard, "launching")
        with Claim(self._own, self._claimed), call:
            self._check()
            if self._number:
                with self._workspace.faults.lock:
                    self._note()
                    self._submit(call)
            else:
                self._submit(call)

    def _submit(self, call: Call) -> None:
        try:
            self._sequence.submit()
            self._queue.flush()
        except Exception:
            planned = self._launches[self._sequence.at]
            call.op, call.kernel = planned.op, planned.name
            raise

    def _check(self) -> None:
        """Raises an error if the plan is not bound, or if memory that its launches use was freed."""
        if self._workspace.lane.is_free or not self._ready:
            self._workspace.check_open()
            device = self._runtime.device
            raise ComputeError(f"{device.name}: the plan was not bound to an allocation", device=device)
        for memory in self._memories:
            if memory.freed:
                for buffer in self._claimed:
                    buffer.check_there()
                raise BufferUseError("the memory of a plan was freed: bind it again", device=self._runtime.device)

    def _note(self) -> None:
        """Registers the graph with ids in the stream's faults, whose lock is held."""
        graph = self._graph()
        if graph is None:
            raise TensorStateError("the graph of this plan does not exist any more: keep a reference to it")
        self._workspace.faults.pending[self._number] = graph

    def compute_traced(self) -> list[NodeTime]:
        """The times of each node.  The queue is finished after each launch, so times include its latency."""
        self._stream.synchronize()
        with Claim(self._own, self._claimed):
            self._check()
            if not self._number:
                return self._launch_traced()
            with self._workspace.faults.lock:
                self._note()
                return self._launch_traced()

    def _launch_traced(self) -> list[NodeTime]:
        times: list[NodeTime] = []
        begin = time.perf_counter_ns()
        try:
            for number, planned in enumerate(self._launches):
                try:
                    with self._runtime.guard.guarded("launching", op=planned.op, kernel=planned.name):
                        self._sequence.submit_one(number)
                        self._queue.finish()
                finally:
                    end = time.perf_counter_ns()
                    first = times.pop().start if times and times[-1].node == planned.node else begin
                    times.append(NodeTime(planned.node, first, end))
                    begin = end
        except BaseException:
            self.times_before_error = times
            raise
        return times

    def kernel_names(self) -> list[str]:
        return [planned.name for planned in self._launches]

    def _foreign(self, graph: Graph, which: Indexes, number: int, buffer: object) -> BufferUseError:
        position = next(p for p in self._tensors.tolist() if which[p] == number)
        tensor = graph.tensors[position]
        device = self._runtime.device
        return BufferUseError(
            f"{device.name} cannot reach {tensor!r} in {buffer!r}: copy it to this device first",
            device=device,
            tensor=tensor,
        )


def _position(graph: Graph, group: Group, position: int) -> int:
    """The position of a launch's tensor in the graph; SCRATCH and FAULTS are returned unchanged."""
    if position in (SCRATCH, FAULTS):
        return position
    tensor = group.operands[position - DST]
    assert tensor is not None
    return graph.index[tensor]

"""The scheduler: graphs on several streams (ggml_backend_sched)."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ggplug.backend import Backend, BufferType, Bytes, Device, Event, check_target
from ggplug.errors import (
    FreedError,
    GGPlugError,
    ParameterError,
    ShapeError,
    TensorStateError,
    memory_errors_typed,
    raise_typed,
)
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.memory.allocation import Allocation
from ggplug.memory.graph_allocator import GraphAllocator, poison_mode
from ggplug.memory.layout import PERSISTENT
from ggplug.memory.runs import Run
from ggplug.scheduler.assign import Policy
from ggplug.scheduler.execution import Bound, EvalCallback, Execution
from ggplug.scheduler.explain import Explanation, SplitRow, explanation
from ggplug.scheduler.ordering import Ordering, is_asynchronous
from ggplug.scheduler.prediction import Seconds, kernel_parts, kernel_times, predict
from ggplug.scheduler.schedule import Schedule, make_schedule
from ggplug.scheduler.support import Streams
from ggplug.scheduler.timing import Timing
from ggplug.scheduler.traced import run_traced
from ggplug.scheduler.under_way import Computation
from ggplug.sharing import one_thread_at_a_time
from ggplug.system.copying import Uncopied
from ggplug.tensor import Tensor

if TYPE_CHECKING:  # the scheduler imports it when a policy needs it
    from ggplug.costs.model import CostModel

_usage = attrgetter("buffer._usage._value_")
_variant = attrgetter("variant")


class Needed(NamedTuple):
    """The bytes of a device's buffers for results, and of what its plans reserve in addition."""

    compute: int
    workspace: int


class Found(NamedTuple):
    """The execution of the graph that was looked up last, and what has to be as it was then.

    ``revision``: of the graph.  ``hooks``: the epoch of the hooks.  ``variants``: of the devices that have any.
    """

    graph: Graph
    revision: int
    hooks: int
    varying: list[Device]
    variants: list[Any]
    execution: Execution

    def holds(self) -> bool:
        """Whether looking the graph up again would find the same."""
        graph, revision, hooks, varying, variants, _ = self
        return revision == graph.revision.now and hooks == HOOKS.epoch and variants == [*map(_variant, varying)]


class Scheduler(Uncopied):
    """Computes graphs on several streams: assigns nodes to streams, copies between streams, and manages memory.

    ``backends``: streams in order of priority.  The last one gets inputs and nodes that no other can compute, so it
    should support every op.  For a device, the scheduler makes a stream and frees it in the end; streams belong to the
    caller.

    ``buffer_types``: for each stream the memory for its results, by default its device's.  ``n_copies``: how many
    computations may be under way at the same time (pipeline parallelism, ggml's GGML_SCHED_MAX_COPIES).
    ``op_offload``: whether a stream of higher priority computes an op with a copy of its weights, if its device asks
    for it.  ``policy``: ``"ggml"``, the default, for ggml's rules; ``"cost"`` for what is predicted to take the least
    time (:mod:`ggplug.costs`), where that is clearly less than by these rules, with no more splits; or a function that
    decides where nodes run before ggml's rules do.  ``cache_size``: number of graph structures whose schedules are
    kept.  ``reuse=False`` gives each intermediate bytes of its own, so that all can be read.
    ``poison``: fills bytes that must not be read with NaN, for ``"nodes"`` or True after each node, for ``"groups"``
    after each group (default: the variable ``GGPLUG_POISON``).
    ``groups=False``: devices form no groups and compute node by node.  ``reorder=False``: each stream gets its nodes in
    the graph's order; otherwise nodes that do not depend on each other may have another, so that streams overlap.

    Graphs are not changed.  Equal graphs share a schedule: computing a graph again, or an equal new one, costs a few
    calls for each split.

    For one thread at a time: while a thread is in one of the methods, calls of another thread raise BusyError, and so
    do calls from within, by an eval callback or an observer of splits.
    """

    def __init__(
        self,
        backends: Sequence[Backend | Device],
        *,
        buffer_types: Sequence[BufferType] | None = None,
        n_copies: int = 1,
        op_offload: bool = True,
        policy: Policy | CostModel | str | None = None,
        cache_size: int = 32,
        reuse: bool = True,
        poison: bool | str | None = None,
        groups: bool = True,
        reorder: bool = True,
    ) -> None:
        if isinstance(backends, (str, Device, Backend)) or not isinstance(backends, Sequence):
            raise ParameterError(
                f"backends must be a list of devices and streams, got {backends!r:.100}",
                got=backends,
                remedy="pass a list; gg.device(name) finds a device by its name",
            )
        if not backends:
            raise ParameterError("a scheduler needs at least one stream")
        if n_copies < 1 or cache_size < 1:
            raise ParameterError(f"n_copies and cache_size must be positive, got {n_copies} and {cache_size}")
        if buffer_types is not None and len(buffer_types) != len(backends):
            raise ParameterError(f"{len(backends)} streams need as many buffer types, got {len(buffer_types)}")
        self._owned: list[Backend] = []
        self.backends: tuple[Backend, ...] = tuple(self._stream(each) for each in backends)
        if len(set(self.backends)) != len(self.backends):
            raise ParameterError("backends has the same stream twice", got=backends)
        self.buffer_types: tuple[BufferType, ...] = tuple(
            buffer_types if buffer_types is not None else (b.device.buffer_type for b in self.backends)
        )
        for backend, kind in zip(self.backends, self.buffer_types, strict=True):
            if not backend.device.supports_buffer_type(kind):
                raise ParameterError(
                    f"{backend.name} cannot access {kind.name} memory", device=backend.device, got=kind
                )
            if kind.has_own_layout:
                raise ParameterError(
                    f"{kind.name} is not for results, because it has a layout of its own",
                    device=backend.device,
                    got=kind,
                )
        self.n_copies = n_copies
        self.op_offload = op_offload
        self.costs = _cost_model(policy)
        self.policy = policy if callable(policy) else None
        self.cache_size = cache_size
        self.poison = poison_mode(poison)
        self.groups, self.reorder = groups, reorder
        self._asynchronous = tuple(filter(is_asynchronous, self.backends))
        self._streams = Streams(self.backends, self.buffer_types)
        self._movers = tuple(self._mover(backend) for backend in self.backends)
        # A stream that the scheduler made for a device is owned, and in ``backends`` as well.
        self._all_streams = tuple(dict.fromkeys((*self.backends, *self._owned)))
        self._allocator = GraphAllocator(self.buffer_types, reuse=reuse)
        self._ordering = Ordering()
        self._fetches: list[Event] = []
        self._callback: EvalCallback | None = None
        self._pins: weakref.WeakKeyDictionary[Tensor, int] = weakref.WeakKeyDictionary()
        self._executions: OrderedDict[Any, Execution] = OrderedDict()
        self._current: Execution | None = None
        self._found: Found | None = None
        self._varying = [each.device for each in self.backends if type(each.device).variant is not Device.variant]
        self._entered_by = 0
        self.computation: Computation | None = None
        """This computation among those of other schedulers that are under way; None outside of a :mod:`.pipeline`."""
        self._unsettled = False
        """Whether a computation, or waiting for it, was interrupted, and not all streams were waited for since."""
        self.freed = False

    def _check_open(self) -> None:
        if self.freed:
            raise FreedError(f"{self!r} was freed", thing=self, remedy="make a new one")

    def _stream(self, backend: Backend | Device) -> Backend:
        if isinstance(backend, Backend):
            return backend
        if not isinstance(backend, Device):
            remedy = "gg.device(name) finds a device by its name" if isinstance(backend, str) else None
            raise ParameterError(f"{backend!r:.100} is neither a stream nor a device", got=type(backend), remedy=remedy)
        self._owned.append(backend.init())
        return self._owned[-1]

    def another(self) -> Scheduler:
        """A scheduler with the same settings, on streams of its own of the same devices."""
        return Scheduler(
            [backend.device for backend in self.backends],
            buffer_types=self.buffer_types,
            n_copies=self.n_copies,
            op_offload=self.op_offload,
            policy=self.policy or self.costs,
            cache_size=self.cache_size,
            reuse=self._allocator.reuse,
            poison=self.poison,
            groups=self.groups,
            reorder=self.reorder,
        )

    def _mover(self, backend: Backend) -> Backend:
        """The stream that copies to a stream's memory: with several versions a separate one, so that copies for the
        next computation can be made while this one runs."""
        able = backend.device.capabilities
        if self.n_copies == 1 or not (able.asynchronous and able.events):
            return backend
        self._owned.append(backend.device.init())
        return self._owned[-1]

    # -- deciding ----------------------------------------------------------------------------------

    @one_thread_at_a_time
    def pin(self, tensor: Tensor, backend: Backend | None) -> None:
        """Pins a node, or an input, to a stream (ggml_backend_sched_set_tensor_backend).

        ``None`` removes the pin; :meth:`reset` removes all.  If the stream cannot compute the node, splitting the
        graph raises PlacementError.  Raises ParameterError if the stream is none of this scheduler's.
        """
        if backend is None:
            self._pins.pop(tensor, None)
        else:
            self._pins[tensor] = self._number(backend)
        self._found = None

    @one_thread_at_a_time
    def reset(self) -> None:
        """Removes all pins and the reference to the last graph (ggml_backend_sched_reset).

        The schedules of graphs are kept, which depend on neither.
        """
        self._synchronize()
        self._pins.clear()
        self._found = None
        self._allocator.arena.clear()

    @one_thread_at_a_time
    def split(self, graph: Graph) -> tuple[SplitRow, ...]:
        """Decides which stream computes which node, without allocating or computing (ggml_backend_sched_split_graph).

        Raises PlacementError.
        """
        return self._explain(graph).splits

    @one_thread_at_a_time
    def explain(self, graph: Graph) -> Explanation:
        """The device and the reason for each node, and all splits and copies, exactly as they will be executed.

        Needs no memory on any device.  Raises PlacementError.
        """
        return self._explain(graph)

    def _explain(self, graph: Graph) -> Explanation:
        execution = self._find(graph)
        schedule = execution.schedule
        sizes = self._allocator.sizes(schedule.layout)
        memory = dict(zip(self._streams.names(), sizes, strict=True))
        return explanation(graph, self._streams, schedule, memory, *self._seconds(graph, execution))

    def _seconds(self, graph: Graph, execution: Execution) -> tuple[Seconds | None, Seconds | None]:
        """The predicted and the measured times of a schedule, as far as they are known."""
        if self.costs is None or not self.costs.ready(self.backends, self.buffer_types):
            return None, None
        predicted = predict(graph, self._streams, execution.schedule, self.costs)
        return predicted, execution.measured

    @one_thread_at_a_time
    def backend_of(self, tensor: Tensor, graph: Graph) -> Backend | None:
        """The stream that computes a node of a graph, or stores a leaf (ggml_backend_sched_get_tensor_backend).

        None for a persistent leaf in memory that no stream can access.
        """
        return self._backend_of(tensor, graph)

    def _backend_of(self, tensor: Tensor, graph: Graph) -> Backend | None:
        if tensor not in graph.index:
            raise ParameterError(f"{tensor!r} is not in {graph!r}", tensor=tensor)
        stream = self._find(graph).schedule.assignment.streams[graph.index[tensor]]
        return None if stream < 0 else self.backends[stream]

    @property
    def n_splits(self) -> int:
        """Splits of the last graph that was split, allocated or computed (ggml_backend_sched_get_n_splits)."""
        return 0 if self._found is None else self._found.execution.n_splits

    def _number(self, backend: Backend) -> int:
        try:
            return self.backends.index(backend)
        except ValueError:
            raise ParameterError(f"{backend!r} is not a stream of {self!r}", got=backend) from None

    def _find(self, graph: Graph) -> Execution:
        """The execution for a graph's structure, made when the structure is new.  Raises FreedError."""
        known = self._found
        if known is not None and known.graph is graph and known.holds():
            return known.execution
        self._check_open()
        now, variants = graph.watch(), [*map(_variant, self._varying)]
        try:
            key, found = self._look_up(graph)
        except AttributeError:  # another thread took a tensor's place away
            key, found = graph.steadily(lambda: self._look_up(graph))
        if found is None:
            key, found = graph.steadily(lambda: self._make(graph))
            self._executions[key] = found
            while len(self._executions) > self.cache_size:
                self._forget(self._executions.popitem(last=False)[1])
        else:
            self._executions.move_to_end(key)
        self._found = Found(graph, now, HOOKS.epoch, self._varying, variants, found)
        return found

    def _look_up(self, graph: Graph) -> tuple[Any, Execution | None]:
        """The key of a graph's schedule, and its execution or None."""
        signature = graph.signature()
        pins: tuple[tuple[int, int], ...] = ()
        if self._pins:
            # Sorted: the same pins are the same key, in whatever order they were made.
            pins = tuple(sorted((graph.index[t], s) for t, s in self._pins.items() if t in graph.index))
        asks = HOOKS.epoch if "ggplug_placement" in HOOKS.callers else -1
        usages = tuple(map(_usage, compress(graph.tensors, signature.buffer_types)))
        key = (signature, usages, pins, asks, *map(_variant, self._varying))
        return key, self._executions.get(key)

    def _make(self, graph: Graph) -> tuple[Any, Execution]:
        key, _ = self._look_up(graph)
        schedule = self._schedule(graph, dict(key[2]))
        execution = Execution(schedule, self._streams, self._movers, self._allocator)
        if self.costs is not None:
            execution.timing = Timing()
        return key, execution

    def _schedule(self, graph: Graph, pins: dict[int, int]) -> Schedule:
        return make_schedule(
            graph,
            self._streams,
            self._allocator,
            n_copies=self.n_copies,
            pins=pins,
            policy=self.policy,
            op_offload=self.op_offload,
            groups=self.groups,
            reorder=self.reorder,
            costs=self.costs,
        )

    def _forget(self, execution: Execution) -> None:
        if execution is self._current:
            self._current = None
        try:
            self._synchronize()
        finally:
            execution.free()

    # -- memory ------------------------------------------------------------------------------------

    @one_thread_at_a_time
    def reserve(self, graph: Graph) -> None:
        """Allocates memory for a graph (ggml_backend_sched_reserve); smaller graphs then allocate nothing.

        Results of earlier graphs are lost if memory must grow.  Raises OutOfMemoryError.
        """
        self._synchronize()
        self._allocator.ensure(self._find(graph).schedule.layout)

    @one_thread_at_a_time
    def reserve_size(self, graph: Graph) -> list[int]:
        """The bytes, by stream, that :meth:`reserve` would allocate in all (ggml_backend_sched_reserve_size)."""
        return self._allocator.sizes(self._find(graph).schedule.layout)

    @one_thread_at_a_time
    def needed(self, graphs: Sequence[Graph]) -> dict[Device, Needed]:
        """The bytes that each device will hold for results after these graphs were computed in their order.

        Allocates nothing.  Raises PlacementError, OutOfMemoryError (a tensor is larger than the largest buffer).
        """
        chunks: dict[tuple[int, int], int] = {}
        workspaces: dict[Device, list[int]] = {stream.device: [0] for stream in self.backends}
        compute = dict.fromkeys(workspaces, 0)
        for graph in graphs:
            schedule = self._find(graph).schedule
            counts = [0] * len(self.backends)
            for memory, size in schedule.layout.chunks[: schedule.layout.inside]:
                key = memory, counts[memory]
                counts[memory] += 1
                chunks[key] = max(chunks.get(key, 0), size)
            for split in schedule.cut.splits:
                part, device = split.part(graph), self.backends[split.stream].device
                size = device.workspace(part, schedule.groups.within(part))
                if size > workspaces[device][-1]:
                    workspaces[device].append(size)
        # Streams whose memory is the same use its buffers together: they count for the first of them.
        owners = dict(
            reversed([(kind, stream.device) for kind, stream in zip(self.buffer_types, self.backends, strict=True)])
        )
        memories = list(dict.fromkeys(self.buffer_types))
        for (memory, _), size in chunks.items():
            compute[owners[memories[memory]]] += size
        return {device: Needed(compute[device], sum(workspaces[device])) for device in compute}

    @one_thread_at_a_time
    def predicted(self, graph: Graph, costs: CostModel) -> tuple[float, list[tuple[list[Tensor], float]]]:
        """The predicted seconds of a computation as it is scheduled, and those of each kernel, with its nodes.

        Copies and splits are in the first figure alone.  Allocates nothing.  Raises PlacementError.
        """
        decided = self._find(graph).schedule
        kernels = [
            each
            for split in decided.cut.splits
            for each in kernel_times(graph, self._streams, split, decided.groups, costs)
        ]
        return predict(graph, self._streams, decided, costs).total, kernels

    @one_thread_at_a_time
    def measure(self, graph: Graph, costs: CostModel) -> None:
        """Measures the kernels of a graph that the cost model does not know, for at most two seconds a stream.

        The graph's tensors need no places with bytes; memory is allocated for the time of the measurement.
        """
        decided = self._find(graph).schedule
        for number, stream in enumerate(self.backends):
            splits = (split for split in decided.cut.splits if split.stream == number)
            kernels = (kernel for split in splits for kernel in kernel_parts(graph, split, decided.groups))
            costs.measure(stream, self.buffer_types[number], kernels)

    def buffer_size(self, backend: Backend) -> int:
        """Bytes that are allocated for results of a stream (ggml_backend_sched_get_buffer_size)."""
        return self._allocator.sizes()[self._number(backend)]

    @one_thread_at_a_time
    def allocate(self, graph: Graph) -> Allocation:
        """Gives all tensors of a graph a place, so that its inputs can be set (ggml_backend_sched_alloc_graph).

        Inputs keep their values until another graph is allocated or computed.  Raises PlacementError, OutOfMemoryError.
        """
        return self._allocate(graph)

    def _allocate(self, graph: Graph) -> Allocation:
        execution = self._enter(graph)
        execution.version = (execution.version + 1) % self.n_copies
        allocation = execution.allocation(graph, execution.version)
        allocation.prepare(graph, must_be_set=True)
        return allocation

    def _enter(self, graph: Graph) -> Execution:
        execution = self._find(graph)
        if self._unsettled:
            self._settle()
        if execution is not self._current:
            # Graphs of other structures use the same bytes.
            self._synchronize()
            self._current = execution
        return execution

    # -- computing ---------------------------------------------------------------------------------

    def compute(self, graph: Graph) -> None:
        """Computes a graph and waits for it (ggml_backend_sched_graph_compute).

        Raises as :meth:`compute_async`, and errors of devices.
        """
        start = time.perf_counter_ns()
        try:
            devices = self._computed(graph, start)
        except BaseException as error:
            report_failed(graph, error, start)
            raise_typed(error)
        if devices is not None:
            HOOKS.notify("ggplug_graph_computed", graph=graph, devices=devices, start=start, end=time.perf_counter_ns())

    @one_thread_at_a_time
    def _computed(self, graph: Graph, start: int) -> list[Device] | None:
        return self._compute(graph, start)

    def _compute(self, graph: Graph, start: int) -> list[Device] | None:
        """Computes and waits.  Returns the devices that took part, if a hook listens.

        ``start``: when the computation was asked for.
        """
        self._compute_async(graph, start)
        self._synchronize()
        if self.costs is not None and self._found is not None and self._found.execution.timing is not None:
            self._note_call(self.costs, graph, self._found.execution, time.perf_counter_ns() - start)
        if "ggplug_graph_computed" not in HOOKS.callers:
            return None
        return list(dict.fromkeys(split.planned.stream.device for split in self._bound(graph).splits))

    def _note_call(self, costs: CostModel, graph: Graph, execution: Execution, nanoseconds: int) -> None:
        """Hands the time of a call to the cost model, unless observers made it longer."""
        timing, schedule = execution.timing, execution.schedule
        assert timing is not None
        if schedule.cut.splits and not HOOKS.splits_observed:
            timing.called(nanoseconds / 1e9, graph, self._streams, schedule, costs)
            execution.measured = timing.measured
        if timing.done:
            execution.timing = None

    @memory_errors_typed
    @one_thread_at_a_time
    def compute_async(self, graph: Graph) -> None:
        """Submits a graph to the streams (ggml_backend_sched_graph_compute_async).

        Until :meth:`synchronize`, persistent tensors that the graph reads must not be changed.  Inputs that the
        scheduler placed may be set at any time: setting them waits until they were read.  Reading a result waits too.

        Raises PlacementError, OutOfMemoryError, and TensorStateError if an input has no value: it lies in the
        scheduler's memory and was not set since the graph was allocated or another graph was computed.
        """
        self._compute_async(graph, time.perf_counter_ns())

    def _compute_async(self, graph: Graph, start: int) -> None:
        execution = self._enter(graph)
        version = self._version(execution, graph)
        observing = self._callback is not None or self.poison == "nodes"
        allocation = execution.observed(graph, version) if observing else execution.allocation(graph, version)
        run = allocation.begin(graph)
        execution.late = None
        try:
            self._unsettled = True
            bound = execution.bind(graph, version)
            if observing or self.poison:
                observer = self._callback, bool(self.poison)
                execution.run_observed(graph, bound, self._ordering, allocation, run, *observer, self.computation)
                run.end(progress=run.progress)
            else:
                timing = execution.timing
                timed = timing is not None and not HOOKS.splits_observed and timing.begin()
                if HOOKS.splits_observed:
                    HOOKS.notify("ggplug_graph_prepared", graph=graph, start=start, end=time.perf_counter_ns())
                if HOOKS.splits_observed or timed:
                    how = timing if timed else None, self.computation
                    run_traced(execution, bound, self._ordering, self._synchronize, *how)
                else:
                    execution.run(bound, self._ordering, self.computation)
                readers: tuple[Event, ...] = ()
                if self.n_copies > 1 and self._asynchronous:
                    # The inputs of the next version can be set while this one is computed.
                    done = (split.planned.done for split in bound.splits)
                    readers = tuple(event for event in done if event is not None)
                run.end(*self._asynchronous, progress=len(graph.nodes), readers=readers)
            self._unsettled = False
        except BaseException as error:
            self._fail(run, error)
            raise
        finally:
            run.thread = 0
        if execution.timing is not None and self.costs is not None:
            execution.timing.end(graph, self._streams, execution.schedule, self.costs)
        if execution.late is not None:
            execution.raise_late()

    def _fail(self, run: Run, error: BaseException) -> None:
        """Waits for all streams; then the run has failed."""
        try:
            self._settle()
        finally:
            run.fail(error)

    def _version(self, execution: Execution, graph: Graph) -> int:
        """The version to compute in: that in which the graph was allocated, or the next if it has no inputs there."""
        last = graph.run
        if last is not None:
            version, inputs = execution.version_of(last.allocation), last.allocation.unplaced
            if version is not None and (inputs or self.n_copies == 1) and (last.current or not inputs):
                return version
        execution.version = (execution.version + 1) % self.n_copies
        allocation = execution.allocation(graph, execution.version)
        if allocation.unplaced:
            position = allocation.unplaced[0]
            leaf = graph.tensors[position]
            remedy = "call scheduler.allocate(graph) and set the tensor before computing, or make it persistent"
            if last is None:
                what = "has no value"
            elif last.allocation.slots[position] == PERSISTENT:
                what = "has no place any more: its context was freed, or its place was removed"
                remedy = "allocate its context again and set it"
            else:
                what = "lost its value to another computation"
            raise TensorStateError(f"{leaf!r} {what}", tensor=leaf, remedy=remedy)
        return execution.version

    def _bound(self, graph: Graph) -> Bound:
        execution = self._find(graph)
        version = (graph.run and execution.version_of(graph.run.allocation)) or 0
        execution.allocation(graph, version)
        return execution.bind(graph, version)

    @one_thread_at_a_time
    def synchronize(self) -> None:
        """Waits for all streams (ggml_backend_sched_synchronize), then raises the first error of one.

        After an error the results of the last graph are undefined.
        """
        self._synchronize()

    def _synchronize(self) -> None:
        failure: BaseException | None = None
        work = self._allocator.arena.work
        try:
            for stream in self._all_streams:
                try:
                    stream.synchronize()
                except GGPlugError as error:
                    failure = failure or error
        except BaseException as interrupt:
            self._unsettled = True
            work.fail(interrupt)
            raise
        if self._asynchronous:
            self._forget_order()
        work.settle()
        if failure is not None:
            work.fail(failure)
            raise failure

    def _settle(self) -> None:
        """Waits for all streams after a failure, whose error is being raised."""
        for stream in self._all_streams:
            try:
                stream.synchronize()
            except GGPlugError:
                continue
        self._forget_order()
        self._unsettled = False

    def _forget_order(self) -> None:
        self._ordering.clear()
        for event in self._fetches:
            event.free()
        self._fetches.clear()

    def set_time_limit(self, seconds: float | None) -> None:
        """Sets how many seconds the computation of a split may take; None: any time.

        Beyond it the computation is aborted where the device can do that; see :meth:`.Backend.set_time_limit`.  Where
        it is not aborted, TimeLimitError is raised after the whole graph was computed: the results can be read, and
        ``got`` is how many seconds the split took.  With a limit, the scheduler waits for each split, so that splits of
        asynchronous devices do not overlap.  Raises ParameterError.
        """
        for stream in self._all_streams:
            stream.set_time_limit(seconds)

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Observes nodes while graphs are computed (ggml_backend_sched_set_eval_callback).

        ``callback(tensor, True)`` returns whether to observe a node.  ``callback(tensor, False)`` is called when an
        observed node was computed and can be read, and returns whether to continue.  The nodes between two observed
        ones are computed at once.  None removes the callback.
        """
        self._callback = callback

    @one_thread_at_a_time
    def get_async(self, tensor: Tensor, graph: Graph, out: Bytes) -> Backend:
        """Fetches a result in the order of the stream that computes it, and returns that stream.

        ``out``: a contiguous uint8 array of ``tensor.nbytes``; it can be read after ``synchronize()`` of the
        scheduler or the stream.  Call this right after :meth:`compute_async`; other graphs may be submitted
        before it is done.

        Raises ShapeError, TypeMismatchError or BufferUseError if ``out`` is no such array; TensorStateError if this
        scheduler did not compute the tensor.
        """
        check_target(out)
        if out.size != tensor.nbytes:
            raise ShapeError(
                f"out must have the {tensor.nbytes} bytes of {tensor!r}, got {out.size}",
                tensor=tensor,
                got=out.size,
                wanted=tensor.nbytes,
            )
        execution = self._find(graph)
        backend = self._backend_of(tensor, graph)
        run = graph.run
        if run is None or execution.version_of(run.allocation) is None or backend is None:
            raise TensorStateError(f"{tensor!r} was not computed by this scheduler", tensor=tensor)
        buffer, offset = run.allocation.place(graph, graph.index[tensor])
        if buffer.type.has_own_layout:
            backend.synchronize()
            buffer.get_tensor(tensor, out, offset)
            return backend
        self._ordering.wait(backend, (buffer,), ())
        backend.get_async(buffer, offset, out)
        if is_asynchronous(backend):
            event = backend.device.event()
            event.record(backend)
            self._fetches.append(event)
            self._ordering.note(backend, event, (buffer,), ())
        return backend

    @one_thread_at_a_time
    def free(self) -> None:
        """Waits, and frees plans, memory and the scheduler's own streams.  Results cannot be read any more.

        Later calls raise FreedError; freeing twice does nothing.

        Raises BufferUseError while zero-copy views of results exist; then nothing is freed.
        """
        if self.freed:
            return
        self._settle()
        self._allocator.check_free()
        for execution in self._executions.values():
            execution.free()
        self._executions.clear()
        self._current = self._found = None
        self._allocator.free()
        while self._owned:
            self._owned[-1].free()
            self._owned.pop()
        self.freed = True

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<Scheduler on {', '.join(self._streams.names())}>"


def _cost_model(policy: Policy | CostModel | str | None) -> CostModel | None:
    """The cost model of a policy; None for other policies.  Raises ParameterError for what is none."""
    if policy is None or policy == "ggml" or callable(policy):
        return None
    from ggplug.costs.model import cost_model  # few programs need it

    return cost_model(policy)


def report_failed(graph: Graph, error: BaseException, start: int) -> None:
    """Reports to observers that the computation of a graph that was asked for at ``start`` raised an error."""
    HOOKS.notify("ggplug_graph_failed", graph=graph, error=error, start=start, end=time.perf_counter_ns())

"""The plan of streams over a queue: one kernel call after the other, in the stream's order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.backend import (
    UNGROUPED,
    Buffer,
    Group,
    Groups,
    NodeTime,
    Places,
    Plan,
    beyond_limit,
    compute_error,
    first_out_of_range,
    id_out_of_range,
    kernel_name,
)
from ggplug.discrete.memory import DiscreteBuffer
from ggplug.errors import ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug.sharing import NOTHING, using
from ggplug.tensor import Tensor
from ggplug.values.arrays import strided

if TYPE_CHECKING:  # what annotations alone name
    from ggplug.interface.walking import Matching

    class PlannedDevice(Matching, Protocol):
        """The methods of a device with discrete memory that plans use."""

        def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Any: ...

    class PlannedStream(Protocol):
        """The methods of a stream over a queue that its plans use."""

        @property
        def device(self) -> PlannedDevice: ...
        def own(self, buffer: Buffer) -> DiscreteBuffer: ...
        def give(self, run: Callable[[], None]) -> object: ...
        def drain(self) -> None: ...
        def synchronize(self) -> None: ...

        time_limit: float | None
        running: Running | None


class Running(NamedTuple):
    """The kernel that a queue calls now: since when (``time.monotonic``), its node and its name."""

    start: float
    node: Tensor
    kernel: str


class Call(NamedTuple):
    """A kernel and its arguments.

    ``position``: of the group's last node in the graph.  ``operands``: of each tensor in ``group.operands`` what the
    device made of it (:meth:`~ggplug.discrete.DiscreteDevice.operand`).  ``ids``: nodes that have ids, and where
    these lie.
    """

    position: int
    kernel: Callable[..., None]
    group: Group
    operands: list[Any]
    ids: list[tuple[Tensor, Tensor, DiscreteBuffer, int]]


class QueuedPlan(Plan):
    """Calls ``kernel(op, dst, *src)`` for node after node, or ``kernel(group, operands)`` for a group of several.

    ``dst`` and ``src`` are what the device's ``operand`` makes of a tensor, None for absent sources; ``operands`` is a
    dictionary from tensor to that.  They are made when the plan is bound, and serve until it is bound to other memory.
    Kernels of ops with ids write zeros (or nothing, where the op writes into a source) for those out of range; the plan
    raises the error.
    """

    _limit: float | None = None
    """The time limit of the computation that the queue does now, in seconds."""
    _start: float
    """When that began (``time.monotonic``)."""

    def __init__(self, stream: PlannedStream, graph: Graph, groups: Groups = UNGROUPED) -> None:
        self.stream = stream
        self.groups = groups
        self._structure, self._layouts = graph.structure, graph.layouts()
        self._kernels: list[Callable[..., None]] = [kernel for _, kernel in stream.device.matches(graph, groups)]
        self._bound: tuple[list[Call], frozenset[DiscreteBuffer]] | None = None
        self._times: list[NodeTime] | None = None
        """Of the computation that is traced, or None."""

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        graph.check_layouts(self._layouts, "the plan")
        buffers, which, offsets = allocation.places(graph, self.groups)
        used = {number: self.stream.own(buffers[number]) for number in set(which.tolist()) if number >= 0}
        places = [
            (used[number], offset) if number >= 0 else None  # inside of a group
            for number, offset in zip(which.tolist(), offsets.tolist(), strict=True)
        ]
        made: dict[Tensor, Any] = {}

        def operand(tensor: Tensor | None) -> Any:
            place = None if tensor is None else places[graph.index[tensor]]
            if tensor is None or place is None:
                return None
            if tensor not in made:
                made[tensor] = self.operand(tensor, *place)
            return made[tensor]

        calls = []
        for kernel, group in zip(self._kernels, self.groups.of(graph), strict=True):
            ids = []
            for node, indices in _with_ids(group):
                place = places[graph.index[indices]]
                if place is not None:
                    ids.append((node, indices, *place))
            calls.append(Call(graph.index[group.node], kernel, group, [*map(operand, group.operands)], ids))
        self._bound = calls, frozenset(used.values()) or NOTHING

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Any:
        """A kernel's argument for a tensor (default: what the device says)."""
        return self.stream.device.operand(tensor, buffer, offset)

    def ids(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> npt.NDArray[Any]:
        """The values of ids, strided (default: fetches their bytes)."""
        raw = np.empty(tensor.nbytes, np.uint8)
        buffer.fetch(offset, raw)
        return strided(raw, tensor)

    def compute(self) -> None:
        if self._bound is None:
            raise ComputeError("the plan was not bound to an allocation")
        calls, buffers = self._bound
        with using(buffers):
            for buffer in buffers:
                buffer.check_there()
            self._give(calls)

    def _give(self, calls: list[Call]) -> None:
        """Gives calls to the stream, all of them as one job."""

        def run() -> None:
            self._begin()
            for call in calls:
                self.call(call)

        self.stream.give(run)

    def _begin(self) -> None:
        """Begins a computation, on the queue's thread: its time is counted from now on."""
        self._limit, self._start = self.stream.time_limit, time.monotonic()

    def call(self, call: Call) -> None:
        """Calls a kernel.

        Raises what it raises as a typed error, ComputeError if an id is out of range, and TimeLimitError if the time
        of the computation is over.
        """
        start = time.perf_counter_ns()
        group = call.group
        self.stream.running = Running(time.monotonic(), group.node, kernel_name(call.kernel))
        try:
            # NaN, infinities and what overflows are values like others: kernels that use NumPy need not silence it.
            with np.errstate(all="ignore"):
                if len(group) == 1:
                    call.kernel(group.node.op, *call.operands)
                else:
                    given = zip(group.operands, call.operands, strict=True)
                    call.kernel(group, {tensor: each for tensor, each in given if each is not None})
        except GGPlugError:
            raise
        except Exception as error:
            raise compute_error(self.stream.device, group, error) from error
        finally:
            self.stream.running = None
            self._note_time(call.position, start)
        for node, tensor, buffer, offset in call.ids:
            found = first_out_of_range(node, self.ids(tensor, buffer, offset))
            if found is not None:
                raise id_out_of_range(self.stream.device, node, *found)
        self._check_time(call)

    def _check_time(self, last: Call) -> None:
        """Raises TimeLimitError if the time of the computation is over; ``last``: what was called last."""
        if self._limit is not None and time.monotonic() - self._start > self._limit:
            raise beyond_limit(self.stream.device, self._limit, last.group.node, kernel_name(last.kernel))

    def _note_time(self, position: int, start: int) -> None:
        """Keeps that a node was computed from ``start`` on until now, if the computation is traced."""
        times = self._times
        if times is not None:
            times.append(NodeTime(position, start, time.perf_counter_ns()))

    def compute_traced(self) -> list[NodeTime]:
        self.stream.drain()
        times = self._times = []
        try:
            self.compute()
            self.stream.synchronize()
        except BaseException:
            self.times_before_error = times
            raise
        finally:
            self._times = None
        return times

    def kernel_names(self) -> list[str]:
        return [kernel_name(kernel) for kernel in self._kernels]


def _with_ids(group: Group) -> Iterable[tuple[Tensor, Tensor]]:
    """The nodes of a group that have ids, and the tensors of these."""
    for node in group.nodes:
        if node.op is not None and node.op.indexes is not None:
            indices = node.src[node.op.indexes.ids]
            assert indices is not None
            yield node, indices

"""The fake device's streams, events and plans: work goes through the queue, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ggplug.arrays import as_bytes
from ggplug.backend import Backend, Buffer, Bytes, Event, NodeTime, Operand, Places, Plan, call_kernel, check_target
from ggplug.errors import BufferUseError, ComputeError
from ggplug.graph import Graph
from ggplug.groups import UNGROUPED, Group, Groups
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import NOWHERE
from ggplug.sharing import using
from ggplug.tensor import Tensor
from ggplug.testing.fake.memory import POISON, FakeBuffer
from ggplug.testing.fake.queue import Batch, Lane

if TYPE_CHECKING:
    from ggplug.testing.fake.device import FakeDevice


class FakeEvent(Event):
    """A mark in a stream's queue; waiting streams go on when it was passed."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self._queue = device.queue
        self._recorded = 0
        self._passed = 0

    def record(self, stream: Backend) -> None:
        assert isinstance(stream, FakeBackend)
        self._stream = stream
        self._recorded += 1
        serial = self._recorded

        def passed() -> None:
            self._passed = max(self._passed, serial)
            stream.device.act("record", 0, stream.lane.name)

        stream.give(passed)

    def wait(self, stream: Backend) -> None:
        serial = self._recorded
        if not isinstance(stream, FakeBackend) or stream.device.queue is not self._queue:
            self.synchronize()
        elif self._passed < serial:
            stream.give(lambda: stream.device.act("wait", 0, stream.lane.name), ready=lambda: self._passed >= serial)

    def synchronize(self) -> None:
        serial = self._recorded
        while self._passed < serial:
            if not self._queue.step():
                raise ComputeError(f"{self.device.name}: the event cannot be reached: its stream waits for another")


class FakeBackend(Backend):
    """A stream of the fake device."""

    device: FakeDevice

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self.lane: Lane = device.queue.lane(device.stream_name())
        self.inner = device.inner.init() if device.inner is not None else None

    def give(
        self, run: Callable[[], None], *, batch: Batch | None = None, ready: Callable[[], bool] | None = None
    ) -> None:
        """Puts work into the stream's queue; a device that works at once does it before this returns."""
        self.device.queue.submit(self.lane, run, batch=batch, ready=ready)
        if self.device.immediate:
            self.synchronize()

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        fake = self._own(buffer)
        raw = as_bytes(data)
        offset, _ = fake._check_write(offset, raw.size)
        promised = raw.copy()

        def store() -> None:
            if not np.array_equal(raw, promised):
                raise ComputeError("the array given to set_async was changed before the stream was synchronized")
            self.device.act("set", raw.size, self.lane.name)
            fake.host.set(offset, raw)

        self.give(store)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        fake = self._own(buffer)
        out = check_target(out)
        offset, _ = fake._check(offset, out.size)
        # Reading the target before synchronizing shall be noticed.
        out.fill(POISON)

        def fetch() -> None:
            self.device.act("get", out.size, self.lane.name)
            fake.host.get(offset, out)

        self.give(fetch)

    def copy_async(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int,
        source_stream: Backend | None = None,
    ) -> None:  # fmt: skip
        fake = self._own(target)
        target_offset, size = fake._check_write(target_offset, size)
        source_offset, _ = source._check(source_offset, size)
        if isinstance(source_stream, FakeBackend) and source_stream.device is self.device:
            if source_stream is not self:
                written = self.device.event()
                written.record(source_stream)
                written.wait(self)
        elif source_stream is not None:
            source_stream.synchronize()
        self.give(lambda: fake.copy_now(source, source_offset, target_offset, size, self.lane.name))

    def synchronize(self) -> None:
        self.device.queue.drain(self.lane)
        error, self.lane.error = self.lane.error, None
        if error is not None:
            raise error

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return FakePlan(self, graph, groups)

    def free(self) -> None:
        super().free()
        if self.inner is not None:
            self.inner.free()
        self.device.queue.close([self.lane])

    def _own(self, buffer: Buffer) -> FakeBuffer:
        if not isinstance(buffer, FakeBuffer) or buffer.device is not self.device:
            raise BufferUseError(f"{buffer!r} is no memory of {self.device.name}", device=self.device)
        return buffer


class FakePlan(Plan):
    """Gives each group to the stream as a piece of work of its own, or the whole graph to the inner device's plan."""

    def __init__(self, stream: FakeBackend, graph: Graph, groups: Groups = UNGROUPED) -> None:
        self._stream = stream
        self._groups = groups
        self._structure = graph.structure
        self._kernels: list[Callable[..., None]] = [kernel for _, kernel in stream.device.matches(graph, groups)]
        self._inner = stream.inner.plan(graph, groups) if stream.inner is not None else None
        self._bound: tuple[Graph, list[tuple[FakeBuffer, int] | None], frozenset[FakeBuffer]] | None = None
        self._times: list[NodeTime] = []

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        places: list[tuple[FakeBuffer, int] | None] = []
        buffers, which, offsets = allocation.places(graph, self._groups)
        for tensor, number, offset in zip(graph.tensors, which.tolist(), offsets.tolist(), strict=True):
            if number < 0:  # inside of a group
                places.append(None)
                continue
            buffer = buffers[number]
            if not isinstance(buffer, FakeBuffer) or buffer.device is not self._stream.device:
                raise BufferUseError(
                    f"{self._stream.device.name} cannot reach {tensor!r} in {buffer!r}: copy it over first",
                    device=self._stream.device, tensor=tensor,
                )  # fmt: skip
            buffer._check(offset, tensor.nbytes)
            places.append((buffer, offset))
        self._bound = graph, places, frozenset(place[0] for place in places if place is not None)

    def compute(self) -> None:
        if self._bound is None:
            raise ComputeError("the plan was not bound to an allocation")
        graph, places, buffers = self._bound
        with using(buffers):
            for buffer in buffers:
                buffer.check_there()
            self._give(graph, places)

    def _give(self, graph: Graph, places: list[tuple[FakeBuffer, int] | None]) -> None:
        stream = self._stream
        batch = Batch()
        stream.give(lambda: stream.device.act("compute", 0, stream.lane.name), batch=batch)
        if self._inner is not None:
            stream.give(lambda: self._run_inner(graph, places), batch=batch)
            return
        for kernel, group in zip(self._kernels, self._groups.of(graph), strict=True):
            stream.give(self._step(graph, places, group, kernel), batch=batch)

    def compute_traced(self) -> list[NodeTime]:
        self._times = []
        self.compute()
        self._stream.synchronize()
        return self._times

    def kernel_names(self) -> list[str]:
        return [getattr(kernel, "__name__", type(kernel).__name__) for kernel in self._kernels]

    def free(self) -> None:
        if self._inner is not None:
            self._inner.free()

    def _step(
        self, graph: Graph, places: list[tuple[FakeBuffer, int] | None], group: Group, kernel: Callable[..., None]
    ) -> Callable[[], None]:
        def operand(tensor: Tensor | None) -> Operand | None:
            place = None if tensor is None else places[graph.index[tensor]]
            return None if tensor is None or place is None else Operand(tensor, place[0].host, place[1])

        def run() -> None:
            start = time.perf_counter_ns()
            self._note(group)
            operands = [operand(tensor) for tensor in group.operands]
            with using([each.buffer for each in operands if each is not None]):
                call_kernel(self._stream.device, kernel, group, operands)
            self._times.append(NodeTime(graph.index[group.node], start, time.perf_counter_ns()))

        return run

    def _note(self, group: Group) -> None:
        """A group in the device's log: the names of its ops."""
        what = " ".join(node.op.name for node in group.nodes if node.op is not None)
        self._stream.device.act("kernel", group.node.nbytes, self._stream.lane.name, what)

    def _run_inner(self, graph: Graph, places: list[tuple[FakeBuffer, int] | None]) -> None:
        assert self._inner is not None
        assert self._stream.inner is not None
        start = time.perf_counter_ns()
        for group in self._groups.of(graph):
            self._note(group)
        buffers = list(dict.fromkeys(place[0].host for place in places if place is not None))
        slots = [NOWHERE if place is None else buffers.index(place[0].host) for place in places]
        offsets = [0 if place is None else place[1] for place in places]
        # A plan does not keep what it is bound to alive; this name does.
        allocation = Allocation(graph, buffers, slots, offsets, groups=self._groups)
        self._inner.rebind(graph, allocation)
        self._inner.compute()
        self._stream.inner.synchronize()
        self._times.append(NodeTime(-1, start, time.perf_counter_ns()))

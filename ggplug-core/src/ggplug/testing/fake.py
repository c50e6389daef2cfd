"""A discrete device that exists only in this process: for testing schedulers, allocators and models without hardware.

Its memory cannot be addressed by the host, so every byte has to be transferred, and each transfer is counted.  It can
run its work late, on another thread, or in any order that the contract allows; it can fail on the nth call and run
out of memory.  It computes with the ops' references, or with the kernels of a host device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ggplug.backend import (
    API_VERSION,
    Backend,
    Buffer,
    BufferType,
    Bytes,
    Capabilities,
    Decline,
    Device,
    Event,
    Memory,
    NodeTime,
    Operand,
    Plan,
    Registration,
    compute_error,
)
from ggplug.errors import (
    BufferUseError,
    ComputeError,
    DeviceLostError,
    GGPlugError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from ggplug.graph import Graph
from ggplug.host import HOST, HostBuffer, HostBufferType
from ggplug.memory.allocation import Allocation
from ggplug.tensor import Tensor
from ggplug.testing.fake_queue import Group, Lane, Order, WorkQueue
from ggplug.testing.reference import match_reference
from ggplug.types import DeviceKind

Kind = Literal["alloc", "free", "set", "get", "memset", "copy", "receive", "kernel", "compute", "record", "wait"]

POISON = 0xFD
"""Fills new memory and the targets of pending fetches: as float of any type it is a huge negative number."""


@dataclass(frozen=True)
class Activity:
    """One thing that the device did.

    ``kind``: ``set`` bytes from the host, ``get`` bytes to the host, ``receive`` bytes out of a buffer of another
    device,
    ``copy`` bytes within the device, ``kernel`` one node (``what`` is its op), ``compute`` one plan, ...
    ``stream``: the stream that did it; empty for synchronous calls.
    """

    kind: Kind
    bytes: int = 0
    stream: str = ""
    what: str = ""


class Total(NamedTuple):
    """How often something was done, and with how many bytes."""

    calls: int
    bytes: int


class FakeDevice(Device):
    """A discrete device with its own memory.

    Args:
        name: its name.
        memory: bytes that it has; an allocation beyond raises OutOfMemoryError.
        execution: ``"now"`` does work when it is given; ``"late"`` when somebody has to wait for it; ``"thread"``
            likewise, but on a thread of its own.  :meth:`step` does pending work piece by piece.
        order: of work in different streams; ``"shuffled"`` takes any order that the contract allows, by ``seed``.
        inner: a host device whose plans compute, in the place of the ops' references.
        declines: ``node -> reason`` or an empty string; for nodes that the device shall not support.
        offloads: whether a node is worth copying its weights here for.
        host_buffer: whether there is a pinned host buffer type.
        alignment: bytes that tensors are aligned to.
        kind, device_id: as in :class:`Device`.

    ``log`` lists everything that was executed, in order.
    """

    def __init__(
        self,
        name: str = "fake0",
        *,
        memory: int = 1 << 32,
        execution: Literal["now", "late", "thread"] = "now",
        order: Order = "given",
        seed: int = 0,
        inner: Device | None = None,
        declines: Callable[[Tensor], str] | None = None,
        offloads: Callable[[Tensor], bool] | None = None,
        host_buffer: bool = False,
        alignment: int = 256,
        kind: DeviceKind = DeviceKind.GPU,
        device_id: str | None = None,
    ) -> None:
        self.name = name
        self.description = f"fake discrete device with {memory} bytes"
        self.kind = kind
        self.device_id = device_id
        self.capabilities = Capabilities(asynchronous=execution != "now", host_buffer=host_buffer, events=True)
        self.inner = inner
        self.immediate = execution == "now"
        self.queue = WorkQueue(order, seed=seed, threaded=execution == "thread")
        self.log: list[Activity] = []
        self.used = 0
        self.total_memory = memory
        self.lost = False
        self._declines = declines
        self._offloads = offloads
        self._buffer_type = FakeBufferType(self, alignment)
        self._host_buffer_type = HostBufferType(f"{name}_host", self) if host_buffer else None
        self._failures: dict[str, list[tuple[int, GGPlugError | None]]] = {}
        self._streams = 0
        self._lock = threading.Lock()

    # The interface

    def memory(self) -> Memory:
        return Memory(self.total_memory - self.used, self.total_memory)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def host_buffer_type(self) -> BufferType | None:
        return self._host_buffer_type

    def init(self, **params: Any) -> FakeBackend:
        return FakeBackend(self, **params)

    def match(self, node: Tensor) -> Any:
        reason = self._declines(node) if self._declines is not None else ""
        if reason:
            return Decline(reason)
        return match_reference(node, self.name) if self.inner is None else self.inner.match(node)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._buffer_type

    def offload_op(self, node: Tensor) -> bool:
        return self._offloads is not None and self._offloads(node)

    def event(self) -> Event:
        return FakeEvent(self)

    # Counting

    def total(self, *kinds: Kind, stream: str | None = None) -> Total:
        """Calls and bytes of these kinds of activity, in one stream or in all."""
        found = [each for each in self.log if each.kind in kinds and stream in (None, each.stream)]
        return Total(len(found), sum(each.bytes for each in found))

    def computed(self) -> list[str]:
        """Names of the ops that were computed, in order."""
        return [each.what for each in self.log if each.kind == "kernel"]

    def forget(self) -> None:
        """Empties the log."""
        self.log.clear()

    # Misbehaving on demand

    def fail(self, kind: Kind, nth: int = 1, error: GGPlugError | None = None) -> None:
        """Makes the ``nth`` activity of this kind from now on raise ``error`` (default: a fitting one), once."""
        done = self.total(kind).calls
        self._failures.setdefault(kind, []).append((done + nth, error))

    def lose(self) -> None:
        """The device is gone: from now on everything raises DeviceLostError."""
        self.lost = True

    def step(self, count: int = 1) -> int:
        """Does up to ``count`` pieces of pending work; returns how many there were."""
        return self.queue.step(count)

    def act(self, kind: Kind, size: int = 0, stream: str = "", what: str = "") -> None:
        """Notes an activity, or raises what was asked for with :meth:`fail` or :meth:`lose`."""
        with self._lock:
            if self.lost:
                raise DeviceLostError(f"{self.name} was lost", device=self)
            self.log.append(Activity(kind, size, stream, what))
            due = self._failures.get(kind)
            if not due:
                return
            serial = self.total(kind).calls
            for planned in due:
                if planned[0] == serial:
                    due.remove(planned)
                    raise planned[1] or self._failure(kind, size, what)

    def take(self, size: int) -> None:
        """Counts memory as used.  Raises OutOfMemoryError beyond the budget."""
        if self.used + size > self.total_memory:
            free = self.total_memory - self.used
            raise OutOfMemoryError(
                f"{self.name}: {size} bytes were asked for, {free} of {self.total_memory} are free",
                device=self, requested=size, free=free,
            )  # fmt: skip
        self.act("alloc", size)
        self.used += size

    def give(self, size: int) -> None:
        """Counts memory as free again."""
        self.used -= size
        self.log.append(Activity("free", size))

    def _failure(self, kind: str, size: int, what: str) -> GGPlugError:
        if kind == "alloc":
            free = self.total_memory - self.used
            return OutOfMemoryError(f"{self.name}: no memory for {size} bytes", device=self, requested=size, free=free)
        return ComputeError(f"{self.name} failed in {kind} {what}".rstrip(), device=self)

    def stream_name(self) -> str:
        self._streams += 1
        return f"{self.name}/{self._streams}"


class FakeRegistration(Registration):
    """A registration of fake devices, to hand to a registry."""

    api_version = API_VERSION

    def __init__(self, *devices: Device, name: str = "fake") -> None:
        self.name = name
        self._devices = devices
        for device in devices:
            device.registration = self

    def devices(self) -> Sequence[Device]:
        return self._devices


# -- memory ----------------------------------------------------------------------------------------


class FakeBufferType(BufferType):
    """Memory that the host cannot address."""

    def __init__(self, device: FakeDevice, alignment: int) -> None:
        super().__init__(device.name, device)
        self._alignment = alignment
        self._fake = device

    @property
    def alignment(self) -> int:
        return self._alignment

    def alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return FakeBuffer(self, self._fake, size)


class FakeBuffer(Buffer):
    """One allocation on the fake device; ``host`` is how the device itself sees the bytes."""

    def __init__(self, type: BufferType, device: FakeDevice, size: int) -> None:
        super().__init__(type, size)
        self.device = device
        self.host: HostBuffer = HOST.wrap(np.full(size, POISON, np.uint8))

    def _set(self, offset: int, data: Bytes) -> None:
        self.device.queue.drain()
        self.device.act("set", data.size)
        self.host.set(offset, data)

    def _get(self, offset: int, out: Bytes) -> None:
        self.device.queue.drain()
        self.device.act("get", out.size)
        self.host.get(offset, out)

    def memset(self, offset: int, size: int, value: int) -> None:
        self._check(offset, size)
        self.device.queue.drain()
        self.device.act("memset", size)
        self.host.memset(offset, size, value)

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        self._check(offset, size)
        source._check(source_offset, size)
        self.device.queue.drain()
        if isinstance(source, FakeBuffer) and source.device is not self.device:
            source.device.queue.drain()
        self.copy_now(source, source_offset, offset, size, "")

    def copy_now(self, source: Buffer, source_offset: int, offset: int, size: int, stream: str) -> None:
        """Copies without waiting for anything: what a copy in a stream's queue does."""
        staging = np.empty(size, np.uint8)
        if isinstance(source, FakeBuffer) and source.device is self.device:
            self.device.act("copy", size, stream)
            source.host.get(source_offset, staging)
        elif isinstance(source, FakeBuffer):
            # From device to device, without waiting for the other one: its order was seen to when this was given.
            source.device.act("get", size)
            source.host.get(source_offset, staging)
            self.device.act("receive", size, stream)
        else:
            source.get(source_offset, staging)
            self.device.act("receive", size, stream)
        self.host.set(offset, staging)

    def _free(self) -> None:
        self.device.queue.drain()
        self.device.give(self.size)
        self.host.free()


# -- streams ---------------------------------------------------------------------------------------


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
        self, run: Callable[[], None], *, group: Group | None = None, ready: Callable[[], bool] | None = None
    ) -> None:
        """Puts work into the stream's queue; a device that works at once does it before this returns."""
        self.device.queue.submit(self.lane, run, group=group, ready=ready)
        if self.device.immediate:
            self.synchronize()

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        fake = self._own(buffer)
        raw = np.asarray(data).reshape(-1).view(np.uint8)
        fake._check(offset, raw.size)
        promised = raw.copy()

        def store() -> None:
            if not np.array_equal(raw, promised):
                raise ComputeError("the array given to set_async was changed before the stream was synchronized")
            self.device.act("set", raw.size, self.lane.name)
            fake.host.set(offset, raw)

        self.give(store)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        fake = self._own(buffer)
        fake._check(offset, out.size)
        # Whoever reads the target before synchronizing shall notice.
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
        fake._check(target_offset, size)
        source._check(source_offset, size)
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

    def plan(self, graph: Graph) -> Plan:
        return FakePlan(self, graph)

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
    """Gives each node to the stream as a piece of work of its own, or the whole graph to the inner device's plan."""

    def __init__(self, stream: FakeBackend, graph: Graph) -> None:
        self._stream = stream
        self._steps: list[tuple[int, Callable[..., None]]] = []
        for node in graph.nodes:
            assert node.op is not None
            if node.op.is_view or node.size == 0:
                continue
            kernel = stream.device.match(node)
            if isinstance(kernel, Decline):
                raise UnsupportedOpError(
                    f"{stream.device.name} declines {node!r}: {kernel.reason}",
                    op=node.op, device=stream.device, tensor=node, reason=kernel.reason,
                )  # fmt: skip
            self._steps.append((graph.index[node], kernel))
        self._inner = stream.inner.plan(graph) if stream.inner is not None else None
        self._bound: tuple[Graph, list[tuple[FakeBuffer, int]]] | None = None
        self._times: list[NodeTime] = []

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        places = []
        for position, tensor in enumerate(graph.tensors):
            buffer, offset = allocation.place(graph, position)
            if not isinstance(buffer, FakeBuffer) or buffer.device is not self._stream.device:
                raise BufferUseError(
                    f"{self._stream.device.name} cannot reach {tensor!r} in {buffer!r}: copy it over first",
                    device=self._stream.device, tensor=tensor,
                )  # fmt: skip
            buffer._check(offset, tensor.nbytes)
            places.append((buffer, offset))
        self._bound = (graph, places)

    def compute(self) -> None:
        if self._bound is None:
            raise ComputeError("the plan was not bound to an allocation")
        stream = self._stream
        graph, places = self._bound
        group = Group()
        stream.give(lambda: stream.device.act("compute", 0, stream.lane.name), group=group)
        if self._inner is not None:
            stream.give(lambda: self._run_inner(graph, places), group=group)
            return
        for position, kernel in self._steps:
            stream.give(self._step(graph, places, position, kernel), group=group)

    def compute_traced(self) -> list[NodeTime]:
        self._times = []
        self.compute()
        self._stream.synchronize()
        return self._times

    def kernel_names(self) -> list[str]:
        return [getattr(kernel, "__name__", type(kernel).__name__) for _, kernel in self._steps]

    def free(self) -> None:
        if self._inner is not None:
            self._inner.free()

    def _step(
        self, graph: Graph, places: list[tuple[FakeBuffer, int]], position: int, kernel: Callable[..., None]
    ) -> Callable[[], None]:
        node = graph.tensors[position]

        def operand(tensor: Tensor | None) -> Operand | None:
            if tensor is None:
                return None
            buffer, offset = places[graph.index[tensor]]
            return Operand(tensor, buffer.host, offset)

        def run() -> None:
            assert node.op is not None
            start = time.perf_counter_ns()
            self._stream.device.act("kernel", node.nbytes, self._stream.lane.name, node.op.name)
            try:
                kernel(node.op, *(operand(tensor) for tensor in (node, *node.src)))
            except GGPlugError:
                raise
            except Exception as error:
                raise compute_error(self._stream.device, node, error) from error
            self._times.append(NodeTime(position, start, time.perf_counter_ns()))

        return run

    def _run_inner(self, graph: Graph, places: list[tuple[FakeBuffer, int]]) -> None:
        assert self._inner is not None
        assert self._stream.inner is not None
        start = time.perf_counter_ns()
        for position, _ in self._steps:
            node = graph.tensors[position]
            assert node.op is not None
            self._stream.device.act("kernel", node.nbytes, self._stream.lane.name, node.op.name)
        buffers = list(dict.fromkeys(buffer.host for buffer, _ in places))
        slots = [buffers.index(buffer.host) for buffer, _ in places]
        # A plan does not keep what it is bound to alive; this name does.
        allocation = Allocation(graph, buffers, slots, [offset for _, offset in places])
        self._inner.rebind(graph, allocation)
        self._inner.compute()
        self._stream.inner.synchronize()
        self._times.append(NodeTime(-1, start, time.perf_counter_ns()))

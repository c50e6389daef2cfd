"""The fake device itself: what it is asked to be, what it did, and how it fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ggplug.backend import (
    API_VERSION,
    BufferType,
    Capabilities,
    Decline,
    Device,
    Event,
    Group,
    Memory,
    Registration,
    check_parameters,
)
from ggplug.discrete import DiscreteDevice
from ggplug.errors import ComputeError, DeviceLostError, GGPlugError, OutOfMemoryError
from ggplug.host import HostBufferType
from ggplug.patterns import Pattern
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind
from ggplug_testing.devices.reference import match_reference
from ggplug_testing.fake.memory import FakeBufferType
from ggplug_testing.fake.queue import Order, WorkQueue
from ggplug_testing.fake.stream import FakeBackend, FakeEvent

Kind = Literal["alloc", "free", "set", "get", "memset", "copy", "receive", "kernel", "compute", "record", "wait"]


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


class FakeDevice(DiscreteDevice):
    """A discrete device with its own memory.

    Args:
        name: its name.
        memory: bytes that it has; an allocation beyond raises OutOfMemoryError.
        execution: ``"now"`` does work when it is given; ``"late"`` when it is waited for; ``"thread"``
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
        super().__init__()
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
        self._acting = threading.RLock()
        self._working = threading.local()

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
        check_parameters(self, params)
        return FakeBackend(self)

    def match(self, group: Group) -> Any:
        if self._declines is not None:
            for reason in map(self._declines, group.nodes):
                if reason:
                    return Decline(reason)
        return match_reference(group, self.name) if self.inner is None else self.inner.match(group)

    @property
    def patterns(self) -> Sequence[Pattern]:
        return () if self.inner is None else self.inner.patterns

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

    @contextmanager
    def working(self, stream: str) -> Iterator[None]:
        """What this thread does within is done by a stream."""
        before = getattr(self._working, "stream", "")
        self._working.stream = stream
        try:
            yield
        finally:
            self._working.stream = before

    def drain(self) -> None:
        self.queue.drain()

    def act(self, kind: Kind, size: int = 0, what: str = "") -> None:
        """Notes an activity, or raises what was asked for with :meth:`fail` or :meth:`lose`."""
        with self._acting:
            if self.lost:
                raise DeviceLostError(f"{self.name} was lost", device=self)
            self.log.append(Activity(kind, size, getattr(self._working, "stream", ""), what))
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
                device=self,
                requested=size,
                free=free,
            )
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

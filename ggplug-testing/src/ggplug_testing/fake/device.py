"""The fake device itself: its options, and the interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

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
from ggplug.host import HostBufferType
from ggplug.patterns import Pattern
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind
from ggplug_testing.devices.reference import match_reference
from ggplug_testing.fake.acting import ActingDevice
from ggplug_testing.fake.memory import FakeBufferType
from ggplug_testing.fake.queue import Order, WorkQueue
from ggplug_testing.fake.stream import FakeBackend, FakeEvent


class FakeDevice(ActingDevice):
    """A discrete device with its own memory.

    Args:
        name: its name.
        memory: bytes that it has; an allocation beyond raises OutOfMemoryError.
        execution: ``"now"`` does work when it is submitted; ``"late"`` when it is waited for; ``"thread"``
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
        queue = WorkQueue(order, seed=seed, threaded=execution == "thread")
        super().__init__(name, memory, queue, immediate=execution == "now", inner=inner)
        self.description = f"fake discrete device with {memory} bytes"
        self.kind = kind
        self.device_id = device_id
        self.capabilities = Capabilities(asynchronous=execution != "now", host_buffer=host_buffer, events=True)
        self._declines = declines
        self._offloads = offloads
        self._buffer_type = FakeBufferType(self, alignment)
        self._host_buffer_type = HostBufferType(f"{name}_host", self) if host_buffer else None

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
    def variant(self) -> Any:
        return None if self.inner is None else self.inner.variant

    @property
    def patterns(self) -> Sequence[Pattern]:
        return () if self.inner is None else self.inner.patterns

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._buffer_type

    def offload_op(self, node: Tensor) -> bool:
        return self._offloads is not None and self._offloads(node)

    def event(self) -> Event:
        return FakeEvent(self)


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

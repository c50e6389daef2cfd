"""A device, with the streams and schedulers that cases are computed by, and guarded memory for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import registry
from ggplug.backend import Backend, Buffer, Device
from ggplug.host import HOST
from ggplug.scheduler import Scheduler
from ggplug.types import DeviceKind

from .guard import DevicePlace, GuardedMemory, HostPlace, Place

Bytes = npt.NDArray[np.uint8]


class Machine:
    """What lives as long as the process: equal graphs of several cases share plans and schedules, as in a program."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.init()
        self.is_host = device.buffer_type.is_host
        types = [GuardedMemory(f"{device.name} guarded", device)] if self.is_host else None
        self.scheduler = Scheduler([self.stream], buffer_types=types)
        self._others: list[Backend] = []
        self._fallback: Scheduler | None = None
        self._threads = 0

    @property
    def fallback(self) -> Scheduler:
        """A scheduler that has the CPU behind the device, where that is another one."""
        if self._fallback is None:
            if self.device.kind is not DeviceKind.CPU or not self.is_host:
                hosts = [each for each in registry.devices_by_kind(DeviceKind.CPU) if each.buffer_type.is_host]
                self._others = [each.init() for each in hosts[:1]]
            self._fallback = Scheduler([self.stream, *self._others])
        return self._fallback

    def set_threads(self, count: int) -> None:
        """Computes with so many threads, where the device has such a setting."""
        if count != self._threads and hasattr(self.stream, "set_n_threads"):
            self.stream.set_n_threads(count)
        self._threads = count

    def wrap(self, memory: Any) -> Buffer:
        """Host memory as a buffer that the device's own streams work in."""
        if self.device.capabilities.buffer_from_host:
            return self.device.buffer_from_host(memory)
        return HOST.wrap(memory)

    def place(self, raw: Bytes, where: str, pattern: int, read_only: str = "", *, host: bool = False) -> Place:
        """Guarded bytes: in the device's own memory, or in host memory."""
        if host or self.is_host:
            return HostPlace(HOST.wrap if host else self.wrap, raw, where, pattern, read_only)
        return DevicePlace(self.device.buffer_type, raw, where, pattern)

    def free(self) -> None:
        """Gives streams and schedulers back."""
        for each in (self._fallback, self.scheduler, self.stream, *self._others):
            if each is not None:
                each.free()

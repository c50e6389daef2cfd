"""The device: everything that is no vendor's, over a :class:`~ggplug_simt.driver.Driver`."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

from ggplug import ops
from ggplug.backend import BufferType, Capabilities, Decline, Device, Event, Group, Memory, Registration
from ggplug.errors import (
    ComputeError,
    DeviceLostError,
    GGPlugError,
    KernelCompileError,
    OutOfMemoryError,
)
from ggplug.ops.base import Op
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind
from ggplug_simt.driver import Bound, Driver, Failure, Handle, Queue
from ggplug_simt.guard import Guard
from ggplug_simt.kernels import match
from ggplug_simt.launch import Kernel, Product
from ggplug_simt.memory import SimtBufferType, SimtHostBufferType
from ggplug_simt.profile import Profile
from ggplug_simt.programs import Programs
from ggplug_simt.source import Source
from ggplug_simt.stream import SimtBackend, SimtEvent

OFFLOADED = 32
"""Columns from which copying weights over pays (GGML_OP_OFFLOAD_MIN_BATCH of ggml-cuda)."""

_DEVICES: weakref.WeakSet[SimtDevice] = weakref.WeakSet()


class SimtDevice(Device):
    """A device with memory, queues and programs of its own.

    Listing devices costs no context: the driver is made by ``open_driver`` when it is first needed.  A process that is
    forked after that list was made cannot use them: vendors' libraries, and the threads of some, stay with the parent.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str,
        kind: DeviceKind,
        total_memory: int,
        device_id: str | None = None,
        pinned: bool = False,
        registration: Registration | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.device_id = device_id
        self.registration = registration
        self.capabilities = Capabilities(asynchronous=True, host_buffer=pinned, events=True)
        self.lost = ""
        """Why it cannot be used any more; empty while it can."""
        self.used = 0
        """Bytes that buffers of this process take."""
        self.dropped: deque[tuple[Handle, int]] = deque()
        """Memory, and its bytes, of buffers that nobody freed and nobody has any more."""
        self.total_memory = total_memory
        self.readers: set[SimtDevice] = set()
        """Other devices whose streams have copied from this one's memory."""
        self.programs = Programs(self)
        self._lock = threading.RLock()
        self.opened: Driver | None = None
        """The driver, once it is."""
        self._profile: Profile | None = None
        self._transfers: Queue | None = None
        self._streams: weakref.WeakSet[SimtBackend] = weakref.WeakSet()
        self._buffer_type = SimtBufferType(self)
        self._host_buffer_type = SimtHostBufferType(self) if pinned else None
        _DEVICES.add(self)

    @abstractmethod
    def open_driver(self) -> Driver:
        """The vendor's driver for this device; called once."""

    # -- the interface -----------------------------------------------------------------------------

    def memory(self) -> Memory:
        self._give_dropped()
        free = self.opened.free_memory() if self.opened is not None else None
        return Memory(self.total_memory - self.used if free is None else free, self.total_memory)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def host_buffer_type(self) -> BufferType | None:
        return self._host_buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._buffer_type

    def match(self, group: Group) -> Kernel | Decline:
        """The launches that compute a group, or why there are none."""
        return match(self.profile, group)

    def offload_op(self, node: Tensor) -> bool:
        """On a GPU with memory of its own: if so many columns use the weights that copying them over pays."""
        return self.kind is DeviceKind.GPU and _columns(node) >= OFFLOADED

    def init(self, **params: Any) -> SimtBackend:
        with self.guarded("making a stream"):
            queue = self.driver.queue()
        stream = SimtBackend(self, queue, **params)
        with self._lock:
            self._streams.add(stream)
        return stream

    def event(self) -> Event:
        return SimtEvent(self)

    # -- the driver --------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        """The vendor's driver, opened at first use.  Raises ComputeError if it does not start; it is tried again."""
        if self.opened is None:
            with self._lock:
                if self.opened is None:
                    if self.lost:
                        raise self.gone(f"{self.name} is lost: {self.lost}")
                    try:
                        self.opened = self.open_driver()
                    except Exception as error:
                        raise ComputeError(
                            f"{self.name} does not start: {error}", device=self,
                            remedy="another program may have taken all of it; other devices go on",
                        ) from error  # fmt: skip
        return self.opened

    @property
    def profile(self) -> Profile:
        """The sizes that kernels are compiled with."""
        if self._profile is None:
            self._profile = Profile.of(self.driver.properties)
        return self._profile

    def guarded(
        self, what: str, *, op: object = None, kernel: str | None = None, requested: int | None = None
    ) -> Guard:
        """Turns what the vendor's library raises inside into the typed error; refuses a lost device at once."""
        return Guard(self, what, op, kernel, requested)

    def typed(
        self, error: Exception, what: str, *, op: object = None, kernel: str | None = None, requested: int | None = None
    ) -> GGPlugError:
        """The typed error for an exception of the vendor's library; remembers that a device was lost."""
        failure, details = self.driver.failure(error)
        of = f" of {op.name}" if isinstance(op, Op) else ""
        where = f"{self.name}: {what}" + (f" {kernel}{of}" if kernel else "")
        if failure is Failure.MEMORY:
            free, total = self.memory()
            asked = f" for {requested} bytes" if requested is not None else ""
            return OutOfMemoryError(
                f"{where}: no memory{asked} ({free} of {total} bytes are free)", device=self, op=op, kernel=kernel,
                requested=requested, free=free, remedy="free buffers, or place part of the graph on another device",
            )  # fmt: skip
        if failure is Failure.COMPILE:
            return KernelCompileError(f"{where} failed\n{details}", device=self, op=op, kernel=kernel, log=details)
        if failure is Failure.LOST:
            self.lost = str(error)
            return self.gone(f"{where}: the device is gone ({error})", op=op, kernel=kernel)
        return ComputeError(f"{where} failed: {error}", device=self, op=op, kernel=kernel)

    def gone(self, message: str, *, op: object = None, kernel: str | None = None) -> DeviceLostError:
        """The error for a device that is lost."""
        remedy = "the other devices go on; a new process, spawned and not forked, can use this one"
        return DeviceLostError(message, device=self, op=op, kernel=kernel, remedy=remedy)

    def bind(self, source: Source | Product, op: object) -> Bound:
        """A kernel, or the library's product, its arguments not set yet.  Raises KernelCompileError."""
        if isinstance(source, Source):
            program = self.programs.get(source, op)
            with self.guarded("binding", op=op, kernel=str(source)):
                return self.driver.bind(program, source.kernel)
        with self.guarded("binding", op=op, kernel=str(source)):
            bound = self.driver.bind_product(source.exact)
        assert bound is not None
        return bound

    def reaches(self, other: SimtDevice) -> bool:
        """Whether streams of this device copy from and wait for another one, without the host."""
        return other is self or self.driver.reaches(other.driver)

    # -- memory ------------------------------------------------------------------------------------

    def take(self, size: int) -> Handle:
        """Memory of the device, counted.  Raises OutOfMemoryError."""
        self._give_dropped()
        with self._lock:
            # Drivers promise more than there is and fail when it is used, so the sum is checked here.
            if self.used + size > self.total_memory:
                free = self.total_memory - self.used
                raise OutOfMemoryError(
                    f"{self.name}: {size} bytes were asked for, {free} of {self.total_memory} are free",
                    device=self, requested=size, free=free,
                    remedy="free buffers, or place part of the graph on another device",
                )  # fmt: skip
            with self.guarded("allocating", requested=size):
                handle = self.driver.allocate(max(size, 1))
            self.used += size
            return handle

    def give(self, handle: Handle, size: int) -> None:
        """Memory back to the device, after everything pending."""
        if not self.lost:
            self.finish()
        with self._lock:
            self.used -= size
            self.driver.free(handle)

    def _give_dropped(self) -> None:
        while self.dropped:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self.give(*self.dropped.popleft())

    # -- order -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Waits for everything that may use memory of this device.  Errors stay with their stream."""
        for device in (self, *tuple(self.readers)):
            with device._lock:
                streams = list(device._streams)
            for stream in streams:
                stream.settle()

    @contextlib.contextmanager
    def transfer(self, what: str) -> Iterator[Queue]:
        """A queue for a synchronous transfer: after everything given before, and done at the end."""
        self.finish()
        with self._lock, self.guarded(what):
            if self._transfers is None:
                self._transfers = self.driver.queue()
            yield self._transfers
            self._transfers.finish()

    def forget(self, stream: SimtBackend) -> None:
        """A stream that was given back."""
        with self._lock:
            self._streams.discard(stream)


def _columns(node: Tensor) -> int:
    """How many columns share the weights of a node (get_op_batch_size of ggml-cuda)."""
    if isinstance(node.op, ops.GetRows):
        return 0  # of all the rows that would be copied it takes a few
    if isinstance(node.op, ops.MulMat):
        return node.ne[1]
    if isinstance(node.op, (ops.MulMatId, ops.Rope)):
        return node.ne[2]
    return node.nrows


def _lose_all() -> None:
    """What a forked process does first."""
    for device in _DEVICES:
        device.lost = "this process was forked from the one that listed it"
        device._lock = threading.RLock()  # a thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_all)

"""CuPy's objects: streams, events, graphs, memory and modules."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy_stand_in.calls import CUBIN, Function, Noted, call, query
from cupy_stand_in.errors import CUDADriverError, CUDARuntimeError, Fault, OutOfMemoryError
from cupy_stand_in.machine import FRESH, Allocation, Device, Machine, Mark, Pinned, Queue, Task, rounded

_PAGE = 4096


class Event(Noted):
    """``cupy.cuda.Event``: a mark in a stream of its device, there once it was recorded."""

    _mark: Mark

    def __init__(self, machine: Machine, block: bool = False, disable_timing: bool = False) -> None:
        super().__init__(machine)
        self._device = self._made("Event")
        self.ptr = machine.handle(self._device)

    def _about(self) -> Device:
        return self._device

    @call
    def synchronize(self) -> None:
        self._mark.queue.run(self._mark.number)


class Graph(Noted):
    """``cupy.cuda.Graph``: what a stream was given while it captured, with the arguments of then."""

    def __init__(self, machine: Machine, device: Device, work: list[Task]) -> None:
        super().__init__(machine)
        self._device = device
        self._work = work

    @call
    def launch(self, stream: Stream | None = None) -> None:
        assert stream is not None, "a graph is launched in a stream of its own"
        self._noted["captured"] = len(self._work)
        queue = self._queue_here(stream.ptr)
        for work in self._work:
            queue.give(work)


class Stream(Noted):
    """``cupy.cuda.Stream``: a queue of the device that is current when it is made."""

    def __init__(self, machine: Machine, null: bool = False, non_blocking: bool = False) -> None:
        super().__init__(machine)
        assert non_blocking, "streams that wait for the default stream are not stood in for"
        self._work = Queue(self._made("Stream"))
        self.device_id = self._work.device.number
        self.ptr = machine.handle(self._work)

    def _about(self) -> Device:
        return self._work.device

    @call
    def synchronize(self) -> None:
        self._work.forbid_capture()
        self._work.run(self._work.given)

    @call
    def record(self, event: Event) -> Event:
        self._no_capture()
        if event._device is not self._work.device:
            raise CUDARuntimeError(400)
        event._mark = Mark(self._work, self._work.given)
        return event

    @call
    def wait_event(self, event: Event) -> None:
        """Events of other devices can be waited for."""
        self._no_capture()
        mark = event._mark
        self._work.give(lambda: mark.queue.run(mark.number))

    @call
    def launch_host_func(self, callback: Callable[[Any], None], arg: Any) -> None:
        self._work.forbid_capture()
        self._work.give(lambda: callback(arg))

    @call
    def begin_capture(self, mode: int | None = None) -> None:
        assert mode is None, "only CuPy's own mode of capture, relaxed, is stood in for"
        assert not self._machine.hip, "CuPy captures on CUDA only"
        if self._work.captured is not None:
            raise CUDARuntimeError(401)
        self._work.captured = []

    @call
    def end_capture(self) -> Graph:
        work, invalid = self._work.captured, self._work.invalid
        if work is None:
            raise CUDARuntimeError(401)
        self._work.captured, self._work.invalid = None, False
        if invalid:
            raise CUDARuntimeError(901)
        self._noted["captured"] = len(work)
        return Graph(self._machine, self._work.device, work)

    @query
    def is_capturing(self) -> bool:
        if self._work.invalid:
            raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")
        return self._work.captured is not None

    def _no_capture(self) -> None:
        if self._work.captured is not None:
            raise Fault("events in a capture are not stood in for")

    @query
    def __enter__(self) -> Stream:
        here = self._machine.current
        if self.device_id != here:
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({here})"
            )
        self._machine.streams.append(self.ptr)
        return self

    @query
    def __exit__(self, *_: object) -> None:
        self._machine.streams.pop()

    def __del__(self) -> None:
        # What was given to a stream is done even if nobody keeps the stream.
        if hasattr(self, "ptr"):
            with self._machine.lock:
                self._machine.drop(self.ptr)
                self._machine.abandoned(self._work)


class PooledMemory(Noted):
    """``cupy.cuda.memory.PooledMemory``: goes back to its pool at the latest with the object."""

    def __init__(self, pool: MemoryPool, device: Device, size: int) -> None:
        super().__init__(pool._machine)
        self._pool = pool
        self._allocation: Allocation | None = None
        self._allocation = device.allocate(size)
        self.ptr = self._allocation.address

    @query
    def free(self) -> None:
        allocation, self._allocation = self._allocation, None
        self.ptr = 0
        if allocation is not None:
            self._pool._give(allocation)

    def __del__(self) -> None:
        self.free()


class MemoryPointer:
    """``cupy.cuda.MemoryPointer``."""

    def __init__(self, mem: PooledMemory) -> None:
        self.mem = mem
        self.ptr = mem.ptr


class MemoryPool(Noted):
    """``cupy.cuda.MemoryPool``: keeps what it is given back, and counts in units of 512 bytes.

    Blocks that were given back serve any request that is as large as they are together.
    """

    def __init__(self, machine: Machine, allocator: None = None, *, limit: int = 0) -> None:
        super().__init__(machine)
        self._used = [0] * len(machine.devices)
        self._total = [0] * len(machine.devices)
        self._limit = limit

    @call
    def malloc(self, size: int) -> MemoryPointer:
        here, taken, limit = self._machine.device, rounded(size), self._limit
        for attempt in ("kept blocks", "given back"):
            more = max(0, taken - self.free_bytes())
            fits = here.used + more <= here.gpu.memory
            if fits and not (limit and self._total[here.number] + more > limit):
                break
            if attempt == "given back":
                raise OutOfMemoryError(taken, self._total[here.number], limit)
            self._drop_free()
        here.used += more
        self._total[here.number] += more
        self._used[here.number] += taken
        made = MemoryPointer(PooledMemory(self, here, size))
        self._noted["address"] = made.ptr
        return made

    def _give(self, allocation: Allocation) -> None:
        """Takes a block back; the stand-in never gives its address again."""
        self._used[allocation.device] -= rounded(allocation.size)
        try:
            allocation.check("a block that is given back")
        except Fault as fault:
            self._machine.faults.append(fault)
        allocation.whole = None

    @query
    def get_limit(self) -> int:
        return self._limit

    @query
    def used_bytes(self) -> int:
        return self._used[self._machine.current]

    @query
    def free_bytes(self) -> int:
        return self._total[self._machine.current] - self._used[self._machine.current]

    @call
    def free_all_blocks(self, stream: None = None) -> None:
        self._drop_free()

    def _drop_free(self) -> None:
        free = self.free_bytes()
        self._total[self._machine.current] -= free
        self._machine.device.used -= free


class PinnedAllocator(Noted):
    """``cupy.cuda.alloc_pinned_memory``: like CuPy's own pool, which gives powers of two."""

    @call
    def alloc_pinned_memory(self, size: int) -> Any:
        given = 1 << (max(rounded(size), 512) - 1).bit_length()
        memory = _in_pages(given)
        memory.ptr = ctypes.addressof(memory)
        self._machine.pinned.append(Pinned(memory.ptr, given, weakref.ref(memory)))
        return memory


def _in_pages(size: int) -> Any:
    """Memory from the beginning of a page on, as an object of the buffer protocol that can be referred to weakly."""
    whole = np.full(size + _PAGE, FRESH, np.uint8)
    kind = type("PinnedMemoryPointer", (ctypes.c_int8 * size,), {})
    return kind.from_buffer(whole, -whole.ctypes.data % _PAGE)  # type: ignore[attr-defined]


class Module(Noted):
    """``cupy.cuda.Module``: a loaded binary; its functions go with it."""

    _error = CUDADriverError

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._functions: list[int] = []

    @call
    def load(self, cubin: bytes) -> None:
        if not cubin.startswith(CUBIN):
            raise CUDADriverError(200)
        architecture, _, text = cubin[len(CUBIN) :].decode().partition("\n")
        kind, _, number = architecture.partition("_")
        major, minor = self._machine.device.gpu.capability
        if not self._machine.hip:
            # A binary runs on later devices of the same generation, PTX on all later ones.
            wanted = divmod(int(number), 10)
            if wanted > (major, minor) or (kind == "sm" and wanted[0] != major):
                raise CUDADriverError(209)
        self._text, self._device = text, self._machine.device
        self._machine.bound = True

    @call
    def get_function(self, name: str) -> KernelFunction:
        if f"KERNEL void {name}(" not in self._text:
            raise CUDADriverError(500)
        self._functions.append(self._machine.handle(Function(self._device, self._text, name)))
        return KernelFunction(self, self._functions[-1])

    def __del__(self) -> None:
        with self._machine.lock:
            for handle in self._functions:
                self._machine.meant(handle).loaded = False
                self._machine.drop(handle)


class KernelFunction:
    """``cupy.cuda.function.Function``: keeps its module loaded."""

    def __init__(self, module: Module, ptr: int) -> None:
        self.module = module
        self.ptr = ptr

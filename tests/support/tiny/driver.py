"""The driver of the tiny device: late, strict, and deadly.

Queues do nothing until somebody waits.  Memory moves by words, so transfers of single bytes are made of several.  What
a launch may not do (reach memory that was freed, bindings at odd places or beyond the limit, a buffer bound for reading
and for storing at once) ends the process with the status DEADLY.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Bytes
from ggplug.types import DeviceKind
from ggplug_simt import (
    Binding,
    Compiled,
    Dispatch,
    Driver,
    Failure,
    LaunchSequence,
    Properties,
    Queue,
    SimtDevice,
)
from tiny.language import DoesNotCompile, Outside, Range, Text
from tiny.library import TinyLibrary

DEADLY = 70
"""How the process ends where a driver would end it."""

STEP = 256
BINDING = 4096

PROPERTIES = Properties(
    processor=False,
    vector_width=1,
    local_bytes=0,
    max_lanes=64,
    narrow_stores=False,
    max_groups=40,
    max_tensors=4,
    argument_stride=STEP,
    binding_step=STEP,
    max_binding=BINDING,
    exclusive_writes=True,
)


def die(why: str) -> None:
    print(f"the driver ends the process: {why}", file=sys.stderr, flush=True)
    os._exit(DEADLY)


class TinyMemory:
    """Words of the device; ``gone`` when they were given back."""

    def __init__(self, size: int) -> None:
        self.words = np.full(-(-size // 4), 0xA5A5A5A5, np.uint32)
        self.gone = False

    def reach(self) -> npt.NDArray[np.uint32]:
        if self.gone:
            die("memory that was freed is reached")
        return self.words


class TinyQueue(Queue):
    """Closures in the order in which they were given; all queues of the device share one list."""

    def __init__(self, driver: TinyDriver) -> None:
        self.driver = driver

    def give(self, do: Callable[[], None]) -> None:
        self.driver.pending.append(do)

    def write(self, handle: TinyMemory, offset: int, data: Bytes) -> object:
        self.give(lambda: self.driver.store(handle, offset, data.copy()))
        return data

    def read(self, handle: TinyMemory, offset: int, out: Bytes) -> object:
        self.give(lambda: self.driver.fetch(handle, offset, out))
        return out

    def copy(self, source: TinyMemory, source_offset: int, target: TinyMemory, target_offset: int, size: int) -> None:
        def do() -> None:
            staging = np.empty(size, np.uint8)
            self.driver.fetch(source, source_offset, staging)
            self.driver.store(target, target_offset, staging)

        self.give(do)

    def fill(self, handle: TinyMemory, offset: int, size: int, value: int) -> None:
        self.give(lambda: self.driver.store(handle, offset, np.full(size, value, np.uint8)))

    def sequence(self, dispatches: Sequence[Dispatch]) -> TinySequence:
        return TinySequence(self, dispatches)

    def record(self) -> Any:
        return object()

    def wait(self, mark: Any) -> None:
        pass  # one list for all queues keeps their order

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        with self.driver.running:
            while self.driver.pending:
                self.driver.pending.pop(0)()


class TinySequence(LaunchSequence):
    """A list of launches; argument structs go up in one array."""

    def __init__(self, queue: TinyQueue, dispatches: Sequence[Dispatch]) -> None:
        self._queue = queue
        self._dispatches = list(dispatches)
        self._bound: list[dict[int, Binding]] = [{} for _ in dispatches]
        self._uploaded = np.empty(0, np.uint8)

    def replace(self, number: int, dispatch: Dispatch) -> None:
        self._queue.driver.log.append(("replace", dispatch.kernel, dispatch.written))
        self._dispatches[number] = dispatch
        self._bound[number] = {}

    def bind(self, number: int, tensor: int, binding: Binding) -> None:
        self._queue.driver.log.append(("bind", self._dispatches[number].kernel, tensor))
        self._bound[number] = {**self._bound[number], tensor: binding}

    def set_arguments(self, arguments: npt.NDArray[np.uint8], stale: Sequence[int]) -> None:
        self._queue.driver.log.append(("upload", arguments.size))
        self._uploaded = arguments.copy()

    def submit(self) -> None:
        self._queue.driver.log.append(("submit", len(self._dispatches)))
        self._give(range(len(self._dispatches)))

    def submit_one(self, number: int) -> None:
        self._give([number])

    def _give(self, numbers: Sequence[int]) -> None:
        arguments = self._uploaded
        for number in numbers:
            self.at = number
            dispatch, bound = self._dispatches[number], self._bound[number]
            check(dispatch, bound, arguments)
            self._queue.give(lambda d=dispatch, b=bound: launch(d, b, arguments))  # type: ignore[misc]


def check(dispatch: Dispatch, bound: dict[int, Binding], arguments: Bytes) -> None:
    """What the library behind a driver checks when launches are submitted."""
    usage: dict[int, bool] = {}
    if sorted(bound) != list(range(len(dispatch.written))) or len(bound) > PROPERTIES.max_tensors:
        die(f"{dispatch.kernel} lacks bindings")
    if max(dispatch.grid) > PROPERTIES.max_groups:
        die(f"{dispatch.kernel} has a grid of {dispatch.grid}")
    start, size = dispatch.arguments
    if start % STEP or size % 16 or start + size > arguments.size:
        die(f"{dispatch.kernel} has its arguments at {start}")
    for number, (handle, offset, bytes_) in bound.items():
        if handle.gone:
            die("a launch with memory that was freed is submitted")
        if offset % STEP or bytes_ % 4 or not 0 < bytes_ <= BINDING or offset + bytes_ > 4 * handle.words.size:
            die(f"{dispatch.kernel} binds {bytes_} bytes at {offset}")
        if usage.setdefault(id(handle), dispatch.written[number]) != dispatch.written[number]:
            die(f"{dispatch.kernel} binds one buffer for reading and for storing")


def launch(dispatch: Dispatch, bound: dict[int, Binding], arguments: Bytes) -> None:
    text: Text = dispatch.program
    start, size = dispatch.arguments
    members = arguments[start : start + size].view(np.uint32)
    ranges = {}
    for number, (name, stored) in enumerate(text.bindings.items()):
        handle, offset, bytes_ = bound[number]
        ranges[name] = Range(handle.reach()[offset // 4 : (offset + bytes_) // 4], stored)
        if stored != dispatch.written[number]:
            die(f"{dispatch.kernel} declares {name} otherwise than it is bound")
    try:
        text.run(dispatch.grid, dispatch.lanes, ranges, members)
    except Outside as error:
        die(f"{dispatch.kernel} reaches {error}")


class TinyDriver(Driver):
    """``log``: what was given.  ``pending``: what nobody waited for yet."""

    identity = "tiny"
    properties = PROPERTIES
    total_memory = 1 << 22
    max_buffer = 1 << 16
    alignment = 4

    def __init__(self) -> None:
        self.library = TinyLibrary(PROPERTIES)
        self.log: list[Any] = []
        self.pending: list[Callable[[], None]] = []
        self.running = threading.Lock()

    def allocate(self, size: int) -> TinyMemory:
        return TinyMemory(size)

    def free(self, handle: TinyMemory) -> None:
        handle.gone = True

    def queue(self) -> TinyQueue:
        return TinyQueue(self)

    def compile(self, text: str) -> Compiled:
        self.log.append(("compile", text))
        return Compiled(Text(text), b"")

    def load(self, binary: bytes) -> Any:
        raise DoesNotCompile("there are no binaries")

    def finish_mark(self, mark: Any) -> None:
        self.queue().finish()

    def failure(self, error: Exception) -> tuple[Failure, str]:
        return (Failure.COMPILE if isinstance(error, DoesNotCompile) else Failure.OTHER), str(error)

    # Transfers of bytes, made of transfers of words.

    def store(self, memory: TinyMemory, offset: int, data: Bytes) -> None:
        words = memory.reach()
        first, last = offset // 4, -(-(offset + data.size) // 4)
        around = words[first:last].copy().view(np.uint8)
        around[offset - 4 * first :][: data.size] = data
        words[first:last] = around.view(np.uint32)

    def fetch(self, memory: TinyMemory, offset: int, out: Bytes) -> None:
        words = memory.reach()
        first, last = offset // 4, -(-(offset + out.size) // 4)
        out[...] = words[first:last].copy().view(np.uint8)[offset - 4 * first :][: out.size]


class TinyDevice(SimtDevice):
    """A device over the tiny driver, which is ``tiny``."""

    def __init__(self, name: str = "tiny") -> None:
        self.tiny = TinyDriver()
        super().__init__(
            name, description="a device of words", kind=DeviceKind.GPU, total_memory=self.tiny.total_memory
        )

    def open_driver(self) -> TinyDriver:
        return self.tiny

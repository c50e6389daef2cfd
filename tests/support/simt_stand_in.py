"""A driver without hardware: memory is host memory, programs are their text, and every call is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Bytes
from ggplug.types import DeviceKind
from ggplug_simt import Bound, Compiled, Dispatch, Driver, Failure, Properties, SimtDevice, StepwiseQueue, VendorProgram
from ggplug_simt.c import CLibrary

GPU = Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024)


class Refused(Exception):
    """What the stand-in's library raises; ``failure`` is what it means."""

    def __init__(self, failure: Failure, details: str = "") -> None:
        super().__init__(details or failure.value)
        self.failure = failure


class StandInBound(Bound):
    def __init__(self, kernel: str, log: list[Any]) -> None:
        self.kernel = kernel
        self.log = log
        self.buffers: dict[int, Any] = {}
        self.arguments: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def set_buffer(self, position: int, handle: Any) -> None:
        self.log.append(("set_buffer", self.kernel, position))
        self.buffers[position] = handle

    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        self.log.append(("set_arguments", self.kernel, position))
        self.arguments = arguments.copy()


class StandInProduct(StandInBound):
    capturable = False


class StandInQueue(StepwiseQueue):
    """Transfers happen at once, launches are only noted."""

    def __init__(self, driver: StandInDriver) -> None:
        self.driver = driver

    def act(self, what: str, *rest: Any) -> None:
        error = self.driver.errors.pop(what, None)
        if error is not None:
            raise error
        self.driver.log.append((what, *rest))

    def write(self, handle: Any, offset: int, data: Bytes) -> None:
        self.act("write", data.size)
        handle[offset : offset + data.size] = data

    def read(self, handle: Any, offset: int, out: Bytes) -> None:
        self.act("read", out.size)
        out[...] = handle[offset : offset + out.size]

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        self.act("copy", size)
        target[target_offset : target_offset + size] = source[source_offset : source_offset + size]

    def fill(self, handle: Any, offset: int, size: int, value: int) -> None:
        self.act("fill", size)
        handle[offset : offset + size] = value

    def bind(self, dispatch: Dispatch) -> StandInBound:
        kind = StandInProduct if isinstance(dispatch.program, VendorProgram) else StandInBound
        made = kind(dispatch.kernel, self.driver.log)
        self.driver.bound.append(made)
        return made

    def launcher(self, bound: Bound, groups: int, lanes: int) -> Callable[[], object]:
        assert isinstance(bound, StandInBound)
        return lambda: self.act("launch", bound.kernel, groups, lanes)

    def capture(self, launchers: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        if not self.driver.captures:
            return None
        self.act("capture", len(launchers))
        return lambda: self.act("replay", len(launchers))

    def record(self) -> Any:
        self.act("record")
        return len(self.driver.log)

    def wait(self, mark: Any) -> None:
        self.act("wait", mark)

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        self.act("finish")


class StandInDriver(Driver):
    """``errors``: what the next call of a name raises, once.  ``log``: what was done.  ``captures``: queues capture."""

    identity = "stand-in"

    def __init__(self, properties: Properties = GPU, memory: int = 1 << 20) -> None:
        self.properties = properties
        self.library = CLibrary("cuda", properties)
        self.total_memory = memory
        self.max_buffer = memory
        self.alignment = 128
        self.log: list[Any] = []
        self.errors: dict[str, Exception] = {}
        self.bound: list[StandInBound] = []
        self.captures = False

    def allocate(self, size: int) -> Any:
        self.queue().act("allocate", size)
        return np.zeros(size, np.uint8)

    def free(self, handle: Any) -> None:
        self.log.append(("free", handle.size))

    def queue(self) -> StandInQueue:
        return StandInQueue(self)

    def compile(self, text: str) -> Compiled:
        self.queue().act("compile")
        return Compiled(text, b"binary of " + text.encode())

    def load(self, binary: bytes) -> Any:
        self.queue().act("load")
        return binary

    def finish_mark(self, mark: Any) -> None:
        self.log.append(("finish_mark", mark))

    def failure(self, error: Exception) -> tuple[Failure, str]:
        return (error.failure, str(error)) if isinstance(error, Refused) else (Failure.OTHER, str(error))

    def did(self, *kinds: str) -> list[Any]:
        """What was done of these kinds, in order."""
        return [each for each in self.log if each[0] in kinds]


class StandInDevice(SimtDevice):
    """A device over the stand-in; its driver is ``stand_in``."""

    def __init__(self, name: str = "stand-in", driver: StandInDriver | None = None) -> None:
        self.stand_in = driver or StandInDriver()
        super().__init__(
            name, description="a device of notes", kind=DeviceKind.GPU, total_memory=self.stand_in.total_memory
        )

    def open_driver(self) -> StandInDriver:
        return self.stand_in

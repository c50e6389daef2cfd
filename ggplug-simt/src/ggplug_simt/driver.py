"""The interface of a vendor's driver: memory, programs, queues, and the library of programs.

==============  ==========================================================================================
library         :attr:`Driver.library`: the programs in the language that the driver compiles
allocate        :meth:`Driver.allocate`, :meth:`Driver.free`
copy            :meth:`Queue.write`, :meth:`Queue.read`, :meth:`Queue.copy`, :meth:`Queue.fill`
compile         :meth:`Driver.compile`, :meth:`Driver.load`
launch          :meth:`Queue.sequence`: all launches of a plan at once
event           :meth:`Queue.record`, :meth:`Queue.wait`
==============  ==========================================================================================

Further capabilities are optional: pinned memory, vendor programs that multiply matrices, copies between
devices (:meth:`Driver.reaches`).  A driver whose queues take launches one by one derives
its queue from :class:`~ggplug_simt.stepwise.StepwiseQueue`.

Handles, programs and marks are opaque objects of the vendor.  A vendor's functions raise whatever its library raises:
:meth:`Driver.failure` classifies the exception, and the runtime raises a typed error that names op, kernel and device.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.backend import Bytes
from ggplug_simt.library import Library
from ggplug_simt.properties import Properties

Handle = Any
Compilation = Any
Mark = Any

ANY_THREAD = nullcontext()
"""The result of :meth:`Driver.current` if any thread can call the driver at any time."""


class Failure(enum.Enum):
    """The kinds of failure that an exception of a vendor's library can mean."""

    MEMORY = "out of memory"
    COMPILE = "a program does not compile"
    LOST = "the device is gone"
    OTHER = "anything else"


class Compiled(NamedTuple):
    """A compiled program, and its binary for the disk cache (empty if it cannot be kept)."""

    program: Compilation
    binary: bytes


class Dispatch(NamedTuple):
    """A launch as a queue gets it.

    ``program``: the result of :meth:`Driver.compile` or :meth:`Driver.load`, or a
    :class:`~ggplug_simt.library.VendorProgram` itself.  ``kernel``: the function in it.  ``grid``: work-groups in two
    dimensions; there may be up to a row too many, which the program discards.  ``lanes``: items of a group.
    ``written``: for each tensor, whether the launch stores to its binding.  ``arguments``: first byte and size of the
    struct in the array of the launch sequence.
    """

    program: Compilation
    kernel: str
    grid: tuple[int, int]
    lanes: int
    written: tuple[bool, ...]
    arguments: tuple[int, int]


class Binding(NamedTuple):
    """The memory of one tensor of a launch: the launch reaches ``size`` bytes from ``offset``, and no others.

    ``offset`` is a multiple of ``properties.binding_step``, and ``size`` one of 4 and not 0; where that step is None,
    the whole buffer is bound.
    """

    handle: Handle
    offset: int
    size: int


class LaunchSequence(ABC):
    """The launches of a plan in a queue: bound once, submitted many times.

    ``at``: number of the launch that was being submitted when a call raised.
    """

    at: int = 0

    @abstractmethod
    def replace(self, number: int, dispatch: Dispatch) -> None:
        """Replaces a launch by another variant; its tensors and arguments are bound again after that."""

    @abstractmethod
    def bind(self, number: int, tensor: int, binding: Binding) -> None:
        """Binds the memory of a tensor of launch ``number``."""

    @abstractmethod
    def set_arguments(self, arguments: npt.NDArray[np.uint8], stale: Sequence[int]) -> None:
        """Sets the array of all structs; those of the launches ``stale`` have changed.  Called at most once a binding.

        Launches that were submitted before keep their old arguments.
        """

    @abstractmethod
    def submit(self) -> None:
        """Submits all launches to the queue, in order."""

    @abstractmethod
    def submit_one(self, number: int) -> None:
        """Submits one launch to the queue."""


class Queue(ABC):
    """A queue of the device.  Operations run in the order of submission; only :meth:`finish` waits for them.

    Transfers may begin at any byte and have any number of bytes.  A driver whose hardware moves words only
    compiles helper programs of its own for the rest.
    """

    @abstractmethod
    def write(self, handle: Handle, offset: int, data: Bytes) -> object:
        """Copies from the host.  ``data`` and the result are kept alive until the queue is finished."""

    @abstractmethod
    def read(self, handle: Handle, offset: int, out: Bytes) -> object:
        """Copies to the host.  ``out`` and the result are kept alive until the queue is finished."""

    def write_async(self, handle: Handle, offset: int, data: Bytes) -> object:
        """Copies from the host as ``write`` does, but without waiting for earlier work, which ``write`` may do."""
        return self.write(handle, offset, data)

    def read_async(self, handle: Handle, offset: int, out: Bytes) -> object:
        """Copies to the host as ``read`` does, but without waiting for earlier work, which ``read`` may do."""
        return self.read(handle, offset, out)

    @abstractmethod
    def copy(self, source: Handle, source_offset: int, target: Handle, target_offset: int, size: int) -> None:
        """Copies within the device, or from one that it reaches; ranges may be in one buffer but do not overlap."""

    @abstractmethod
    def fill(self, handle: Handle, offset: int, size: int, value: int) -> None:
        """Fills with a byte."""

    @abstractmethod
    def sequence(self, dispatches: Sequence[Dispatch]) -> LaunchSequence:
        """A launch sequence of a plan's launches, without bindings."""

    @abstractmethod
    def record(self) -> Mark:
        """A mark after all operations submitted so far."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Makes operations submitted from now on wait for a mark of a queue of the device, or of a device that it
        reaches.
        """

    @abstractmethod
    def flush(self) -> None:
        """Starts submitted operations even if no thread waits for them."""

    @abstractmethod
    def finish(self) -> None:
        """Waits for all submitted operations."""

    def free(self) -> None:
        """Releases the queue (default: nothing)."""

    def stall(self) -> Callable[[], None] | None:
        """Holds back operations submitted from now on, until any thread calls the function that it returns.

        The conformance suite proves with it that other queues wait (default: None, it cannot).
        """
        return None


class Driver(ABC):
    """One device of a vendor.

    ``library``: the programs that it runs.  ``identity``: device and driver in words, for the key of the disk cache.
    ``properties``: capabilities and limits.  ``total_memory``, ``max_buffer``, ``alignment``: bytes.
    """

    library: Library
    identity: str
    properties: Properties
    total_memory: int
    max_buffer: int
    alignment: int

    @abstractmethod
    def allocate(self, size: int) -> Handle:
        """Allocates memory of the device; if the API binds only ranges of 4-byte words, a whole number of words."""

    @abstractmethod
    def free(self, handle: Handle) -> None:
        """Releases memory, which no unfinished operation uses, and no later launch will."""

    @abstractmethod
    def queue(self) -> Queue:
        """A new queue."""

    @abstractmethod
    def compile(self, text: str) -> Compiled:
        """Compiles a program."""

    @abstractmethod
    def load(self, binary: bytes) -> Compilation:
        """Loads a program from a binary that :meth:`compile` returned, perhaps in another process.

        May raise any exception if the binary is not usable; the program is then compiled.
        """

    @abstractmethod
    def finish_mark(self, mark: Mark) -> None:
        """Waits for a mark."""

    @abstractmethod
    def failure(self, error: Exception) -> tuple[Failure, str]:
        """The kind of failure of an exception, and further text about it (a build log)."""

    def current(self) -> AbstractContextManager[object]:
        """A context that makes the device the calling thread's current one.

        Default: :data:`ANY_THREAD`: the driver has no current device, and the context need not be entered.
        """
        return ANY_THREAD

    def reaches(self, other: Driver) -> bool:
        """Whether queues of this device copy from and wait for another one (default: only for itself)."""
        return other is self

    def free_memory(self) -> int | None:
        """Bytes that are free now, if the driver reports it (default: None)."""
        return None

    def allocate_host(self, size: int) -> Bytes | None:
        """Pinned host memory for fast transfers, freed with the array (default: None)."""
        return None

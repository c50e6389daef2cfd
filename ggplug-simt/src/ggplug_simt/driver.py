"""What a vendor package provides: about five primitives on memory, programs and queues.

==============  ==========================================================================================
allocate        :meth:`Driver.allocate`, :meth:`Driver.free`
copy            :meth:`Queue.write`, :meth:`Queue.read`, :meth:`Queue.copy`, :meth:`Queue.fill`
compile         :meth:`Driver.compile`, :meth:`Driver.load`
launch          :meth:`Driver.bind`, :meth:`Queue.launcher`
event           :meth:`Queue.record`, :meth:`Queue.wait`
==============  ==========================================================================================

What a vendor has beyond them is optional: pinned memory, a library that multiplies matrices
(:meth:`Driver.bind_product`), launches that are captured and replayed as one (:meth:`Queue.capture`), copies between
devices (:meth:`Driver.reaches`).

Handles, programs, launches and marks are objects of the vendor's own kind; nothing here looks into them.  A vendor's
functions raise whatever its library raises: :meth:`Driver.failure` says what kind of failure that is, and
the device turns it into the typed error that names op, kernel and device.
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
from ggplug_simt.profile import Properties

Handle = Any
Program = Any
Mark = Any


ANY_THREAD = nullcontext()
"""What :meth:`Driver.current` answers where any thread can call at any time."""


class Failure(enum.Enum):
    """What an exception of a vendor's library means."""

    MEMORY = "out of memory"
    COMPILE = "a program does not compile"
    LOST = "the device is gone"
    OTHER = "anything else"


class Compiled(NamedTuple):
    """A program, and its binary for the disk cache (empty if it cannot be kept)."""

    program: Program
    binary: bytes


class Bound(ABC):
    """A kernel with its arguments, ready to be launched again and again.

    A launch that was given to a queue keeps the arguments that it was given with.  ``capturable``: its launches may be
    part of what :meth:`Queue.capture` captures.
    """

    capturable: bool = True

    @abstractmethod
    def set_buffer(self, position: int, handle: Handle) -> None:
        """The pointer argument at ``position``."""

    @abstractmethod
    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        """The struct argument at ``position``, by value."""


class Queue(ABC):
    """A queue of the device.  Everything runs in the order in which it was given; nothing waits but :meth:`finish`."""

    @abstractmethod
    def write(self, handle: Handle, offset: int, data: Bytes) -> object:
        """Copies from the host.  ``data``, and what this returns, are kept until the queue was finished."""

    @abstractmethod
    def read(self, handle: Handle, offset: int, out: Bytes) -> object:
        """Copies to the host.  ``out``, and what this returns, are kept until the queue was finished."""

    @abstractmethod
    def copy(self, source: Handle, source_offset: int, target: Handle, target_offset: int, size: int) -> None:
        """Copies within the device, or from one that it reaches; ranges may be in one buffer but do not overlap."""

    @abstractmethod
    def fill(self, handle: Handle, offset: int, size: int, value: int) -> None:
        """Fills with a byte."""

    @abstractmethod
    def launcher(self, bound: Bound, groups: int, lanes: int) -> Callable[[], object]:
        """A function that launches ``bound`` in this queue; it is called many times, so it should be quick."""

    @abstractmethod
    def record(self) -> Mark:
        """A mark behind everything given so far."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Makes what is given from now on wait for a mark of any queue of the device, or of one that it reaches."""

    @abstractmethod
    def flush(self) -> None:
        """Makes sure that what was given will run even if nobody waits for it."""

    @abstractmethod
    def finish(self) -> None:
        """Waits for everything given."""

    def capture(self, launchers: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        """A function that launches all of these, with the arguments that they have now, at the price of one.

        None if it cannot be done (default: it cannot).
        """
        return None

    def free(self) -> None:
        """Gives the queue back (default: nothing)."""


class Driver(ABC):
    """One device of a vendor.

    ``dialect``: ``opencl`` or ``cuda``.  ``identity``: device and driver in words, for the key of the disk cache.
    ``properties``: what kernels are cut for.  ``total_memory``, ``max_buffer``, ``alignment``: bytes.
    """

    dialect: str
    identity: str
    properties: Properties
    total_memory: int
    max_buffer: int
    alignment: int

    @abstractmethod
    def allocate(self, size: int) -> Handle:
        """Memory of the device."""

    @abstractmethod
    def free(self, handle: Handle) -> None:
        """Gives memory back."""

    @abstractmethod
    def queue(self) -> Queue:
        """A new queue."""

    @abstractmethod
    def compile(self, text: str) -> Compiled:
        """Compiles a program."""

    @abstractmethod
    def load(self, binary: bytes) -> Program:
        """A program from a binary that :meth:`compile` answered with, perhaps in another process.

        Raises anything if the binary is of no use; the program is then compiled.
        """

    @abstractmethod
    def bind(self, program: Program, kernel: str) -> Bound:
        """A kernel of a program, its arguments not set yet."""

    @abstractmethod
    def finish_mark(self, mark: Mark) -> None:
        """Waits for a mark."""

    @abstractmethod
    def failure(self, error: Exception) -> tuple[Failure, str]:
        """What an exception means, and what there is to read about it (a build log)."""

    def current(self) -> AbstractContextManager[object]:
        """Makes the device the calling thread's own while calls are made.

        Default: :data:`ANY_THREAD`, there is no such notion, and the context need not be entered.
        """
        return ANY_THREAD

    def reaches(self, other: Driver) -> bool:
        """Whether queues of this device copy from and wait for another one (default: only for itself)."""
        return other is self

    def bind_product(self, exact: bool) -> Bound | None:
        """Matrix products by the vendor's library, see :class:`~ggplug_simt.launch.Product` (default: there are none).

        ``set_arguments`` gets its arguments as :func:`~ggplug_simt.launch.layout` lays them out.  Called only where
        ``properties.products`` says so.
        """
        return None

    def free_memory(self) -> int | None:
        """Bytes that are free now, if the driver tells (default: it does not)."""
        return None

    def allocate_host(self, size: int) -> Bytes | None:
        """Pinned host memory for fast transfers, freed with the array (default: there is none)."""
        return None

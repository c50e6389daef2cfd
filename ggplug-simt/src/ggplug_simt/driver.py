"""What a vendor's package provides: primitives on memory, programs and queues, and the library of programs.

==============  ==========================================================================================
library         :attr:`Driver.library`: the programs in the language that the driver compiles
allocate        :meth:`Driver.allocate`, :meth:`Driver.free`
copy            :meth:`Queue.write`, :meth:`Queue.read`, :meth:`Queue.copy`, :meth:`Queue.fill`
compile         :meth:`Driver.compile`, :meth:`Driver.load`
launch          :meth:`Queue.sequence`: all launches of a plan at once
event           :meth:`Queue.record`, :meth:`Queue.wait`
==============  ==========================================================================================

What a vendor has beyond them is optional: pinned memory, vendor programs that multiply matrices, copies between
devices (:meth:`Driver.reaches`).  A driver whose queues take launches one by one writes a
:class:`~ggplug_simt.stepwise.StepwiseQueue`.

Handles, programs and marks are objects of the vendor's own kind; nothing here looks into them.  A vendor's
functions raise whatever its library raises: :meth:`Driver.failure` says what kind of failure that is, and
the runtime turns it into the typed error that names op, kernel and device.
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
"""What :meth:`Driver.current` answers where any thread can call at any time."""


class Failure(enum.Enum):
    """What an exception of a vendor's library means."""

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

    ``program``: what :meth:`Driver.compile` or :meth:`Driver.load` answered with, or a
    :class:`~ggplug_simt.library.VendorProgram` itself.  ``kernel``: the function in it.  ``grid``: work-groups in two
    dimensions; there may be up to a row more than the launch has, which the program discards.  ``lanes``: items of a
    group.  ``written``: for each tensor, whether its binding is stored to.  ``arguments``: first byte and size of the
    struct in the work's array.
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
    """The launches of a plan in a queue: bound once, given again and again.

    ``at``: number of the launch that was being given when a call raised.
    """

    at: int = 0

    @abstractmethod
    def replace(self, number: int, dispatch: Dispatch) -> None:
        """Takes another variant of a launch; its tensors and arguments are bound anew after that."""

    @abstractmethod
    def bind(self, number: int, tensor: int, binding: Binding) -> None:
        """The memory of a tensor of launch ``number``."""

    @abstractmethod
    def set_arguments(self, arguments: npt.NDArray[np.uint8], stale: Sequence[int]) -> None:
        """The array of all structs; those of the launches ``stale`` have changed.  Called once a binding, if any has.

        A computation that was given before keeps the arguments that it was given with.
        """

    @abstractmethod
    def submit(self) -> None:
        """Gives all launches to the queue, in order."""

    @abstractmethod
    def submit_one(self, number: int) -> None:
        """Gives one launch to the queue."""


class Queue(ABC):
    """A queue of the device.  Everything runs in the order in which it was given; nothing waits but :meth:`finish`.

    Transfers may begin at any byte and have any number of bytes.  A driver whose hardware moves words only
    compiles helper programs of its own for the rest.
    """

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
    def sequence(self, dispatches: Sequence[Dispatch]) -> LaunchSequence:
        """The launches of a plan, nothing bound yet."""

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

    def free(self) -> None:
        """Gives the queue back (default: nothing)."""

    def stall(self) -> Callable[[], None] | None:
        """Holds everything that is given from now on back, until the function that it returns is called by any thread.

        For the conformance suite, which proves with it that others wait (default: None, it cannot).
        """
        return None


class Driver(ABC):
    """One device of a vendor.

    ``library``: the programs that it runs.  ``identity``: device and driver in words, for the key of the disk cache.
    ``properties``: what programs are cut for, and limits.  ``total_memory``, ``max_buffer``, ``alignment``: bytes.
    """

    library: Library
    identity: str
    properties: Properties
    total_memory: int
    max_buffer: int
    alignment: int

    @abstractmethod
    def allocate(self, size: int) -> Handle:
        """Memory of the device; whole words of 4 bytes, if only ranges of words can be bound."""

    @abstractmethod
    def free(self, handle: Handle) -> None:
        """Gives memory back.  Nothing that was given to a queue, and is not done, uses it; no later launch will."""

    @abstractmethod
    def queue(self) -> Queue:
        """A new queue."""

    @abstractmethod
    def compile(self, text: str) -> Compiled:
        """Compiles a program."""

    @abstractmethod
    def load(self, binary: bytes) -> Compilation:
        """A program from a binary that :meth:`compile` answered with, perhaps in another process.

        Raises anything if the binary is of no use; the program is then compiled.
        """

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

    def free_memory(self) -> int | None:
        """Bytes that are free now, if the driver tells (default: it does not)."""
        return None

    def allocate_host(self, size: int) -> Bytes | None:
        """Pinned host memory for fast transfers, freed with the array (default: there is none)."""
        return None

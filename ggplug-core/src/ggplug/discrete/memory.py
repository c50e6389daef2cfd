"""Buffers that the host does not see."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes
from ggplug.sharing import accessing


class Draining(Protocol):
    """A device or a stream that can be waited for."""

    def drain(self) -> None:
        """Waits for everything submitted to it, or to any stream of the device; errors of that work stay with it."""


class Waited(Protocol):
    """A job that can be waited for."""

    done: bool

    def wait(self) -> None:
        """Waits until it is done."""


class DiscreteBuffer(Buffer):
    """One allocation of memory that the host does not see, on a :class:`~ggplug.discrete.DiscreteDevice`.

    Subclasses provide :meth:`store`, :meth:`fetch` and :meth:`dispose`.  These work at once and wait for nothing:
    streams call them in the order of their queue.  Everything else waits for the streams of the device first.
    """

    def __init__(self, type: BufferType, size: int, device: Draining) -> None:
        super().__init__(type, size)
        self.device = device
        self._readers: dict[Any, Waited | None] = {}
        """Streams of other devices that may still read here, and the last job of each that does; or the job itself.

        Each change is one call, which neither other threads nor interrupts can split.
        """

    # Required

    @abstractmethod
    def store(self, offset: int, data: Bytes) -> None:
        """Stores bytes now; offset and size are checked already."""

    @abstractmethod
    def fetch(self, offset: int, out: Bytes) -> None:
        """Fetches bytes now, into a flat, contiguous array; offset and size are checked already."""

    @abstractmethod
    def dispose(self) -> None:
        """Gives the memory back; called once."""

    # Optional

    def copy(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        """Copies bytes of any buffer into this one now (default: through the host).

        The ranges are checked already, and may overlap.  The copy does not wait for the source's device: its caller
        has waited, or has ordered the work.  For a source that is no DiscreteBuffer, a stream passes a copy of its
        bytes in host memory.
        """
        staging = np.empty(size, np.uint8)
        if isinstance(source, DiscreteBuffer):
            source.fetch(source_offset, staging)
        else:
            source.get(source_offset, staging)
        self.store(offset, staging)

    # Provided

    def read_by(self, job: Waited) -> None:
        """Notes that a job of another device's stream will read here: what writes or frees the buffer waits for it."""
        self._read_from(job, job)

    def _read_from(self, reader: Any, job: Waited | None = None) -> None:
        """As :meth:`read_by`, before a job of the stream ``reader`` is submitted (None), and after that.

        Before, all that the stream was given is waited for.
        """
        for each, its_job in tuple(self._readers.items()):
            if its_job is not None and its_job.done:
                self._readers.pop(each, None)
        self._readers[reader] = job

    def _wait(self) -> None:
        """Waits for all that may read or write here."""
        self.device.drain()
        for stream, job in tuple(self._readers.items()):
            (stream.drain if job is None else job.wait)()
            self._readers.pop(stream, None)

    def _set(self, offset: int, data: Bytes) -> None:
        self._wait()
        self.store(offset, data)

    def _get(self, offset: int, out: Bytes) -> None:
        self.device.drain()
        self.fetch(offset, out)

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        with accessing(self, source):
            source_offset, size = source.check_read(source_offset, size)
            offset, _ = self.check_write(offset, size)
            self._wait()
            if isinstance(source, DiscreteBuffer) and source.device is not self.device:
                source.device.drain()
            self.copy(source, source_offset, offset, size)

    def _free(self) -> None:
        self._wait()
        self.dispose()

"""The log of a fake device, and errors on demand; its memory and its streams use both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ggplug.backend import Device
from ggplug.discrete import DiscreteDevice
from ggplug.errors import ComputeError, DeviceLostError, GGPlugError, OutOfMemoryError
from ggplug_testing.fake.queue import WorkQueue

Kind = Literal["alloc", "free", "set", "get", "memset", "copy", "receive", "kernel", "compute", "record", "wait"]


@dataclass(frozen=True)
class Activity:
    """One thing that the device did.

    ``kind``: ``set`` bytes from the host, ``get`` bytes to the host, ``receive`` bytes out of a buffer of another
    device,
    ``copy`` bytes within the device, ``kernel`` one node (``what`` is its op), ``compute`` one plan, ...
    ``stream``: the stream that did it; empty for synchronous calls.
    """

    kind: Kind
    bytes: int = 0
    stream: str = ""
    what: str = ""


class Total(NamedTuple):
    """The number of calls of a kind, and their bytes."""

    calls: int
    bytes: int


class ActingDevice(DiscreteDevice):
    """A device with ``memory`` bytes and a ``queue`` that notes each activity in its ``log``, or fails in it.

    ``immediate``: whether streams do work when it is submitted.  ``inner``: a host device whose plans compute.
    """

    def __init__(self, name: str, memory: int, queue: WorkQueue, *, immediate: bool, inner: Device | None) -> None:
        super().__init__()
        self.name = name
        self.queue = queue
        self.immediate = immediate
        self.inner = inner
        self.log: list[Activity] = []
        self.used = 0
        self.total_memory = memory
        self.lost = False
        self._failures: dict[str, list[tuple[int, GGPlugError | None]]] = {}
        self._streams = 0
        self._acting = threading.RLock()
        self._working = threading.local()

    # Counting

    def total(self, *kinds: Kind, stream: str | None = None) -> Total:
        """Calls and bytes of these kinds of activity, in one stream or in all."""
        found = [each for each in self.log if each.kind in kinds and stream in (None, each.stream)]
        return Total(len(found), sum(each.bytes for each in found))

    def computed(self) -> list[str]:
        """Names of the ops that were computed, in order."""
        return [each.what for each in self.log if each.kind == "kernel"]

    def forget(self) -> None:
        """Empties the log."""
        self.log.clear()

    # Misbehaving on demand

    def fail(self, kind: Kind, nth: int = 1, error: GGPlugError | None = None) -> None:
        """Makes the ``nth`` activity of this kind from now on raise ``error`` (default: a fitting one), once."""
        done = self.total(kind).calls
        self._failures.setdefault(kind, []).append((done + nth, error))

    def lose(self) -> None:
        """Loses the device: from now on every call raises DeviceLostError."""
        self.lost = True

    def step(self, count: int = 1) -> int:
        """Does up to ``count`` pieces of pending work; returns how many there were."""
        return self.queue.step(count)

    @contextmanager
    def working(self, stream: str) -> Iterator[None]:
        """Logs the calls inside the ``with`` block as calls of ``stream``."""
        before = getattr(self._working, "stream", "")
        self._working.stream = stream
        try:
            yield
        finally:
            self._working.stream = before

    def drain(self) -> None:
        self.queue.drain()

    def act(self, kind: Kind, size: int = 0, what: str = "") -> None:
        """Notes an activity, or raises what was set with :meth:`fail` or :meth:`lose`."""
        with self._acting:
            if self.lost:
                raise DeviceLostError(f"{self.name} was lost", device=self)
            self.log.append(Activity(kind, size, getattr(self._working, "stream", ""), what))
            due = self._failures.get(kind)
            if not due:
                return
            serial = self.total(kind).calls
            for planned in due:
                if planned[0] == serial:
                    due.remove(planned)
                    raise planned[1] or self._failure(kind, size, what)

    def take(self, size: int) -> None:
        """Counts memory as used.  Raises OutOfMemoryError beyond the budget."""
        if self.used + size > self.total_memory:
            raise self._failure("alloc", size, "")
        self.act("alloc", size)
        self.used += size

    def give(self, size: int) -> None:
        """Counts memory as free again."""
        self.used -= size
        self.log.append(Activity("free", size))

    def _failure(self, kind: str, size: int, what: str) -> GGPlugError:
        if kind == "alloc":
            free = self.total_memory - self.used
            what = f"{self.name}: {size} bytes were requested, {free} of {self.total_memory} are free"
            return OutOfMemoryError(what, device=self, requested=size, free=free)
        return ComputeError(f"{self.name} failed in {kind} {what}".rstrip(), device=self)

    def stream_name(self) -> str:
        self._streams += 1
        return f"{self.name}/{self._streams}"

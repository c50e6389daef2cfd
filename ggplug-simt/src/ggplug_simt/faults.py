"""Indices out of range: what kernels note about the first one of a stream, and the error that it becomes.

A kernel that meets such an index computes zeros, or leaves a row out, and goes on: nothing waits for the host.  It
notes plan, node and index in a record in the device's memory.  The record is read when somebody waits for the
stream, by the same waiting, and only if a plan with indices was computed since; so launches can be captured, and other
plans pay nothing.  The first fault stays in the record until it is read: further ones, of the same computation or of
those after it, are not told.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.backend import id_out_of_range
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug_simt.driver import Handle, Queue

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice

RECORD = np.dtype([("plan", "i4"), ("node", "i4"), ("id", "i8")], align=True)
"""``fault_record`` of dialect/faults.h."""


class Asked(NamedTuple):
    """What the queue reads, which graphs may have written it by plan number, and what must be kept meanwhile."""

    record: npt.NDArray[Any]
    graphs: dict[int, Graph]
    reading: object


class Faults:
    """The record of one stream, and the graphs whose computations may have written to it since it was last read."""

    def __init__(self, device: SimtDevice, queue: Queue) -> None:
        self._device = device
        self._queue = queue
        self._memory: Handle = None
        self._plans = itertools.count(1)
        self.pending: dict[int, Graph] = {}
        """The graphs that may have written to the record since it was last read, by the number of their plan."""
        # One thread may wait for results while another one gives more to the stream.
        self._lock = threading.RLock()

    @property
    def memory(self) -> Handle:
        """The record in the device's memory; taken, and empty, when a plan first needs it."""
        if self._memory is None:
            self._memory = self._device.take(RECORD.itemsize)
            self._clear()
        return self._memory

    def number(self) -> int:
        """The number of a new plan with indices."""
        return next(self._plans)

    @contextlib.contextmanager
    def computing(self, number: int, graph: Graph) -> Iterator[None]:
        """While a plan with indices gives its launches to the queue: nobody has the record read in between."""
        with self._lock:
            self.pending[number] = graph
            yield

    def ask(self) -> Asked:
        """Has the record read, and emptied, when all before is done.

        Needed only where something is ``pending``: what may have written to the record.
        """
        record = np.zeros((), RECORD)
        with self._device.guarded("reading"), self._lock:
            reading = self._queue.read(self._memory, 0, record.reshape(1).view(np.uint8))
            self._clear()
            graphs, self.pending = self.pending, {}
        return Asked(record, graphs, reading)

    def error(self, asked: Asked) -> ComputeError | None:
        """The error of the first fault, once what :meth:`ask` gave to the queue is done."""
        plan, node, got = asked.record.item()
        return id_out_of_range(self._device, asked.graphs[plan].tensors[node], got) if plan else None

    def _clear(self) -> None:
        with self._device.guarded("filling"):
            self._queue.fill(self._memory, 0, RECORD.itemsize, 0)

    def free(self) -> None:
        """Gives the memory back."""
        self.pending.clear()
        if self._memory is not None:
            self._device.give(self._memory, RECORD.itemsize)

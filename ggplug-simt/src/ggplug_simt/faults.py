"""Indices out of range: what kernels note about the first one of a stream, and the error that it becomes.

A kernel that meets such an index computes zeros, or leaves a row out, and goes on: nothing waits for the host.  It
notes plan, node and index in a record in the device's memory.  The record is read when somebody waits for the
stream, by the same waiting, and only if a plan with indices was computed since; so launches can be captured, and other
plans pay nothing.  The first fault stays in the record until it is read: further ones, of the same computation or of
those after it, are not told.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.backend import id_out_of_range
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug_simt.driver import Queue
from ggplug_simt.ledger import DeviceMemory
from ggplug_simt.runtime import Runtime


class Asked(NamedTuple):
    """What the queue reads, which graphs may have written it by plan number, and what must be kept meanwhile."""

    record: npt.NDArray[Any]
    graphs: dict[int, Graph]
    reading: object


class Faults:
    """The record of one stream, and the graphs whose computations may have written to it since it was last read.

    The library of the device's driver says how the record is laid out.
    """

    def __init__(self, runtime: Runtime, queue: Queue) -> None:
        self._runtime = runtime
        self._queue = queue
        self._memory: DeviceMemory | None = None
        self._plans = itertools.count(1)
        self.pending: dict[int, Graph] = {}
        """The graphs whose computations may have written the record, by the numbers of their plans."""
        self.lock = threading.RLock()
        self._asking: npt.NDArray[Any] | None = None
        """Held while a plan with ids gives its launches to the queue: nobody has the record read in between."""

    @property
    def memory(self) -> DeviceMemory:
        """The record in the device's memory; taken, and empty, when a plan first needs it."""
        if self._memory is None:
            memory = self._runtime.ledger.take(self._runtime.driver.library.record.itemsize)
            self._clear(memory)
            self._memory = memory
        return self._memory

    def number(self) -> int:
        """The number of a new plan with indices."""
        return next(self._plans)

    def ask(self) -> Asked:
        """Has the record read, and emptied, when all before is done.

        Needed only where something is ``pending``.
        """
        record = np.zeros((), self._runtime.driver.library.record)
        with self._runtime.guard.guarded("reading"), self.lock:
            self._asking = record  # kept where this breaks off: the queue writes to it
            reading = self._queue.read(self.memory.handle, 0, record.reshape(1).view(np.uint8))
            self._clear(self.memory)
            graphs, self.pending = self.pending, {}
        return Asked(record, graphs, reading)

    def error(self, asked: Asked) -> ComputeError | None:
        """The error of the first fault, once what :meth:`ask` gave to the queue is done."""
        record = asked.record
        plan, node, got = (int(record[name]) for name in ("plan", "node", "id"))
        if not plan:
            return None
        assert record.dtype.names is not None
        number = int(record["number"]) if "number" in record.dtype.names else None
        return id_out_of_range(self._runtime.device, asked.graphs[plan].tensors[node], got, number)

    def _clear(self, memory: DeviceMemory) -> None:
        with self._runtime.guard.guarded("filling"):
            self._queue.fill(memory.handle, 0, memory.size, 0)

    def free(self) -> None:
        """Gives the memory back."""
        self.pending.clear()
        if self._memory is not None:
            self._runtime.ledger.give(self._memory)

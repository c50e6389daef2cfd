"""Indices out of range: kernels record the first one of a stream, and the stream raises the error.

For an index out of range a kernel computes zeros, or does not store a row, and continues: nothing waits for the host.
It stores plan, node and index in a record in the device's memory.  ``synchronize`` reads the record, without another
wait, if a plan with indices was computed since the last time; so launches can be captured, and other plans have no
costs.  The first fault stays in the record until it is read: later ones are not reported.
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


class RecordRead(NamedTuple):
    """A read of the record: the array that the queue fills, the graphs by plan number, and the pending transfer."""

    record: npt.NDArray[Any]
    graphs: dict[int, Graph]
    reading: object


class Faults:
    """The record of one stream, and the graphs whose computations may have stored to it since it was last read.

    The library of the device's driver defines the layout of the record.
    """

    def __init__(self, runtime: Runtime, queue: Queue) -> None:
        self._runtime = runtime
        self._queue = queue
        self._memory: DeviceMemory | None = None
        self._plans = itertools.count(1)
        self.pending: dict[int, Graph] = {}
        """The graphs whose computations may have stored to the record, by the numbers of their plans."""
        self.lock = threading.RLock()
        """Held while a plan with ids submits its launches, so that no thread reads the record in between."""
        self._reading: npt.NDArray[Any] | None = None

    @property
    def memory(self) -> DeviceMemory:
        """The record in the device's memory, allocated and cleared at first use."""
        if self._memory is None:
            memory = self._runtime.ledger.take(self._runtime.driver.library.record.itemsize)
            self._clear(memory)
            self._memory = memory
        return self._memory

    def number(self) -> int:
        """The number of a new plan with indices."""
        return next(self._plans)

    def read_record(self) -> RecordRead:
        """Submits a read of the record, and clears it after that.

        Needed only if a graph is ``pending``.
        """
        record = np.zeros((), self._runtime.driver.library.record)
        with self._runtime.guard.guarded("reading"), self.lock:
            self._reading = record  # kept alive even if an interrupt comes now, as the queue writes to it
            reading = self._queue.read(self.memory.handle, 0, record.reshape(1).view(np.uint8))
            self._clear(self.memory)
            graphs, self.pending = self.pending, {}
        return RecordRead(record, graphs, reading)

    def error(self, read: RecordRead) -> ComputeError | None:
        """The error of the first fault in a record, or None; the queue must have finished the read of the record."""
        record = read.record
        plan, node, got = (int(record[name]) for name in ("plan", "node", "id"))
        if not plan:
            return None
        assert record.dtype.names is not None
        number = int(record["number"]) if "number" in record.dtype.names else None
        return id_out_of_range(self._runtime.device, read.graphs[plan].tensors[node], got, number)

    def _clear(self, memory: DeviceMemory) -> None:
        with self._runtime.guard.guarded("filling"):
            self._queue.fill(memory.handle, 0, memory.size, 0)

    def free(self) -> None:
        """Releases the memory."""
        self.pending.clear()
        if self._memory is not None:
            self._runtime.ledger.give(self._memory)

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
from typing import TYPE_CHECKING

import numpy as np

from ggplug.backend import id_out_of_range
from ggplug.errors import ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug_simt.driver import Handle, Queue

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice

RECORD = np.dtype([("plan", "i4"), ("node", "i4"), ("id", "i8")], align=True)
"""``fault_record`` of dialect/faults.h."""


class Faults:
    """The record of one stream, and the graphs whose computations may have written to it since it was last read."""

    def __init__(self, device: SimtDevice, queue: Queue) -> None:
        self._device = device
        self._queue = queue
        self._memory: Handle = None
        self._plans = itertools.count(1)
        self._pending: dict[int, Graph] = {}
        self._read = np.zeros((), RECORD)

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

    def computed(self, number: int, graph: Graph) -> None:
        """Notes that a plan with indices is given to the stream, and what it computes."""
        self._pending[number] = graph

    def ask(self) -> object:
        """Has the record read when all before is done; returns what must be kept until then, or None without need."""
        if not self._pending:
            return None
        self._read[...] = np.zeros((), RECORD)
        with self._device.guarded("reading"):
            return self._queue.read(self._memory, 0, self._read.reshape(1).view(np.uint8))

    def answer(self, *, failed: bool) -> ComputeError | None:
        """The error of the first fault, once what :meth:`ask` gave to the queue is done.  Empties the record.

        ``failed``: something else went wrong meanwhile, so nobody knows what the record holds.
        """
        pending, self._pending = self._pending, {}
        found = self._read
        if pending and (failed or found["plan"]):
            with contextlib.suppress(GGPlugError):  # a lost device has no record any more
                self._clear()
        graph = pending.get(int(found["plan"]))
        if failed or graph is None:
            return None
        return id_out_of_range(self._device, graph.tensors[int(found["node"])], int(found["id"]))

    def _clear(self) -> None:
        with self._device.guarded("filling"):
            self._queue.fill(self._memory, 0, RECORD.itemsize, 0)

    def free(self) -> None:
        """Gives the memory back."""
        self._pending.clear()
        if self._memory is not None:
            self._device.give(self._memory, RECORD.itemsize)

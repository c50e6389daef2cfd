"""Streams and plans on a node.

A stream is a queue of the client with a thread, which sends a message after the answer to the one before: so order,
events and errors are those of :mod:`ggplug.discrete`, between nodes too.  The bytes of copies between nodes go from
process to process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from ggplug.backend import UNGROUPED, Buffer, Groups, NodeTime, Places, Plan, node_times
from ggplug.discrete import Job, QueuedBackend
from ggplug.errors import GGUFError, SerializationError
from ggplug.graph import Graph
from ggplug.saved import encode_graph
from ggplug.sharing import NOTHING, using
from ggplug.tensor import Tensor
from ggplug_ray.faults import lost
from ggplug_ray.host import Binding, groups_data
from ggplug_ray.link import Expected, Link
from ggplug_ray.memory import LinkedDevice, RayBuffer


class RayStream(QueuedBackend):
    """A stream of a device on a node.  ``link``: the process that it is in."""

    device: LinkedDevice

    def __init__(self, device: LinkedDevice, parameters: dict[str, Any]) -> None:
        self.link = device.link()
        self.number: int = self.link.call("stream", parameters)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._collected = weakref.finalize(self, _end, self._jobs, self.link, self.number)
        self._collected.atexit = False
        super().__init__(device)
        threading.Thread(target=_work, args=(self._jobs,), name=f"ggplug-{device.name}", daemon=True).start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        self._collected()

    def own(self, buffer: Buffer) -> RayBuffer:
        found = super().own(buffer)
        assert isinstance(found, RayBuffer)
        if found.link is not self.link:  # one of the two was lost
            gone = found.link if found.link.lost is not None else self.link
            raise lost(self.device, gone.node, gone.lost or "")
        return found

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return RayPlan(self, graph, groups)


def stall(stream: RayStream) -> Callable[[], None]:
    """Keeps a stream from doing what is submitted from now on, until the returned function is called."""
    going = threading.Event()

    def wait() -> None:
        going.wait()

    stream.give(wait)
    return going.set


def _work(jobs: SimpleQueue[Job | None]) -> None:
    """Does the jobs of a stream, in order; refers to none that is done."""
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        del job


def _end(jobs: SimpleQueue[Job | None], link: Link, number: int) -> None:
    """Ends a stream that was freed or collected."""
    jobs.put(None)
    link.drop("stream", number)


class Bound(NamedTuple):
    """What a plan is bound to: the places, as the process gets them, their buffers, and the tensors, for errors."""

    binding: Binding
    buffers: frozenset[Buffer]
    tensors: tuple[Tensor, ...]


class RayPlan(Plan):
    """A plan that the device's process made once, and computes again for one message."""

    def __init__(self, stream: RayStream, graph: Graph, groups: Groups = UNGROUPED) -> None:
        self.stream, self.groups = stream, groups
        self._structure, self._layouts = graph.structure, graph.layouts()
        try:
            self._number, self._names = stream.link.call(
                "plan",
                stream.number,
                encode_graph(graph),
                groups_data(groups),
                stream.device.placed(graph),
                tensors=graph.tensors,
            )
        except (SerializationError, GGUFError):
            for _ in stream.device.matches(graph, groups):  # raises for the node whose op cannot be sent
                pass
            raise
        self._bound: Bound | None = None
        self._sent: Binding | None = None
        """The places that the process has."""
        self._expected = Expected()
        self._collected = weakref.finalize(self, stream.link.drop, "plan", self._number)
        self._collected.atexit = False

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        graph.check_layouts(self._layouts, "the plan")
        buffers, which, offsets = allocation.places(graph, self.groups)
        placed = which >= 0
        chosen, among = np.unique(which[placed], return_inverse=True)
        used = [self.stream.own(buffers[number]) for number in chosen.tolist()]
        which = which.copy()
        which[placed] = among
        binding = Binding(tuple(each.number for each in used), which, offsets)
        self._bound = Bound(binding, frozenset(used), tuple(graph.tensors))

    def compute(self) -> None:
        def send(*given: Any, tensors: Sequence[Tensor]) -> None:
            self.stream.link.compute(self._expected, *given, tensors=tensors)

        self._submit(send)

    def compute_traced(self) -> list[NodeTime]:
        rows: list[tuple[int, int, int]] = []

        def send(*given: Any, tensors: Sequence[Tensor]) -> None:
            rows.extend(self.stream.link.call("trace", *given, tensors=tensors))

        self.stream.drain()
        self._submit(send)
        self.stream.synchronize()
        ahead = round(self.stream.link.ahead * 1e9)
        return node_times((node, start + ahead, end + ahead) for node, start, end in rows)

    def _submit(self, send: Callable[..., None]) -> None:
        """Submits a computation in the places that are bound now.  ``send``: sends its message, and waits."""
        bound, limit, stream = self._bound, self.stream.time_limit, self.stream
        buffers = bound.buffers if bound is not None else NOTHING

        def run() -> None:
            assert bound is not None
            binding = None if self._sent is bound.binding else bound.binding
            self._sent = None
            if binding is not None:
                self._expected = Expected(binding.buffers)
            send(self._number, binding, limit, tensors=bound.tensors)
            self._sent = bound.binding

        with using(buffers):
            for buffer in buffers:
                buffer.check_there()
            if bound is not None:
                stream.give(run)

    def kernel_names(self) -> list[str]:
        return list(self._names)

    def free(self) -> None:
        if self._collected.alive:
            if self.stream.freed:  # all that was submitted is done
                self._free()
            else:
                self.stream.give(self._free)

    def _free(self) -> None:
        """Frees the plan on the node, after the computations that were submitted before."""
        self._collected()

"""What the framework itself costs: everything but the arithmetic."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from ggplug import host, ops
from ggplug.backend import Backend, BufferType, Capabilities, Device, Group, Memory, Operand
from ggplug.bench.products import on, prepared
from ggplug.graph import Graph
from ggplug.registry.extras import Options
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import DeviceKind

NODES = 1000
ELEMENTS = 16
RUNS = 300
"""Repetitions of what takes microseconds; what takes milliseconds is repeated less."""


class Overhead:
    """A chain of a thousand ops on sixteen elements each."""

    name = "overhead"
    description = "what the framework costs in addition to the arithmetic, on a graph of tiny tensors"
    runs_by_name = True

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        yield {"case": "import ggplug beyond numpy", "milliseconds": import_time(), "limit_milliseconds": 60.0}
        leafs = [on(device, np.full(ELEMENTS, value, np.float32)) for value in (0.5, 1.0)]
        building = times(lambda: Graph(chain(NODES, leafs)), 5)
        yield {"case": "build a graph", "nodes": NODES, "milliseconds": min(building), "limit_milliseconds": 15.0}
        splitting = splitting_time(device)
        yield {"case": "split on two devices", "nodes": NODES, "milliseconds": splitting, "limit_milliseconds": 15.0}
        for threads, limit in ((1, 0.2), (2, 1.0)):
            yield from self.computing(device, threads, limit, leafs)
        yield from self.calls(device, leafs)

    def computing(
        self, device: Device, threads: int, limit: float, leafs: Sequence[Tensor]
    ) -> Iterable[Mapping[str, Any]]:
        """Rows for a graph that is computed again and again, by a plan and by the scheduler."""
        with threaded(device, threads) as stream, Scheduler([stream]) as scheduler:
            ready = prepared(stream, chain(NODES, leafs))
            graph = Graph(chain(NODES, leafs))
            for case, run in (("compute by plan", ready), ("compute by scheduler", by(scheduler, graph))):
                taken = times(run, RUNS)
                yield {
                    "case": case,
                    "nodes": NODES,
                    "threads": threads,
                    "milliseconds": min(taken),
                    "median_milliseconds": median(taken),
                    "limit_milliseconds": limit,
                }

    def calls(self, device: Device, leafs: Sequence[Tensor]) -> Iterable[Mapping[str, Any]]:
        """Rows for the number of Python calls, which must not depend on the number of nodes."""
        with threaded(device, 1) as stream, Scheduler([stream]) as scheduler:
            for nodes in (100, 10 * NODES):
                yield {
                    "case": "Python calls by plan",
                    "nodes": nodes,
                    "calls": count_calls(prepared(stream, chain(nodes, leafs))),
                }
            for nodes in (100, 10 * NODES):
                graph = Graph(chain(nodes, leafs))
                yield {
                    "case": "Python calls by scheduler",
                    "nodes": nodes,
                    "calls": count_calls(by(scheduler, graph)),
                }


def chain(nodes: int, leafs: Sequence[Tensor]) -> Tensor:
    """The last of ``nodes`` tiny ops, each on the result of the one before."""
    x = leafs[0]
    for position in range(nodes):
        x = (ops.add, ops.mul)[position % 2](x, leafs[position * len(leafs) // nodes])
    return x


def threaded(device: Device, threads: int) -> Backend:
    """A stream with so many threads, if the device has threads at all."""
    try:
        return device.init(n_threads=threads)
    except TypeError:
        return device.init()


def by(scheduler: Scheduler, graph: Graph) -> Callable[[], None]:
    return lambda: scheduler.compute(graph)


def times(run: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each of some runs, after two that warm up."""
    taken = []
    for _ in range(2):
        run()
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    return taken


def splitting_time(device: Device) -> float:
    """Milliseconds of the scheduler's work on a graph that it has not seen; every tenth of it reads other weights."""
    second = SecondDevice()
    leafs = shared((second, device))
    taken = []
    for _ in range(5):
        graph = Graph(chain(NODES, leafs))
        with Scheduler([second, device]) as scheduler:
            start = time.perf_counter()
            scheduler.reserve_size(graph)  # all that is decided, nothing that is explained or allocated
            taken.append((time.perf_counter() - start) * 1e3)
    return min(taken)


def shared(devices: Sequence[Device]) -> list[Tensor]:
    """Ten weights without values, distributed over the memory of these devices, one after the other."""
    leafs = []
    for position in range(10):
        leaf = new_tensor("f32", (ELEMENTS,))
        memory = devices[position % len(devices)].buffer_type
        leaf.place(memory.alloc(memory.alloc_size(leaf)))
        leafs.append(leaf)
    return leafs


class SecondDevice(Device):
    """What a graph is shared with: it takes every op, in memory that only it works in, and is never computed on."""

    name = "second"
    description = "takes everything and computes nothing"
    kind = DeviceKind.GPU
    capabilities = Capabilities(events=True)

    def __init__(self) -> None:
        self._buffer_type = _OwnMemory(self.name, self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def match(self, group: Group) -> Any:
        return _nothing


class _OwnMemory(host.HostBufferType):
    """Memory that no other device is to work in."""

    @property
    def is_host(self) -> bool:
        return False


def _nothing(op: Any, dst: Operand, *src: Operand | None) -> None:
    """The kernel of every op."""


def count_calls(run: Callable[[], Any]) -> int:
    """Calls of Python and C functions in one run, after one that warms up."""
    run()
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count - 1  # the call that takes the hook away


def import_time() -> float:
    """Milliseconds of ``import ggplug`` after ``import numpy``, in a process of its own."""
    code = "import time, numpy; s = time.perf_counter(); import ggplug; print((time.perf_counter() - s) * 1e3)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        for _ in range(5)
    ]
    return min(float(run.stdout) for run in runs)

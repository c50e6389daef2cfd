"""Computes tensors with one call, on the best available devices."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ggplug import registry
from ggplug.backend import Backend, Buffer, Device
from ggplug.errors import ParameterError, TensorStateError, memory_errors_typed
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import NOWHERE, PERSISTENT
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor
from ggplug.types import BufferUsage, DeviceKind, TensorFlag

_threads = threading.local()
_UNCOLLECTED = 256 << 20
"""Bytes of results of a thread after which Python's collector runs."""


@memory_errors_typed
def compute(*tensors: Tensor, backends: Sequence[Backend | Device] | None = None) -> Tensor | tuple[Tensor, ...]:
    """Computes tensors and returns them: ``gg.compute(gg.mul_mat(w, x)).numpy()``.

    Builds a graph, marks the tensors as outputs, computes it, and keeps the results in host memory, where they can be
    read as long as the tensors exist.  Intermediates are not kept.

    ``backends``: streams or devices in order of priority.  By default the best device and the CPU, with one scheduler
    for each thread, which keeps the plans of graphs; so equal graphs are planned only once.

    Raises TensorStateError if a leaf has no values (make it with ``gg.tensor``), PlacementError if no device can
    compute a node, and what devices raise.
    """
    if not tensors:
        raise ParameterError("compute needs at least one tensor")
    graph = Graph(*tensors)
    for leaf in graph.leafs:
        if leaf.root.buffer is None:
            raise TensorStateError(f"{leaf!r} has no values", tensor=leaf, remedy="make it with gg.tensor(values)")
    for tensor in tensors:
        if tensor.op is not None and not tensor.flags & TensorFlag.OUTPUT:
            tensor.set_output()
    with scheduler_of_thread() if backends is None else Scheduler(backends, policy=_best) as scheduler:
        scheduler.compute(graph)
        results = _Results(graph)
        results.computed(graph)
        graph.live_with(*tensors)
    _collect(sum(buffer.size for buffer in results.buffers))
    return tensors[0] if len(tensors) == 1 else tensors


def _collect(nbytes: int) -> None:
    """Has Python collect results that nobody refers to, each time that there are some hundred MiB of them.

    A result and its graph refer to each other, and Python's collector counts objects, not their bytes.
    """
    kept = _threads.__dict__.get("kept", 0) + nbytes
    if kept > _UNCOLLECTED and gc.isenabled():
        gc.collect()
        kept = 0
    _threads.kept = kept


@contextmanager
def scheduler_of_thread() -> Iterator[Scheduler]:
    """This thread's scheduler on the best device and the CPU.  Raises DeviceNotFoundError if there is no device.

    In the block, until its results are copied, a call from a Python function of the graph, a hook or a signal handler
    gets another one.
    """
    free: list[Scheduler] = _threads.__dict__.setdefault("schedulers", [])
    try:
        scheduler = free.pop()
    except IndexError:
        streams = [registry.init_best()]
        if streams[0].device.kind is not DeviceKind.CPU and registry.devices_by_kind(DeviceKind.CPU):
            streams.append(registry.init_by_kind(DeviceKind.CPU))
        scheduler = Scheduler(streams, policy=_best)
    try:
        yield scheduler
    finally:
        free.append(scheduler)


def _best(node: Tensor, streams: Sequence[Backend]) -> Backend | None:
    """The policy of :func:`compute`: the first device that computes the node; weights are not copied to others."""
    placed = (source.root.buffer for source in node.src if source is not None)
    if not streams or any(buffer is not None and buffer.usage is BufferUsage.WEIGHTS for buffer in placed):
        return None
    return streams[0]


class _Results(Allocation):
    """Copies of a graph's outputs in host memory; no other tensor of the graph is kept.

    Outputs of earlier computations that are in this graph too are copied again, since they are read from the latest
    graph.
    """

    def __init__(self, graph: Graph) -> None:
        outputs = (tensor.root for tensor in graph.tensors if tensor.flags & TensorFlag.OUTPUT)
        roots = dict.fromkeys(root for root in outputs if root.buffer is None)
        buffers: list[Buffer] = []
        kept: dict[int, int] = {}
        for root in roots:
            source, offset = graph.locate(root)
            raw = np.empty(root.nbytes, np.uint8)
            source.get_tensor(root, raw, offset)
            kept[graph.index[root]] = len(buffers)
            buffers.append(HOST.wrap(raw))
        slots, offsets = [], []
        for position, tensor in enumerate(graph.tensors):
            root_position = graph.roots[position]
            slots.append(PERSISTENT if tensor.root.buffer is not None else kept.get(root_position, NOWHERE))
            offsets.append(tensor.view_offset)
        super().__init__(graph, buffers, slots, offsets)

    def not_kept(self, graph: Graph, position: int) -> TensorStateError:
        tensor = graph.tensors[position]
        return TensorStateError(
            f"{tensor!r} is an intermediate result of compute(), which was not kept",
            tensor=tensor,
            remedy="pass it to compute() as well",
        )

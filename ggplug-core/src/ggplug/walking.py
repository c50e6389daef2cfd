"""The plan of the smallest devices: one kernel call after the other, on host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.arrays import strided
from ggplug.buffers import Buffer
from ggplug.errors import GGPlugError
from ggplug.faults import compute_error, first_out_of_range, id_out_of_range
from ggplug.graph import Graph
from ggplug.plans import NodeTime, Plan
from ggplug.sharing import NOTHING, using
from ggplug.tensor import Tensor

if TYPE_CHECKING:
    from ggplug.backend import Backend, Device
    from ggplug.memory.allocation import Allocation


class Operand(NamedTuple):
    """A tensor and its bytes, as :class:`WalkPlan` hands it to a kernel."""

    tensor: Tensor
    buffer: Buffer
    offset: int

    def array(self) -> npt.NDArray[Any]:
        """A zero-copy, strided, four-dimensional array in NumPy order (``ne`` reversed).

        Plain types have their dtype; of block types the innermost axis counts blocks.
        """
        return strided(self.buffer.bytes(self.offset, self.tensor.nbytes), self.tensor)


class _Call(NamedTuple):
    position: int
    kernel: Callable[..., None]
    node: Tensor
    operands: list[Operand | None]


class WalkPlan(Plan):
    """Calls ``kernel(op, dst, *src)`` for node after node; views and empty tensors are skipped.

    ``dst`` and ``src`` are :class:`Operand` (None for absent sources).  The plan of the smallest backends.  Kernels of
    ops with ids write zeros (or nothing, where the op writes into a source) for those out of range; the plan raises the
    error.
    """

    def __init__(self, stream: Backend, graph: Graph) -> None:
        self.stream = stream
        self._structure = graph.structure
        self._steps: list[tuple[int, Callable[..., None]]] = [
            (graph.index[node], kernel) for node, kernel in stream.device.matches(graph)
        ]
        self._bound: tuple[list[_Call], frozenset[Buffer]] = [], NOTHING

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        buffers, which, offsets = allocation.places(graph)
        bound = [
            Operand(tensor, buffers[number], offset)
            for tensor, number, offset in zip(graph.tensors, which.tolist(), offsets.tolist(), strict=True)
        ]
        calls: list[_Call] = []
        for position, kernel in self._steps:
            sources = [None if source < 0 else bound[source] for source in graph.sources[position]]
            calls.append(_Call(position, kernel, graph.tensors[position], [bound[position], *sources]))
        self._bound = calls, frozenset(each.buffer for call in calls for each in call.operands if each is not None)

    def compute(self) -> None:
        self._run(lambda position: None)

    def compute_traced(self) -> list[NodeTime]:
        times: list[NodeTime] = []
        start = time.perf_counter_ns()

        def note(position: int) -> None:
            nonlocal start
            end = time.perf_counter_ns()
            times.append(NodeTime(position, start, end))
            start = end

        self._run(note)
        return times

    def _run(self, computed: Callable[[int], None]) -> None:
        """Calls the kernels, and ``computed`` with each node's position; others leave the buffers alone meanwhile."""
        calls, buffers = self._bound
        # NaN, infinities and what overflows are values like others: kernels that use NumPy need not silence it.
        with using(buffers), np.errstate(all="ignore"):
            for buffer in buffers:
                buffer._check(0, 0)
            for position, kernel, node, operands in calls:
                call_kernel(self.stream.device, kernel, node, operands)
                computed(position)

    def kernel_names(self) -> list[str]:
        return [getattr(kernel, "__name__", repr(kernel)) for _, kernel in self._steps]


def call_kernel(
    device: Device, kernel: Callable[..., None], node: Tensor, operands: Sequence[Operand | None]
) -> None:
    """Calls ``kernel(op, dst, *src)`` on host memory; then raises ComputeError if an id of the node is out of range.

    Raises what the kernel raised, as a typed error.
    """
    try:
        kernel(node.op, *operands)
    except GGPlugError:
        raise
    except Exception as error:
        raise compute_error(device, node, error) from error
    op = node.op
    if op is not None and op.indexes is not None:
        ids = operands[1 + op.indexes.ids]
        assert ids is not None
        got = first_out_of_range(node, ids.array())
        if got is not None:
            raise id_out_of_range(device, node, got)

"""A plan for devices with a table of Python kernels: it calls them one after the other, on host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.errors import GGPlugError
from ggplug.graph import Graph
from ggplug.interface.faults import beyond_limit, compute_error, first_out_of_range, id_out_of_range
from ggplug.interface.plans import NodeTime, Places, Plan
from ggplug.nodes.groups import UNGROUPED, Group, Groups
from ggplug.sharing import NOTHING, using
from ggplug.tensor import Tensor
from ggplug.values.arrays import strided
from ggplug.values.buffers import Buffer
from ggplug.values.described import Named

if TYPE_CHECKING:  # only annotations name them

    class Matching(Named, Protocol):
        """A device, as its plans use it: it gives the kernel of each group of a graph."""

        def matches(self, graph: Graph, groups: Groups = UNGROUPED) -> Iterator[tuple[Group, Any]]: ...

    class Stream(Protocol):
        """A stream, as its plans use it."""

        @property
        def device(self) -> Matching: ...

        time_limit: float | None


class Operand(NamedTuple):
    """A tensor and its bytes, as :class:`WalkPlan` passes them to a kernel."""

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
    group: Group
    operands: list[Operand | None]


class WalkPlan(Plan):
    """Calls ``kernel(op, dst, *src)`` for each node; views and empty tensors are skipped.

    ``dst`` and ``src`` are :class:`Operand` (None for absent sources).  The kernel of a group of several nodes is
    called as ``kernel(group, operands)``, with the operand of each tensor in ``group.operands``.  For ids out of range,
    kernels write zeros (or nothing, where the op writes into a source); the plan raises the error.
    """

    def __init__(self, stream: Stream, graph: Graph, groups: Groups = UNGROUPED) -> None:
        self.stream = stream
        self.groups = groups
        self._structure, self._layouts = graph.structure, graph.layouts()
        self._kernels: list[Callable[..., None]] = [kernel for _, kernel in stream.device.matches(graph, groups)]
        self._bound: tuple[list[_Call], frozenset[Buffer]] = [], NOTHING

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        graph.check_layouts(self._layouts, "the plan")
        buffers, which, offsets = allocation.places(graph, self.groups)
        bound = [
            Operand(tensor, buffers[number], offset) if number >= 0 else None  # inside of a group
            for tensor, number, offset in zip(graph.tensors, which.tolist(), offsets.tolist(), strict=True)
        ]
        index = graph.index
        calls: list[_Call] = []
        for kernel, group in zip(self._kernels, self.groups.of(graph), strict=True):
            operands = [None if tensor is None else bound[index[tensor]] for tensor in group.operands]
            calls.append(_Call(index[group.node], kernel, group, operands))
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

        try:
            self._run(note)
        except BaseException:
            self.times_before_error = times
            raise
        return times

    def _run(self, computed: Callable[[int], None]) -> None:
        """Calls the kernels, and ``computed`` with each node's position, while the buffers are claimed."""
        calls, buffers = self._bound
        limit, start = self.stream.time_limit, time.monotonic()
        # NaN, infinities and overflows are valid results: kernels that use NumPy need not switch its warnings off.
        with using(buffers), np.errstate(all="ignore"):
            for buffer in buffers:
                buffer.check_there()
            for position, kernel, group, operands in calls:
                try:
                    call_kernel(self.stream.device, kernel, group, operands)
                finally:
                    computed(position)
                if limit is not None and time.monotonic() - start > limit:
                    raise beyond_limit(self.stream.device, limit, group.node, kernel_name(kernel))

    def kernel_names(self) -> list[str]:
        return [kernel_name(kernel) for kernel in self._kernels]


def kernel_name(kernel: Callable[..., None]) -> str:
    """The name of a kernel in Python: that of its function, or its ``repr``."""
    return getattr(kernel, "__name__", repr(kernel))


def call_kernel(device: Named, kernel: Callable[..., None], group: Group, operands: Sequence[Operand | None]) -> None:
    """Calls a kernel as :class:`WalkPlan` does; then raises ComputeError if an id of a node is out of range.

    ``operands``: those of ``group.operands``.  Raises an error of the kernel as a typed error.
    """
    by_tensor = {operand.tensor: operand for operand in operands if operand is not None}
    try:
        if len(group) == 1:
            kernel(group.node.op, *operands)
        else:
            kernel(group, by_tensor)
    except GGPlugError:
        raise
    except Exception as error:
        raise compute_error(device, group, error) from error
    for node in group.nodes:
        indexes = node.op.indexes if node.op is not None else None
        if indexes is not None:
            ids = node.src[indexes.ids]
            assert ids is not None
            found = first_out_of_range(node, by_tensor[ids].array())
            if found is not None:
                raise id_out_of_range(device, node, *found)

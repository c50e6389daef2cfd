"""Devices whose plans have one fault each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from ggplug.backend import (
    UNGROUPED,
    Backend,
    Device,
    Groups,
    Operand,
    Places,
    Plan,
    WalkPlan,
    check_parameters,
    host_bytes,
)
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug.host import HostBuffer
from ggplug.memory.allocation import Allocation
from ggplug.tensor import Tensor
from ggplug_testing.reference import ReferenceDevice


class OtherStreams(ReferenceDevice):
    """The reference device with other plans."""

    def __init__(self, wrap: Callable[[Plan], Plan]) -> None:
        super().__init__("faulty")
        self._wrap = wrap

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _WrappedStream(self, self._wrap)


class _WrappedStream(Backend):
    def __init__(self, device: Device, wrap: Callable[[Plan], Plan]) -> None:
        super().__init__(device)
        self._wrap = wrap

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return self._wrap(super().plan(graph, groups))


class _Wrapped(Plan):
    def __init__(self, inner: Plan) -> None:
        self.inner = inner

    def rebind(self, graph: Graph, allocation: Places) -> None:
        self.inner.rebind(graph, allocation)

    def compute(self) -> None:
        self.inner.compute()


class BindsOnce(_Wrapped):
    bound = False

    def rebind(self, graph: Graph, allocation: Places) -> None:
        if not self.bound:
            super().rebind(graph, allocation)
            self.bound = True


class ForgetsFaults(_Wrapped):
    def compute(self) -> None:
        with contextlib.suppress(ComputeError):
            super().compute()


class ComputesOnce(_Wrapped):
    done = False

    def rebind(self, graph: Graph, allocation: Places) -> None:
        super().rebind(graph, allocation)
        self.done = False

    def compute(self) -> None:
        if not self.done:
            super().compute()
            self.done = True


class ClaimsNothing(ReferenceDevice):
    """Computes in memory that others may write at the same time."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _ClaimingNothingStream(self)


class _ClaimingNothingStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _ClaimingNothing(self, graph, groups)


class _ClaimingNothing(WalkPlan):
    def compute(self) -> None:
        calls, _ = self._bound
        for call in calls:
            call.kernel(call.group.node.op, *call.operands)
            time.sleep(0.0002)  # kernels of native code let other threads run, too


class WritesLast(ReferenceDevice):
    """Takes what an op writes for a result of its own, and so computes readers of the written tensor first."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _WritesLastStream(self)


class _WritesLastStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _WritesLastPlan(self, graph, groups)


class _WritesLastPlan(WalkPlan):
    def rebind(self, graph: Graph, allocation: Places) -> None:
        super().rebind(graph, allocation)
        self._bound[0].sort(key=lambda call: call.group.node.op is not None and call.group.node.op.writes != ())


class WritesAnywhere(ReferenceDevice):
    """Looks its places up by itself, and takes all memory for writable."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _WritesAnywhereStream(self)


class _WritesAnywhereStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _WritesAnywherePlan(self, graph, groups)


class _WritesAnywherePlan(WalkPlan):
    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        assert isinstance(allocation, Allocation)
        self._calls = []
        for kernel, group in zip(self._kernels, self.groups.of(graph), strict=True):
            operands = [None if tensor is None else _opened(tensor, graph, allocation) for tensor in group.operands]
            self._calls.append((kernel, group, operands))


def _opened(tensor: Tensor, graph: Graph, allocation: Allocation) -> Operand:
    slot, offset = int(allocation.slots[graph.index[tensor]]), int(allocation.offsets[graph.index[tensor]])
    buffer = tensor.root.buffer if slot < 0 else allocation.buffers[slot]
    assert buffer is not None
    assert buffer.address is not None
    memory = host_bytes(buffer.address, buffer.size)
    return Operand(tensor, HostBuffer(buffer.type, memory), offset + (tensor.root.offset if slot < 0 else 0))


class TakesAnyGraph(ReferenceDevice):
    """Binds its plans to graphs that they were not made for."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _TakesAnyGraphStream(self)


class _TakesAnyGraphStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _TakesAnyGraphPlan(self, graph, groups)


class _TakesAnyGraphPlan(WalkPlan):
    def rebind(self, graph: Graph, allocation: Places) -> None:
        self._structure = graph.structure
        super().rebind(graph, allocation)


class TimesRunBackwards(_Wrapped):
    def compute_traced(self) -> list[Any]:
        return [time._replace(start=time.end + 1) for time in super().compute_traced()]

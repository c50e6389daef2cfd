"""Plans with nodes that call Python functions: the tape stops before each call and continues after it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ggplug.backend import Buffer, Groups, Operand, Places, call_python
from ggplug.errors import ComputeAborted, TimeLimitError
from ggplug.graph import Graph
from ggplug.ops import PythonCall
from ggplug.sharing import OPEN, Claim, using
from ggplug.values.revisions import Revision
from ggplug_cpu.tape import BoundTape, Span

if TYPE_CHECKING:
    from ggplug_cpu.team import Stop as Stopped
    from ggplug_cpu.threaded import ThreadedDevice


Stamp: TypeAlias = tuple[int, int, int]
"""The position of a node whose kernel or function ran, and from when to when, by ``time.perf_counter_ns``."""


class Stop(NamedTuple):
    """``before``: number of entries of the tape before the stop.  ``position``: the node's position in the graph."""

    before: int
    position: int


class Interrupted(Protocol):
    """The part of :class:`~ggplug_cpu.backend.CpuPlan` that :class:`Interruptions` uses; it is documented there."""

    device: ThreadedDevice
    stop: Stopped
    buffers: frozenset[Buffer]
    revision: Revision
    bound_at: int

    def memory(self) -> tuple[Graph, Places]: ...
    def renew(self) -> None: ...
    def walk(self, tape: Span) -> None: ...
    def walk_traced(self, tape: Span, stamps: list[Stamp]) -> None: ...
    def beyond_limit(self, position: int) -> TimeLimitError: ...


class Interruptions:
    """The Python functions that a plan calls, and the spans of its tape between the calls.

    The buffers are claimed for Python code from the first span to the last: nothing changes or frees them between two
    spans, and a function may read tensors and compute other graphs, on the same device too.
    """

    def __init__(self, bound: BoundTape, stops: list[Stop]) -> None:
        self._bound = bound
        ends = [*(stop.before for stop in stops), len(bound)]
        self._first = Span(bound, 0, ends[0])
        self._parts = [
            (stop.position, Span(bound, stop.before, end)) for stop, end in zip(stops, ends[1:], strict=True)
        ]
        self._operands: dict[int, list[Operand | None]] = {}

    def bind(self, graph: Graph, allocation: Places, groups: Groups) -> None:
        """Stores the operands of the functions: buffers and offsets of their tensors."""
        buffers, which, offsets = allocation.places(graph, groups)
        found: dict[int, list[Operand | None]] = {}
        for position, _ in self._parts:
            node = graph.tensors[position]
            found[position] = []
            for tensor in (node, *node.src):
                at = -1 if tensor is None else graph.index[tensor]
                operand = None if tensor is None else Operand(tensor, buffers[which[at]], int(offsets[at]))
                found[position].append(operand)
        self._operands = found

    def release_operands(self) -> None:
        """Drops the references to tensors and buffers."""
        self._operands = {}

    def compute(self, plan: Interrupted, stamps: list[Stamp] | None = None) -> None:
        """Computes the spans and calls the functions in order; ``stamps`` receives those of a traced computation.

        Raises as CpuPlan.compute and :func:`~ggplug.backend.call_python`; ComputeAborted also if the computation was
        aborted while a function ran.
        """
        held = plan.memory()  # graph and allocation own the memory
        while True:
            buffers = plan.buffers
            with Claim((self._bound,), buffers, OPEN):
                _rebind_if_moved(plan)
                if plan.buffers is not buffers:
                    continue  # the claim covers the old buffers
                aborts = plan.device.team.aborts
                _walk(plan, self._first, stamps)
                for position, span in self._parts:
                    self._call(plan, position, stamps)
                    _check_abort(plan, aborts, position)
                    _walk(plan, span, stamps)
                del held
                return

    def _call(self, plan: Interrupted, position: int, stamps: list[Stamp] | None) -> None:
        _rebind_if_moved(plan)  # a function may have moved a tensor
        dst, *sources = self._operands[position]
        assert dst is not None
        op: Any = dst.tensor.op
        assert isinstance(op, PythonCall)
        device, start = plan.device, time.perf_counter_ns()
        try:
            with using(plan.buffers):
                call_python(op, dst, *sources, device=device, n_threads=device.n_threads)
        finally:
            if stamps is not None:
                stamps.append((position, start, time.perf_counter_ns()))


def _rebind_if_moved(plan: Interrupted) -> None:
    """Binds the plan again if its memory may have changed."""
    if plan.revision.now != plan.bound_at:
        plan.renew()


def _walk(plan: Interrupted, span: Span, stamps: list[Stamp] | None) -> None:
    if len(span) == 0:
        return
    if stamps is None:
        plan.walk(span)
    else:
        plan.walk_traced(span, stamps)


def _check_abort(plan: Interrupted, aborts: int, position: int) -> None:
    """Raises ComputeAborted if the computation was aborted while the Python function of a node ran."""
    team = plan.device.team
    callback = plan.stop.asked(team.abort_callback)
    if team.aborts != aborts or (callback is not None and callback()):
        if plan.stop.expired:
            raise plan.beyond_limit(position)
        raise ComputeAborted("the computation was aborted; what it was to write is undefined")

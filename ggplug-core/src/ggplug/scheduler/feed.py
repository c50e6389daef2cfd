"""Feeds: a graph that is computed again and again with other inputs, each time in one call.

It does what ``allocate``, ``Tensor.set_bytes``, ``compute`` and ``Tensor.numpy`` do one after the other.  Where the
whole graph is one split of a stream that computes in host memory, inputs and results are copied by the plan
(``Plan.compute_with``): a step of a language model then takes few calls of Python.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.backend import Backend, Device, NodeTime, Plan, Transfers
from ggplug.errors import ParameterError, ShapeError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.memory.allocation import Allocation
from ggplug.scheduler.scheduler import Found, Scheduler, report_failed
from ggplug.scheduler.traced import report_times
from ggplug.sharing import one_thread_at_a_time
from ggplug.system.copying import Uncopied
from ggplug.tensor import Tensor
from ggplug.types import BF16
from ggplug.values.buffers import host_bytes

Array = npt.NDArray[Any]


class Ready(NamedTuple):
    """All that a computation in one call needs, until anything of it changes.

    ``found``: the scheduler's own record of the graph and its execution.  ``generation``: of the allocator's memory.
    ``inputs``, ``outputs``: views of the tensors' memory.
    """

    found: Found
    generation: int
    allocation: Allocation
    plan: Plan
    part: Graph
    stream: Backend
    inputs: list[Array]
    outputs: list[Array]

    def about(self) -> dict[str, Any]:
        """What observers of its only split get to know."""
        return {"graph": self.found[0], "split": self.part, "device": self.stream.device}


class Feed(Uncopied):
    """A function that sets ``inputs`` of a graph, computes it, and returns ``outputs``.

    ``inputs``: leafs that the scheduler places, of plain types.  ``outputs``: nodes.  Raises ParameterError,
    TypeMismatchError.
    """

    def __init__(
        self, scheduler: Scheduler, graph: Graph, inputs: Sequence[Tensor] = (), outputs: Sequence[Tensor] = ()
    ) -> None:
        for tensor in (*inputs, *outputs):
            if tensor not in graph.index:
                raise ParameterError(f"{tensor!r} is not in {graph!r}", tensor=tensor)
        for tensor in inputs:
            if tensor.op is not None or tensor.view_src is not None:
                raise ParameterError(f"{tensor!r} is not a leaf, and cannot be an input", tensor=tensor)
            if not _is_plain(tensor):
                raise TypeMismatchError(f"an input of a feed must be of a plain type, not {tensor!r}", tensor=tensor)
        self.scheduler = scheduler
        self.graph = graph
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._shapes = [(tensor.shape, tensor.type.dtype) for tensor in inputs]
        self.ready: Ready | None = None
        self.in_one_call = True
        """Whether the plan may compute with transfers: it has not declined that."""

    def __call__(self, values: Sequence[Array]) -> list[Array]:
        """Sets the inputs to ``values``, computes the graph, waits, and returns copies of the outputs.

        ``values``: an array for each input, of its shape and of its type's dtype.  The outputs are as
        :meth:`Tensor.numpy` gives them.  Raises ShapeError and TypeMismatchError for other values, and what
        :meth:`Scheduler.allocate` and :meth:`Scheduler.compute` raise.
        """
        for tensor, value, (shape, dtype) in zip(self.inputs, values, self._shapes, strict=True):
            if value.shape != shape or value.dtype != dtype:
                _refuse(tensor, value)
        start = time.perf_counter_ns()
        try:
            results, devices = _computed(self.scheduler, self, values, start)
        except BaseException as error:
            report_failed(self.graph, error, start)
            raise
        if devices is not None:
            end = time.perf_counter_ns()
            HOOKS.notify("ggplug_graph_computed", graph=self.graph, devices=devices, start=start, end=end)
        return results


@one_thread_at_a_time
def _computed(
    scheduler: Scheduler, feed: Feed, values: Sequence[Array], start: int
) -> tuple[list[Array], list[Device] | None]:
    """The outputs of a feed, and the devices that took part, if a hook listens."""
    ready = feed.ready
    if ready is not None and _is_valid(scheduler, ready):
        results = _computed_in_one(scheduler, feed, ready, values, start)
        if results is not None:
            return results, [ready.stream.device] if "ggplug_graph_computed" in HOOKS.callers else None
        feed.in_one_call = False
    feed.ready = None
    if feed.inputs:
        scheduler._allocate(feed.graph)
    for tensor, value in zip(feed.inputs, values, strict=True):
        tensor.set_bytes(value)
    devices = scheduler._compute(feed.graph, start)
    results = [tensor.numpy() for tensor in feed.outputs]
    feed.ready = _made_ready(scheduler, feed)
    return results, devices


def _computed_in_one(
    scheduler: Scheduler, feed: Feed, ready: Ready, values: Sequence[Array], start: int
) -> list[Array] | None:
    """The outputs, or None if the plan declines.  ``ready`` is valid, and the caller is in a call of the scheduler."""
    results: list[Array] = []
    outputs = []
    for view in ready.outputs:
        result = np.empty(view.shape, view.dtype)
        results.append(result)
        outputs.append((result, view))
    transfers = Transfers([*zip(ready.inputs, values, strict=True)], outputs)
    execution, limit = ready.found.execution, ready.stream.time_limit
    run = ready.allocation.begin(feed.graph)
    traced: Sequence[NodeTime] = ()
    timed = "ggplug_nodes_timed" in HOOKS.callers
    try:
        scheduler._unsettled = True
        if timed:
            computed, traced = True, _traced(ready.plan, transfers)
        else:
            computed = ready.plan.compute_with(transfers)
        if computed and HOOKS.splits_observed:
            times: dict[str, Any] = {"start": transfers.start, "end": transfers.end, "submitted": transfers.end}
            HOOKS.notify("ggplug_graph_prepared", graph=feed.graph, start=start, end=transfers.start)
            HOOKS.notify("ggplug_split_computed", **ready.about(), **times)
            if timed:
                report_times(execution, **ready.about(), times=traced)
        run.end(progress=len(feed.graph.nodes) if computed else 0)
        scheduler._unsettled = False
    except BaseException as error:
        if transfers.start:
            end = time.perf_counter_ns()
            HOOKS.notify("ggplug_graph_prepared", graph=feed.graph, start=start, end=transfers.start)
            HOOKS.notify("ggplug_split_failed", **ready.about(), error=error, start=transfers.start, end=end)
            if timed:
                report_times(execution, **ready.about(), times=traced or ready.plan.times_before_error)
        scheduler._fail(run, error)
        raise
    finally:
        run.thread = 0
    if limit is not None:
        execution.late = None
        execution.check_time(ready.stream, limit, (transfers.end - transfers.start) / 1e9)
        execution.raise_late()
    return results if computed else None


def _traced(plan: Plan, transfers: Transfers) -> Sequence[NodeTime]:
    """The times of nodes of a computation with transfers."""
    plan.times_before_error = ()
    for place, value in transfers.inputs:
        place[...] = value
    transfers.start = time.perf_counter_ns()
    times = plan.compute_traced()
    transfers.end = time.perf_counter_ns()
    for result, place in transfers.outputs:
        result[...] = place
    return times


def _made_ready(scheduler: Scheduler, feed: Feed) -> Ready | None:
    """What computations in one call need, or None where they are not possible; the graph was just computed."""
    found = scheduler._found
    if not feed.in_one_call or found is None or scheduler.n_copies > 1 or scheduler._asynchronous:
        return None
    graph, execution = feed.graph, found.execution
    if execution.timing is not None:
        return None
    bound = execution.bind(graph, execution.version)
    if len(bound.splits) != 1 or bound.splits[0].copies or type(bound.splits[0].plan).compute_with is Plan.compute_with:
        return None
    (split,) = bound.splits
    allocation = execution.allocation(graph, execution.version)
    views = []
    for tensor in (*feed.inputs, *feed.outputs):
        position = graph.index[tensor]
        if allocation.slots[position] < 0 or not _is_plain(tensor):
            return None  # it has a place of its own, which may change
        buffer, offset = allocation.where(graph, position)
        if buffer.address is None:
            return None
        views.append(host_bytes(buffer.address + offset, tensor.nbytes).view(tensor.type.dtype).reshape(tensor.shape))
    n, stream, generation = len(feed.inputs), split.planned.stream, scheduler._allocator.generation
    return Ready(found, generation, allocation, split.plan, split.part, stream, views[:n], views[n:])


def _is_valid(scheduler: Scheduler, ready: Ready) -> bool:
    """Whether nothing has changed that a computation in one call relies on."""
    return (
        scheduler._found is ready.found
        and ready.found.holds()
        and scheduler._current is ready.found.execution
        and scheduler._allocator.generation == ready.generation
        and scheduler._callback is None
        and not scheduler.poison
        and not scheduler._unsettled
        and scheduler.computation is None
    )


def _is_plain(tensor: Tensor) -> bool:
    return not tensor.type.is_quantized and tensor.type is not BF16 and tensor.is_contiguous() and tensor.nbytes > 0


def _refuse(tensor: Tensor, value: Array) -> None:
    if value.shape != tensor.shape:
        raise ShapeError(
            f"{tensor!r} takes values of shape {tensor.shape}, got {value.shape}",
            tensor=tensor,
            got=value.shape,
            wanted=tensor.shape,
        )
    raise TypeMismatchError(
        f"{tensor!r} takes values of {tensor.type.dtype}, got {value.dtype}",
        tensor=tensor,
        got=value.dtype,
        wanted=tensor.type.dtype,
    )

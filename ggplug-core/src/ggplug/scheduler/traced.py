"""Computes one split after the other, waits for each, and reports the times to observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ggplug.backend import NodeTime, node_times
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.scheduler.execution import Bound, Execution, waited_for
from ggplug.scheduler.ordering import Ordering
from ggplug.scheduler.timing import Timing
from ggplug.scheduler.under_way import Computation


def run_traced(
    execution: Execution,
    bound: Bound,
    ordering: Ordering,
    synchronize: Callable[[], None],
    timing: Timing | None = None,
    computation: Computation | None = None,
) -> None:
    """Computes the splits; ``synchronize`` waits for all streams.

    The plugins that observe splits get the times, and so does ``timing``.
    """
    timing_kernels = "ggplug_nodes_timed" in HOOKS.callers or (timing is not None and timing.times_kernels)
    times: Sequence[NodeTime]
    for split in bound.splits if computation is None else waited_for(bound, computation):
        stream, plan = split.planned.stream, split.plan
        limit = stream.time_limit
        about: dict[str, Any] = {"graph": bound.graph, "split": split.part, "device": stream.device}
        plan.times_before_error = times = ()
        copying = start = time.perf_counter_ns()
        try:
            execution.copy(split, ordering)
            synchronize()
            if split.copies:
                start = time.perf_counter_ns()
                nbytes = sum(copy.nbytes for copy in split.copies)
                HOOKS.notify("ggplug_split_copied", **about, nbytes=nbytes, start=copying, end=start)
            if computation is not None:
                computation.enter(split.planned.split.number)
            start = time.perf_counter_ns()
            if timing_kernels:
                times = plan.compute_traced()
            else:
                plan.compute()
            submitted = time.perf_counter_ns()
            stream.synchronize()
        except BaseException as error:
            HOOKS.notify("ggplug_split_failed", **about, error=error, start=start, end=time.perf_counter_ns())
            report_times(execution, **about, times=times or plan.times_before_error)
            raise
        end = time.perf_counter_ns()
        execution.check_time(stream, limit, (end - start) / 1e9)
        HOOKS.notify("ggplug_split_computed", **about, start=start, end=end, submitted=submitted)
        times = report_times(execution, **about, times=times)
        if timing is not None:
            timing.note(split.planned.split.number, (start - copying) / 1e9, (end - start) / 1e9, times)


def report_times(
    execution: Execution, *, graph: Graph, split: Graph, device: object, times: Sequence[NodeTime]
) -> Sequence[NodeTime]:
    """Calls the observers of nodes.  ``times``: by the numbers of nodes in the split.

    Returns the times by positions in the whole graph.
    """
    if not times:
        return times
    positions = split.positions
    assert positions is not None
    if positions != list(range(len(graph.tensors))):
        times = node_times([(positions[node] if node >= 0 else -1, begin, end) for node, begin, end in times])
    groups = execution.schedule.groups
    HOOKS.notify("ggplug_nodes_timed", graph=graph, device=device, times=times, groups=groups)
    return times

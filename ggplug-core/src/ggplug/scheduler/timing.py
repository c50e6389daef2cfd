"""How long a schedule takes when it runs, by which the cost model is refined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggplug.backend import NodeTime
from ggplug.graph import Graph
from ggplug.scheduler.prediction import Seconds, kernels_of, memory_of
from ggplug.scheduler.support import Streams

if TYPE_CHECKING:  # the scheduler imports them when a policy needs them
    from ggplug.costs.model import CostModel
    from ggplug.scheduler.schedule import Schedule

RUNS = 8
"""Computations of which kernels or splits are timed."""
CALLS = 5
"""Computations after these of which the whole call is timed."""


class Timing:
    """The times of the first computations of a schedule.

    The very first one is not timed, because kernels are compiled and memory is allocated.  The second one times each
    kernel, and those after it each split as a whole, because devices wait between kernels that are timed.  Of some
    more the call is timed, in which nothing waits between the splits: its time is distributed over the call itself,
    the copies and the splits.
    """

    def __init__(self) -> None:
        self.begun = 0
        """Computations that have begun."""
        self.measured: Seconds | None = None
        """The shortest times, once all were timed."""
        self.kernels: dict[int, dict[int, float]] = {}
        """By split, and by the position of a kernel's last node."""
        self._copies: dict[int, float] = {}
        self._splits: dict[int, float] = {}
        self._call = math.inf

    def begin(self) -> bool:
        """Begins a computation that nothing observes; returns whether it is to be timed."""
        self.begun += 1
        return 1 < self.begun <= RUNS + 1

    @property
    def done(self) -> bool:
        """Whether nothing more is timed."""
        return self.begun > RUNS + CALLS

    @property
    def times_kernels(self) -> bool:
        """Whether the computation that has begun times each kernel."""
        return self.begun == 2

    def note(self, split: int, copying: float, computing: float, times: Sequence[NodeTime]) -> None:
        """Notes the seconds of a split and of its copies.  ``times``: of kernels, by positions in the whole graph."""
        if self.times_kernels:
            self.kernels[split] = {node: (end - start) / 1e9 for node, start, end in times if node >= 0}
            return
        self._copies[split] = min(copying, self._copies.get(split, copying))
        self._splits[split] = min(computing, self._splits.get(split, computing))

    def end(self, graph: Graph, streams: Streams, schedule: Schedule, costs: CostModel) -> None:
        """Ends a computation; after the last one that is timed, the cost model takes the times over."""
        splits = schedule.cut.splits
        if self.begun == RUNS + 1 and self.measured is None and len(self._splits) == len(splits):
            self.measured = Seconds(
                tuple(self._copies[split.number] if split.copies else 0.0 for split in splits),
                tuple(self._splits[split.number] for split in splits),
            )
            self._refine(graph, streams, schedule, costs, self.measured)

    def called(self, seconds: float, graph: Graph, streams: Streams, schedule: Schedule, costs: CostModel) -> None:
        """Notes the time of a whole call; after the last one that is timed, the cost model takes it over.

        What the call takes besides its splits and copies is known by the first stream.  Where it takes less than these
        took with waits between them, or more than is known, they are taken to be shorter, or longer.
        """
        if not (self.begun > RUNS + 1 and self.measured is not None):
            return
        self._call = min(self._call, seconds)
        apart = self.measured.total
        if self.done and apart:
            first = streams[schedule.cut.splits[0].stream]
            besides = self._call - apart
            costs.note_call(first, besides if besides > 0 else min(costs.call(first), self._call / 2))
            call = costs.call(first)
            self.measured = self.measured.scaled((self._call - call) / apart)._replace(call=call)
            self._refine(graph, streams, schedule, costs, self.measured)

    def _refine(self, graph: Graph, streams: Streams, schedule: Schedule, costs: CostModel, measured: Seconds) -> None:
        """Distributes the time of each split over its kernels, and that of its copies over these, as was predicted.

        Kernels that were timed keep their proportions.
        """
        for split in schedule.cut.splits:
            stream, taken = streams[split.stream], measured.splits[split.number]
            kernels = list(kernels_of(graph, split, schedule.groups))
            timed = self.kernels.get(split.number, {})
            each = [timed.get(graph.index[nodes[-1]]) or costs.kernel(stream, nodes) for nodes in kernels]
            total = sum(each)
            if total > 0:
                left = max(taken - costs.split(stream), 0.1 * taken)
                costs.note(stream, [(n, s * left / total) for n, s in zip(kernels, each, strict=True)])
            copies = [schedule.cut.copies[number] for number in split.copies if schedule.cut.copies[number].nbytes]
            memories = [memory_of(graph, streams, schedule.assignment, copy) for copy in copies]
            each = [costs.copy(stream, memory, copy.nbytes) for memory, copy in zip(memories, copies, strict=True)]
            total = sum(each)
            for memory, copy, seconds in zip(memories, copies, each, strict=True):
                if total > 0 and not memory.has_own_layout:
                    costs.note_copy(stream, memory, copy.nbytes, seconds * measured.copies[split.number] / total)

"""The plans that a stream keeps: one for all equal graphs, bound to the places of the graph that was computed last."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ggplug.graph import Graph
from ggplug.interface.plans import Places, Plan
from ggplug.nodes.groups import Groups
from ggplug.system.recent import Recent


class Varying(Protocol):
    """A device."""

    @property
    def variant(self) -> Any:
        """What its answers depend on besides the nodes."""


class PlanCache:
    """A device's plans by the structure of their graphs.

    ``limit``: how many; beyond it the least recently used plan is freed.
    """

    def __init__(self, limit: int, device: Varying) -> None:
        self._device = device
        self._plans: Recent[Any, _Planned] = Recent(limit, lambda planned: planned.plan.free())

    def bound(self, graph: Graph, allocation: Places, make: Callable[[Graph, Groups], Plan]) -> Plan:
        """The plan for a graph and the allocation's groups, bound to the graph's places in the allocation.

        ``make`` makes a plan if there is none for an equal graph.  Raises what ``make`` and binding raise.
        """
        groups = allocation.groups
        key = graph.signature(), groups, self._device.variant
        planned = self._plans.of(key, lambda: _Planned(make(graph, groups)))
        known = planned.allocation is allocation and planned.graph() is graph
        if not known or planned.bound_at != graph.revision.now:
            planned.bound_at = 0
            now = graph.watch()
            allocation.check(graph, groups)
            planned.plan.rebind(graph, allocation)
            planned.graph, planned.allocation, planned.bound_at = weakref.ref(graph), allocation, now
        return planned.plan

    def __len__(self) -> int:
        return len(self._plans)

    def free(self) -> None:
        """Frees all plans."""
        for planned in self._plans.values():
            planned.plan.free()
        self._plans.clear()


class _Planned:
    """A plan and what it is bound to."""

    __slots__ = ("allocation", "bound_at", "graph", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph: Callable[[], Graph | None] = lambda: None
        self.allocation: Places | None = None
        self.bound_at = 0

"""The plans that a stream keeps: one for all equal graphs, bound to the places that the graph computed last has."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ggplug.graph import Graph, Signature
from ggplug.plans import Plan
from ggplug.tensor import Epoch

if TYPE_CHECKING:
    from ggplug.memory.allocation import Allocation


class PlanCache:
    """Plans by the structure of their graphs.  ``limit``: how many; the one used longest ago goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: OrderedDict[Signature, _Planned] = OrderedDict()

    def bound(self, graph: Graph, allocation: Allocation, make: Callable[[Graph], Plan]) -> Plan:
        """The plan of a graph, or of an equal one, bound to the graph's places in an allocation.

        ``make`` plans a graph whose like was not seen before.  Raises what it raises, and what binding raises.
        """
        signature = graph.signature()
        planned = self._plans.get(signature)
        if planned is None:
            planned = self._plans[signature] = _Planned(make(graph))
            if len(self._plans) > self._limit:
                self._plans.popitem(last=False)[1].plan.free()
        else:
            self._plans.move_to_end(signature)
        if planned.allocation is not allocation or planned.epoch != Epoch.now or planned.graph() is not graph:
            planned.epoch = -1
            epoch = Epoch.now
            allocation.check(graph)
            planned.plan.rebind(graph, allocation)
            planned.graph, planned.allocation, planned.epoch = weakref.ref(graph), allocation, epoch
        return planned.plan

    def __len__(self) -> int:
        return len(self._plans)

    def free(self) -> None:
        """Gives all plans back."""
        for planned in self._plans.values():
            planned.plan.free()
        self._plans.clear()


class _Planned:
    """A plan and what it is bound to."""

    __slots__ = ("allocation", "epoch", "graph", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph: Callable[[], Graph | None] = lambda: None
        self.allocation: Allocation | None = None
        self.epoch = -1

"""Devices that say the wrong thing about what they support."""

from __future__ import annotations

from typing import Any

from ggplug.backend import UNGROUPED, Accept, Backend, Decline, Group, Groups, Plan, Support, check_parameters
from ggplug.errors import UnsupportedOpError
from ggplug.graph import Graph
from ggplug.tensor import Tensor
from ggplug_testing.reference import ReferenceDevice


class Silent(ReferenceDevice):
    def match(self, group: Group) -> Any:
        found = super().match(group)
        return Decline("") if isinstance(found, Decline) else found


class ChangesItsMind(ReferenceDevice):
    """Declines every second time that it is asked the same."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._asked = 0

    def match(self, group: Group) -> Any:
        self._asked += 1
        return super().match(group) if self._asked % 2 else Decline("not now")


class Boastful(ReferenceDevice):
    def supports_op(self, node: Tensor) -> Support:
        return Accept()


class RefusesViews(ReferenceDevice):
    def supports_op(self, node: Tensor) -> Support:
        found = self.match(Group((node,)))
        return found if isinstance(found, Decline) else Accept()


class UntypedErrors(ReferenceDevice):
    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _UntypedStream(self)


class _UntypedStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        try:
            return super().plan(graph, groups)
        except UnsupportedOpError as error:
            raise RuntimeError(str(error)) from None

"""A device on a node, as the client sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ggplug.backend import UNGROUPED, BufferType, Decline, Group, Groups, Memory, Pattern, Registration
from ggplug.errors import SerializationError
from ggplug.graph import Graph
from ggplug.saved import encode_graph
from ggplug.types import DeviceKind
from ggplug_ray.host import Facts, Placed, groups_data, groups_from
from ggplug_ray.link import Link
from ggplug_ray.memory import LinkedDevice, RayMemory
from ggplug_ray.stream import RayStream


class RayDevice(LinkedDevice):
    """A device of a node.  Its process starts when memory or a stream is needed first, and again after it was lost.

    ``node_id``, ``node``: where it is.  ``there``: its name on the node.  ``opening``: starts the process, and returns
    the client's end of it.
    """

    def __init__(
        self,
        node_id: str,
        node: str,
        facts: Facts,
        registration: Registration,
        opening: Callable[[RayDevice], Link],
    ) -> None:
        super().__init__()
        self.name = f"Ray/{node}/{facts.name}"
        self.description = f"{facts.description}, on node {node}"
        self.kind = DeviceKind[facts.kind]
        self.registration = registration
        self.node_id, self.node, self.there = node_id, node, facts.name
        self.device_id = None if facts.device_id is None else f"{node_id}/{facts.device_id}"
        self._facts, self._open = facts, opening
        self._memories = [RayMemory(self, facts.name, each, number) for number, each in enumerate(facts.memories)]
        self._link: Link | None = None
        self._opening = threading.Lock()

    def link(self) -> Link:
        link = self._link
        if link is not None and link.lost is None:
            return link
        with self._opening:
            link = self._link
            if link is None or link.lost is not None:
                link = self._link = self._open(self)
            return link

    def memory(self) -> Memory:
        link = self._link
        if link is None or link.lost is not None:
            return Memory(self._facts.free, self._facts.total)
        return Memory(*link.call("memory"))

    @property
    def buffer_type(self) -> BufferType:
        return self._memories[0]

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return self._memories[1:]

    def placed(self, graph: Graph) -> Placed:
        """The leafs of a graph in memory of this device with a layout of its own, for messages."""
        own = ((position, kind) for position, kind in graph.layouts() if graph.roots[position] == position)
        return tuple((position, kind.number) for position, kind in own if isinstance(kind, RayMemory))

    def init(self, **params: Any) -> RayStream:
        return RayStream(self, params)

    def match(self, group: Group) -> Any:
        graph = Graph.part(group.nodes)
        try:
            raw = encode_graph(graph)
        except SerializationError as error:
            return Decline(error.message)
        accepted, text = self.link().call("match", raw, group.kept, self.placed(graph), tensors=graph.tensors)
        return text if accepted else Decline(text)

    @property
    def patterns(self) -> Sequence[Pattern]:
        return ()

    def groups(self, graph: Graph, leaving: Collection[int] = ()) -> Groups:
        if not self._facts.groups or graph.signature().shared:  # the node does not know which bytes are shared
            return UNGROUPED
        try:
            raw = encode_graph(graph)
        except SerializationError:
            return UNGROUPED
        # The node does not know which tensors have places of their own; those are needed after the computation.
        persistent = (at for at, root in enumerate(graph.roots) if graph.tensors[root].buffer is not None)
        needed = tuple(sorted({*leaving, *persistent}))
        return groups_from(self.link().call("groups", raw, needed, self.placed(graph), tensors=graph.tensors))

    def workspace(self, graph: Graph, groups: Groups = UNGROUPED) -> int:
        size: int = self.link().call(
            "workspace", encode_graph(graph), groups_data(groups), self.placed(graph), tensors=graph.tensors
        )
        return size

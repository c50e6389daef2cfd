"""A device on a node, and its memory, as the client sees them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ggplug.backend import (
    UNGROUPED,
    Buffer,
    BufferType,
    Bytes,
    Decline,
    Described,
    Group,
    Groups,
    Memory,
    Pattern,
    Registration,
    as_bytes,
)
from ggplug.discrete import DiscreteBuffer, DiscreteDevice
from ggplug.errors import SerializationError
from ggplug.gguf.reader import origin
from ggplug.graph import Graph
from ggplug.saved import encode_graph
from ggplug.saved.writer import sha256_of
from ggplug.sharing import accessing
from ggplug.types import BufferUsage, DeviceKind
from ggplug_ray.host import Facts, groups_data, groups_from
from ggplug_ray.link import Link
from ggplug_ray.weights import SMALLEST

if TYPE_CHECKING:
    from ggplug_ray.cluster import Cluster, Node
    from ggplug_ray.stream import RayStream

PIECE = 16 << 20
"""Bytes of one message; two are under way at once."""


class RayMemory(BufferType):
    """The default memory of a device on a node."""

    device: RayDevice

    def __init__(self, device: RayDevice, facts: Facts) -> None:
        super().__init__(device.name, device)
        self._facts = facts
        self._sizes: dict[tuple[Any, ...], int] = {}

    @property
    def alignment(self) -> int:
        return self._facts.alignment

    @property
    def max_size(self) -> int | None:
        return self._facts.max_size

    def alloc_size(self, tensor: Described) -> int:
        if not self._facts.pads:
            return tensor.nbytes
        key = tensor.type.id, tensor.ne, tensor.nb
        if key not in self._sizes:
            self._sizes[key] = self.device.link().call("alloc_size", *key)
        return self._sizes[key]

    def _alloc(self, size: int) -> RayBuffer:
        return self._made(size, zeroed=False)

    def _alloc_zeroed(self, size: int) -> RayBuffer:
        return self._made(size, zeroed=True)

    def _made(self, size: int, *, zeroed: bool) -> RayBuffer:
        link = self.device.link()
        link.flush()
        number, got = link.call("alloc", size, zeroed)
        return RayBuffer(self, got, self.device, link, number)


class RayBuffer(DiscreteBuffer):
    """Memory of a process on a node.  ``link``: the process; ``number``: by which it knows the buffer."""

    device: RayDevice

    def __init__(self, type: BufferType, size: int, device: RayDevice, link: Link, number: int) -> None:
        super().__init__(type, size, device)
        self.link, self.number = link, number
        self._collected = weakref.finalize(self, link.drop, "buffer", number)
        self._collected.atexit = False

    def store(self, offset: int, data: Bytes) -> None:
        link, under_way = self.link, []
        for start in range(0, data.size, PIECE):
            piece = data[start : start + PIECE]
            under_way.append(link.send("store", self.number, offset + start, piece))
            if len(under_way) == 2:
                link.answer(under_way.pop(0))
        for reference in under_way:
            link.answer(reference)

    def fetch(self, offset: int, out: Bytes) -> None:
        link, size = self.link, out.size
        starts = range(0, size, PIECE)
        sizes = [min(PIECE, size - start) for start in starts]
        pieces = list(zip(starts, sizes, strict=True))
        under_way = [link.send("fetch", self.number, offset + at, count) for at, count in pieces[:2]]
        for number, (start, count) in enumerate(pieces):
            out[start : start + count] = link.answer(under_way.pop(0))
            if number + 2 < len(pieces):
                at, following = pieces[number + 2]
                under_way.append(link.send("fetch", self.number, offset + at, following))

    def copy(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        if not isinstance(source, RayBuffer):
            super().copy(source, source_offset, offset, size)
        elif source.link is self.link:
            self.link.call("copy", self.number, offset, source.number, source_offset, size)
        else:
            # From one process to the other through Ray's object store; only a reference comes here.
            for start in range(0, size, PIECE):
                count = min(PIECE, size - start)
                fetched = source.link.send("fetch", source.number, source_offset + start, count)
                self.link.answer(self.link.send("take", self.number, offset + start, fetched), source.link)

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            self._wait()
            if size:
                self.link.call("fill", self.number, offset, size, value)

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        if self.usage is not BufferUsage.WEIGHTS or raw.size < SMALLEST:
            super().set_tensor(tensor, raw, start, offset)
            return
        with accessing(self):
            at, size = self.check_write(start + offset, raw.size)
            self._wait()
            self._store_weight(at, size, raw)

    def _store_weight(self, offset: int, size: int, raw: Bytes) -> None:
        """Stores a weight that the node may have itself; otherwise sends it, and the node keeps it."""
        digest, place = sha256_of(raw.data), origin(raw)
        path, begin = (str(place[0]), place[1]) if place is not None else (None, 0)
        if not self.link.call("weight", self.number, offset, size, digest, path, begin):
            self.store(offset, raw)
            self.link.call("keep", self.number, offset, size, digest)

    def dispose(self) -> None:
        if self._collected.detach() is not None and self.link.lost is None:
            self.link.call("drop", "buffer", self.number)


class RayDevice(DiscreteDevice):
    """A device of a node.  Its process starts when memory or a stream is needed first, and again after it was lost."""

    def __init__(
        self, cluster: Cluster, node: Node, facts: Facts, registration: Registration, versions: dict[str, str]
    ) -> None:
        super().__init__()
        self.name = f"Ray/{node.name}/{facts.name}"
        self.description = f"{facts.description}, on node {node.name}"
        self.kind = DeviceKind[facts.kind]
        self.registration = registration
        self.device_id = None if facts.device_id is None else f"{node.id}/{facts.device_id}"
        self._cluster, self._node, self._facts, self._versions = cluster, node, facts, versions
        self._memory = RayMemory(self, facts)
        self._link: Link | None = None
        self._opening = threading.Lock()

    def link(self) -> Link:
        """The process of the device, which is started if there is none.  Raises PluginError, DeviceLostError."""
        link = self._link
        if link is not None and link.lost is None:
            return link
        with self._opening:
            link = self._link
            if link is None or link.lost is not None:
                link = self._link = self._cluster.open(self, self._node, self._facts, self._versions)
            return link

    def memory(self) -> Memory:
        link = self._link
        if link is None or link.lost is not None:
            return Memory(self._facts.free, self._facts.total)
        return Memory(*link.call("memory"))

    @property
    def buffer_type(self) -> BufferType:
        return self._memory

    def init(self, **params: Any) -> RayStream:
        from ggplug_ray.stream import RayStream

        return RayStream(self, params)

    def match(self, group: Group) -> Any:
        graph = Graph.part(group.nodes)
        try:
            raw = encode_graph(graph)
        except SerializationError as error:
            return Decline(error.message)
        accepted, text = self.link().call("match", raw, group.kept, tensors=graph.tensors)
        return text if accepted else Decline(text)

    @property
    def patterns(self) -> Sequence[Pattern]:
        return ()

    def groups(self, graph: Graph, leaving: Collection[int] = ()) -> Groups:
        if not self._facts.groups:
            return UNGROUPED
        try:
            raw = encode_graph(graph)
        except SerializationError:
            return UNGROUPED
        # The node does not know which tensors have places of their own; those are needed after the computation.
        persistent = (at for at, root in enumerate(graph.roots) if graph.tensors[root].buffer is not None)
        needed = tuple(sorted({*leaving, *persistent}))
        return groups_from(self.link().call("groups", raw, needed, tensors=graph.tensors))

    def workspace(self, graph: Graph, groups: Groups = UNGROUPED) -> int:
        size: int = self.link().call("workspace", encode_graph(graph), groups_data(groups), tensors=graph.tensors)
        return size

"""What runs on a node: the process of one device, to which clients send messages.

Buffers, streams and plans are here; clients have their numbers.  Graphs arrive as the bytes of graph files, and are
checked as these are.  Errors are returned as data (:mod:`ggplug_ray.faults`), so that they arrive as they were raised.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

import ggplug
from ggplug.backend import (
    API_VERSION,
    Backend,
    Buffer,
    BufferType,
    Bytes,
    Decline,
    Device,
    Group,
    Groups,
    Plan,
    forms_groups,
    groups_of,
    kernel_name,
)
from ggplug.errors import BufferUseError, GGPlugError, GGUFError, ParameterError
from ggplug.graph import Graph
from ggplug.memory import Allocation
from ggplug.memory.layout import NOWHERE, PERSISTENT
from ggplug.memory.planned import PlannedBuffer
from ggplug.nodes.groups import Missed
from ggplug.ops.base import OPS
from ggplug.saved import decode_graph
from ggplug.saved.format import VERSION as GRAPH_VERSION
from ggplug.tensor import Spec, Tensor
from ggplug.types import by_id
from ggplug.values.geometry import Extents
from ggplug_ray.faults import encode
from ggplug_ray.weights import WeightCache, read_weight

T = TypeVar("T")

OK, FAILED = "ok", "failed"
"""What an answer begins with; then comes the value, or the encoded error."""

PART = 88 << 10
"""Bytes of a part of an answer: Ray sends values of less than 100 KiB with the answer, larger ones through its object
store, which takes several times as long."""

Range = tuple[int, int, int]
"""The number of a buffer, an offset in it, and a size in bytes."""

GroupsData = tuple[tuple[tuple[int, ...], ...], tuple[int, ...], dict[int, tuple[int, ...]], tuple[Any, ...]]
"""The fields of :class:`~ggplug.backend.Groups`, as plain data."""


Leaf = tuple[int, Extents, Extents]
"""The number of the type of a leaf, its extents and its strides."""

Placed = tuple[tuple[int, int], ...]
"""The leafs of a graph in memory with a layout of its own: their positions, and the numbers of these memories, which
are counted from 1; 0 is the default memory."""


class MemoryFacts(NamedTuple):
    """What a memory says about itself.  ``pads``: whether tensors can take more bytes in it than they have."""

    name: str
    alignment: int
    max_size: int | None
    pads: bool


class Facts(NamedTuple):
    """What a device says about itself; clients get it without starting the device's process."""

    name: str
    description: str
    kind: str
    device_id: str | None
    free: int | None
    total: int | None
    memories: tuple[MemoryFacts, ...]
    """Of the default memory, and of those with a layout of their own."""
    groups: bool
    """Whether it computes several nodes together."""
    plugin: str
    """The version of its plugin, on which its kernels depend."""


class Binding(NamedTuple):
    """The places of a graph's tensors: numbers of buffers, and for each tensor an index into these and an offset."""

    buffers: tuple[int, ...]
    which: Any
    offsets: Any


Stored = tuple[int, int, bytes]
"""The number of a buffer, an offset in it, and the bytes to store there."""


class Stores(NamedTuple):
    """What is stored before a message is processed.

    ``first``: what came with this message.  ``until``: how many have to be stored, those of earlier messages included,
    which other threads process.
    """

    first: Sequence[Stored]
    until: int


def versions() -> dict[str, str]:
    """What client and node have to have in common: the interface, the format of graphs, and the declared ops."""
    ops = sorted((name, op.sources, tuple(op.parameters)) for name, op in OPS.items() if "." not in name)
    return {
        "ggplug-core": ggplug.__version__,
        "interface": str(API_VERSION),
        "graphs": str(GRAPH_VERSION),
        "ops": hashlib.sha256(repr(ops).encode()).hexdigest()[:16],
    }


def devices_here() -> tuple[dict[str, str], list[Facts]]:
    """The devices of this machine, as the registry finds them here; and the versions."""
    return versions(), [_facts(device) for device in ggplug.devices()]


def _facts(device: Device) -> Facts:
    props = device.props()
    return Facts(
        device.name,
        device.description,
        device.kind.name,
        device.device_id,
        props.memory_free,
        props.memory_total,
        tuple(
            MemoryFacts(each.name, each.alignment, each.max_size, type(each).alloc_size is not BufferType.alloc_size)
            for each in memories_of(device)
        ),
        forms_groups(device),
        device.registration.version if device.registration is not None else "",
    )


def memories_of(device: Device) -> list[BufferType]:
    """The default memory, and the extra ones with a layout of their own."""
    return [device.buffer_type, *(each for each in device.extra_buffer_types if each.has_own_layout)]


class Stream(NamedTuple):
    """A stream, which one message at a time uses: a plan can be made while the stream computes another one."""

    backend: Backend
    lock: threading.Lock


@dataclass
class Planned:
    """A plan, what it was made of, and the places that it is bound to, which it does not keep alive itself."""

    plan: Plan
    stream: Stream
    graph: Graph
    groups: Groups
    own: tuple[int, ...]
    """Positions of the leafs in memory with a layout of its own."""
    places: Allocation | None = None


class DeviceHost:
    """A device and everything that a client made on it.  Ray calls it on several threads at once.

    The client orders what depends on each other: it sends the next message of a stream after the answer to the one
    before.
    """

    def __init__(self, name: str, cache_bytes: int) -> None:
        self._name = name
        self._cache = WeightCache(cache_bytes)
        self._numbers = itertools.count(1)
        self._buffers: dict[int, Buffer] = {}
        self._streams: dict[int, Stream] = {}
        self._plans: dict[int, Planned] = {}
        self._opened: Device | None = None
        self._stored = 0
        self._storing = threading.Condition()

    # -- messages ----------------------------------------------------------------------------------

    def do(self, what: str, *given: Any, stores: Stores | None = None, parts: int = 0) -> tuple[Any, ...]:
        """The answer to a message.  ``parts``: the value is bytes, which are returned in that many parts behind it."""
        try:
            if stores is not None:
                self._store_first(stores)
            found = MESSAGES[what](self, *given)
            if not parts:
                return OK, found
            return (OK, None), *(found[part * PART : (part + 1) * PART].tobytes() for part in range(parts))
        except Exception as error:
            failed = FAILED, encode(error, getattr(error, "graph", None))
            return (failed, *[b""] * parts) if parts else failed

    def _store_first(self, stores: Stores) -> None:
        begin = stores.until - len(stores.first)
        with self._storing:
            self._storing.wait_for(lambda: self._stored >= begin)
            if not stores.first:
                return
            try:
                for number, offset, data in stores.first:
                    if number in self._buffers:  # it may have been freed
                        self._buffers[number].set(offset, np.frombuffer(data, np.uint8))
            finally:
                self._stored = stores.until
                self._storing.notify_all()

    def beat(self, dropped: Sequence[tuple[str, int]]) -> None:
        """Shows that the process runs.  ``dropped``: what the client does not refer to any more."""
        for kind, number in dropped:
            self.drop(kind, number)

    def open(self) -> tuple[dict[str, str], int]:
        """Finds the device; returns the versions, and the number of the process."""
        self._opened = ggplug.device(self._name)
        return versions(), os.getpid()

    @property
    def device(self) -> Device:
        """The device, which :meth:`open` found."""
        assert self._opened is not None
        return self._opened

    def clock(self) -> float:
        """The time by the clock of traces."""
        return time.perf_counter()

    def memory(self) -> tuple[int | None, int | None]:
        """Free and total bytes."""
        return tuple(self.device.memory())  # type: ignore[return-value]

    def drop(self, kind: str, number: int) -> None:
        """Frees a buffer, a stream or a plan; nothing if it was freed before."""
        if kind == "buffer":
            buffer = self._buffers.pop(number, None)
            if buffer is not None:
                buffer.free()
        elif kind == "stream":
            stream = self._streams.pop(number, None)
            if stream is not None:
                with stream.lock:
                    stream.backend.free()
        else:
            planned = self._plans.pop(number, None)
            if planned is not None:
                planned.plan.free()

    # -- memory ------------------------------------------------------------------------------------

    def alloc(self, size: int, zeroed: bool, which: int = 0) -> tuple[int, int]:
        """A new buffer of a memory: its number, and its bytes."""
        memory = self._memory(which)
        buffer = memory.alloc_zeroed(size) if zeroed else memory.alloc(size)
        number = next(self._numbers)
        self._buffers[number] = buffer
        return number, buffer.size

    def alloc_size(self, leaf: Leaf, which: int) -> int:
        """Bytes that a leaf takes in a memory."""
        return self._memory(which).alloc_size(_leaf(leaf))

    def refusal(self, leaf: Leaf, which: int) -> str | None:
        """Why a leaf cannot lie in a memory; None if it can."""
        return self._memory(which).refusal(_leaf(leaf))

    def store(self, number: int, offset: int, data: Bytes) -> None:
        """Stores bytes."""
        self._buffer(number).set(offset, data)

    def take(self, number: int, offset: int, answer: tuple[str, Any]) -> Any:
        """Stores what another device's :meth:`fetch` answered; its error is raised here."""
        if answer[0] != OK:
            raise GGPlugError(answer[1][1])
        self.store(number, offset, answer[1])

    def fetch(self, number: int, offset: int, size: int) -> Bytes:
        """Bytes; those of host memory are copied only once, into Ray's object store."""
        buffer = self._buffer(number)
        if buffer.address is not None:
            return buffer.bytes(offset, size)
        out = np.empty(size, np.uint8)
        buffer.get(offset, out)
        return out

    def fill(self, number: int, offset: int, size: int, value: int) -> None:
        """Fills bytes with a value."""
        self._buffer(number).memset(offset, size, value)

    def copy(self, number: int, offset: int, source: int, source_offset: int, size: int) -> None:
        """Copies bytes between buffers, or within one."""
        self._buffer(number).copy_from(self._buffer(source), source_offset, offset, size)

    def weight(
        self,
        number: int,
        offset: int,
        size: int,
        digest: str,
        path: str | None,
        start: int,
        leaf: Leaf | None = None,
    ) -> bool:
        """Stores a weight that this machine has: in a file of the same path, or in the cache.  Returns whether it has.

        ``digest``: of the bytes, which have to be the same.  ``leaf``: for memory with a layout of its own.
        """
        raw = read_weight(path, start, size, digest) if path is not None else None
        if raw is None:
            raw = self._cache.read(digest, size)
        if raw is None:
            return False
        if leaf is None:
            self.store(number, offset, raw)
        else:
            self._buffer(number).set_tensor(_leaf(leaf), raw, offset)
        return True

    def pack(self, number: int, offset: int, leaf: Leaf, digest: str, raw: Bytes) -> None:
        """Stores a whole weight in memory with a layout of its own, and keeps it in the cache for the next time."""
        self._buffer(number).set_tensor(_leaf(leaf), raw, offset)
        self._cache.keep(digest, raw)

    def unpack(self, number: int, offset: int, leaf: Leaf, start: int, size: int) -> Bytes:
        """Bytes of a leaf in memory with a layout of its own."""
        out = np.empty(size, np.uint8)
        self._buffer(number).get_tensor(_leaf(leaf), out, offset, start)
        return out

    def keep(self, number: int, offset: int, size: int, digest: str) -> None:
        """Keeps a weight that was just stored in the cache, for the next time."""
        self._cache.keep(digest, self.fetch(number, offset, size))

    def _buffer(self, number: int) -> Buffer:
        buffer = self._buffers.get(number)
        if buffer is None:
            raise BufferUseError(f"{self.device.name} has no buffer of the number {number}", got=number)
        return buffer

    def _memory(self, which: int) -> BufferType:
        memories = memories_of(self.device)
        if not 0 <= which < len(memories):
            raise BufferUseError(f"{self.device.name} has no memory of the number {which}", got=which)
        return memories[which]

    # -- graphs ------------------------------------------------------------------------------------

    def match(self, raw: bytes, kept: tuple[bool, ...], placed: Placed = ()) -> tuple[bool, str]:
        """Whether the device computes all nodes of a graph as one group: the kernel's name, or why not."""
        try:
            graph = self._decoded(raw, placed)
        except GGUFError as error:
            if error.fields.get("rule") == "unknown op":
                return False, f"its machine lacks the op: {error}"
            raise
        if len(kept) != len(graph.nodes):
            raise ParameterError("a group needs a mark for each node", got=len(kept), wanted=len(graph.nodes))
        with about(graph):
            found = self.device.chosen(Group(tuple(graph.nodes), kept))
        return (False, found.reason) if isinstance(found, Decline) else (True, kernel_name(found))

    def groups(self, raw: bytes, leaving: tuple[int, ...], placed: Placed = ()) -> GroupsData:
        """The groups that the device forms."""
        graph = self._decoded(raw, placed)
        with about(graph):
            found = groups_of(self.device, graph, leaving)
        return groups_data(found)

    def workspace(self, raw: bytes, groups: GroupsData, placed: Placed = ()) -> int:
        """Bytes that a plan reserves."""
        graph = self._decoded(raw, placed)
        with about(graph):
            return self.device.workspace(graph, groups_from(groups))

    def stream(self, parameters: dict[str, Any]) -> int:
        """A new stream."""
        number = next(self._numbers)
        self._streams[number] = Stream(self.device.init(**parameters), threading.Lock())
        return number

    def plan(self, stream: int, raw: bytes, groups: GroupsData, placed: Placed = ()) -> tuple[int, list[str]]:
        """A new plan: its number, and the names of its kernels."""
        graph, formed, on = self._decoded(raw, placed), groups_from(groups), self._streams[stream]
        with about(graph), on.lock:
            plan = on.backend.plan(graph, formed)
        number = next(self._numbers)
        self._plans[number] = Planned(plan, on, graph, formed, tuple(position for position, _ in placed))
        return number, plan.kernel_names()

    def compute(
        self, number: int, binding: Binding | None, limit: float | None, wanted: Sequence[Range] = ()
    ) -> Bytes | None:
        """Binds a plan, if it is to be bound to other places, computes it and waits for the results.

        Returns the bytes of ranges, joined.
        """
        self._computed(number, binding, limit, lambda plan: plan.compute())
        return np.concatenate([self.fetch(*each) for each in wanted]) if wanted else None

    def trace(self, number: int, binding: Binding | None, limit: float | None) -> list[tuple[int, int, int]]:
        """As :meth:`compute`; returns the times of the nodes, by this machine's clock."""
        times = self._computed(number, binding, limit, lambda plan: plan.compute_traced())
        return [tuple(each) for each in times]  # type: ignore[misc]

    def _computed(self, number: int, binding: Binding | None, limit: float | None, how: Callable[[Plan], T]) -> T:
        planned = self._plans[number]
        stream = planned.stream.backend
        with about(planned.graph), planned.stream.lock:
            if binding is not None:
                places = self._places(planned, binding)
                planned.plan.rebind(planned.graph, places)
                planned.places = places
            stream.time_limit = limit
            try:
                return how(planned.plan)
            finally:
                stream.synchronize()

    def _places(self, planned: Planned, binding: Binding) -> Allocation:
        """The places that a client says, checked: inside of the buffers, aligned, and of the right number."""
        graph, buffers = planned.graph, [self._buffer(number) for number in binding.buffers]
        slots = np.where(np.asarray(binding.which) < 0, NOWHERE, binding.which)
        offsets = np.array(binding.offsets)
        if planned.own and slots.shape == offsets.shape == (len(graph.tensors),):
            for position in planned.own:
                leaf, which = graph.tensors[position], int(slots[position])
                if not 0 <= which < len(buffers):
                    raise BufferUseError(f"{leaf!r} has no place", tensor=leaf, got=which)
                leaf.place(None)
                leaf.place(buffers[which], int(offsets[position]))
            within = np.flatnonzero(np.isin(graph.roots, planned.own))
            slots[within] = PERSISTENT
            offsets[within] = [graph.tensors[each].view_offset for each in within]
        return Allocation(graph, buffers, slots, offsets, groups=planned.groups)

    def _decoded(self, raw: bytes, placed: Placed) -> Graph:
        """A graph, whose leafs are in memory with a layout of its own as far as ``placed`` says."""
        graph = decode_graph(raw)
        leafs = {graph.index[leaf] for leaf in graph.leafs} if placed else set()
        for position, which in placed:
            if position not in leafs:
                raise BufferUseError(f"the graph has no leaf at position {position}", got=position)
            memory, leaf = self._memory(which), graph.tensors[position]
            leaf.place(PlannedBuffer(memory, memory.alloc_size(leaf)))
        return graph


MESSAGES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(DeviceHost.open, DeviceHost.clock, DeviceHost.memory, DeviceHost.drop),
        *(DeviceHost.alloc, DeviceHost.alloc_size, DeviceHost.store, DeviceHost.take, DeviceHost.fetch),
        *(DeviceHost.fill, DeviceHost.copy, DeviceHost.weight, DeviceHost.keep),
        *(DeviceHost.refusal, DeviceHost.pack, DeviceHost.unpack),
        *(DeviceHost.match, DeviceHost.groups, DeviceHost.workspace),
        *(DeviceHost.stream, DeviceHost.plan, DeviceHost.compute, DeviceHost.trace),
    )
}
"""The messages that a device's process takes."""


def _leaf(leaf: Leaf) -> Tensor:
    kind, ne, nb = leaf
    return Tensor(Spec(by_id(kind), ne, 4, nb))


@contextmanager
def about(graph: Graph) -> Iterator[None]:
    """Adds the graph to an error, so that the tensors that the error names can be sent by their positions."""
    try:
        yield
    except GGPlugError as error:
        error.graph = graph  # type: ignore[attr-defined]
        raise


def groups_data(groups: Groups) -> GroupsData:
    """The groups as plain data."""
    return groups.members, tuple(groups.inner), groups.inplace, tuple(map(tuple, groups.missed))


def groups_from(data: GroupsData) -> Groups:
    """The groups again; plans check them."""
    members, inner, inplace, missed = data
    return Groups(members, frozenset(inner), inplace, [Missed(*each) for each in missed])

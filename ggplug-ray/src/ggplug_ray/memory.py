"""Memory of a device on a node, as the client sees it."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any

from ggplug.backend import (
    Buffer,
    BufferType,
    Bytes,
    Described,
    as_bytes,
)
from ggplug.discrete import DiscreteBuffer, DiscreteDevice
from ggplug.gguf.reader import origin
from ggplug.graph import Graph
from ggplug.saved.writer import sha256_of
from ggplug.sharing import accessing
from ggplug.types import BufferUsage
from ggplug.values.buffers import check_whole
from ggplug_ray.host import Leaf, MemoryFacts, Placed
from ggplug_ray.link import WITH_ANSWER, Link
from ggplug_ray.weights import SMALLEST


class LinkedDevice(DiscreteDevice, ABC):
    """A device whose memory and streams are in a process on a node."""

    @abstractmethod
    def link(self) -> Link:
        """The process of the device, which is started if there is none.  Raises PluginError, DeviceLostError."""

    @abstractmethod
    def placed(self, graph: Graph) -> Placed:
        """The leafs of a graph in memory of this device with a layout of its own, for messages."""


PIECE = 32 << 20
"""Bytes of one message; two are under way at once."""


INPUT = 1 << 16
"""Up to so many bytes that are stored or copied here go with the next message, such as that of the computation that
reads them."""


class RayMemory(BufferType):
    """A memory of a device on a node: the default one, number 0, or one with a layout of its own."""

    device: LinkedDevice

    def __init__(self, device: LinkedDevice, there: str, facts: MemoryFacts, number: int) -> None:
        super().__init__(device.name + facts.name.removeprefix(there), device)
        self.number = number
        self._facts = facts
        self._sizes: dict[Leaf, int] = {}
        self._refusals: dict[Leaf, str | None] = {}

    @property
    def has_own_layout(self) -> bool:
        return self.number > 0

    def refusal(self, tensor: Described) -> str | None:
        if not self.number:
            return None
        if tensor.op is not None:
            return f"results of nodes do not lie in {self.name}"
        key = _leaf(tensor)
        if key not in self._refusals:
            self._refusals[key] = self.device.link().call("refusal", key, self.number)
        return self._refusals[key]

    @property
    def alignment(self) -> int:
        return self._facts.alignment

    @property
    def max_size(self) -> int | None:
        return self._facts.max_size

    def alloc_size(self, tensor: Described) -> int:
        if not self._facts.pads:
            return tensor.nbytes
        key = _leaf(tensor)
        if key not in self._sizes:
            self._sizes[key] = self.device.link().call("alloc_size", key, self.number)
        return self._sizes[key]

    def _alloc(self, size: int) -> RayBuffer:
        return self._made(size, zeroed=False)

    def _alloc_zeroed(self, size: int) -> RayBuffer:
        return self._made(size, zeroed=True)

    def _made(self, size: int, *, zeroed: bool) -> RayBuffer:
        link = self.device.link()
        link.flush()
        number, got = link.call("alloc", size, zeroed, self.number)
        return (RayPackedBuffer if self.number else RayBuffer)(self, got, self.device, link, number)


class RayBuffer(DiscreteBuffer):
    """Memory of a process on a node.  ``link``: the process; ``number``: by which it knows the buffer."""

    device: LinkedDevice

    def __init__(self, type: BufferType, size: int, device: LinkedDevice, link: Link, number: int) -> None:
        super().__init__(type, size, device)
        self.link, self.number = link, number
        self._collected = weakref.finalize(self, link.drop, "buffer", number)
        self._collected.atexit = False

    def store(self, offset: int, data: Bytes) -> None:
        link, under_way = self.link, []
        if data.size <= INPUT:
            link.store(self.number, offset, data.tobytes())
            return
        for start in range(0, data.size, PIECE):
            piece = data[start : start + PIECE]
            under_way.append(link.send("store", self.number, offset + start, piece))
            if len(under_way) == 2:
                link.answer(under_way.pop(0))
        for reference in under_way:
            link.answer(reference)

    def fetch(self, offset: int, out: Bytes) -> None:
        link, size = self.link, out.size
        if size <= WITH_ANSWER:
            out[:] = link.fetch(self.number, offset, size)
            return
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
        elif size <= INPUT:
            data = source.link.waiting(source.number, source_offset, size)
            if data is None:
                data = source.link.fetch(source.number, source_offset, size).tobytes()
            self.link.store(self.number, offset, data)
        else:
            # From one process to the other through Ray's object store; only a reference comes here.
            under_way: list[Any] = []
            for start in range(0, size, PIECE):
                count = min(PIECE, size - start)
                fetched = source.link.send("fetch", source.number, source_offset + start, count)
                under_way.append(self.link.send("take", self.number, offset + start, fetched))
                if len(under_way) == 2:
                    self.link.answer(under_way.pop(0), source.link)
            for reference in under_way:
                self.link.answer(reference, source.link)

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
            digest = self._missing(at, raw)
            if digest is not None:
                self.store(at, raw)
                self.link.call("keep", self.number, at, size, digest)

    def _missing(self, offset: int, raw: Bytes, leaf: Leaf | None = None) -> str | None:
        """Has the node store a weight that it has itself; if it has not, returns the digest to keep it by."""
        digest, place = sha256_of(raw.data), origin(raw)
        path, begin = (str(place[0]), place[1]) if place is not None else (None, 0)
        there = self.link.call("weight", self.number, offset, raw.size, digest, path, begin, leaf)
        return None if there else digest

    def dispose(self) -> None:
        if self._collected.detach() is not None and self.link.lost is None:
            self.link.call("drop", "buffer", self.number)


class RayPackedBuffer(RayBuffer):
    """Memory of a process on a node with a layout of its own, such as that of packed weights."""

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        check_whole(self, tensor, raw, offset)
        with accessing(self):
            self.check_there()
            self._wait()
            leaf = _leaf(tensor)
            digest = self._missing(start, raw, leaf)
            if digest is not None:
                self.link.call("pack", self.number, start, leaf, digest, raw)
            self.fill(start, self.type.alloc_size(tensor))

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        with accessing(self):
            self.check_there()
            self._wait()
            at = tensor.view_offset + offset
            begin = start - tensor.view_offset
            out[...] = self.link.call("unpack", self.number, begin, _leaf(tensor.root), at, out.size)


def _leaf(tensor: Described) -> Leaf:
    return tensor.type.id, tensor.ne, tensor.nb

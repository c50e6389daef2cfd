"""Where the tensors of a graph lie: the immutable answer of the graph allocator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Backend, Buffer
from ggplug.errors import BufferUseError, TensorStateError
from ggplug.graph import Graph

_address = attrgetter("buffer.address")
_buffer = attrgetter("buffer")
_offset = attrgetter("offset")
_serials = itertools.count(1)

PERSISTENT = -1
"""Slot of a tensor that has, or whose root has, a place of its own."""


class Arena:
    """The memory that an allocator hands out again and again.

    ``serial``: number of the last computation in it; results of an earlier one are gone.
    """

    __slots__ = ("serial",)

    def __init__(self) -> None:
        self.serial = 0


class Allocation:
    """Places of all tensors of a graph, and of every equal graph.

    By position in ``graph.tensors``: ``slots`` is an index into ``buffers``, or PERSISTENT; ``offsets`` are bytes
    into that buffer, for persistent tensors bytes into their root; ``reused`` tells whose bytes belong to
    another tensor when the computation ends.
    """

    def __init__(
        self,
        graph: Graph,
        buffers: Sequence[Buffer],
        slots: Sequence[int] | npt.NDArray[Any],
        offsets: Sequence[int] | npt.NDArray[Any],
        *,
        reused: Sequence[int] = (),
        arena: Arena | None = None,
    ) -> None:
        self.buffers = tuple(buffers)
        self.slots = np.asarray(slots, np.int64)
        self.offsets = np.asarray(offsets, np.int64)
        self.reused = frozenset(reused)
        self.arena = arena if arena is not None else Arena()
        own = np.flatnonzero(self.slots == PERSISTENT)
        roots, of_root = np.unique(np.asarray(graph.roots, np.int64)[own], return_inverse=True)
        self._own = own
        self._own_roots = tuple(roots.tolist())
        self._of_root = of_root
        self._pick = itemgetter(*self._own_roots, self._own_roots[0]) if self._own_roots else None

    def place(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor at ``position``.  Raises TensorStateError if its root has no place."""
        slot = int(self.slots[position])
        offset = int(self.offsets[position])
        if slot != PERSISTENT:
            return self.buffers[slot], offset
        root = graph.tensors[graph.roots[position]]
        if root.buffer is None:
            raise TensorStateError(f"{root!r} has no bytes: allocate it before computing", tensor=root)
        return root.buffer, root.offset + offset

    def addresses(self, graph: Graph) -> npt.NDArray[np.int64]:
        """Host addresses of all tensors, for plans that run on host memory.

        Takes no Python call per tensor.  Raises TensorStateError if a persistent tensor has no place, BufferUseError if
        a buffer was freed or is not in host memory.
        """
        addresses = self.offsets.copy()
        if self.buffers:
            self._check(self.buffers)
            bases = np.array([b.address for b in self.buffers], np.int64)
            placed = self.slots >= 0
            addresses[placed] += bases[self.slots[placed]]
        if self._pick is not None:
            roots = self._pick(graph.tensors)
            try:
                bases = np.fromiter(map(_address, roots), np.int64, len(roots))
            except (AttributeError, TypeError):
                lost = next(r for r in roots if r.buffer is None or r.buffer.address is None)
                if lost.buffer is None:
                    raise TensorStateError(f"{lost!r} has no bytes: allocate it before computing", tensor=lost) from None
                raise BufferUseError(f"{lost!r} lies in {lost.buffer!r}, which is not host memory", tensor=lost) from None
            self._check(set(map(_buffer, roots)))
            bases += np.fromiter(map(_offset, roots), np.int64, len(roots))
            addresses[self._own] += bases[self._of_root]
        return addresses

    @staticmethod
    def _check(buffers: Any) -> None:
        for buffer in buffers:
            if buffer.freed:
                raise BufferUseError(f"{buffer!r} holds tensors of this graph but was freed")

    def computed(self, graph: Graph, *streams: Backend) -> None:
        """Notes that ``graph`` was just computed here: its results are read from this allocation."""
        graph.computed = self.arena.serial = next(_serials)
        graph.allocation = self

    def locate(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """As :meth:`place`, for reading a result.  Raises TensorStateError if its bytes were reused."""
        if int(self.slots[position]) != PERSISTENT:
            tensor = graph.tensors[position]
            if position in self.reused:
                raise TensorStateError(
                    f"the bytes of {tensor!r} were reused by a later node of its graph",
                    tensor=tensor, remedy="mark it with set_output() before computing",
                )  # fmt: skip
            if graph.computed != self.arena.serial:
                raise TensorStateError(
                    f"the bytes of {tensor!r} were reused by a later computation",
                    tensor=tensor, remedy="read results before computing the next graph, or copy them",
                )  # fmt: skip
        return self.place(graph, position)

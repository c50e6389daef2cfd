"""A graph laid out in fresh buffers of one device, nothing reused, with guard bytes around every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ggplug.backend import Buffer, BufferType
from ggplug.graph import Graph
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import NOWHERE
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug.values.arrays import as_bytes
from ggplug_testing.judging.oracle import read_values

Bytes = npt.NDArray[np.uint8]


def guard(size: int) -> Bytes:
    """What fills bytes that belong to no tensor.

    Read as a float of any type it is a NaN, so reading it shows in the result too.
    """
    return np.full((size + 1) // 2, 0xFFFE, "<u2").view(np.uint8)[:size]


UNWRITTEN = 0xFF
"""Fills results before they are computed: a NaN of every float type, -1 as an integer."""

UNWRITTEN_TOO = 0xA5
"""Fills them where they are computed once more: what has kept both was not written, whatever kernels write."""


class Placement:
    """Where the tensors of a graph lie.

    ``guarded``: bytes before and after every tensor.  ``aliases``: roots whose bytes are those of another tensor, as an
    allocator may decide for ops that work in place.  ``shift``: bytes, a multiple of the alignment, that everything is
    moved by, so that two placements of one graph differ.  ``groups``: results inside of them lie nowhere.
    ``within``: a buffer that is there, in which all of it lies; ``starts``: where some roots lie in it.
    """

    def __init__(
        self,
        graph: Graph,
        buffer_type: BufferType,
        *,
        guarded: int = 0,
        shift: int = 0,
        aliases: Mapping[Tensor, Tensor] | None = None,
        groups: Groups = UNGROUPED,
        within: Buffer | None = None,
        starts: Mapping[Tensor, int] | None = None,
    ) -> None:
        self.graph = graph
        self.roots: dict[Tensor, tuple[int, int]] = {root: (0, start) for root, start in (starts or {}).items()}
        """Of each root its buffer, by number, and the offset of its first byte."""
        aliases = aliases or {}
        self._aliases = dict(aliases)
        alignment = buffer_type.alignment
        limit = buffer_type.max_size if within is None else None
        sizes: list[int] = [0]
        end = shift + guarded
        for position in dict.fromkeys(graph.roots):
            root = graph.tensors[position]
            if root in aliases or root in self.roots or position in groups.inner:
                continue
            start = -(-end // alignment) * alignment
            end = start + buffer_type.alloc_size(root) + guarded
            if limit is not None and end > limit and sizes[-1]:
                sizes.append(0)
                start = -(-guarded // alignment) * alignment
                end = start + buffer_type.alloc_size(root) + guarded
            self.roots[root] = (len(sizes) - 1, start)
            sizes[-1] = end
        for root, target in aliases.items():
            number, start = self.roots[target.root]
            self.roots[root] = (number, start + target.view_offset)
        self.buffers: list[Buffer] = [] if within is None else [within]
        self._owned = within is None
        try:
            for size in sizes if within is None else ():
                buffer = buffer_type.alloc(max(size, alignment))
                self.buffers.append(buffer)
                buffer.set(0, guard(buffer.size))
        except Exception:
            self.free()
            raise
        places = [self.roots.get(graph.tensors[root], (NOWHERE, 0)) for root in graph.roots]
        self.allocation = Allocation(
            graph,
            self.buffers,
            [number for number, _ in places],
            [start + tensor.view_offset for (_, start), tensor in zip(places, graph.tensors, strict=True)],
            groups=groups,
        )

    def write(self, root: Tensor, raw: Any) -> None:
        """Stores the bytes of a tensor that owns them."""
        buffer, start, size = self.region(root)
        if size:
            buffer.set_tensor(root, as_bytes(raw), start)

    def write_all(self, values: Mapping[Tensor, Any]) -> None:
        """Stores the bytes of several tensors that own them."""
        for root, raw in values.items():
            self.write(root, raw)

    def clear(self, root: Tensor, byte: int = UNWRITTEN) -> None:
        """Fills a result with what no computation leaves."""
        self.write(root, np.full(root.nbytes, byte, np.uint8))

    def is_alias(self, root: Tensor) -> bool:
        """Whether a root lies on the bytes of another tensor."""
        return root in self._aliases

    def shared(self, root: Tensor) -> list[tuple[int, int]]:
        """The bytes of a root that other roots lie on: from and to, counted from its first."""
        return [
            (target.view_offset, target.view_offset + target.nbytes)
            for target in self._aliases.values()
            if target.root is root
        ]

    def read_bytes(self, tensor: Tensor) -> Bytes:
        """The bytes of a tensor's extent."""
        buffer, start, size = self.region(tensor)
        raw = np.empty(size, np.uint8)
        if size:
            buffer.get_tensor(tensor, raw, start)
        return raw

    def read(self, tensor: Tensor) -> Array:
        """A tensor's values, four-dimensional in NumPy order: float64, or the integer dtype."""
        return read_values(tensor, self.read_bytes(tensor))

    def snapshot(self) -> list[Bytes]:
        """All bytes of all buffers."""
        taken = []
        for buffer in self.buffers:
            raw = np.empty(buffer.size, np.uint8)
            buffer.get(0, raw)
            taken.append(raw)
        return taken

    def region(self, tensor: Tensor) -> tuple[Buffer, int, int]:
        """Where a tensor lies: the buffer, the first byte, and how many there are."""
        number, start = self.roots[tensor.root]
        return self.buffers[number], start + tensor.view_offset, tensor.nbytes

    def whose(self, number: int, offset: int) -> str:
        """Which tensor a byte belongs to, or lies next to."""
        nearest = ""
        distance = -1
        for root, (buffer, start) in self.roots.items():
            if buffer != number:
                continue
            end = start + root.nbytes
            if start <= offset < end:
                return f"byte {offset - start} of {root!r}"
            away, side = (start - offset, "before") if offset < start else (offset - end + 1, "behind the end of")
            if distance < 0 or away < distance:
                distance, nearest = away, f"{away} bytes {side} {root!r}"
        return nearest

    def free(self) -> None:
        """Frees the buffers that the placement allocated."""
        for buffer in self.buffers if self._owned else ():
            buffer.free()
        self.buffers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

"""The tensors of a graph with the views between a result and a node that reads it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ggplug.graph import Graph
from ggplug.tensor import Spec, Tensor

Numbers = npt.NDArray[np.int64]


class Listed(Protocol):
    """Tensors, sources first, and as positions: the nodes, the sources and the roots; as :class:`Graph` has them."""

    tensors: list[Tensor]
    order: list[int]
    sources: list[tuple[int, ...]]
    roots: list[int]


class Complete:
    """A graph with all views of its nodes' results.

    A part of a graph has as leafs the views of its results whose sources are views, too.  Here these are nodes, with
    all views from the result on: only so can it be followed which elements a view of a part has.

    ``shared``: the positions of roots that callers have placed over bytes of other roots.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors: list[Tensor] = []
        self.order: list[int] = []
        self.sources: list[tuple[int, ...]] = []
        self.roots: list[int] = []
        self._index: dict[Tensor, int] = {}
        origin: list[int] = []
        inside: list[int] = []
        computing = set(graph.order)
        for position, tensor in enumerate(graph.tensors):
            root = graph.roots[position]
            if position in computing:
                self._node(tensor)
            elif root != position and (root in computing or _is_apart(tensor.root)):
                self._views(tensor)
            else:
                self._add(tensor, (), len(self.tensors) if root == position else self._index[graph.tensors[root]])
            for each in self.tensors[len(origin) :]:
                at = graph.index.get(each)
                origin.append(graph.index[each.root] if at is None else at)
                inside.append(each.view_offset if at is None else 0)
        self.shared = [self._index[graph.tensors[position]] for position, _, _ in graph.signature().shared]
        self._origin, self._inside = np.array(origin, np.int64), np.array(inside, np.int64)

    def _node(self, node: Tensor) -> None:
        index, root = self._index, node.view_src
        sources = tuple(-1 if source is None else index[source] for source in node.src)
        self.order.append(len(self.tensors))
        self._add(node, sources, len(self.tensors) if root is None else index[root])

    def _views(self, tensor: Tensor) -> None:
        """Adds a view with those between it and its root; as a leaf if another node writes into one of them."""
        missing: list[Tensor] = []
        view: Tensor | None = tensor
        while view is not None and view not in self._index:
            if view.op is None or not view.op.is_view:
                if not _is_apart(view.root) or view.nbytes != view.root.nbytes:
                    self._add(tensor, (), self._index[tensor.root])
                    return
                self._index[view] = self._index[view.root]  # another part of the graph writes into that leaf
            else:
                missing.append(view)
                view = view.src[0]
        for each in reversed(missing):
            self._node(each)

    def _add(self, tensor: Tensor, sources: tuple[int, ...], root: int) -> None:
        self._index[tensor] = len(self.tensors)
        self.tensors.append(tensor)
        self.sources.append(sources)
        self.roots.append(root)

    def places(self, which: Numbers, offsets: Numbers) -> tuple[Numbers, Numbers]:
        """Buffers and offsets of all tensors, from those of the graph's."""
        return which[self._origin], offsets[self._origin] + self._inside

    def forget(self) -> None:
        """Keeps what tensors are like, and lets go of the graph's own and of their memory."""
        self._index.clear()
        self.tensors = [alike(tensor) for tensor in self.tensors]

    def is_view(self, position: int) -> bool:
        """Whether a node computes nothing."""
        op = self.tensors[position].op
        return op is not None and op.is_view

    def position(self, tensor: Tensor) -> int:
        """The position of a tensor of the graph."""
        return self._index[tensor]

    def origin(self, position: int) -> int:
        """The position in the graph of a tensor, or of its root if it is not there."""
        return int(self._origin[position])


def _is_apart(root: Tensor) -> bool:
    """Whether a tensor lies in memory with a layout of its own, such as split memory."""
    return root.buffer_type is not None and root.buffer_type.has_own_layout


def alike(tensor: Tensor) -> Tensor:
    """A tensor of the same kind and op without sources and memory."""
    spec = Spec(tensor.type, tensor.ne, tensor.rank, tensor.nb)
    return Tensor(spec, tensor.op, (), tensor.name)


def label(node: Tensor) -> str:
    """The name of a node, or that of its op."""
    return node.name or (node.op.name if node.op is not None else repr(node))

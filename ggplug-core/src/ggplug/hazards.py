"""Who reads and writes which bytes, and what must therefore keep its order.

Mutation is declared: an op that writes into a source says so in ``writes``, and its result is a view of that source.
Views make several tensors share bytes, and so do callers who place persistent tensors themselves.  So a graph's
sources alone do not tell what depends on what; the accesses to the bytes of *roots* do, and of several roots that share
bytes those to the bytes of the first.  The order of the graph is the meaning of the program: of two accesses to the
same bytes, at least one of them a write, the one that comes first in the graph has to come first.

Everything that reorders, overlaps, drops a barrier, reuses memory or splits a graph asks here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from ggplug.errors import GraphError
from ggplug.graph import Graph
from ggplug.tensor import Tensor


class HazardKind(enum.Enum):
    """Why two nodes are ordered."""

    RAW = "read after write"
    WAR = "write after read"
    WAW = "write after write"


class Edge(NamedTuple):
    """Node number ``before`` has to come before ``after`` because of bytes of ``root``, a position in the graph."""

    before: int
    after: int
    kind: HazardKind
    root: int


class Access(NamedTuple):
    """Bytes ``start`` to ``stop`` of the root at a position in the graph.  Strided tensors count with their gaps.

    Of roots that share bytes ``root`` is the one that begins first, for all of them.
    """

    root: int
    start: int
    stop: int

    def overlaps(self, other: Access) -> bool:
        return self.root == other.root and self.start < other.stop and other.start < self.stop

    def covers(self, other: Access) -> bool:
        return self.root == other.root and self.start <= other.start and other.stop <= self.stop


class Write(NamedTuple):
    """A declared write: which node writes what."""

    node: int
    access: Access


class Hazards:
    """The accesses of a graph's nodes, by node number (place in ``graph.nodes``).

    Raises GraphError if an op's result shares its source's bytes and the op does not declare that it writes there.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.written: dict[int, list[Write]] = {}
        """Roots into which ops write, by position, and these writes in order."""
        self.shared = {position: (first, later) for position, first, later in graph.signature().shared}
        """Roots that share bytes with others, by position: the first of these, and how many bytes later this begins."""
        self._writes: dict[int, list[Write]] = {}  # by the root of the access, of all that is not written just once
        self._edges: list[Edge] | None = None
        roots, sources = graph.roots, graph.sources
        for number, position in enumerate(graph.order):
            op = graph.tensors[position].op
            assert op is not None
            if op.writes:
                targets = [sources[position][i] for i in op.writes if sources[position][i] >= 0]
                if not targets or roots[position] != roots[targets[0]]:
                    raise GraphError(
                        f"{op.name} declares that it writes into a source, but its result "
                        f"{graph.tensors[position]!r} is no view of that source",
                        op=op, tensor=graph.tensors[position],
                    )  # fmt: skip
                for target in targets:
                    write = Write(number, self.access(target))
                    self.written.setdefault(roots[target], []).append(write)
                    self._writes.setdefault(write.access.root, []).append(write)
            elif roots[position] != position and not op.is_view:
                raise GraphError(
                    f"{op.name} computes {graph.tensors[position]!r} into the bytes of its source without declaring it",
                    op=op, tensor=graph.tensors[position], remedy="state writes = (...) in the op",
                )  # fmt: skip
            elif position in self.shared:
                write = Write(number, self.access(position))
                self._writes.setdefault(write.access.root, []).append(write)

    def access(self, position: int) -> Access:
        """The bytes of the tensor at a position."""
        tensor, root = self.graph.tensors[position], self.graph.roots[position]
        start = tensor.view_offset if root != position else 0
        first, later = self.shared.get(root, (root, 0))
        return Access(first, later + start, later + start + tensor.nbytes)

    def reads(self, number: int) -> list[Access]:
        """What a node reads: all its sources, those that it writes into included.  Views read nothing."""
        position = self.graph.order[number]
        op = self.graph.tensors[position].op
        if op is None or op.is_view:
            return []
        return [self.access(source) for source in self.graph.sources[position] if source >= 0]

    def writes(self, number: int) -> list[Access]:
        """What a node writes: its own bytes, or those of the sources that its op writes into."""
        position = self.graph.order[number]
        op = self.graph.tensors[position].op
        if op is None or op.is_view:
            return []
        if op.writes:
            found = (self.graph.sources[position][i] for i in op.writes)
            return [self.access(source) for source in found if source >= 0]
        return [self.access(position)]

    def is_rewritten(self, position: int, first: int, last: int) -> bool:
        """Whether one of the nodes ``first`` to ``last`` (inclusive) writes into bytes of the tensor at ``position``.

        The node that computes the tensor's root does not count.  A copy of the tensor that was made before ``first``
        is stale after it.
        """
        if not self._writes:
            return False
        access, own = self.access(position), self.graph.roots[position]
        return any(
            first <= write.node <= last and write.access.overlaps(access) and self.graph.order[write.node] != own
            for write in self._writes.get(access.root, ())
        )

    @property
    def edges(self) -> list[Edge]:
        """Pairs of nodes that have to keep their order; what follows from others is left out where that is cheap."""
        if self._edges is None:
            self._edges = self._find_edges()
        return self._edges

    def _find_edges(self) -> list[Edge]:
        graph, roots = self.graph, self.graph.roots
        edges: list[Edge] = []
        number_of = {position: number for number, position in enumerate(graph.order)}
        writers: dict[int, list[tuple[int, Access]]] = {}
        readers: dict[int, list[tuple[int, Access]]] = {}
        for number, position in enumerate(graph.order):
            op = graph.tensors[position].op
            assert op is not None
            if op.is_view:
                continue
            # By node and root.  Who writes also reads, so between two writes WAW says it all.
            found: dict[tuple[int, int], HazardKind] = {}
            for source in graph.sources[position]:
                if source < 0:
                    continue
                root = roots[source]
                root = self.shared.get(root, (root,))[0]
                if root not in self._writes:
                    # Most roots are written once, by their own node.
                    if root in number_of:
                        found.setdefault((number_of[root], root), HazardKind.RAW)
                    continue
                access = self.access(source)
                for before, other in writers.get(root, ()):
                    if other.overlaps(access):
                        found.setdefault((before, root), HazardKind.RAW)
                readers.setdefault(root, []).append((number, access))
            for access in self.writes(number):
                root = access.root
                if root not in self._writes:
                    continue
                for before, other in writers.get(root, ()):
                    if other.overlaps(access):
                        found[before, root] = HazardKind.WAW
                for before, other in readers.get(root, ()):
                    if other.overlaps(access):
                        found.setdefault((before, root), HazardKind.WAR)
                # What is wholly overwritten needs no edge to anything later: it is ordered through this write.
                writers[root] = [w for w in writers.get(root, ()) if not access.covers(w[1])] + [(number, access)]
                readers[root] = [r for r in readers.get(root, ()) if not access.covers(r[1])]
            edges += [Edge(b, number, kind, root) for (b, root), kind in found.items() if b != number]
        return edges

    def check_order(self, order: Sequence[int]) -> None:
        """Raises GraphError unless the nodes, computed in this order of positions, mean the same.

        ``order`` has to hold every node of the graph once.
        """
        graph = self.graph
        if sorted(order) != sorted(graph.order):
            raise GraphError(
                "an order of a graph has to hold each of its nodes once", got=len(order), wanted=len(graph.order)
            )
        place = {position: number for number, position in enumerate(order)}
        for position in order:
            for source in graph.sources[position]:
                if source in place and place[source] > place[position]:
                    raise GraphError(f"{graph.tensors[position]!r} comes before its source {graph.tensors[source]!r}")
        for edge in self.edges:
            before, after = graph.order[edge.before], graph.order[edge.after]
            if place[before] > place[after]:
                raise GraphError(
                    f"{graph.tensors[after]!r} comes before {graph.tensors[before]!r}, which it must follow: "
                    f"{edge.kind.value} of {graph.tensors[edge.root]!r}"
                )


def written_positions(graph: Graph) -> list[int]:
    """Positions of the tensors whose bytes the graph's nodes write: results, and sources that ops write into.

    With repetitions.
    """
    found = []
    for position in graph.order:
        op = graph.tensors[position].op
        assert op is not None
        if not op.is_view:
            found.append(position)
            found += [source for source in (graph.sources[position][i] for i in op.writes) if source >= 0]
    return found


def written_sources(node: Tensor) -> tuple[Tensor, ...]:
    """The sources that a node writes into; none for most."""
    if node.op is None or not node.op.writes:
        return ()
    return tuple(source for source in (node.src[i] for i in node.op.writes) if source is not None)

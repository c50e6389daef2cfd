"""Hazards: which nodes read and write which bytes, and which nodes must therefore keep their order.

Writes are declared: an op that writes into a source says so in ``writes``, and its result is a view of that source.
Several tensors can share bytes: views, and persistent tensors that callers place so.  So dependencies do not follow
from the sources of nodes; they follow from the accesses to the bytes of *roots*.  If several roots share bytes, the
accesses count as accesses to the root that begins first.  Of two accesses to the same bytes, at least one of them a
write, the one that is first in the graph must be executed first.

All code that reorders, overlaps or splits the nodes of a graph, or reuses its memory, uses this module.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from ggplug.errors import GraphError
from ggplug.graph import Graph
from ggplug.tensor import Tensor


class HazardKind(enum.Enum):
    """Why two nodes must keep their order."""

    RAW = "read after write"
    WAR = "write after read"
    WAW = "write after write"


class Access(NamedTuple):
    """Bytes ``start`` to ``stop`` of the root at a position in the graph, the gaps of strided tensors included.

    If several roots share bytes, ``root`` is the one that begins first.
    """

    root: int
    start: int
    stop: int

    def overlaps(self, other: Access) -> bool:
        return self.root == other.root and self.start < other.stop and other.start < self.stop


class Hazards:
    """The accesses of a graph's nodes, by node number (place in ``order``).

    ``order``: positions of the nodes as they are computed, by default the graph's.

    Raises GraphError if an op's result shares its source's bytes and the op does not declare that it writes there.
    """

    def __init__(self, graph: Graph, order: Sequence[int] | None = None) -> None:
        self.graph = graph
        self.order = graph.order if order is None else order
        self.written: dict[int, list[int]] = {}
        """For each root into which ops write, by position, the positions of these ops' nodes in order."""
        self.shared = {position: (first, later) for position, first, later in graph.signature().shared}
        """For each root that shares bytes with others, by position: the root that begins first, and the distance."""
        self.rewritten: set[int] = set()
        """Roots with bytes that several nodes write, or that a node writes which does not compute the root."""
        roots, sources = graph.roots, graph.sources
        for position in self.order:
            op = graph.tensors[position].op
            assert op is not None
            if op.writes:
                targets = [sources[position][i] for i in op.writes if sources[position][i] >= 0]
                if not targets or roots[position] != roots[targets[0]]:
                    raise GraphError(
                        f"{op.name} declares that it writes into a source, but its result "
                        f"{graph.tensors[position]!r} is no view of that source",
                        op=op,
                        tensor=graph.tensors[position],
                    )
                for target in targets:
                    self.written.setdefault(roots[target], []).append(position)
                    self.rewritten.add(self.memory(target))
            elif roots[position] != position and not op.is_view:
                raise GraphError(
                    f"{op.name} writes {graph.tensors[position]!r} into the bytes of a source, but does not declare it",
                    op=op,
                    tensor=graph.tensors[position],
                    remedy="declare writes = (...) in the class of the op",
                )
            elif position in self.shared:
                self.rewritten.add(self.memory(position))

    def memory(self, position: int) -> int:
        """The root whose bytes the tensor at a position uses; of several roots that share bytes, the first one."""
        root = self.graph.roots[position]
        return self.shared.get(root, (root, 0))[0]

    def access(self, position: int) -> Access:
        """The bytes of the tensor at a position."""
        tensor, root = self.graph.tensors[position], self.graph.roots[position]
        start = tensor.view_offset if root != position else 0
        first, later = self.shared.get(root, (root, 0))
        return Access(first, later + start, later + start + tensor.nbytes)

    def reads(self, number: int) -> list[Access]:
        """What a node reads: all its sources, those that it writes into included.  Views read nothing."""
        position = self.order[number]
        op = self.graph.tensors[position].op
        if op is None or op.is_view:
            return []
        return [self.access(source) for source in self.graph.sources[position] if source >= 0]

    def writes(self, number: int) -> list[Access]:
        """What a node writes: its own bytes, or those of the sources that its op writes into."""
        position = self.order[number]
        op = self.graph.tensors[position].op
        if op is None or op.is_view:
            return []
        if op.writes:
            found = (self.graph.sources[position][i] for i in op.writes)
            return [self.access(source) for source in found if source >= 0]
        return [self.access(position)]

    def between(self, before: int, stop: int) -> Iterator[tuple[int, HazardKind]]:
        """The nodes between ``before`` and ``stop`` that must follow ``before``, in order, and why."""
        readers, writers = self._by_memory
        written = [access.root for access in self.writes(before)]
        read = [access.root for access in self.reads(before)]
        found: set[int] = set()
        for users, roots in ((readers, written), (writers, written + read)):
            for numbers in (users.get(root, []) for root in roots):
                found.update(numbers[bisect_left(numbers, before + 1) : bisect_left(numbers, stop)])
        for after in sorted(found):
            kind = self.conflict(before, after)
            if kind is not None:
                yield after, kind

    @cached_property
    def _by_memory(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For each root, the nodes that read its bytes, and those that write them, each in order."""
        readers: dict[int, list[int]] = {}
        writers: dict[int, list[int]] = {}
        graph = self.graph
        for number, position in enumerate(self.order):
            op = graph.tensors[position].op
            assert op is not None
            if op.is_view:
                continue
            sources = graph.sources[position]
            targets = [sources[i] for i in op.writes] if op.writes else [position]
            for users, touched in ((readers, sources), (writers, targets)):
                for root in {self.memory(each) for each in touched if each >= 0}:
                    users.setdefault(root, []).append(number)
        return readers, writers

    @cached_property
    def overlaps(self) -> tuple[tuple[int, int, int, int], ...]:
        """Which accesses to memory that nodes write into overlap: equal for graphs where the same ones do.

        For each such access, ``(position, root, ends before it, ends until its end)``, of all ends of accesses.
        """
        written = self.rewritten | set(map(self.memory, self.written))
        written |= {first for first, _ in self.shared.values()}
        if not written:
            return ()
        graph = self.graph
        used = {each for position in self.order for each in (position, *graph.sources[position]) if each >= 0}
        accesses = {each: self.access(each) for each in sorted(used) if self.memory(each) in written}
        ends: dict[int, set[int]] = {}
        for access in accesses.values():
            ends.setdefault(access.root, set()).update((access.start, access.stop))
        numbered = {root: {end: number for number, end in enumerate(sorted(found))} for root, found in ends.items()}
        return tuple(
            (each, access.root, numbered[access.root][access.start], numbered[access.root][access.stop])
            for each, access in accesses.items()
        )

    def conflict(self, before: int, after: int) -> HazardKind | None:
        """Why a node must follow an earlier one, because of bytes that both access; None if it need not."""
        earlier, later = self.writes(before), self.writes(after)
        if _meet(earlier, later):
            return HazardKind.WAW
        if _meet(earlier, self.reads(after)):
            return HazardKind.RAW
        return HazardKind.WAR if _meet(self.reads(before), later) else None

    def check_order(self, order: Sequence[int]) -> None:
        """Raises GraphError unless the nodes have the same results if they are computed in this order of positions.

        ``order`` must hold every node of the graph once.
        """
        graph = self.graph
        if sorted(order) != sorted(graph.order):
            raise GraphError(
                "an order must contain each node of the graph exactly once", got=len(order), wanted=len(graph.order)
            )
        place = {position: number for number, position in enumerate(order)}
        number_of = {position: number for number, position in enumerate(self.order)}
        reads, writes = Latest(self), Latest(self)
        for position in order:
            number = number_of[position]
            reading, writing = self.reads(number), self.writes(number)
            sources = [source for source in graph.sources[position] if source >= 0]
            if reading:  # a view of a result may be a leaf
                sources += [graph.roots[source] for source in sources]
            for source in sources:
                if source in place and place[source] > place[position]:
                    raise GraphError(f"{graph.tensors[position]!r} comes before its source {graph.tensors[source]!r}")
            # Nodes that were computed already must also be first in the graph, if they access the same bytes.
            pairs = [(writes, access) for access in (*reading, *writing)] + [(reads, access) for access in writing]
            for latest, access in pairs:
                after = latest.of(access)
                if after > number:
                    kind = self.conflict(number, after)
                    assert kind is not None
                    raise GraphError(
                        f"{graph.tensors[self.order[after]]!r} comes before {graph.tensors[position]!r}, which it must "
                        f"follow: {kind.value} of {graph.tensors[access.root]!r}"
                    )
            for latest, found in ((reads, reading), (writes, writing)):
                for access in found:
                    latest.note(access, number)


class Latest:
    """Finds the largest number of the nodes that accessed some bytes, of the roots in :attr:`Hazards.rewritten`.

    Uses segment trees over the bytes, so an access takes logarithmic time.
    """

    def __init__(self, hazards: Hazards) -> None:
        self._hazards = hazards
        self._trees: dict[int, tuple[list[int], list[int]]] = {}

    @cached_property
    def _ends(self) -> dict[int, list[int]]:
        """For each root, the bytes at which accesses begin and end."""
        hazards = self._hazards
        found: dict[int, set[int]] = {root: set() for root in hazards.rewritten}
        for position in hazards.order if found else ():
            for each in (position, *hazards.graph.sources[position]):
                if each >= 0 and hazards.memory(each) in found:
                    access = hazards.access(each)
                    found[access.root].update((access.start, access.stop))
        return {root: sorted(ends) for root, ends in found.items()}

    def note(self, access: Access, number: int) -> None:
        """Records that the node ``number`` accesses these bytes."""
        whole, below, left, right = self._place(access)
        for vertex in _cover(left, right):
            whole[vertex], below[vertex] = max(whole[vertex], number), max(below[vertex], number)
        for vertex in chain(_above(left), _above(right - 1)):
            below[vertex] = max(below[vertex], number)

    def of(self, access: Access) -> int:
        """The largest number of a node that accessed one of these bytes; -1 if none did."""
        whole, below, left, right = self._place(access)
        within = (below[vertex] for vertex in _cover(left, right))
        around = (whole[vertex] for vertex in chain(_above(left), _above(right - 1)))
        return max(chain(within, around), default=-1)

    def _place(self, access: Access) -> tuple[list[int], list[int], int, int]:
        """The two trees of the access's root, and the range of their leafs that the access covers.

        Each vertex stands for a range of bytes.  The first tree has the largest number of accesses to the whole
        range, the second that of accesses to any of its bytes.
        """
        ends = self._ends.get(access.root)
        if ends is None or access.start >= access.stop:
            return [], [], 0, 0
        size = 1 << len(ends).bit_length()
        if access.root not in self._trees:
            self._trees[access.root] = [-1] * (2 * size), [-1] * (2 * size)
        left, right = bisect_left(ends, access.start), bisect_left(ends, access.stop)
        return *self._trees[access.root], size + left, size + right


def _cover(left: int, right: int) -> Iterator[int]:
    """The vertices of a segment tree that cover a range of its leafs; below ``i`` are ``2 * i`` and ``2 * i + 1``."""
    while left < right:
        if left & 1:
            yield left
            left += 1
        if right & 1:
            right -= 1
            yield right
        left >>= 1
        right >>= 1


def _above(vertex: int) -> Iterator[int]:
    """The vertices of a segment tree that are above a vertex."""
    while vertex > 1:
        vertex >>= 1
        yield vertex


def _meet(some: Iterable[Access], others: Iterable[Access]) -> bool:
    return any(a.overlaps(b) for a in some for b in others)


def written_positions(graph: Graph) -> list[int]:
    """Positions of the tensors whose bytes the graph's nodes write: results, and sources that ops write into.

    A position may occur several times.
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

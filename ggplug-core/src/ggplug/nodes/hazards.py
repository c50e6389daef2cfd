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
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from ggplug.errors import GraphError
from ggplug.graph import Graph
from ggplug.tensor import Tensor


class HazardKind(enum.Enum):
    """Why two nodes are ordered."""

    RAW = "read after write"
    WAR = "write after read"
    WAW = "write after write"


class Access(NamedTuple):
    """Bytes ``start`` to ``stop`` of the root at a position in the graph.  Strided tensors count with their gaps.

    Of roots that share bytes ``root`` is the one that begins first, for all of them.
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
        """Roots into which ops write, by position, and the positions of these nodes, in order."""
        self.shared = {position: (first, later) for position, first, later in graph.signature().shared}
        """Roots that share bytes with others, by position: the first of these, and how many bytes later this begins."""
        self.rewritten: set[int] = set()
        """The roots of accesses to bytes that more than one node writes, or one that is not the root's own."""
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
                    f"{op.name} computes {graph.tensors[position]!r} into the bytes of its source without declaring it",
                    op=op,
                    tensor=graph.tensors[position],
                    remedy="state writes = (...) in the op",
                )
            elif position in self.shared:
                self.rewritten.add(self.memory(position))

    def memory(self, position: int) -> int:
        """The root of accesses to the tensor at a position."""
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
        """The nodes after ``before``, up to ``stop`` exclusive, that have to follow it, in order, and why."""
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
        """By the root of accesses the nodes that read there, and those that write, each in order."""
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

    def conflict(self, before: int, after: int) -> HazardKind | None:
        """Why a node has to follow an earlier one because of bytes that both touch; None if it has not."""
        earlier, later = self.writes(before), self.writes(after)
        if _meet(earlier, later):
            return HazardKind.WAW
        if _meet(earlier, self.reads(after)):
            return HazardKind.RAW
        return HazardKind.WAR if _meet(self.reads(before), later) else None

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
        number_of = {position: number for number, position in enumerate(self.order)}
        reads, writes = Latest(self), Latest(self)
        for position in order:
            number = number_of[position]
            reading, writing = self.reads(number), self.writes(number)
            sources = [source for source in graph.sources[position] if source >= 0]
            if reading:  # of a result a view may be a leaf
                sources += [graph.roots[source] for source in sources]
            for source in sources:
                if source in place and place[source] > place[position]:
                    raise GraphError(f"{graph.tensors[position]!r} comes before its source {graph.tensors[source]!r}")
            # What was computed already has to come first in the graph, too.
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
    """Of the nodes that touched some bytes, the one with the largest number.

    Only for bytes in :attr:`Hazards.rewritten`; of others it knows nothing.  By trees over the bytes: an access takes
    as many steps as the number of accesses has digits.
    """

    def __init__(self, hazards: Hazards) -> None:
        self._hazards = hazards
        self._trees: dict[int, tuple[list[int], list[int]]] = {}

    @cached_property
    def _ends(self) -> dict[int, list[int]]:
        """By root the bytes at which accesses begin and end."""
        hazards = self._hazards
        found: dict[int, set[int]] = {root: set() for root in hazards.rewritten}
        for position in hazards.order if found else ():
            for each in (position, *hazards.graph.sources[position]):
                if each >= 0 and hazards.memory(each) in found:
                    access = hazards.access(each)
                    found[access.root].update((access.start, access.stop))
        return {root: sorted(ends) for root, ends in found.items()}

    def note(self, access: Access, number: int) -> None:
        """A node touched bytes: such as one of the graph reads or writes."""
        whole, below, left, right = self._place(access)
        for piece in _cover(left, right):
            whole[piece], below[piece] = max(whole[piece], number), max(below[piece], number)
        for piece in chain(_above(left), _above(right - 1)):
            below[piece] = max(below[piece], number)

    def of(self, access: Access) -> int:
        """The largest number of the nodes that touched one of these bytes; -1 if none did."""
        whole, below, left, right = self._place(access)
        within = (below[piece] for piece in _cover(left, right))
        around = (whole[piece] for piece in chain(_above(left), _above(right - 1)))
        return max(chain(within, around), default=-1)

    def _place(self, access: Access) -> tuple[list[int], list[int], int, int]:
        """What was noted for all bytes of each piece of a root, and for any; and from where to where the access is."""
        ends = self._ends.get(access.root)
        if ends is None or access.start >= access.stop:
            return [], [], 0, 0
        size = 1 << len(ends).bit_length()
        if access.root not in self._trees:
            self._trees[access.root] = [-1] * (2 * size), [-1] * (2 * size)
        left, right = bisect_left(ends, access.start), bisect_left(ends, access.stop)
        return *self._trees[access.root], size + left, size + right


def _cover(left: int, right: int) -> Iterator[int]:
    """The pieces of a tree that make up some of its leafs: piece ``i`` consists of ``2 * i`` and ``2 * i + 1``."""
    while left < right:
        if left & 1:
            yield left
            left += 1
        if right & 1:
            right -= 1
            yield right
        left >>= 1
        right >>= 1


def _above(piece: int) -> Iterator[int]:
    """The pieces that contain a piece."""
    while piece > 1:
        piece >>= 1
        yield piece


def _meet(some: Iterable[Access], others: Iterable[Access]) -> bool:
    return any(a.overlaps(b) for a in some for b in others)


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

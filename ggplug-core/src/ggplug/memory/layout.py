"""Layouts: the slot and the offset of each tensor of a graph.

A layout is made once for all equal graphs, before memory is allocated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.backend import BufferType
from ggplug.errors import OutOfMemoryError
from ggplug.graph import Graph
from ggplug.memory.lifetimes import BEFORE, Lifetimes, in_place, lifetimes
from ggplug.memory.packing import Item, pack
from ggplug.nodes.groups import UNGROUPED, Groups

_view_offset = attrgetter("view_offset")

PERSISTENT = -1
"""Slot of a tensor that has, or whose root has, a place of its own."""

NOWHERE = -2
"""Slot of a tensor without bytes: an inner result of a group, which cannot be read, or computed as a single node."""


class Request(NamedTuple):
    """Bytes that are not a tensor's: ``size`` bytes in a memory while nodes ``first`` to ``last`` compute.

    ``what`` names them in error messages.
    """

    memory: int
    size: int
    first: int
    last: int
    what: str


class Chunk(NamedTuple):
    """A buffer that a layout needs: ``size`` bytes of the memory with this number."""

    memory: int
    size: int


class Range(NamedTuple):
    """``size`` bytes at ``offset`` in the buffer with number ``slot``."""

    slot: int
    offset: int
    size: int


class Storage(NamedTuple):
    """A range, and the roots that use it one after the other."""

    range: Range
    first: int
    last: int
    members: tuple[int, ...]


class Layout:
    """The result of :func:`lay_out`: slots and offsets by position, and the buffers that they need.

    ``slots`` is an index into ``chunks``, PERSISTENT, or, inside of ``groups``, NOWHERE; ``offsets`` are bytes into
    that chunk, for persistent tensors bytes into their root.  ``extra`` are the ranges of the requests.
    ``peak``: for each memory, the bytes that the packing takes.  ``live``: for each memory, the largest sum of sizes
    that are needed at once, which no packing can be below.

    ``ungrouped``: the same layout for computing node by node.  There, inner results of groups have places in chunks of
    their own, from number ``inside`` on; all other tensors have the same places as here.
    """

    def __init__(
        self,
        roots: tuple[int, ...],
        slots: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        chunks: Sequence[Chunk],
        extra: Sequence[Range],
        storages: Sequence[Storage],
        lives: Lifetimes,
        peak: Sequence[int],
        live: Sequence[int],
        *,
        groups: Groups = UNGROUPED,
        ungrouped: Layout | None = None,
        inside: int | None = None,
    ) -> None:
        self.slots = slots
        self.offsets = offsets
        self.chunks = tuple(chunks)
        self.extra = tuple(extra)
        self.storages = tuple(storages)
        self.peak = tuple(peak)
        self.live = tuple(live)
        self.groups = groups
        self.ungrouped = ungrouped or self
        self.inside = len(self.chunks) if inside is None else inside
        self._lives = lives
        self._roots = roots

    def size(self, memory: int) -> int:
        """Bytes of all buffers of a memory."""
        return sum(chunk.size for chunk in self.chunks if chunk.memory == memory)

    @cached_property
    def born(self) -> Mapping[int, int]:
        """For each root, by position, the number of the node that computes it; -1 for leafs."""
        return self._lives.first

    @cached_property
    def lost(self) -> Mapping[int, int]:
        """For each tensor whose bytes are reused, by position, the number of the node that overwrites them."""
        lost = self._lost_roots()
        return {position: lost[root] for position, root in enumerate(self._roots) if root in lost}

    def _lost_roots(self) -> dict[int, int]:
        lost: dict[int, int] = {}
        # Per buffer, the last owner of each range of bytes: starts, ends and owners of disjoint ranges in order.
        owned: dict[int, tuple[list[int], list[int], list[int]]] = {}
        for storage in sorted((s for s in self.storages if s.range.size), key=lambda s: s.first):
            for member, heir in zip(storage.members, storage.members[1:], strict=False):
                lost[member] = self._lives.first[heir]
            slot, start, size = storage.range
            end = start + size
            starts, ends, owners = owned.setdefault(slot, ([], [], []))
            low = bisect_right(ends, start)
            high = low
            while high < len(starts) and starts[high] < end:
                if owners[high] >= 0:
                    lost.setdefault(owners[high], storage.first)
                high += 1
            new = [(start, end, storage.members[-1] if storage.members else -1)]
            if low < high:
                if starts[low] < start:
                    new.insert(0, (starts[low], start, owners[low]))
                if ends[high - 1] > end:
                    new.append((end, ends[high - 1], owners[high - 1]))
            starts[low:high], ends[low:high], owners[low:high] = map(list, zip(*new, strict=True))
        return lost

    @cached_property
    def leafs(self) -> tuple[Range, ...]:
        """The ranges of leafs and of requests that are needed before the first node; poison leaves them unchanged."""
        return tuple(s.range for s in self.storages if s.first == BEFORE)

    @cached_property
    def dying(self) -> Mapping[int, list[Range]]:
        """For each node number, the ranges that no later node needs."""
        dying: dict[int, list[Range]] = {}
        for storage in self.storages:
            if storage.range.size:
                dying.setdefault(storage.last, []).append(storage.range)
        return dying


def aligned(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def lay_out(
    graph: Graph,
    memories: Sequence[BufferType],
    assignment: Mapping[int, int] | Sequence[int] | None = None,
    *,
    order: Sequence[int] | None = None,
    extra: Sequence[Request] = (),
    reuse: bool = True,
    groups: Groups = UNGROUPED,
) -> Layout:
    """Lays out all tensors that are not persistent, and the requests ``extra``, in buffers of the types ``memories``.

    ``assignment``: for each root, by position, an index into ``memories`` (default 0).  ``order``: positions of the
    nodes as they will be computed (default the graph's).  ``reuse=False`` gives each tensor bytes of its own.
    ``groups``: which nodes will be computed together.  Raises OutOfMemoryError if a tensor is larger than the largest
    buffer of its type.
    """
    lives = lifetimes(graph, order, groups)
    sizes = _sizes(graph, lives.first, memories, assignment)
    if not reuse:
        lives = Lifetimes(lives.first, dict.fromkeys(lives.last, lives.end), lives.end)
    chains = _chains(lives, in_place(graph, lives, sizes, order, groups))
    packed = _pack(graph, lives, chains, sizes, memories, extra)
    roots = tuple(graph.roots)
    slots = np.array([packed.slots.get(root, PERSISTENT) for root in roots], np.int64)
    offsets = np.array([packed.offsets.get(root, 0) for root in roots], np.int64)
    within = np.fromiter(map(_view_offset, graph.tensors), np.int64, len(graph.tensors))
    offsets += np.where(np.asarray(roots, np.int64) == np.arange(len(within)), 0, within)
    if not groups:
        return Layout(
            roots, slots, offsets, packed.chunks, packed.extra, packed.storages, lives, packed.peak, packed.live
        )

    # The lifetimes of inner results when the nodes are computed one by one.
    single = lifetimes(graph, order)
    single = Lifetimes(
        {root: single.first[root] for root in single.first if root in groups.inner},
        {root: single.last[root] for root in single.first if root in groups.inner},
        single.end,
    )
    sizes = _sizes(graph, single.first, memories, assignment)
    inner_packed = _pack(graph, single, _chains(single, {}), sizes, memories, ())
    count = len(packed.chunks)
    all_slots, all_offsets = slots.copy(), offsets.copy()
    for position, root in enumerate(roots):
        if root in groups.inner:
            slots[position] = NOWHERE
            all_slots[position] = count + inner_packed.slots[root]
            all_offsets[position] += inner_packed.offsets[root]
    ungrouped = Layout(
        roots,
        all_slots,
        all_offsets,
        [*packed.chunks, *inner_packed.chunks],
        packed.extra,
        [
            *packed.storages,
            *(s._replace(range=s.range._replace(slot=count + s.range.slot)) for s in inner_packed.storages),
        ],
        Lifetimes({**lives.first, **single.first}, {**lives.last, **single.last}, lives.end),
        [a + b for a, b in zip(packed.peak, inner_packed.peak, strict=True)],
        [a + b for a, b in zip(packed.live, inner_packed.live, strict=True)],
        inside=count,
    )
    return Layout(
        roots,
        slots,
        offsets,
        packed.chunks,
        packed.extra,
        packed.storages,
        lives,
        packed.peak,
        packed.live,
        groups=groups,
        ungrouped=ungrouped,
    )


def _sizes(
    graph: Graph,
    roots: Iterable[int],
    memories: Sequence[BufferType],
    assignment: Mapping[int, int] | Sequence[int] | None,
) -> dict[int, tuple[int, int]]:
    """For each root, the index of its memory, and the bytes that it takes there."""
    sizes: dict[int, tuple[int, int]] = {}
    for root in roots:
        memory = 0 if assignment is None else assignment[root]
        kind = memories[memory]
        sizes[root] = memory, aligned(kind.alloc_size(graph.tensors[root]), kind.alignment)
    return sizes


class _Packed(NamedTuple):
    """Places of roots, by position, and of requests, and the chunks that they need."""

    slots: dict[int, int]
    offsets: dict[int, int]
    chunks: list[Chunk]
    extra: list[Range]
    storages: list[Storage]
    peak: list[int]
    live: list[int]


def _pack(
    graph: Graph,
    lives: Lifetimes,
    chains: Sequence[tuple[int, ...]],
    sizes: Mapping[int, tuple[int, int]],
    memories: Sequence[BufferType],
    extra: Sequence[Request],
) -> _Packed:
    """Packs roots, each chain of them into one place, and requests into chunks of each memory."""
    slot_of: dict[int, int] = {}
    offset_of: dict[int, int] = {}
    chunks: list[Chunk] = []
    storages: list[Storage] = []
    ranges: list[Range] = [Range(0, 0, 0)] * len(extra)
    peak, live = [0] * len(memories), [0] * len(memories)
    chains_of: list[list[tuple[int, ...]]] = [[] for _ in memories]
    for chain in chains:
        chains_of[sizes[chain[0]][0]].append(chain)
    requests_of: list[list[int]] = [[] for _ in memories]
    for number, request in enumerate(extra):
        requests_of[request.memory].append(number)
    for memory, (kind, mine, others) in enumerate(zip(memories, chains_of, requests_of, strict=True)):
        if not mine and not others:
            continue
        items = [Item(sizes[c[0]][1], lives.first[c[0]], lives.last[c[-1]]) for c in mine]
        items += [Item(aligned(extra[n].size, kind.alignment), extra[n].first, extra[n].last) for n in others]
        limit = None if kind.max_size is None else kind.max_size // kind.alignment * kind.alignment
        if limit is not None:
            for number, item in enumerate(items):
                if item.size > limit:
                    beyond = number - len(mine)
                    what = repr(graph.tensors[mine[number][0]]) if beyond < 0 else extra[others[beyond]].what
                    raise OutOfMemoryError(
                        f"{what} takes {item.size} bytes, more than the largest buffer of {kind.name}, "
                        f"{kind.max_size} bytes",
                        device=kind.device,
                        requested=item.size,
                        free=kind.max_size,
                    )
        packing = pack(items, limit)
        peak[memory], live[memory] = packing.peak, packing.bound
        base = len(chunks)
        ends: dict[int, int] = {}
        for number, (item, offset) in enumerate(zip(items, packing.offsets, strict=True)):
            chunk, inside = divmod(offset, limit) if limit else (0, offset)
            ends[chunk] = max(ends.get(chunk, 0), inside + item.size)
            place = Range(base + chunk, inside, item.size)
            members = mine[number] if number < len(mine) else ()
            storages.append(Storage(place, item.first, item.last, members))
            for member in members:
                slot_of[member], offset_of[member] = place.slot, place.offset
            if number >= len(mine):
                ranges[others[number - len(mine)]] = place
        chunks += [Chunk(memory, ends.get(chunk, 0)) for chunk in range(max(ends) + 1)]
    return _Packed(slot_of, offset_of, chunks, ranges, storages, peak, live)


def _chains(lives: Lifetimes, taken: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Lists of roots that use one place one after the other, in order of time."""
    chain_of: dict[int, list[int]] = {}
    chains: list[list[int]] = []
    for root in lives.first:
        before = taken.get(root)
        if before is None:
            chain = [root]
            chains.append(chain)
        else:
            chain = chain_of[before]
            chain.append(root)
        chain_of[root] = chain
    return [tuple(chain) for chain in chains]

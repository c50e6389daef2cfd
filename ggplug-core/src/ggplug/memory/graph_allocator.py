"""The graph allocator: memory for a graph's intermediates, kept and reused from graph to graph (ggml_gallocr).

It lays a graph out (:mod:`.layout`), allocates larger buffers if they are needed, and returns an :class:`Allocation`.
Buffers only grow: after a reservation for the largest graph, smaller ones allocate nothing.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from ggplug.backend import Backend, Buffer, BufferType
from ggplug.errors import BufferUseError, FreedError, ParameterError
from ggplug.graph import Graph
from ggplug.interface.grouping import check_groups
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import Layout, Range, Request, lay_out
from ggplug.memory.runs import Arena
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.nodes.hazards import Hazards
from ggplug.sharing import freeing, one_thread_at_a_time
from ggplug.system.copying import Uncopied
from ggplug.types import BufferUsage

POISON = 0xFF
"""The byte that poison is filled with: floats of every type made of it are NaN."""


class GraphAllocator(Uncopied):
    """Allocates graphs in one or several buffer types (ggml_gallocr_new, ggml_gallocr_new_n).

    ``buffer_types``: ``assignment`` has indices into it.  If a type occurs twice, both share its memory.
    ``reuse=False`` gives each tensor bytes of its own, so that all intermediates can be read.  For one thread at
    a time: calls of another thread raise BusyError.
    """

    def __init__(self, buffer_types: BufferType | Sequence[BufferType], *, reuse: bool = True) -> None:
        kinds = (buffer_types,) if isinstance(buffer_types, BufferType) else tuple(buffer_types)
        if not kinds:
            raise ParameterError("a graph allocator needs at least one buffer type")
        self.buffer_types = kinds
        self.reuse = reuse
        self.arena = Arena()
        self.generation = 0
        """Counts changes of buffers: an allocation of an earlier generation must be replaced by :meth:`bind`."""
        self._memories = tuple(dict.fromkeys(kinds))
        self._memory_of = tuple(self._memories.index(kind) for kind in kinds)
        self._buffers: list[list[Buffer]] = [[] for _ in self._memories]
        self._inside: list[list[Buffer]] = [[] for _ in self._memories]
        """Memory for the results inside of groups, for graphs with groups that are computed node by node."""
        self._retired: list[Buffer] = []
        self.freed = False
        self._entered_by = 0

    # -- deciding ----------------------------------------------------------------------------------

    def lay_out(
        self,
        graph: Graph,
        assignment: Mapping[int, int] | Sequence[int] | None = None,
        *,
        order: Sequence[int] | None = None,
        extra: Sequence[Request] = (),
        groups: Groups = UNGROUPED,
    ) -> Layout:
        """Lays a graph out without allocating anything (ggml_gallocr_reserve_n_size).

        :meth:`sizes` of the layout gives the bytes that it needs.
        ``assignment``: for each root without a place, by position in ``graph.tensors``, an index into ``buffer_types``
        (default 0).  ``order``: positions of the nodes as they will be computed.  ``extra``: further bytes, each needed
        while some nodes compute; ``Request.memory`` is an index into ``buffer_types`` too.  ``groups``: which nodes
        will be computed together, by ``device.groups(graph)``; ignored with ``reuse=False``, so that all intermediates
        can be read.  Raises GraphError for nodes that cannot be a group, as
        :func:`~ggplug.interface.grouping.check_groups` does.
        """
        if not self.reuse:
            groups = UNGROUPED
        found: Mapping[int, int] | Sequence[int] | None = None
        if assignment is not None:
            if isinstance(assignment, Mapping):
                found = {position: self._memory_of[number] for position, number in assignment.items()}
            else:
                found = [self._memory_of[number] for number in assignment]
        requests = [request._replace(memory=self._memory_of[request.memory]) for request in extra]

        def decide() -> Layout:
            check_groups(graph, groups, order)
            return lay_out(graph, self._memories, found, order=order, extra=requests, reuse=self.reuse, groups=groups)

        return graph.steadily(decide)

    def sizes(self, layout: Layout | None = None) -> list[int]:
        """Bytes by buffer type (ggml_gallocr_get_buffer_size).

        Those that a layout needs, or, without one, those that are allocated now.  The memory of a type that occurs
        twice is counted for both.
        """
        if layout is not None:
            return [layout.size(memory) for memory in self._memory_of]
        return [sum(buffer.size for buffer in self._buffers[memory]) for memory in self._memory_of]

    # -- allocating --------------------------------------------------------------------------------

    @one_thread_at_a_time
    def reserve(
        self, graph: Graph, assignment: Mapping[int, int] | Sequence[int] | None = None, *, groups: Groups = UNGROUPED
    ) -> list[int]:
        """Allocates memory for a graph, so that graphs that need no more allocate nothing (ggml_gallocr_reserve).

        Returns the sizes by buffer type.  Raises OutOfMemoryError, and GraphError for a write that is not declared.
        """
        Hazards(graph)
        self.ensure(self.lay_out(graph, assignment, groups=groups))
        return self.sizes()

    @one_thread_at_a_time
    def allocate(
        self, graph: Graph, assignment: Mapping[int, int] | Sequence[int] | None = None, *, groups: Groups = UNGROUPED
    ) -> Allocation:
        """Gives all tensors of a graph a place (ggml_gallocr_alloc_graph); its leafs can be set after that.

        Results of earlier graphs in this allocator's memory are lost.  Allocates only if the buffers are too small.
        ``groups``: which nodes will be computed together; results inside of them get no place.
        Raises OutOfMemoryError, and GraphError for a write that is not declared, or for impossible groups.
        """
        Hazards(graph)
        allocation = self.bind(self.lay_out(graph, assignment, groups=groups), graph)
        self.arena.synchronize()
        allocation.prepare(graph)
        return allocation

    def bind(self, layout: Layout, graph: Graph) -> Allocation:
        """The allocation of a layout in the buffers, which grow if they are too small.  Raises OutOfMemoryError."""
        self.ensure(layout)
        return Allocation(
            graph,
            self.chunks(layout),
            layout.slots,
            layout.offsets,
            layout=layout,
            arena=self.arena,
            groups=layout.groups,
        )

    def ensure(self, layout: Layout) -> None:
        """Makes all buffers at least as large as a layout needs.

        Raises OutOfMemoryError; then the buffers that were too small were freed.  Raises ParameterError for a layout of
        another allocator that needs memories that this one does not have.
        """
        if self.freed:
            raise FreedError(f"{self!r} was freed", thing=self, remedy="make a new one")
        if any(memory >= len(self._memories) for memory, _ in layout.chunks):
            count = len(self._memories)
            raise ParameterError(
                f"the layout has more memories than the {count} of {self!r}: make the layout with this allocator"
            )
        counts = [0] * len(self._memories)
        for memory, size in layout.chunks[: layout.inside]:
            number = counts[memory]
            counts[memory] += 1
            buffers = self._buffers[memory]
            if number < len(buffers) and buffers[number].size >= size and not buffers[number].freed:
                continue
            self._grow(memory, number, size)
        counts = [0] * len(self._memories)
        for memory, size in layout.chunks[layout.inside :]:
            number = counts[memory]
            counts[memory] += 1
            self._grow_inside(memory, number, size)

    def _grow_inside(self, memory: int, number: int, size: int) -> None:
        """Memory for results inside of groups.  Growing it moves no other tensor and loses no result."""
        buffers = self._inside[memory]
        if number < len(buffers) and buffers[number].size >= size and not buffers[number].freed:
            return
        buffer = self._memories[memory].alloc(size)
        buffer.usage = BufferUsage.COMPUTE
        self._retired += buffers[number : number + 1]
        buffers[number : number + 1] = [buffer]

    def _grow(self, memory: int, number: int, size: int) -> None:
        # The old buffer is freed first: there may be no memory for both.  All results in it are lost.
        self.arena.synchronize()
        self.arena.clear()
        self.generation += 1
        buffers = self._buffers[memory]
        if number < len(buffers):
            # Later buffers in the list would get other numbers, so a failure leaves a shorter list.
            old = buffers[number:]
            del buffers[number:]
            sizes = [max(size, old[0].size), *(buffer.size for buffer in old[1:])]
            for buffer in old:
                self._give_back(buffer)
        else:
            sizes = [size]
        for wanted in sizes:
            buffer = self._memories[memory].alloc(wanted)
            buffer.usage = BufferUsage.COMPUTE
            buffers.append(buffer)

    def _give_back(self, buffer: Buffer) -> None:
        try:
            buffer.free()
        except BufferUseError:
            # A zero-copy view exists: the memory is freed when the view is deleted.
            self._retired.append(buffer)

    def chunks(self, layout: Layout) -> list[Buffer]:
        """The buffer of each slot of a layout, after :meth:`ensure` with that layout."""
        found = []
        pieces = (layout.chunks[: layout.inside], self._buffers), (layout.chunks[layout.inside :], self._inside)
        for chunks, buffers in pieces:
            counts = [0] * len(self._memories)
            for memory, _ in chunks:
                found.append(buffers[memory][counts[memory]])
                counts[memory] += 1
        return found

    def _held(self) -> list[Buffer]:
        return [*self._retired, *(buffer for buffers in (*self._buffers, *self._inside) for buffer in buffers)]

    def check_free(self) -> None:
        """Raises BufferUseError while zero-copy views of the buffers exist."""
        for buffer in self._held():
            buffer.check_free()

    @one_thread_at_a_time
    def free(self) -> None:
        """Frees all buffers, after waiting for computations in them.

        Raises BufferUseError while zero-copy views of them exist, and BusyError if it is called from within such a
        computation; then nothing is freed.  Later allocations raise FreedError.
        """
        self.arena.synchronize()
        with freeing(*self._held()):
            self.check_free()
            self.arena.clear()
            self.generation += 1
            for buffer in self._held():
                buffer.free()
            self._retired.clear()
            for buffers in (*self._buffers, *self._inside):
                buffers.clear()
            self.freed = True

    def __enter__(self) -> GraphAllocator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()


def allocate_graph(graph: Graph, buffer_type: BufferType) -> Allocation:
    """Allocates all tensors of one graph in one buffer type, by an allocator that is used for this graph only."""
    return GraphAllocator(buffer_type).allocate(graph)


# -- poison ----------------------------------------------------------------------------------------


Poison = Literal["", "nodes", "groups"]
"""When bytes that no node may read are filled with poison: never, after each node, or after each group."""


def poison_mode(wanted: bool | str | None = None) -> Poison:
    """The mode for ``wanted``, or with None for the variable ``GGPLUG_POISON``: ``nodes`` (or 1) or ``groups``.

    Raises ParameterError for anything else.
    """
    named = os.environ.get("GGPLUG_POISON", "") if wanted is None else wanted
    modes: dict[bool | str, Poison] = {
        "": "",
        "0": "",
        False: "",
        "1": "nodes",
        True: "nodes",
        "nodes": "nodes",
        "groups": "groups",
    }
    if named not in modes:
        what = "GGPLUG_POISON" if wanted is None else "poison"
        raise ParameterError(f"{what} must be 'nodes' or 'groups', got {named!r:.100}", got=named)
    return modes[named]


def poison_before(layout: Layout, buffers: Sequence[Buffer]) -> None:
    """Fills all bytes of a layout's buffers except leafs with NaN, so that reads of values not computed yet show up."""
    kept: dict[int, list[Range]] = {}
    for leaf in layout.leafs:
        kept.setdefault(leaf.slot, []).append(leaf)
    for slot, buffer in enumerate(buffers):
        start = 0
        for leaf in sorted(kept.get(slot, ())):
            if leaf.offset > start:
                buffer.memset(start, leaf.offset - start, POISON)
            start = max(start, leaf.offset + leaf.size)
        if buffer.size > start:
            buffer.memset(start, buffer.size - start, POISON)


def poison_after(layout: Layout, buffers: Sequence[Buffer], number: int) -> None:
    """Fills the bytes that no node needs after node ``number`` with NaN, so that later reads of them show up."""
    for slot, offset, size in layout.dying.get(number, ()):
        buffers[slot].memset(offset, size, POISON)


def compute_poisoned(stream: Backend, graph: Graph, allocation: Allocation) -> None:
    """Computes group by group, and poisons each tensor's bytes as soon as no node needs them.

    Uses the groups of the allocation; without groups it computes node by node.  Slow; finds reads of memory that was
    reused.  If there are none, the results are those of ``stream.compute``.
    """
    layout = allocation.layout
    if layout is None:
        raise ParameterError("compute_poisoned needs an allocation of a graph allocator, which has a layout")
    allocation.check(graph, allocation.groups)
    run = allocation.begin(graph)
    try:
        poison_before(layout, allocation.buffers)
        _poisoned(stream, graph, allocation, layout)
        run.end(stream, progress=len(graph.nodes))
    except BaseException as error:
        run.fail(error, stream)
        raise
    finally:
        run.thread = 0


def _poisoned(stream: Backend, graph: Graph, allocation: Allocation, layout: Layout) -> None:
    for number, nodes in enumerate(allocation.groups.by_place(graph.order)):
        part = piece(graph, nodes)
        if part.nodes:
            compute_piece(stream, part, allocation, allocation.groups)
        poison_after(layout, allocation.buffers, number)


def piece(graph: Graph, nodes: Collection[int]) -> Graph:
    """The part of a graph with these nodes, by position, and with the views that nodes of a group read."""
    computing = {position for position in nodes if not graph.tensors[position].op.is_view}  # type: ignore[union-attr]
    read = {source for position in computing for source in graph.sources[position]}
    first, last = min(nodes, default=0), max(nodes, default=-1)
    seen = [
        position
        for position in graph.order[bisect_left(graph.order, first) : bisect_right(graph.order, last)]
        if position in computing or (position in read and graph.tensors[position].op.is_view)  # type: ignore[union-attr]
    ]
    return Graph.part([graph.tensors[position] for position in seen], whole=graph)


def compute_piece(stream: Backend, part: Graph, allocation: Allocation, groups: Groups) -> None:
    """Computes a part of a graph in the places of the whole graph, with the groups that lie in the part, and waits."""
    at, mine = part.positions, groups.within(part)
    here = Allocation(part, allocation.buffers, allocation.slots[at], allocation.offsets[at], groups=mine)
    plan = stream.plan(part, mine)
    try:
        plan.rebind(part, here)
        plan.compute()
        stream.synchronize()
    finally:
        plan.free()

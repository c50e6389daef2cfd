"""The places of a graph's tensors in buffers, as the graph allocator decided them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import BufferUseError, GraphError, ShapeError, TensorStateError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.interface.grouping import check_groups
from ggplug.interface.plans import BufferOffsets, Pending
from ggplug.memory.layout import NOWHERE, PERSISTENT, Layout
from ggplug.memory.runs import Arena, Run, Submission, begun
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.nodes.hazards import written_positions
from ggplug.system.copying import Uncopied
from ggplug.tensor import Tensor
from ggplug.values.buffers import COPY_FIRST, Buffer, BufferType

_address = attrgetter("address")
_buffer = attrgetter("buffer")
_size = attrgetter("size")
_offset = attrgetter("offset")
_nbytes = attrgetter("nbytes")
_alignment = attrgetter("type.alignment")

Numbers = npt.NDArray[np.int64]


class Allocation(Uncopied):
    """Places of all tensors of a graph, and of every equal graph.

    By position in ``graph.tensors``: ``slots`` is an index into ``buffers``, PERSISTENT or NOWHERE; ``offsets`` are
    bytes into that buffer, for persistent tensors bytes into their root.  ``layout`` says when bytes are reused.
    All allocations in the same memory share one ``arena``.  ``groups``: which nodes are computed together here;
    results inside of them may have the slot NOWHERE.

    Raises BufferUseError if a tensor would not lie inside of its buffer (of its root, if that is persistent), or at an
    address that is no multiple of its type's alignment; ShapeError, TypeMismatchError for lists that do not fit the
    graph.  Two tensors may share bytes; :mod:`.overlaps` checks when.
    """

    _INSTEAD = "allocate the graph again"

    def __init__(
        self,
        graph: Graph,
        buffers: Sequence[Buffer],
        slots: Sequence[int] | npt.NDArray[Any],
        offsets: Sequence[int] | npt.NDArray[Any],
        *,
        layout: Layout | None = None,
        arena: Arena | None = None,
        groups: Groups = UNGROUPED,
    ) -> None:
        self.buffers = tuple(buffers)
        self.slots = _numbers(graph, slots, "slots")
        self.offsets = _numbers(graph, offsets, "offsets")
        self.layout = layout
        self.groups = groups
        self.arena = arena if arena is not None else Arena()
        self._work: Submission | None = None
        """The graph of the last run in these places."""
        self.unplaced: list[int] = [] if graph.positions is not None else self._leafs(graph)
        """Positions of the leafs in these buffers, which the caller sets before computing (none for parts)."""
        self._placed = np.flatnonzero(self.slots >= 0)
        nowhere = np.flatnonzero(self.slots == NOWHERE)
        self._nowhere = frozenset(map(graph.roots.__getitem__, nowhere.tolist()))
        """Positions of the roots that have no bytes."""
        self._used = _distinct(self.slots[self._placed])
        self._own = np.flatnonzero(self.slots == PERSISTENT)
        root_of = np.asarray(graph.roots, np.int64)
        self._own_roots = _distinct(root_of[self._own])
        roots = np.array(self._own_roots, np.int64)
        self._of_root = np.searchsorted(roots, root_of[self._own])
        nbytes = np.fromiter(map(_nbytes, graph.tensors), np.int64, len(graph.tensors))
        self._own_sizes = nbytes[roots]
        self._check_places(graph, nbytes)
        written = np.array(sorted({*written_positions(graph)}), np.int64)
        self._written = written[nbytes[written] > 0]
        slots_written = self.slots[self._written]
        self._written_slots = _distinct(slots_written[slots_written >= 0])
        self._written_roots = _distinct(root_of[self._written[slots_written == PERSISTENT]])
        self._written_own: list[int] = np.searchsorted(roots, self._written_roots).tolist()
        self._structure = graph.structure
        self._checked: tuple[Callable[[], Graph | None], int] = (lambda: None), 0
        """The graph that was checked last and the number of its revision: one value, set at the end of the check."""
        self._inputs: list[tuple[int, Buffer, tuple[int, int]]] = [
            (position, self.buffers[self.slots[position]], (start, start + graph.tensors[position].nbytes))
            for position, start in zip(self.unplaced, self.offsets[self.unplaced].tolist(), strict=True)
            if self.slots[position] >= 0 and graph.tensors[position].nbytes
        ]
        """The leafs in these buffers, each with its buffer and its range there."""
        self._of_inputs: dict[Buffer, dict[int, int]] = {}
        for _, buffer, (start, end) in self._inputs:
            self._of_inputs.setdefault(buffer, {})[start] = end

    def _check_places(self, graph: Graph, nbytes: Numbers) -> None:
        """Raises unless every tensor lies inside of its buffer, or its root, at an address that its type allows."""
        for buffer in self.buffers:
            if not isinstance(buffer, Buffer):
                raise TypeMismatchError(f"Allocation: buffers must hold Buffer objects, got {buffer!r}", got=buffer)
        unknown = np.flatnonzero((self.slots < NOWHERE) | (self.slots >= len(self.buffers)))
        if unknown.size:
            position = int(unknown[0])
            raise BufferUseError(
                f"the slot {self.slots[position]} of {graph.tensors[position]!r} is not one of the {len(self.buffers)} "
                "buffers",
                tensor=graph.tensors[position],
                got=int(self.slots[position]),
                wanted=len(self.buffers),
            )
        for slot in self._used:
            if self.buffers[slot].type.has_own_layout:
                tensor = graph.tensors[int(np.flatnonzero(self.slots == slot)[0])]
                raise BufferUseError(
                    f"{tensor!r} would lie in {self.buffers[slot]!r}, whose own layout is for persistent tensors only",
                    tensor=tensor,
                    remedy="lay graphs out in the device's default memory",
                )
        bases, sizes = np.zeros(len(self.slots), np.int64), np.zeros(len(self.slots), np.int64)
        taken = nbytes.copy()
        if self._placed.size:
            slots = self.slots[self._placed]
            bases[self._placed] = np.array([buffer.address or 0 for buffer in self.buffers], np.int64)[slots]
            sizes[self._placed] = np.array([buffer.size for buffer in self.buffers], np.int64)[slots]
            for slot in self._used:
                kind = self.buffers[slot].type
                if type(kind).alloc_size is not BufferType.alloc_size:
                    for position in np.flatnonzero(self.slots == slot).tolist():
                        if graph.roots[position] == position:
                            taken[position] = max(taken[position], kind.alloc_size(graph.tensors[position]))
        sizes[self._own] = self._own_sizes[self._of_root]
        there = self.slots != NOWHERE
        alignments = np.fromiter(map(_alignment, graph.tensors), np.int64, len(graph.tensors))
        outside = there & ((self.offsets < 0) | (self.offsets > sizes - taken))
        # Only the low bits are used, so overflow of the sum does not matter.
        misaligned = there & (nbytes > 0) & ((bases + self.offsets) & (alignments - 1) != 0)
        wrong = np.flatnonzero(outside | misaligned)
        if wrong.size:
            position = int(wrong[0])
            tensor, start, size = graph.tensors[position], int(self.offsets[position]), int(taken[position])
            slot = int(self.slots[position])
            where = graph.tensors[graph.roots[position]] if slot == PERSISTENT else self.buffers[slot]
            if outside[position]:
                raise BufferUseError(
                    f"{tensor!r} would lie at bytes {start} to {start + size} of {where!r}, which has "
                    f"{sizes[position]}",
                    tensor=tensor,
                    got=start,
                    wanted=int(sizes[position]) - size,
                )
            raise BufferUseError(
                f"{tensor!r} would lie at byte {start} of {where!r}; {tensor.type.name} must lie at a multiple of "
                f"{tensor.type.alignment}",
                tensor=tensor,
                got=start,
                wanted=tensor.type.alignment,
            )

    @property
    def lost(self) -> Mapping[int, int]:
        """For each tensor whose bytes are reused, by position, the number of the node that overwrites them."""
        return self.layout.lost if self.layout is not None else {}

    # -- places ------------------------------------------------------------------------------------

    def check(self, graph: Graph, groups: Groups = UNGROUPED) -> None:
        """Raises unless a plan may be bound to ``graph`` in these places.

        The constructor checked the places, so this checks only what may have changed since.  ``groups``: those that the
        plan computes; only results inside of them may have no bytes.  Raises GraphError for a graph that is not equal
        to the one of the allocation, for nodes that cannot be a group as the graph's tensors are marked and placed now,
        and for groups that the places were not made for (bytes that a group reads until its end may belong to another
        tensor by then); TensorStateError if a persistent tensor has no place, or a result that a plan with these groups
        writes has none; BufferUseError if a place is outside of its buffer, if a buffer was freed, or if a node would
        write into read-only memory.

        Makes no Python call per tensor, and only a few calls if nothing was placed, freed or marked since.
        """
        self._structure = graph.check_structure(self._structure, "the allocation")
        if self._nowhere and not self._nowhere <= groups.inner:
            raise self.not_kept(graph, min(self._nowhere - groups.inner))
        if groups is not self.groups and groups != self.groups:
            self._check_other(graph, groups)
        now = graph.watch()
        checked, checked_at = self._checked
        if checked_at == now and checked() is graph:
            return
        used = set(map(self.buffers.__getitem__, self._used))
        for each in used:
            each.watchers.add(graph.revision)
        roots = list(map(graph.tensors.__getitem__, self._own_roots))
        # Gathered once: another thread may give a tensor another place meanwhile.
        own: list[Buffer | None] = list(map(_buffer, roots))
        if None in own:
            raise _no_bytes(roots[own.index(None)])
        for held in used.union(filter(None, own)):
            if held.freed:
                raise BufferUseError(f"{held!r}, which holds tensors of {graph!r}, was freed")
        starts = np.fromiter(map(_offset, roots), np.int64, len(roots))
        sizes = np.fromiter(map(_size, own), np.int64, len(roots))
        if ((starts < 0) | (starts > sizes - self._own_sizes)).any():
            for root, buffer in zip(roots, own, strict=True):
                assert buffer is not None
                buffer.check_place(root, root.offset)
        written = (*map(own.__getitem__, self._written_own), *map(self.buffers.__getitem__, self._written_slots))
        if any(buffer is not None and buffer.is_read_only for buffer in written):
            raise self._read_only(graph)
        check_groups(graph, self.groups)
        self.check_set(graph)
        self._checked = weakref.ref(graph), now

    def _check_other(self, graph: Graph, groups: Groups) -> None:
        """Raises GraphError unless these groups are among those that the places were made for."""
        check_groups(graph, groups)
        for members in groups.members:
            inner = groups.inner.intersection(members)
            if members not in self.groups.members or not inner <= self.groups.inner:
                named = ", ".join(repr(graph.tensors[position]) for position in members)
                raise GraphError(
                    f"{named} cannot be computed together: the allocation was made for other groups",
                    got=members,
                    remedy="allocate with the groups of the plan",
                )

    def check_set(self, graph: Graph) -> None:
        """Raises TensorStateError if a tensor that the graph reads was placed by an allocator and never set.

        Persistent tensors that nodes write into count as set from then on.  Makes no Python call per tensor if all of
        them were set.
        """
        roots = list(map(graph.tensors.__getitem__, self._own_roots))
        own = list(map(_buffer, roots))
        if not any(buffer is not None and buffer.unset for buffer in set(own)):
            return
        written = set(self._written_own)
        for number in (*self._written_own, *range(len(roots))):
            root, buffer = roots[number], own[number]
            if buffer is None or buffer.unset.get(root.offset) != root.offset + root.nbytes:
                continue
            if number not in written:
                raise TensorStateError(f"{root!r} has no value: set it before computing", tensor=root)
            buffer.unset.pop(root.offset, None)

    def place(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor at ``position``.  It counts as set then, since the caller may write there.

        Raises TensorStateError if its root has no place; BufferUseError if a node writes it and its memory is
        read-only; GraphError for a graph that is not equal to the one of the allocation.
        """
        self._structure = graph.check_structure(self._structure, "the allocation")
        buffer, offset = self.where(graph, position)
        if buffer.is_read_only and position in self._written:
            raise self._read_only(graph)
        if buffer.unset:
            buffer.fill(offset, graph.tensors[position].nbytes)
        return buffer, offset

    def where(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor at ``position``, to read it; raises as :meth:`place`."""
        slot = int(self.slots[position])
        offset = int(self.offsets[position])
        if slot >= 0:
            return self.buffers[slot], offset
        if slot == NOWHERE:
            raise self.not_kept(graph, position)
        root = graph.tensors[graph.roots[position]]
        buffer = root.buffer
        if buffer is None:
            raise _no_bytes(root)
        return buffer, root.offset + offset

    def not_kept(self, graph: Graph, position: int) -> TensorStateError:
        """The error for using a tensor that has no bytes here."""
        tensor, root = graph.tensors[position], graph.roots[position]
        for members in self.groups.members:
            if root in members:
                nodes = ", ".join(repr(graph.tensors[member]) for member in members)
                return TensorStateError(
                    f"{tensor!r} has no bytes: it is computed inside of a group, {nodes}",
                    tensor=tensor,
                    remedy="mark it with set_output() before computing",
                )
        return TensorStateError(f"{tensor!r} has no bytes: they were not kept", tensor=tensor)

    def places(self, graph: Graph, groups: Groups = UNGROUPED) -> BufferOffsets:
        """All places at once, for plans on devices whose buffers are handles.

        ``groups``: those that the plan computes; results inside of them have the number NOWHERE (-2).  Makes no Python
        call per tensor.  Raises as :meth:`check`.
        """
        self.check(graph, groups)
        which = self.slots.copy()
        offsets = self.offsets.copy()
        roots = list(map(graph.tensors.__getitem__, self._own_roots))
        buffers = [*self.buffers, *map(_buffer, roots)]
        which[self._own] = self._of_root + len(self.buffers)
        offsets[self._own] += np.fromiter(map(_offset, roots), np.int64, len(roots))[self._of_root]
        return BufferOffsets(buffers, which, offsets)

    def addresses(
        self, graph: Graph, held: set[Buffer] | None = None, groups: Groups = UNGROUPED
    ) -> npt.NDArray[np.int64]:
        """Host addresses of all tensors, for plans that run on host memory.

        Adds the buffers of the addresses to ``held``: the plan claims them, and keeps them alive, while it computes.
        ``groups``: those that the plan computes; results inside of them have the address 0.  Makes no Python
        call per tensor.  Raises as :meth:`check`, and BufferUseError if a buffer is not in host memory.
        """
        self.check(graph, groups)
        addresses = self.offsets.copy()
        if self._nowhere:
            addresses[self.slots == NOWHERE] = 0
        buffers: set[Buffer] = set()
        try:
            if self._placed.size:
                buffers.update(map(self.buffers.__getitem__, self._used))
                bases = np.zeros(len(self.buffers), np.int64)
                for slot in self._used:
                    bases[slot] = self.buffers[slot].address  # type: ignore[assignment]  # None is caught below
                addresses[self._placed] += bases[self.slots[self._placed]]
            if self._own_roots:
                roots = list(map(graph.tensors.__getitem__, self._own_roots))
                # Gathered once: another thread may give a tensor another place meanwhile.
                own = list(map(_buffer, roots))
                bases = np.fromiter(map(_address, own), np.int64, len(roots))
                buffers.update(own)
                bases += np.fromiter(map(_offset, roots), np.int64, len(roots))
                addresses[self._own] += bases[self._of_root]
        except (AttributeError, TypeError):  # an address is None, or another thread took a place away
            for position, tensor in enumerate(graph.tensors):
                if int(self.slots[position]) == NOWHERE:
                    continue
                buffer, _ = self.where(graph, position)
                if buffer.address is None:
                    raise BufferUseError(
                        f"{tensor!r} lies in {buffer!r}, which is not host memory", tensor=tensor
                    ) from None
            raise TensorStateError(f"another thread changed places of tensors of {graph!r} during this call") from None
        if held is not None:
            held |= buffers
        return addresses

    def _leafs(self, graph: Graph) -> list[int]:
        positions = (graph.index[leaf] for leaf in graph.leafs if leaf.view_src is None)
        return [position for position in positions if self.slots[position] != PERSISTENT]

    def used_buffers(self) -> set[Buffer]:
        """The ``buffers`` in which tensors of the graph lie."""
        return {self.buffers[slot] for slot in self._used}

    def persistent_buffers(self, graph: Graph) -> set[Buffer]:
        """The buffers of the graph's persistent tensors.  Makes no Python call per tensor."""
        return set(map(_buffer, map(graph.tensors.__getitem__, self._own_roots)))

    def written_buffers(self, graph: Graph) -> set[Buffer]:
        """The buffers that the graph's nodes write into.  Makes no Python call per tensor."""
        found = set(map(self.buffers.__getitem__, self._written_slots))
        found.update(map(_buffer, map(graph.tensors.__getitem__, self._written_roots)))
        return found

    def _read_only(self, graph: Graph) -> BufferUseError:
        """The error for a node that would write into read-only memory."""
        for position in graph.order:
            node = graph.tensors[position]
            assert node.op is not None
            if node.op.is_view or not node.nbytes:
                continue
            for target in (*(graph.sources[position][i] for i in node.op.writes), position):
                if int(self.slots[target]) == NOWHERE:
                    continue
                buffer, _ = self.where(graph, target)
                if buffer.is_read_only:
                    return BufferUseError(
                        f"{node!r} would write into {graph.tensors[target]!r} in {buffer!r}, which is read-only",
                        tensor=graph.tensors[target],
                        op=node.op,
                        remedy=COPY_FIRST,
                    )
        return BufferUseError(f"{graph!r} would write into read-only memory", remedy=COPY_FIRST)

    # -- computing ---------------------------------------------------------------------------------

    def prepare(self, graph: Graph, *, must_be_set: bool = False) -> None:
        """Reserves the memory for ``graph``: its leafs can be set, and results of other graphs in it are lost.

        ``must_be_set``: :meth:`begin` raises if a leaf in these buffers was not set since; the scheduler uses it.
        """
        if self._work is not None:
            self._work.wait(self.arena, of_leafs=True)
        last = graph.run
        if must_be_set and (last is None or last.allocation is not self or not last.current):
            # Otherwise the inputs keep their values.
            for buffer, places in self._of_inputs.items():
                buffer.unset.add(places)
        graph.run = run = Run(self)
        self._work = run.work

    def begin(self, graph: Graph) -> Run:
        """Begins a computation of ``graph`` in these places: results of earlier computations are lost.

        The caller must call ``end`` or ``fail`` of the returned run, and then set its ``thread`` to 0.

        Raises BusyError if another thread computes in these places, and TensorStateError if a leaf must be set and was
        not set since :meth:`prepare`.
        """
        for buffer in self._of_inputs:
            if buffer.unset:
                self._check_inputs(graph)
        graph.run = run = begun(self)
        self._work = run.work
        return run

    def _check_inputs(self, graph: Graph) -> None:
        for position, buffer, (start, end) in self._inputs:
            if buffer.unset.get(start) == end:
                leaf = graph.tensors[position]
                raise TensorStateError(f"{leaf!r} has no value: set it before computing", tensor=leaf)

    def computed(self, graph: Graph, *pending: Pending, progress: int | None = None) -> None:
        """Records that a plan computed ``graph`` in these places: its results are read from this allocation.

        ``pending``: streams that may still compute it.  ``progress``: number of computed nodes, by default all.
        """
        run = self.begin(graph)
        try:
            run.end(*pending, progress=len(graph.nodes) if progress is None else progress)
        finally:
            run.thread = 0


def _numbers(graph: Graph, values: Sequence[int] | npt.NDArray[Any], what: str) -> Numbers:
    """An array of one integer for each tensor.  Raises ShapeError, TypeMismatchError."""
    try:
        found = np.asarray(values)
        if found.shape != (len(graph.tensors),):
            raise ShapeError(
                f"{what} must have one integer for each of the {len(graph.tensors)} tensors of {graph!r}, got shape "
                f"{found.shape}",
                got=found.shape,
                wanted=(len(graph.tensors),),
            )
        if found.size and found.dtype.kind not in "iu":
            raise TypeMismatchError(f"{what} must be integers of 64 bits, got {found.dtype}", got=found.dtype)
        numbers = found.astype(np.int64)
        numbers.flags.writeable = False  # a caller cannot change what was checked
        return numbers
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        raise TypeMismatchError(f"{what} must be integers: {error}", got=values) from None


def _distinct(numbers: Numbers) -> list[int]:
    """Each number once, in order; of the few numbers of most graphs, without the cost of a call of ``np.unique``."""
    return sorted(set(numbers.tolist()))


def _no_bytes(root: Tensor) -> TensorStateError:
    return TensorStateError(f"{root!r} has no bytes: allocate it before computing", tensor=root)

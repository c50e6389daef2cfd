"""Where the tensors of a graph lie: the immutable answer of the graph allocator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.backend import Buffer
from ggplug.errors import BufferUseError, TensorStateError
from ggplug.graph import Graph
from ggplug.memory.layout import PERSISTENT, Layout
from ggplug.sharing import entered, turn
from ggplug.tensor import Tensor

_address = attrgetter("address")
_buffer = attrgetter("buffer")
_offset = attrgetter("offset")
_serials = itertools.count(1)

class Pending(Protocol):
    """Something that can be waited for: a stream or an event."""

    def synchronize(self) -> None: ...


class Arena:
    """The memory that an allocator hands out again and again.

    ``serial``: number of the last use of it; the results of an earlier one are gone.  ``pending``: what the last
    computation in it may still be doing.  ``thread``: which one gives a computation in it to a stream now; 0 if none.
    """

    __slots__ = ("__weakref__", "pending", "serial", "thread")

    def __init__(self) -> None:
        self.serial = 0
        self.thread = 0
        self.pending: tuple[Pending, ...] = ()

    def use(self) -> int:
        """Begins another use, which ends all earlier ones; returns its number."""
        self.serial = next(_serials)
        return self.serial

    def synchronize(self) -> None:
        """Waits for the last computation; raises what went wrong in it, and then its results are gone."""
        if not self.pending:
            return
        # In turn: that one thread is waiting must not make another one believe that there is nothing to wait for.
        with turn(self):
            pending = self.pending
            try:
                for each in pending:
                    each.synchronize()
            except BaseException:
                self.use()
                raise
            finally:
                if self.pending is pending:
                    self.pending = ()

    def __repr__(self) -> str:
        return f"<memory for intermediates, used {self.serial} times>"


class Computation:
    """A computation of a graph, or what prepares one: where its tensors lie and how far it got.

    ``serial``: the use of the memory that it is; larger numbers came later.  ``progress``: nodes computed so far.
    ``thread``: which one is giving it to streams now; 0 when it has ended, or is only prepared.
    """

    __slots__ = ("allocation", "progress", "serial", "thread")

    def __init__(self, allocation: Allocation, thread: int = 0) -> None:
        self.allocation = allocation
        self.thread = thread
        self.progress = 0
        self.serial = allocation.arena.use()

    @property
    def current(self) -> bool:
        """Whether nothing else has used the memory since."""
        return self.serial == self.allocation.arena.serial

    def end(self, *pending: Pending, progress: int) -> None:
        """The computation was given to streams; ``pending`` are those that may still be at it."""
        allocation = self.allocation
        allocation.arena.pending = allocation.pending = pending
        self.progress = progress
        self.thread = allocation.arena.thread = 0


class Places(NamedTuple):
    """Buffers and offsets of all tensors of a graph, as arrays: tensor ``i`` lies in ``buffers[which[i]]``."""

    buffers: list[Buffer]
    which: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class Allocation:
    """Places of all tensors of a graph, and of every equal graph.

    By position in ``graph.tensors``: ``slots`` is an index into ``buffers``, or PERSISTENT; ``offsets`` are bytes
    into that buffer, for persistent tensors bytes into their root.  ``layout`` knows when bytes are reused.
    ``arena`` is shared by all allocations in the same memory.
    """

    def __init__(
        self,
        graph: Graph,
        buffers: Sequence[Buffer],
        slots: Sequence[int] | npt.NDArray[Any],
        offsets: Sequence[int] | npt.NDArray[Any],
        *,
        layout: Layout | None = None,
        arena: Arena | None = None,
    ) -> None:
        self.buffers = tuple(buffers)
        self.slots = np.asarray(slots, np.int64)
        self.offsets = np.asarray(offsets, np.int64)
        self.layout = layout
        self.arena = arena if arena is not None else Arena()
        self.pending: tuple[Pending, ...] = ()
        """What may still read the leafs that lie here."""
        self.unplaced: list[int] = [] if graph.positions is not None else self._leafs(graph)
        """Positions of leafs that lie here: the caller sets them before computing (none for parts)."""
        self._placed = np.flatnonzero(self.slots != PERSISTENT)
        self._used: list[int] = np.unique(self.slots[self._placed]).tolist()
        own = np.flatnonzero(self.slots == PERSISTENT)
        roots, of_root = np.unique(np.asarray(graph.roots, np.int64)[own], return_inverse=True)
        self._own = own
        self._own_roots: list[int] = roots.tolist()
        self._of_root = of_root

    @property
    def lost(self) -> Mapping[int, int]:
        """For tensors whose bytes are reused, by position, the number of the node that overwrites them."""
        return self.layout.lost if self.layout is not None else {}

    # -- places ------------------------------------------------------------------------------------

    def place(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor at ``position``.  Raises TensorStateError if its root has no place."""
        slot = int(self.slots[position])
        offset = int(self.offsets[position])
        if slot != PERSISTENT:
            return self.buffers[slot], offset
        root = graph.tensors[graph.roots[position]]
        buffer = root.buffer
        if buffer is None:
            raise _no_bytes(root)
        return buffer, root.offset + offset

    def places(self, graph: Graph) -> Places:
        """All places at once, for plans on devices whose buffers are handles.

        Takes no Python call per tensor.  Raises TensorStateError if a persistent tensor has no place, BufferUseError
        if a buffer was freed.
        """
        which = self.slots.copy()
        offsets = self.offsets.copy()
        buffers = list(self.buffers)
        roots = list(map(graph.tensors.__getitem__, self._own_roots))
        buffers += map(_buffer, roots)
        self._check(graph, set(buffers))
        which[self._own] = self._of_root + len(self.buffers)
        offsets[self._own] += np.fromiter(map(_offset, roots), np.int64, len(roots))[self._of_root]
        return Places(buffers, which, offsets)

    def addresses(self, graph: Graph, held: set[Buffer] | None = None) -> npt.NDArray[np.int64]:
        """Host addresses of all tensors, for plans that run on host memory.

        ``held`` gets the buffers that the addresses lie in: the plan has to claim them, and to keep them alive, when it
        computes.  Takes no Python call per tensor.  Raises TensorStateError if a persistent tensor has no place,
        BufferUseError if a buffer was freed or is not in host memory.
        """
        addresses = self.offsets.copy()
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
            self._check(graph, buffers)
        except (AttributeError, TypeError):
            self._check(graph, ())
            for position, tensor in enumerate(graph.tensors):
                buffer, _ = self.place(graph, position)
                if buffer.address is None:
                    raise BufferUseError(
                        f"{tensor!r} lies in {buffer!r}, which is not host memory", tensor=tensor
                    ) from None
            raise TensorStateError(f"another thread gives tensors of {graph!r} other places") from None
        if held is not None:
            held |= buffers
        return addresses

    def _leafs(self, graph: Graph) -> list[int]:
        positions = (graph.index[leaf] for leaf in graph.leafs if leaf.view_src is None)
        return [position for position in positions if self.slots[position] != PERSISTENT]

    def used_buffers(self) -> set[Buffer]:
        """Those of ``buffers`` in which tensors of the graph lie."""
        return {self.buffers[slot] for slot in self._used}

    def persistent_buffers(self, graph: Graph) -> set[Buffer]:
        """The buffers of the graph's persistent tensors.  Takes no Python call per tensor."""
        return set(map(_buffer, map(graph.tensors.__getitem__, self._own_roots)))

    def _check(self, graph: Graph, buffers: Iterable[Buffer | None]) -> None:
        for buffer in buffers:
            if buffer is None:
                break
            if buffer.freed:
                raise BufferUseError(f"{buffer!r} holds tensors of this graph but was freed")
        else:
            return
        for root in map(graph.tensors.__getitem__, self._own_roots):
            if root.buffer is None:
                raise _no_bytes(root)
        raise TensorStateError(f"another thread gives tensors of {graph!r} other places")

    # -- computing and reading ---------------------------------------------------------------------

    def prepare(self, graph: Graph) -> None:
        """Takes the memory over for ``graph``: its leafs can be set, what other graphs left here is gone."""
        self._wait_for_leafs()
        graph.computation = Computation(self)

    def holds(self, graph: Graph) -> bool:
        """Whether the leafs of ``graph`` that lie here still have the values that they were set to.

        True also if there are none.
        """
        return not self.unplaced or (graph.computed == self.arena.serial and graph.allocation is not None)

    def begin(self, graph: Graph) -> Computation:
        """Begins a computation of ``graph`` here: from now on results of earlier ones are gone.

        Whoever begins one calls its ``end``.  Raises BusyError if another thread is computing here.
        """
        thread = get_ident()
        arena = self.arena
        if arena.thread and arena.thread != thread:
            raise entered(arena, arena.thread)
        arena.thread = thread
        graph.computation = made = Computation(self, thread)
        return made

    def computed(self, graph: Graph, *pending: Pending, progress: int | None = None) -> None:
        """Notes that ``graph`` was just computed here: its results are read from this allocation.

        For whoever computes by a plan.  ``pending``: streams that may still be at it.  ``progress``: how many nodes
        were computed, by default all.
        """
        self.begin(graph).end(*pending, progress=len(graph.nodes) if progress is None else progress)

    def _wait_for_leafs(self) -> None:
        pending = self.pending
        for each in pending:
            each.synchronize()
        if self.pending is pending:
            self.pending = ()

    def locate(self, graph: Graph, position: int, computation: Computation | None = None) -> tuple[Buffer, int]:
        """As :meth:`place`, for reading a result or setting a leaf; waits for what is still at it.

        ``computation``: the one of the graph that is meant, by default the latest.  Raises TensorStateError if its
        bytes were reused, if it was not computed yet, or if another thread is computing it.
        """
        if int(self.slots[position]) != PERSISTENT:
            tensor = graph.tensors[position]
            if computation is None:
                computation = graph.computation
            if computation is None or not computation.current:
                raise _reused(tensor)
            leaf = graph.tensors[graph.roots[position]].op is None
            if computation.thread and not leaf and computation.thread != get_ident():
                raise TensorStateError(
                    f"{tensor!r} is being computed by another thread", tensor=tensor,
                    remedy="read it when that is done, or compute a graph of your own",
                )  # fmt: skip
            lost = self.lost.get(position)
            if lost is not None and lost < computation.progress:
                raise TensorStateError(
                    f"the bytes of {tensor!r} were reused by a later node of its graph",
                    tensor=tensor, remedy="mark it with set_output() before computing",
                )  # fmt: skip
            if leaf:
                self._wait_for_leafs()
            elif self._is_computed(graph, position, computation.progress):
                self.arena.synchronize()
            else:
                raise TensorStateError(f"{tensor!r} has a place, but was not computed yet", tensor=tensor)
            if not computation.current:
                raise _reused(tensor)
        return self.place(graph, position)

    def _is_computed(self, graph: Graph, position: int, progress: int) -> bool:
        if progress >= len(graph.nodes):
            return True
        root = graph.roots[position]
        if self.layout is not None:
            return self.layout.born.get(root, 0) < progress
        return graph.order.index(root) < progress


def _reused(tensor: Tensor) -> TensorStateError:
    return TensorStateError(
        f"the bytes of {tensor!r} were reused by a later computation, or its own failed",
        tensor=tensor, remedy="read results before computing the next graph, or copy them",
    )  # fmt: skip


def _no_bytes(root: Tensor) -> TensorStateError:
    return TensorStateError(f"{root!r} has no bytes: allocate it before computing", tensor=root)

"""One record of each run of a graph: where its results lie, how far it got, what may still be at work, and what failed.

A run begins when a graph is submitted to streams, or when its leafs are to be set before that.  Runs that use the same
memory end each other: the results of one are there until the next one begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Protocol
from weakref import ref

from ggplug.errors import GGPlugError, TensorStateError
from ggplug.graph import Graph, RunPlaces
from ggplug.interface.plans import Pending
from ggplug.memory.layout import NOWHERE, PERSISTENT, Layout
from ggplug.sharing import entered, locked
from ggplug.system.copying import Uncopied
from ggplug.tensor import Tensor
from ggplug.values.buffers import Buffer

_serials = itertools.count(1)


class Submission:
    """What was submitted to streams for a run: what to wait for, and what went wrong.

    ``pending``: what may still compute in the memory.  ``readers``: what may still read the leafs.  ``failure``: what
    went wrong, in words; empty if nothing did.  The memory holds this part of the record, too, and refers to nothing
    by it that refers to the memory: what is dropped goes at once.
    """

    __slots__ = ("failure", "pending", "readers")

    def __init__(self, pending: tuple[Pending, ...] = ()) -> None:
        self.pending = pending
        self.readers: tuple[Pending, ...] = ()
        self.failure = ""

    def fail(self, error: BaseException) -> None:
        """The results are undefined."""
        # In words, because an error holds the frames that it went through, and so whatever these hold.
        self.failure = f"{type(error).__name__}: {error}".rstrip(": ")

    def settle(self) -> None:
        """Everything that was submitted to streams is done."""
        self.pending = self.readers = ()

    def wait(self, arena: Arena, *, of_leafs: bool = False) -> None:
        """Waits until the work is done, or leafs can be set again; raises what went wrong, and then it has failed."""
        if not (self.readers if of_leafs else self.pending):
            return
        # Locked: that one thread is waiting must not make another one believe that there is nothing to wait for.
        with locked(arena):
            waited = self.readers if of_leafs else self.pending
            failure: BaseException | None = None
            try:
                for each in waited:
                    try:
                        each.synchronize()
                    except GGPlugError as error:  # the others are waited for nevertheless, so that none fails later
                        failure = failure or error
                if failure is not None:
                    raise failure
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                if self.pending is waited:
                    self.settle()
                elif self.readers is waited:
                    self.readers = ()


class Arena:
    """The memory that an allocator hands out again and again.

    ``serial``: number of the last run in it; results of earlier ones are gone.  ``work``: what it gave to streams.
    ``begun``: a weak reference to the last run that was submitted to streams.
    """

    __slots__ = ("__weakref__", "begun", "serial", "work")

    def __init__(self) -> None:
        self.serial = 0
        self.begun: Callable[[], Run | None] = _none
        self.work = Submission()

    def synchronize(self) -> None:
        """Waits for the last run; raises what went wrong in it."""
        self.work.wait(self)

    def clear(self) -> None:
        """Ends the last run, which was waited for: its results cannot be read any more."""
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return "<memory for intermediates>"


class Located(RunPlaces, Protocol):
    """The members of :class:`ggplug.memory.Allocation` that a run uses: where its tensors lie."""

    @property
    def arena(self) -> Arena: ...
    @property
    def layout(self) -> Layout | None: ...
    @property
    def lost(self) -> Mapping[int, int]: ...
    def where(self, graph: Graph, position: int) -> tuple[Buffer, int]: ...
    def not_kept(self, graph: Graph, position: int) -> TensorStateError: ...


class Run(Uncopied):
    """A computation of a graph in the places of an allocation, or its preparation (setting leafs before it begins).

    ``serial``: a run with a larger number began later.  ``progress``: how many nodes were computed so far.  ``thread``:
    the thread that is submitting it to streams; 0 before and after that.  ``work``: the streams to wait for, and the
    error.
    """

    _INSTEAD = "compute the graph again"

    __slots__ = ("__weakref__", "allocation", "progress", "serial", "thread", "work")

    def __init__(self, allocation: Located) -> None:
        arena = allocation.arena
        self.allocation = allocation
        # What was submitted to streams before may still be at work here.
        self.work = Submission(arena.work.pending)
        self.thread = 0
        self.progress = 0
        self.serial = next(_serials)
        arena.serial, arena.work = self.serial, self.work

    @property
    def current(self) -> bool:
        """Whether no other run has begun in the memory since."""
        return self.serial == self.allocation.arena.serial

    @property
    def failure(self) -> str:
        """What went wrong, in words; empty if nothing did."""
        return self.work.failure

    def end(self, *pending: Pending, progress: int, readers: tuple[Pending, ...] = ()) -> None:
        """The run was submitted to streams.

        ``pending``: those that may still be at it.  ``progress``: how many nodes were computed.  ``readers``: what to
        wait for before leafs are set again, where that is less than ``pending``.
        """
        self.work.pending = pending
        self.work.readers = readers or pending
        self.progress = progress
        self.thread = 0

    def fail(self, error: BaseException, *pending: Pending) -> None:
        """The run failed: its results are undefined; its leafs are as they were.

        ``pending``: streams that may not be done with what was submitted to them.
        """
        self.work.fail(error)
        self.end(*pending, progress=0)

    def synchronize(self) -> None:
        """Waits until the run is done; raises what went wrong in it, and then it has failed."""
        self.work.wait(self.allocation.arena)

    def wait_for_readers(self) -> None:
        """Waits until leafs can be set again; raises as :meth:`synchronize`."""
        self.work.wait(self.allocation.arena, of_leafs=True)

    # -- reading -----------------------------------------------------------------------------------

    def locate(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor at ``position``, for reading a result or setting a leaf; waits for it.

        ``graph``: the one of which this is a run.  Raises TensorStateError if the bytes were not kept or were
        reused, if the tensor was not computed, if the run failed, or if another thread is computing it.
        """
        allocation = self.allocation
        tensor = graph.tensors[position]
        if position >= len(allocation.slots):
            raise TensorStateError(f"{tensor!r} was added to its graph after the last computation", tensor=tensor)
        slot = allocation.slots[position]
        if slot == NOWHERE:
            raise allocation.not_kept(graph, position)
        if slot != PERSISTENT:
            leaf = graph.tensors[graph.roots[position]].op is None
            if self.current:
                if leaf:
                    self.wait_for_readers()
                elif not self.thread and self._has_computed(graph, position):
                    self.synchronize()
            self._check(graph, position, tensor, leaf=leaf)
        return allocation.where(graph, position)

    def _check(self, graph: Graph, position: int, tensor: Tensor, *, leaf: bool) -> None:
        """Raises unless the bytes of a tensor hold its value now."""
        if not self.current:
            raise TensorStateError(
                f"the bytes of {tensor!r} were reused by a later computation",
                tensor=tensor,
                remedy="read results before computing the next graph, or copy them",
            )
        if not leaf and self.thread not in (0, get_ident()):
            raise TensorStateError(
                f"{tensor!r} is being computed by another thread",
                tensor=tensor,
                remedy="read it when that is done, or compute a graph of your own",
            )
        if not leaf and self.failure:
            raise TensorStateError(
                f"{tensor!r} has no value, its computation failed: {self.failure}",
                tensor=tensor,
                remedy="compute its graph again",
            )
        lost = self.allocation.lost.get(position)
        if lost is not None and lost < self.progress:
            raise TensorStateError(
                f"the bytes of {tensor!r} were reused by a later node of its graph",
                tensor=tensor,
                remedy="mark it with set_output() before computing",
            )
        if not leaf and not self._has_computed(graph, position):
            raise TensorStateError(f"{tensor!r} has a place, but was not computed yet", tensor=tensor)

    def _has_computed(self, graph: Graph, position: int) -> bool:
        """Whether the run got as far as the root of a tensor."""
        if self.progress >= len(graph.nodes):
            return True
        root, layout = graph.roots[position], self.allocation.layout
        number = graph.order.index(root) if layout is None else layout.born.get(root, 0)
        return number < self.progress


def begun(allocation: Located) -> Run:
    """Begins a run that this thread submits; the caller of ``Allocation.begin`` sets ``thread`` to 0 at last.

    Raises BusyError if another thread is submitting a run in the same memory.
    """
    thread = get_ident()
    arena = allocation.arena
    last = arena.begun()
    if last is not None and last.thread not in (0, thread):
        raise entered(arena, last.thread)
    run = Run(allocation)
    arena.begun = ref(run)
    run.thread = thread  # last, and without a call, so that whoever began a run ends it
    return run


def _none() -> None:
    """The run that was submitted in memory without a run so far."""

"""One record of each run of a graph: where its results lie, how far it got, what may still be at work, and what failed.

A run begins when a graph is given to streams, or when its leafs are to be set before that.  Runs that use the same
memory end each other: the results of one are there until the next one begins.
"""

from __future__ import annotations

import itertools
import sys
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from ggplug.errors import GGPlugError, TensorStateError
from ggplug.memory.layout import NOWHERE, PERSISTENT
from ggplug.sharing import entered, turn
from ggplug.stacks import is_running

if TYPE_CHECKING:
    from ggplug.buffers import Buffer
    from ggplug.graph import Graph
    from ggplug.memory.allocation import Allocation
    from ggplug.tensor import Tensor

_serials = itertools.count(1)


class Pending(Protocol):
    """Something that can be waited for: a stream or an event."""

    def synchronize(self) -> None: ...


class Arena:
    """The memory that an allocator hands out again and again.

    ``run``: the last one in it; results of earlier ones are gone.  None if its results are gone, too.
    ``thread``: the one that gives a run in it to a stream now; 0 if none does.  ``giving``: the frame that does; where
    an interrupt keeps the run from being ended, it is gone.
    """

    __slots__ = ("__weakref__", "giving", "run", "thread")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.thread = 0
        self.giving: FrameType | None = None

    def synchronize(self) -> None:
        """Waits for the last run; raises what went wrong in it."""
        if self.run is not None:
            self.run.synchronize()

    def clear(self) -> None:
        """Ends the last run, which was waited for: its results cannot be read any more."""
        self.run = None

    def __repr__(self) -> str:
        return "<memory for intermediates>"


class Run:
    """A computation of a graph in the places of an allocation, or what prepares one.

    ``serial``: larger numbers began later.  ``progress``: how many nodes were computed so far.  ``begun``: whether
    it was given to streams, and is not only prepared.  ``thread``: which one
    is giving it to streams now; 0 when it has ended, or is only prepared.  ``pending``: what may still compute in the
    memory.  ``readers``: what may still read the leafs.  ``failure``: what went wrong, in words; empty if nothing did.
    """

    __slots__ = ("allocation", "arena", "begun", "failure", "pending", "progress", "readers", "serial", "thread")

    def __init__(self, allocation: Allocation, thread: int = 0) -> None:
        self.allocation = allocation
        self.arena = arena = allocation.arena
        last = arena.run
        # What was given to streams before may still be at work here.
        self.pending: tuple[Pending, ...] = () if last is None else last.pending
        self.readers: tuple[Pending, ...] = ()
        self.thread = thread
        self.begun = thread != 0
        self.progress = 0
        self.failure = ""
        self.serial = next(_serials)
        arena.run = self

    @property
    def current(self) -> bool:
        """Whether no other run has begun in the memory since."""
        return self.arena.run is self

    # -- ending ------------------------------------------------------------------------------------

    def end(self, *pending: Pending, progress: int, readers: tuple[Pending, ...] = ()) -> None:
        """The run was given to streams.

        ``pending``: those that may still be at it.  ``progress``: how many nodes were computed.  ``readers``: what to
        wait for before leafs are set again, where that is less than ``pending``.
        """
        self.pending = pending
        self.readers = readers or pending
        self.progress = progress
        self.thread = self.arena.thread = 0
        self.arena.giving = None

    def fail(self, error: BaseException, *pending: Pending) -> None:
        """The run failed: its results are undefined; its leafs are as they were.

        ``pending``: streams that may still be at what was given to them.
        """
        self._note(error)
        self.pending = self.readers = pending
        self.thread = self.arena.thread = 0
        self.arena.giving = None

    def _note(self, error: BaseException) -> None:
        # In words, because an error holds the frames that it went through, and so whatever these hold.
        self.failure = f"{type(error).__name__}: {error}".rstrip(": ")
        self.progress = 0

    def settled(self) -> None:
        """Everything that was given to streams is done."""
        self.pending = self.readers = ()

    # -- waiting -----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until the run is done; raises what went wrong in it, and then it has failed."""
        if self.pending:
            self._wait(of_leafs=False)

    def wait_for_readers(self) -> None:
        """Waits until leafs can be set again; raises as :meth:`synchronize`."""
        if self.readers:
            self._wait(of_leafs=True)

    def _wait(self, *, of_leafs: bool) -> None:
        # In turn: that one thread is waiting must not make another one believe that there is nothing to wait for.
        with turn(self.arena):
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
                self._note(error)
                raise
            finally:
                if self.pending is waited:
                    self.pending = self.readers = ()
                elif self.readers is waited:
                    self.readers = ()

    # -- reading -----------------------------------------------------------------------------------

    def locate(self, graph: Graph, position: int) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor at ``position``, for reading a result or setting a leaf; waits for it.

        ``graph``: the one of which this is a run.  Raises TensorStateError if the bytes were not kept or were
        again, if the tensor was not computed, or the run failed, or if another thread is computing it.
        """
        allocation = self.allocation
        tensor = graph.tensors[position]
        if position >= len(allocation.slots):
            raise TensorStateError(f"{tensor!r} came to its graph after that was computed last", tensor=tensor)
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
                tensor=tensor, remedy="read results before computing the next graph, or copy them",
            )  # fmt: skip
        giving = self.arena.giving
        if not leaf and self.thread not in (0, get_ident()) and giving and is_running(self.thread, giving):
            raise TensorStateError(
                f"{tensor!r} is being computed by another thread", tensor=tensor,
                remedy="read it when that is done, or compute a graph of your own",
            )  # fmt: skip
        if not leaf and self.failure:
            raise TensorStateError(
                f"{tensor!r} has no value, its computation failed: {self.failure}",
                tensor=tensor, remedy="compute its graph again",
            )  # fmt: skip
        lost = self.allocation.lost.get(position)
        if lost is not None and lost < self.progress:
            raise TensorStateError(
                f"the bytes of {tensor!r} were reused by a later node of its graph",
                tensor=tensor, remedy="mark it with set_output() before computing",
            )  # fmt: skip
        if not leaf and not self._has_computed(graph, position):
            raise TensorStateError(f"{tensor!r} has a place, but was not computed yet", tensor=tensor)

    def _has_computed(self, graph: Graph, position: int) -> bool:
        """Whether the run got as far as the root of a tensor."""
        if self.progress >= len(graph.nodes):
            return True
        root, layout = graph.roots[position], self.allocation.layout
        number = graph.order.index(root) if layout is None else layout.born.get(root, 0)
        return number < self.progress


def begun(allocation: Allocation) -> Run:
    """A run that this thread gives to streams, for ``Allocation.begin``; what calls that one ends the run.

    Raises BusyError if another thread gives one in the same memory.
    """
    thread = get_ident()
    arena = allocation.arena
    if arena.thread and arena.thread != thread and arena.giving and is_running(arena.thread, arena.giving):
        raise entered(arena, arena.thread)
    arena.thread, arena.giving = thread, sys._getframe(2)
    return Run(allocation, thread)

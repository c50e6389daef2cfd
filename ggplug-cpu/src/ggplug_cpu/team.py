"""The threads of a CPU device: they wait natively, walk tapes together, and can always be stopped.

A :class:`Team` of ``n`` threads is the calling thread, which is thread 0 of every computation, and ``n - 1`` others
that live as long as the team.  The others never run Python after they have started, so nothing in Python delays them.
Between computations they spin briefly (``poll``), then sleep.

- A team does one computation at a time: a second Python thread that calls :meth:`Team.run` waits for the first.  So do
  calls that change the team.  A call from an abort callback or a signal handler within a computation cannot wait for
  it: it gets :class:`~ggplug.errors.BusyError`, and the computation goes on.
- A computation claims its buffers (:mod:`ggplug.sharing`): no other thread frees or changes them meanwhile.
- About every 50 ms thread 0 calls Python: signal handlers run, so Ctrl-C in the main thread ends the computation with
  ``KeyboardInterrupt``; if the abort callback returns true, the computation ends with
  :class:`~ggplug.errors.ComputeAborted`.  The team stays usable after both.
- After ``os.fork`` the child's team starts threads of its own when it first computes.
- At its exit the interpreter stops running computations, and waits for them for a few seconds at most.  Daemon threads
  then end without a message.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic, perf_counter_ns
from types import TracebackType
from typing import Any, Protocol

from ggplug import sharing
from ggplug.backend import Transfers
from ggplug.errors import ComputeAborted, ComputeError, ParameterError
from ggplug.sharing import CLOSED, HELD, NOTHING, WAITING, Held, locked, settle, wake
from ggplug.values.arrays import whole_number
from ggplug.values.revisions import Revision
from ggplug_cpu import topology, walker
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.context import FOREIGN, LINE, TeamMemory, ThreadMemory
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import BoundTape, Entry, Span, Tape, TraceRing, aligned_memory

#: Rounds of the waiting loop a level of ``poll``: 50 levels are about a millisecond.
_SPINS_PER_LEVEL = 1024
#: Rounds that a thread waits for another in the middle of a computation before it offers its processor to others:
#: about 0.1 ms, and next to nothing where the one it waits for may need that very processor.
_PATIENCE, _PATIENCE_IF_CROWDED = 4096, 16
#: Ticks of the processor's counter until thread 0 first visits Python; adapts itself to 50 ms.
_FIRST_SLICE = 1 << 20

_TRACE, _MAY_POLL, _ABORT = TeamMemory.trace.number, TeamMemory.may_poll.number, TeamMemory.abort.number
_ROW = TeamMemory.row.number
_ABORT_CALLBACK = TeamMemory.abort_callback.number

_Native = Callable[[int, int], None]
_CALL_WITHOUT_LOCK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
_CALL_WITH_LOCK = ctypes.PYFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


class Stop:
    """What aborts the computations of a stream.

    ``callback``: is asked; None asks what the team asks.  ``limit``: seconds that a computation may take; None: any
    time.  ``expired``: whether this one takes longer.  ``row``: the row of the tape at which it was aborted.
    """

    __slots__ = ("_deadline", "callback", "expired", "limit", "row", "running")

    def __init__(self, callback: Callable[[], Any] | None = None) -> None:
        self.callback = callback
        self.limit: float | None = None
        self.running: float | None = None
        self.expired = False
        self.row = 0
        self._deadline = 0.0

    def begin(self) -> None:
        """A computation begins.  Its limit is the one that is set now."""
        self.running = limit = self.limit
        if limit is not None:
            self._deadline = monotonic() + limit

    def asked(self, of_team: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """The function that says whether to abort, or None.  ``of_team``: the team's callback."""
        callback = of_team if self.callback is None else self.callback
        if self.running is None:
            return callback

        def ask() -> bool:
            self.expired = monotonic() > self._deadline
            return self.expired or (callback is not None and bool(callback()))

        return ask


class Memory(Protocol):
    """The members of a plan that :meth:`Team.run` uses: the memory that its tape is bound to.

    ``revision``: of the graph whose tensors lie there.  ``bound_at``: the revision's number when the tape was bound; if
    the number has changed, buffers may have been freed, or tensors may have other places.  ``buffers``: those in which
    the tape's addresses lie.  ``stop``: the abort callback of the tape's stream.
    """

    revision: Revision
    bound_at: int
    buffers: frozenset[Any]
    stop: Stop

    def renew(self) -> None:
        """Binds the tape again, and sets ``bound_at`` and ``buffers``.  Raises BufferUseError if a buffer was freed."""


class Team:
    """A fixed set of threads that compute tapes together; safe to use from several Python threads.

    ``n_threads`` counts the caller; None takes ``GGPLUG_THREADS`` or the number of physical cores.  ``affinity`` lists
    logical processors for the team's own threads (the caller's is left alone): each may use all of them, or with
    ``strict`` thread ``i`` only ``affinity[i]``.  ``priority`` is one of ``low normal medium high realtime``.
    ``poll``, 0 to 100, is how long threads spin before they sleep: more reacts faster and burns more power.
    """

    def __init__(
        self,
        n_threads: int | None = None,
        *,
        affinity: Sequence[int] | None = None,
        priority: str = "normal",
        poll: int = 50,
        strict: bool = False,
    ) -> None:
        if priority not in topology.PRIORITIES:
            raise ParameterError(f"there is no priority {priority!r}", got=priority, wanted=topology.PRIORITIES)
        if not 0 <= poll <= 100:
            raise ParameterError(f"poll is {poll}; it goes from 0 (sleep at once) to 100", got=poll)
        if affinity is not None and not affinity:
            raise ParameterError("affinity names no processor", got=affinity, remedy="give None for all of them")
        self._n_threads = _checked_threads(topology.default_threads() if n_threads is None else n_threads)
        self._affinity = None if affinity is None else tuple(affinity)
        self._priority = priority
        self._poll = poll
        self._strict = strict
        self._closed = False
        self._paused = False
        self._abort_callback: Callable[[], Any] | None = None
        self.aborts = 0
        """How often :meth:`abort` was called: what a computation looks at that has Python code within it."""
        self._retired_callbacks: list[Any] = []
        self._crew: _Crew | None = None
        _teams.add(self)

    # -- computing

    def run(
        self,
        tape: BoundTape | Span,
        trace: TraceRing | None = None,
        memory: Memory | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        """Compute ``tape``; with ``trace``, write time stamps of every entry into it.

        ``memory`` is what the tape is bound to: it is bound anew if it may have changed, and all others leave it alone
        until the computation has ended.  ``transfers``: copies to and from that memory, made within the same claim.

        Raises :class:`~ggplug.errors.ComputeAborted` after :meth:`abort` or a true answer of the abort callback, and
        whatever a signal handler or the abort callback raised.  What an aborted computation wrote is undefined.
        :class:`~ggplug.errors.BusyError` if one of these calls it.
        """
        # A sharing.Claim, without the calls that making one and entering it take.
        claim = Held()
        claim.thread, claim.own, claim.kind = get_ident(), (self, tape), CLOSED
        try:
            while True:
                claim.shared = buffers = NOTHING if memory is None else memory.buffers
                HELD[claim] = claim
                if [*HELD] == [claim]:
                    claim.granted = True
                else:
                    settle(claim)
                if memory is None or (memory.revision.now == memory.bound_at and memory.buffers is buffers):
                    break
                memory.renew()
                claim.granted = False
            crew = self._crew
            if (
                crew is None
                or self._paused
                or tape.workspace_address != crew.workspace_address
                or tape.tape.workspace_bytes > crew.workspace_bytes
                or tape.tape.thread_scratch_bytes > crew.scratch_bytes
            ):
                crew = self._prepare(tape)
            if self._retired_callbacks:
                self._retired_callbacks.clear()
            words = crew.words
            words[_TRACE] = 0 if trace is None else trace.address
            # signals are handled by the main thread only, so other threads need not call Python
            callback = self._abort_callback  # kept while it may be asked
            if memory is not None and (memory.stop.callback is not None or memory.stop.running is not None):
                callback = memory.stop.asked(callback)
            words[_ABORT_CALLBACK] = 0 if callback is None else id(callback)
            words[_MAY_POLL] = callback is not None or claim.thread == _main_thread
            if transfers is None:
                crew.compute(crew.address, tape.address)
            else:
                for target, source in transfers.inputs:
                    target[...] = source
                transfers.start = perf_counter_ns()
                crew.compute(crew.address, tape.address)
                transfers.end = perf_counter_ns()
                for target, source in transfers.outputs:
                    target[...] = source
            aborted = words[_ABORT] != walker.RUNNING
            if aborted and memory is not None:
                memory.stop.row = words[_ROW]
        finally:
            HELD.pop(claim, None)
            if WAITING:
                wake()
        if aborted:
            sharing.end_thread_if_leaving()
            raise ComputeAborted("the computation was aborted; what it was to write is undefined")

    def call(self, kernel: Kernel, *words: int | float | Ref, tasks: int | None = None) -> None:
        """Compute a single kernel: for tests, and for work outside any graph.  ``words`` hold plain addresses."""
        self.run(Tape([Entry(kernel, words, tasks)]).bind())

    def reserve(self, workspace_bytes: int, thread_scratch_bytes: int) -> None:
        """Allocate what tapes will need, so that no computation has to; sizes only grow."""
        with locked(self):
            self._started().reserve(workspace_bytes, thread_scratch_bytes)

    # -- stopping

    def abort(self) -> None:
        """Stop the computation that is running, from any thread; without one this does nothing."""
        self.aborts += 1
        crew = self._crew
        if crew is not None:
            crew.words[TeamMemory.abort.number] = walker.STOPPED

    def set_abort_callback(self, callback: Callable[[], Any] | None) -> None:
        """Ask ``callback()`` about every 50 ms of a computation, on its thread; a true answer aborts it.

        For computations of all streams but those that have a callback of their own.
        """
        before, self._abort_callback = self._abort_callback, callback
        crew = self._crew
        if crew is not None:
            crew.set_abort_callback(callback)
        self._retired_callbacks.append(before)  # it may be what is calling this

    @property
    def abort_callback(self) -> Callable[[], Any] | None:
        """What computations of streams without a callback of their own ask."""
        return self._abort_callback

    # -- the threads

    @property
    def n_threads(self) -> int:
        """How many threads compute, the caller included."""
        return self._n_threads

    def set_n_threads(self, n_threads: int) -> None:
        """Compute with ``n_threads`` threads from now on."""
        n_threads = _checked_threads(n_threads)
        with locked(self):
            if n_threads != self._n_threads:
                self._dismiss()
                self._n_threads = n_threads

    def pause(self) -> None:
        """Let the threads sleep at once instead of spinning; the next computation, or :meth:`resume`, undoes it."""
        with locked(self):
            self._paused = True
            if self._crew is not None:
                self._crew.words[TeamMemory.spins.number] = 0

    def resume(self) -> None:
        """Let the threads spin again between computations."""
        with locked(self):
            self._resume()

    def _resume(self) -> None:
        self._paused = False
        if self._crew is not None:
            self._crew.words[TeamMemory.spins.number] = self._poll * _SPINS_PER_LEVEL

    def close(self) -> None:
        """End the threads.  Computing afterwards raises :class:`~ggplug.errors.ComputeError`."""
        with locked(self):
            self.end()

    def end(self) -> None:
        """As :meth:`close`, for whoever has the team to itself."""
        self._closed = True
        self._dismiss()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<team of {self._n_threads} threads{', closed' if self._closed else ''}>"

    def _prepare(self, tape: BoundTape | Span) -> _Crew:
        """Everything that a computation needs and the last one did not leave behind."""
        crew = self._started()
        if self._paused:
            self._resume()
        crew.reserve(tape.tape.workspace_bytes, tape.tape.thread_scratch_bytes)
        if tape.workspace_address != crew.workspace_address:
            tape.place_workspace(crew.workspace_address)
        return crew

    def _started(self) -> _Crew:
        if self._closed:
            raise ComputeError("the thread team is closed", remedy="make a new Team, or a new backend of the device")
        if self._crew is None:
            crew = _Crew(self._n_threads, self._affinity, self._priority, strict=self._strict)
            crew.words[TeamMemory.spins.number] = 0 if self._paused else self._poll * _SPINS_PER_LEVEL
            crew.set_abort_callback(self._abort_callback)
            self._crew = crew
        return self._crew

    def _dismiss(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def _after_fork(self) -> None:
        """In the child: the threads are gone."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.abandon()

    def _at_exit(self) -> None:
        """When the computations of other threads have ended, or should have."""
        if not sharing.held_by_others(self):
            self.end()


def _checked_threads(n_threads: int) -> int:
    n_threads = whole_number(n_threads, "n_threads")
    if not 1 <= n_threads <= 4096:
        raise ParameterError(f"n_threads must be 1 to 4096, got {n_threads!r:.100}", got=n_threads)
    return n_threads


# -- the native side --------------------------------------------------------------------------------


class _Crew:
    """The memory and the threads of a team between a start and an end."""

    def __init__(self, n_threads: int, affinity: Sequence[int] | None, priority: str, *, strict: bool) -> None:
        self.n_threads = n_threads
        self.scratch_bytes = self.workspace_bytes = 0
        #: 0 while there is none.
        self.workspace_address = 0
        self._memory: list[Any] = []
        size = TeamMemory.bytes + n_threads * ThreadMemory.bytes
        array, self.address = aligned_memory(size)
        self._memory.append(array)
        self.words = (ctypes.c_int64 * (size // 8)).from_address(self.address)
        self._contexts = self.address + TeamMemory.bytes
        self.compute: _Native = _CALL_WITH_LOCK(walker.team_compute().address())
        self._fill()
        self._locks = [_new_lock() for _ in range(1, n_threads)]
        self._finalizer = weakref.finalize(self, _end_threads, walker.team_dismiss().address(), self.address, array)
        self._finalizer.atexit = False
        self.threads = [
            self._start(index, lock, topology.processors_for(index, affinity, strict=strict), priority)
            for index, lock in enumerate(self._locks, start=1)
        ]

    def _fill(self) -> None:
        words = self.words
        words[TeamMemory.n_threads.number] = self.n_threads
        words[TeamMemory.contexts.number] = self._contexts
        words[TeamMemory.poll.number] = walker.team_poll().address()
        words[TeamMemory.functions.number] = ctypes.addressof(_foreign_functions())
        words[TeamMemory.slice.number] = _FIRST_SLICE
        crowded = self.n_threads > len(topology.allowed_processors())
        words[TeamMemory.patience.number] = _PATIENCE_IF_CROWDED if crowded else _PATIENCE
        for index in range(self.n_threads):
            place = (TeamMemory.bytes + index * ThreadMemory.bytes) // 8
            words[place + ThreadMemory.index.number] = index
            words[place + ThreadMemory.count.number] = self.n_threads
            words[place + ThreadMemory.team.number] = self.address

    def _start(self, index: int, lock: int, processors: Sequence[int] | None, priority: str) -> threading.Thread:
        place = self._contexts + index * ThreadMemory.bytes
        self.words[(place - self.address + ThreadMemory.lock.offset) // 8] = lock
        thread = threading.Thread(
            target=_live,
            args=(walker.team_work().address(), place, self.address, lock, self._memory[0], processors, priority),
            name=f"ggplug-cpu-{index}",
            daemon=True,
        )
        thread.start()
        return thread

    def set_abort_callback(self, callback: Callable[[], Any] | None) -> None:
        self.words[TeamMemory.abort_callback.number] = 0 if callback is None else id(callback)
        if callback is not None:
            self.words[TeamMemory.may_poll.number] = 1

    def reserve(self, workspace_bytes: int, scratch_bytes: int) -> None:
        """Grow the workspace and the threads' scratch memory where they are smaller than this."""
        if workspace_bytes > self.workspace_bytes:
            array, self.workspace_address = aligned_memory(workspace_bytes)
            self.workspace_bytes = workspace_bytes
            self._workspace = array
        if scratch_bytes > self.scratch_bytes:
            stride = -(-scratch_bytes // LINE) * LINE
            array, address = aligned_memory(stride * self.n_threads)
            self.scratch_bytes = scratch_bytes
            self._scratch = array
            for index in range(self.n_threads):
                place = TeamMemory.bytes + index * ThreadMemory.bytes + ThreadMemory.scratch.offset
                self.words[place // 8] = address + index * stride

    def close(self) -> None:
        """End the threads and wait for them."""
        found = self._finalizer.detach()  # calling it does nothing once the interpreter is on its way out
        if found is not None:
            _, function, arguments, _ = found
            function(*arguments)
        for thread in self.threads:
            thread.join()

    def abandon(self) -> None:
        """Forget the threads of a process that was forked from."""
        self._finalizer.detach()


def _live(
    work: int, ctx: int, team: int, lock: int, memory: Any, processors: Sequence[int] | None, priority: str
) -> None:
    """A thread's life; ``memory`` is kept while it lasts."""
    topology.place_this_thread(processors, priority)
    _CALL_WITHOUT_LOCK(work)(ctx, team)
    _free_lock(lock)


def _end_threads(dismiss: int, team: int, memory: Any) -> None:
    _CALL_WITHOUT_LOCK(dismiss)(team, 0)


def _new_lock() -> int:
    """A lock of Python's that native code can wait for; held, so that the first to wait sleeps."""
    python = ctypes.pythonapi
    python.PyThread_allocate_lock.restype = ctypes.c_void_p
    python.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lock = python.PyThread_allocate_lock()
    if not lock:
        raise ComputeError("the system has no lock left for the thread team")
    python.PyThread_acquire_lock(lock, 1)
    return int(lock)


def _free_lock(lock: int) -> None:
    release = ctypes.pythonapi.PyThread_free_lock
    release.argtypes = [ctypes.c_void_p]
    release(lock)


@functools.cache
def _foreign_functions() -> Any:
    """Addresses of :data:`ggplug_cpu.context.FOREIGN`, in order."""
    if sys.platform == "win32":
        system: Any = ctypes.WinDLL("kernel32")
        names = {"yield": "SwitchToThread", "clock": "QueryPerformanceCounter"}
    else:
        system = ctypes.CDLL(None)
        names = {"yield": "sched_yield", "clock": "clock_gettime"}
    functions = [getattr(system, names[name]) if name in names else getattr(ctypes.pythonapi, name) for name in FOREIGN]
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    return (ctypes.c_int64 * len(addresses))(*addresses)


# -- the process ------------------------------------------------------------------------------------

_teams: weakref.WeakSet[Team] = weakref.WeakSet()
_main_thread = threading.main_thread().ident
"""The thread that handles signals."""


def _after_fork() -> None:
    global _main_thread
    _main_thread = threading.main_thread().ident
    for team in list(_teams):
        team._after_fork()


@atexit.register
def _at_exit() -> None:
    teams = list(_teams)

    def stop() -> None:
        for team in teams:
            team.abort()

    sharing.leave(stop)
    for team in teams:
        with contextlib.suppress(Exception):
            team._at_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

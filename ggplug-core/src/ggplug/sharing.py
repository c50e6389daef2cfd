"""Who uses what now: buffers, streams and thread teams that several threads share.

A *claim* says what a thread needs inside a ``with`` block: things for itself, and things that it shares with others.
A computation has the thread team, or the stream, for itself and shares the buffers of its graph; ``set``, ``get``,
``free`` and the like have buffers for themselves.  Two claims conflict if one has for itself what the other needs.  A
claim waits for those that conflict with it and came before it.  A thread may claim more inside of a claim; where it
would wait for itself, directly or by way of other threads, it gets :class:`~ggplug.errors.BusyError`.

How it is done: :data:`HELD` has the claims of all threads in order.  Python looks for an interrupt (Ctrl-C), and lets
another thread run, when a function begins and when one that is written in C has returned.  So what is written here
without a call happens at once.  A claim is in force while its lock is locked, and the lock's own ``__exit__``, written
in C, ends it: no interrupt comes before that, as it can with one that is written in Python.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from _thread import LockType, allocate_lock
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import ref

from ggplug.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")

CLOSED, OPEN, FREEING = range(3)
"""What a thread may claim again of what it holds, while it holds it.

CLOSED (native code computes): nothing.  OPEN (Python code works with it): to access it.  FREEING: also to free it.
"""

NOTHING: frozenset[Any] = frozenset()

_LOOK_AGAIN = 0.05
"""Seconds after which a thread that waits looks again: nobody wakes it when a claim ends that somebody keeps."""
_LEAVE_WITHIN = 5.0
"""Seconds that leaving the interpreter waits for other threads that compute: until a queue has run empty, say."""


class Held:
    """A claim of a thread, which is in force, or waits until it is.

    ``thread``: by :func:`threading.get_ident`.  ``own``, ``shared``, ``kind``: what it needs.  ``granted``: it does not
    wait any more.  ``nested``: the thread holds other things; then it waits only for what is in force, not for
    claims that wait, too.  ``lock``: a weak reference to the lock that is locked while the claim lasts; None where it
    lasts as long as it is in :data:`HELD`.
    """

    thread: int
    own: Collection[Any] = ()
    shared: Collection[Any] = NOTHING
    kind = OPEN
    granted = False
    nested = False
    lock: Callable[[], LockType | None] | None = None

    @property
    def lasts(self) -> bool:
        """Whether it has not ended; only for what is in :data:`HELD`."""
        if self.lock is None:
            return True
        lock = self.lock()
        return lock is not None and lock.locked()


HELD: dict[Any, Held] = {}
"""All claims in the order in which they came; some may have ended.

The keys are weak references to locks, so a claim goes when its block has ended.  Nothing else may refer to a key: one
that is taken out earlier must not be there any more when its lock goes.
"""

WAITING: dict[Held, SimpleQueue[object]] = {}
"""The claims that wait, each with a queue; whatever is put into that makes the thread look again."""

_grants = 0
"""How many claims were granted while there were others."""
_leaving = 0
"""The thread that leaves the interpreter; 0 while none does."""
_ending: list[threading.Thread] = []
"""The threads that were ended because of it."""


class _Exit(property):
    """The ``__exit__`` of a claim: that of its lock.  ``contextlib.ExitStack`` calls it by the class."""

    def __call__(self, claim: Claim, *exc: object) -> None:
        claim._lock.release()


class Claim:
    """What a thread needs inside a ``with`` block.  Entering waits; raises BusyError."""

    __slots__ = ("_kind", "_lock", "_own", "_shared")

    def __init__(self, own: Collection[Any], shared: Collection[Any] = NOTHING, kind: int = CLOSED) -> None:
        self._own = own
        self._shared = shared
        self._kind = kind
        self._lock = allocate_lock()

    def __enter__(self) -> None:
        lock = self._lock
        if lock.locked():
            raise BusyError("a claim is for one block at a time: make one for each", thing=self)
        held = Held()
        held.thread, held.own, held.shared, held.kind = get_ident(), self._own, self._shared, self._kind
        held.lock = key = ref(lock)
        try:
            lock.acquire()
            HELD[ref(lock, HELD.pop)] = held
            if [*HELD] == [key]:
                held.granted = True
            else:
                settle(held)
        except BaseException:
            HELD.pop(key, None)
            lock.release()
            wake()
            raise

    if TYPE_CHECKING:

        def __exit__(self, *exc: object) -> None: ...

    else:
        __exit__ = _Exit(attrgetter("_lock.__exit__"))


def accessing(*buffers: Any) -> Claim:
    """Access to the bytes of buffers: no computation runs or begins in them, and no other thread accesses them."""
    return Claim(buffers, NOTHING, OPEN)


def freeing(*buffers: Any) -> Claim:
    """As :func:`accessing`, for what ends buffers; refused where this very thread still accesses them."""
    return Claim(buffers, NOTHING, FREEING)


def using(buffers: Collection[Any]) -> Claim:
    """Computing in buffers by Python code, which may access them: other threads neither free nor access them meanwhile.

    ``buffers``: best a frozenset, since it is searched.
    """
    return Claim((), buffers, OPEN)


def locked(*things: Any) -> Claim:
    """A lock on hashable objects: one thread at a time is in a ``with`` block that locks the same object."""
    return Claim(things)


turn = locked
"""The former name of :func:`locked`."""


def present() -> Claim:
    """A call of native code that releases Python's global lock: the interpreter does not exit before it has returned.

    A daemon thread that comes back into an interpreter that has gone is ended on the spot, and libraries in C++ then
    end the process.
    """
    return Claim((), NOTHING, OPEN)


def present_while(thing: object) -> None:
    """As inside of :func:`present`, as long as an object lives."""
    if _leaving:
        end_thread_if_leaving()
    held = Held()
    held.thread = get_ident()
    held.granted = True
    HELD[ref(thing, HELD.pop)] = held


# -- what one thread uses at a time ------------------------------------------------------------------


def one_thread_at_a_time(method: Callable[P, R]) -> Callable[P, R]:
    """Marks methods of which one thread at a time may be in one, such as those of a scheduler.

    Another thread gets BusyError, because waiting would not help: what it does between two calls of the first
    thread is in the way, too.  So does a call from within.  The object has an attribute ``_entered_by``, 0 at first.
    """

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        self: Any = args[0]
        thread = get_ident()
        if self._entered_by:
            raise entered(self, self._entered_by)
        try:
            # No call since the check, so no other thread has run in between.
            self._entered_by = thread
            return method(*args, **kwargs)
        finally:
            self._entered_by = 0

    return guarded


def entered(thing: Any, thread: int) -> BusyError:
    """The error for a call of something that one thread uses at a time, while ``thread`` is in it."""
    if thread == get_ident():
        return BusyError(
            f"{thing!r} is in use: this call was made from within another one, by a callback or a signal handler",
            thing=thing,
            remedy="do it when that has ended, or use another one",
        )
    return BusyError(
        f"{thing!r} is in use by another thread", thing=thing, remedy="give each thread one of its own, or use a lock"
    )


# -- when there are other claims, too -----------------------------------------------------------------


def settle(claim: Held) -> None:
    """Grants a claim of the calling thread that is in :data:`HELD`, when nothing conflicts with it; may wait.

    For claims that are not the only one.  Raises BusyError, and SystemExit where another thread leaves the interpreter.
    """
    global _grants
    end_thread_if_leaving()
    claim.nested = _holds_more(claim)
    try:
        while True:
            grants, blockers = _grants, _blockers(claim, [*HELD.values()])
            if blockers:
                if claim in WAITING:
                    _check_cycle(claim)
                    _wait(WAITING[claim], blockers[0][0])
                    end_thread_if_leaving()
                else:
                    WAITING[claim] = SimpleQueue()  # and look again: what has ended before wakes nobody
            elif grants == _grants:
                _grants += 1
                claim.granted = True
                return
    finally:
        WAITING.pop(claim, None)


def wake() -> None:
    """Makes those that wait look again."""
    for queue in WAITING.copy().values():
        queue.put(None)


def _wait(queue: SimpleQueue[object], blocker: Held) -> None:
    """Waits until a claim has ended, or something is in the queue."""
    lock = None if blocker.lock is None else blocker.lock()
    ended = None if lock is None else ref(lock, queue.put)
    if blocker.lasts:
        del lock  # it has to go when its block ends
        with contextlib.suppress(Empty):
            queue.get(timeout=_LOOK_AGAIN)
    del ended


def _holds_more(claim: Held) -> bool:
    """Whether the thread of a claim holds anything else; raises BusyError if that conflicts with the claim."""
    found = False
    for each in [*HELD.values()]:
        if each is claim or each.thread != claim.thread or not each.granted or not each.lasts:
            continue
        found = True
        may = claim.kind == OPEN if each.kind == OPEN else claim.kind != CLOSED and each.kind == FREEING
        thing = None if may else _conflict(claim, each)
        if thing is not None:
            raise BusyError(
                f"{thing!r} is in use by this thread: this call was made from within a computation or an access, by an "
                "abort callback, a signal handler, an observer or a finalizer",
                thing=thing,
                remedy="do it when that has ended",
            )
    return found


def _blockers(claim: Held, claims: Iterable[Held]) -> list[tuple[Held, Any]]:
    """What a claim has to wait for, of ``claims`` of other threads in order; each with the thing that it is about."""
    found = []
    comes_before = not claim.nested
    for each in claims:
        if each is claim:
            comes_before = False
        elif (each.granted or comes_before) and each.thread != claim.thread:
            thing = _conflict(claim, each)
            if thing is not None and each.lasts:
                found.append((each, thing))
    return found


def _conflict(one: Held, other: Held) -> Any:
    """Something that one of two claims has for itself and the other needs, or None."""
    for thing in one.own:
        if thing in other.own or thing in other.shared:
            return thing
    for thing in other.own:
        if thing in one.shared:
            return thing
    return None


def _check_cycle(claim: Held) -> None:
    """Raises BusyError if a thread that ``claim`` waits for waits, directly or not, for the thread of ``claim``."""
    waiting = WAITING.copy()  # first: what these threads hold they still hold afterwards
    claims = [*HELD.values()]
    seen: set[int] = set()
    first = _blockers(claim, claims)
    unseen = [*first]
    while unseen:
        thread = unseen.pop()[0].thread
        if thread == claim.thread:
            thing = first[0][1]
            raise BusyError(
                f"{thing!r} is in use by another thread, which waits for this one: neither could go on",
                thing=thing,
                remedy="call it after this thread's current computation or access has ended",
            )
        if thread not in seen:
            seen.add(thread)
            for each in waiting:
                if each.thread == thread:
                    unseen += _blockers(each, claims)


def waits(thread: int) -> bool:
    """Whether a thread, by :func:`threading.get_ident`, waits for what others hold."""
    return any(each.thread == thread for each in WAITING.copy())


def held_by_others(thing: Any) -> bool:
    """Whether another thread has something for itself now."""
    claim = Held()
    claim.thread, claim.shared, claim.nested = get_ident(), (thing,), True
    return bool(_blockers(claim, [*HELD.values()]))


# -- leaving the interpreter -------------------------------------------------------------------------


def leave(stop: Callable[[], object] | None = None) -> None:
    """Leaving the interpreter: from now on claims of other threads end these threads, quietly, by SystemExit.

    Only daemon threads still run then.  Waits, for some seconds at most, until they hold nothing, and until those
    that were ended have gone; ``stop`` is called every now and then, to make computations end.
    """
    global _leaving
    if not _leaving:
        _leaving = get_ident()
        first = Held()
        first.thread = _leaving
        HELD[first] = first  # so that every claim has a look
    deadline = time.monotonic() + _LEAVE_WITHIN
    while _others_hold() and time.monotonic() < deadline:
        if stop is not None:
            stop()
        wake()
        time.sleep(0.01)
    wake()
    for thread in _ending:
        thread.join(max(0.0, deadline - time.monotonic()))


def _others_hold() -> bool:
    return any(each.granted and each.thread != _leaving and each.lasts for each in [*HELD.values()])


def end_thread_if_leaving() -> None:
    """Ends the calling thread, quietly, if another one is leaving the interpreter."""
    if _leaving and get_ident() != _leaving:
        _ending.append(threading.current_thread())
        raise SystemExit


atexit.register(leave)


def _after_fork() -> None:
    """In the child: the other threads are gone, whatever they held."""
    for key, held in HELD.copy().items():
        if held.thread != get_ident():
            del HELD[key]
    WAITING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Who uses what now: buffers, streams and teams of threads that several Python threads share.

A *claim* says what a thread needs while it does something: things that it has for itself, and things that it shares
with others.  Two claims conflict if one has for itself what the other needs.

=====================================================  ==================  =========================
what a thread does                                     has for itself      shares
=====================================================  ==================  =========================
computes in host memory                                what it computes    the buffers of the graph
                                                       with (its team)
gives work to a stream                                 the stream          the buffers of the work
``set``, ``get``, ``clear``, ... and ``free``          the buffers
=====================================================  ==================  =========================

So a buffer is neither changed nor freed under a computation, and no computation begins in memory that was freed.

Claims that conflict wait for each other, in the order in which they came; otherwise a thread that computes in a loop
would keep all others out.  A claim is granted as a whole or not at all.  A thread may claim more while it holds
something; where it would then wait for itself, directly or because the thread that it waits for waits for it, it gets
:class:`~ggplug.errors.BusyError` instead.  That is the case of an abort callback, a signal handler or a
finalizer that computes with, or frees, what the interrupted computation uses.

A claim costs next to nothing as long as no other thread holds or wants one: it is published in :data:`HELD`, and that
is all.  Two threads that publish at the same moment see each other, because each looks after it has published; this
relies on Python's lock, which makes such steps take place one after the other.

Python handles signals at the entry of functions, so Ctrl-C can keep a claim's ``__exit__`` from ending it.  A claim
whose ``with`` block its thread has left counts for nothing (:mod:`ggplug.system.stacks`); that is asked only where a
claim is in the way of another one, or around one of the same thread.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from threading import get_ident
from typing import Any, ParamSpec, TypeAlias, TypeVar

from ggplug.errors import BusyError
from ggplug.system.stacks import Entered, is_inside

P = ParamSpec("P")
R = TypeVar("R")

CLOSED, OPEN, FREEING = range(3)
"""What a thread may claim again of what it holds, while it holds it.

CLOSED (native code computes): nothing.  OPEN (Python code works with it): to access it.  FREEING: also to free it.
"""

Held: TypeAlias = tuple[Any, Collection[Any], Collection[Any], int, Entered | None]
"""``(outer, own, shared, kind, entered)``: what a thread holds, and the claim within which it was made, or None.

``entered``: the ``with`` block that it belongs to; None where an interrupt cannot leave it behind.
"""

HELD: dict[int, Held] = {}
"""What each thread holds, by :func:`threading.get_ident`.  Only the thread itself changes its entry."""


class _Waiting:
    """A claim that has to wait.

    ``nested``: the thread holds something; then it does not stand in line.  ``woken``: a lock that is released to wake
    the thread.
    """

    __slots__ = ("nested", "own", "shared", "thread", "woken")

    def __init__(self, thread: int, own: Collection[Any], shared: Collection[Any], nested: bool) -> None:
        self.thread = thread
        self.own = own
        self.shared = shared
        self.nested = nested
        self.woken = threading.Lock()
        self.woken.acquire()


WAITING: list[_Waiting] = []
"""Claims that wait, in the order in which they came.  While there are any, :func:`settle` has to be asked."""

NOTHING: frozenset[Any] = frozenset()

_LOOK_AGAIN = 0.25
"""Seconds after which a waiting thread looks again, in case that Ctrl-C kept another one from waking it."""
_LEAVE_WITHIN = 5.0
"""Seconds that leaving the interpreter waits for other threads that compute: until a queue has run empty, say."""

_deciding = threading.RLock()
"""Held while a thread that waits finds out whether it may go on.

A lock of Python's own, which ``with`` gives back whatever interrupts its block; a Condition has an ``__exit__`` that an
interrupt can skip.
"""
_leaving = 0
"""The thread that leaves the interpreter; 0 while none does."""
_ending: list[threading.Thread] = []
"""The threads that were ended because of it."""


class Claim:
    """What a thread needs inside a ``with`` block.  Entering waits; raises BusyError."""

    __slots__ = ("_held", "_ident", "_kind", "_own", "_shared")

    DEPTH = 1
    """How many calls the ``with`` statement is away from :meth:`__enter__`: more where a subclass calls it."""

    def __init__(self, own: Collection[Any], shared: Collection[Any] = NOTHING, kind: int = CLOSED) -> None:
        self._own = own
        self._shared = shared
        self._kind = kind

    def __enter__(self) -> None:
        ident = self._ident = get_ident()
        frame = sys._getframe(self.DEPTH)
        entered = frame, frame.f_lasti
        outer = HELD.get(ident)
        if outer is not None:
            outer = living(ident, outer, entered)
        self._held: Held | None = (outer, self._own, self._shared, self._kind, entered)
        try:
            HELD[ident] = held = self._held
            if outer is not None or WAITING or len(HELD) != 1:
                settle(ident, held)
        except BaseException:
            let_go(ident, outer)
            raise

    def __exit__(self, *exc: object) -> None:
        # No call before the claim has ended: an interrupt strikes at calls.
        ident, held = self._ident, self._held
        self._held = None  # it holds the frame, which may hold this claim
        published: Held | None = HELD[ident] if ident in HELD else None  # noqa: SIM401 - get() would be a call
        while published is not None and published is not held:
            published = published[0]  # claims within this one that an interrupt left behind
        if published is not None:
            if published[0] is None:
                del HELD[ident]
            else:
                HELD[ident] = published[0]
        if WAITING:
            wake()


def accessing(*buffers: Any) -> Claim:
    """Access to the bytes of buffers: no computation runs or begins in them, and no other thread accesses them."""
    return Claim(buffers, NOTHING, OPEN)


def freeing(*buffers: Any) -> Claim:
    """As :func:`accessing`, for what ends buffers; refused where this very thread still accesses them."""
    return Claim(buffers, NOTHING, FREEING)


def using(buffers: Collection[Any]) -> Claim:
    """Working in buffers by Python code, which may access them meanwhile: they are not freed, and left alone by others.

    ``buffers``: best a frozenset, since it is searched.
    """
    return Claim((), buffers, OPEN)


def present() -> Claim:
    """Being in native code that gives Python's lock away: leaving the interpreter waits until the thread is out of it.

    A daemon thread that comes back into an interpreter that has gone is ended on the spot, and libraries in C++ then
    end the process.
    """
    return Claim((), NOTHING, OPEN)


def turn(*things: Any) -> Claim:
    """What one thread does at a time with anything that is hashable."""
    return Claim(things)


# -- what one thread uses at a time ------------------------------------------------------------------


def alone(method: Callable[P, R]) -> Callable[P, R]:
    """Marks methods of which one thread at a time may be in one, such as those of a scheduler.

    Another thread gets BusyError, because taking turns would not help: what it does between two calls of the first
    thread is in the way, too.  So does a call from within.  The object has an attribute ``_entered_by``, 0 at first.
    """

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        self: Any = args[0]
        thread = get_ident()
        if self._entered_by:
            raise entered(self, self._entered_by)
        try:
            # No call since the question: Python's lock was not given away.
            self._entered_by = thread
            return method(*args, **kwargs)
        finally:
            self._entered_by = 0

    return guarded


def is_entered(thing: Any) -> bool:
    """Whether a thread is in a method of something that one thread uses at a time."""
    return bool(thing._entered_by)


def entered(thing: Any, thread: int) -> BusyError:
    """The error for a call of something that one thread uses at a time, while ``thread`` is in it."""
    if thread == get_ident():
        return BusyError(
            f"{thing!r} is in use by what this call was made from within: a callback, an observer or a signal handler",
            thing=thing,
            remedy="do it when that has ended, or use another one",
        )
    return BusyError(
        f"{thing!r} is in use by another thread", thing=thing, remedy="give each thread one of its own, or take turns"
    )


# -- when other threads claim, too --------------------------------------------------------------------


def settle(ident: int, held: Held) -> None:
    """Makes sure that what the calling thread has published as ``HELD[ident]`` conflicts with nothing; may wait.

    To be called after publishing if the claim is a nested one, if any thread waits, or if another one holds anything.
    If it raises (BusyError, KeyboardInterrupt, SystemExit) the thread holds what it held before.
    """
    outer, own, shared, kind, _ = held
    try:
        _check_leaving(ident)
        _check_own(outer, own, shared, kind)
        if len(HELD) == 1 and (outer is not None or not WAITING):
            return
        _wait(ident, held)
    except BaseException:
        let_go(ident, outer)
        raise


def living(ident: int, outer: Held | None, entered: Entered | None = None) -> Held | None:
    """The innermost claim of the calling thread that has not ended, of ``outer`` and those around it.

    ``entered``: the block of a claim that is made now.  One of the same statement in the same frame has ended then.
    """
    while outer is not None and outer[4] is not None and (outer[4] == entered or not is_inside(outer[4])):
        outer = outer[0]
    return outer


def let_go(ident: int, outer: Held | None) -> None:
    """Ends a claim; what the thread held before, it holds still."""
    if outer is not None:
        HELD[ident] = outer
    elif ident in HELD:
        del HELD[ident]
    if WAITING:
        wake()


def wake() -> None:
    """Makes those that wait look again."""
    for each in WAITING.copy():
        if each.woken.locked():
            with contextlib.suppress(RuntimeError):  # another thread was quicker
                each.woken.release()


def _check_own(outer: Held | None, own: Collection[Any], shared: Collection[Any], kind: int) -> None:
    """Raises BusyError if the thread itself holds what the claim conflicts with."""
    while outer is not None:
        above, its_own, its_shared, its_kind, _ = outer
        may = kind == OPEN if its_kind == OPEN else kind != CLOSED and its_kind == FREEING
        if not may:
            thing = _conflict(own, shared, its_own, its_shared)
            if thing is not None:
                raise BusyError(
                    f"{thing!r} is in use by what this call was made from within: a computation, or an access, that "
                    "an abort callback, a signal handler, an observer or a finalizer interrupted",
                    thing=thing,
                    remedy="do it when that has ended",
                )
        outer = above


def _wait(ident: int, held: Held) -> None:
    """Returns when the claim is published and nothing conflicts with it."""
    outer, own, shared, _, _ = held
    place = _Waiting(ident, own, shared, outer is not None)
    try:
        with _deciding:
            if not _blockers(ident, own, shared, () if outer is not None else WAITING.copy()):
                return
            let_go(ident, outer)
            WAITING.append(place)
        while not _settled(ident, held, place):
            # Not published while it waits: only threads that make their claims just now look at what is published.
            place.woken.acquire(True, _LOOK_AGAIN)
            _check_leaving(ident)
    finally:
        if place in WAITING:
            WAITING.remove(place)


def _settled(ident: int, held: Held, place: _Waiting) -> bool:
    """Whether a claim that waited is published now."""
    outer, own, shared, _, _ = held
    with _deciding:
        while True:
            line = _line(place)
            if _blockers(ident, own, shared, line):
                _check_cycle(place)
                return False
            HELD[ident] = held
            if not _blockers(ident, own, shared, line):
                return True
            let_go(ident, outer)


def _line(place: _Waiting) -> list[_Waiting]:
    """Those that ``place`` stands behind."""
    if place.nested:
        return []
    before: list[_Waiting] = []
    for each in WAITING.copy():
        if each is place:
            break
        before.append(each)
    return before


def _blockers(
    ident: int, own: Collection[Any], shared: Collection[Any], line: Iterable[_Waiting]
) -> list[tuple[int, Any]]:
    """The other threads that a claim has to wait for, each with the thing that it is about."""
    found = []
    for thread, held in HELD.copy().items():
        entry: Held | None = held
        while entry is not None and thread != ident:
            thing = _conflict(own, shared, entry[1], entry[2])
            if thing is not None and (entry[4] is None or is_inside(entry[4])):
                found.append((thread, thing))
            entry = entry[0]
    for each in line:
        thing = _conflict(own, shared, each.own, each.shared)
        if thing is not None and each.thread != ident:
            found.append((each.thread, thing))
    return found


def _conflict(
    own: Collection[Any], shared: Collection[Any], its_own: Collection[Any], its_shared: Collection[Any]
) -> Any:
    """Something that one of two claims has for itself and the other needs, or None."""
    for thing in own:
        if thing in its_own or thing in its_shared:
            return thing
    for thing in its_own:
        if thing in shared:
            return thing
    return None


def _check_cycle(place: _Waiting) -> None:
    """Raises BusyError if a thread that ``place`` waits for waits, directly or not, for the thread of ``place``."""
    seen: set[int] = set()
    first = _blockers(place.thread, place.own, place.shared, _line(place))
    unseen = [thread for thread, _ in first]
    while unseen:
        thread = unseen.pop()
        if thread == place.thread:
            thing = first[0][1]
            raise BusyError(
                f"{thing!r} is in use by a thread that waits for what this one uses: neither could go on",
                thing=thing,
                remedy="do it when what this thread does now has ended",
            )
        if thread not in seen:
            seen.add(thread)
            for each in WAITING.copy():
                if each.thread == thread:
                    unseen += [other for other, _ in _blockers(thread, each.own, each.shared, _line(each))]


def waits(thread: int) -> bool:
    """Whether a thread, by :func:`threading.get_ident`, waits for what others hold."""
    return any(each.thread == thread for each in WAITING.copy())


def held_by_others(thing: Any) -> bool:
    """Whether another thread has something for itself now."""
    ident = get_ident()
    return bool(_blockers(ident, (), frozenset((thing,)), ()))


# -- leaving the interpreter -------------------------------------------------------------------------


def leave(stop: Callable[[], object] | None = None) -> None:
    """Leaving the interpreter: from now on claims of other threads end these threads, quietly, by SystemExit.

    Only daemon threads still run then.  Waits, for some seconds at most, until they hold nothing, and until those
    that were ended have gone; ``stop`` is called every now and then, to make computations end.
    """
    global _leaving
    place = _Waiting(0, (), (), False)
    if not _leaving:
        _leaving = get_ident()
        # Never goes away, so that every claim has a look.
        WAITING.append(place)
    deadline = time.monotonic() + _LEAVE_WITHIN
    while _others_hold() and time.monotonic() < deadline:
        if stop is not None:
            stop()
        wake()
        place.woken.acquire(True, 0.01)
    wake()
    for thread in _ending:
        thread.join(max(0.0, deadline - time.monotonic()))


def _others_hold() -> bool:
    others = (held for thread, held in HELD.copy().items() if thread != _leaving)
    return any(held[4] is None or is_inside(held[4]) for held in others)


def end_thread_if_leaving() -> None:
    """Ends the calling thread, quietly, if another one is leaving the interpreter."""
    _check_leaving(get_ident())


def _check_leaving(ident: int) -> None:
    if _leaving and ident != _leaving:
        _ending.append(threading.current_thread())
        raise SystemExit


atexit.register(leave)


def _after_fork() -> None:
    """In the child: the other threads are gone, whatever they held."""
    global _deciding
    ident = get_ident()
    mine = HELD.get(ident)
    HELD.clear()
    if mine is not None:
        HELD[ident] = mine
    WAITING.clear()
    _deciding = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

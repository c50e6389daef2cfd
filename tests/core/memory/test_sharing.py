"""Claims: who waits for whom, in which order, and who gets an error because it would wait for itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from contextlib import AbstractContextManager
from random import Random
from typing import Any

import pytest
from held import Doing, Gate, held, until

from ggplug import sharing
from ggplug.errors import BusyError
from ggplug.sharing import HELD, OPEN, WAITING, Claim, accessing, freeing, locked, one_thread_at_a_time, using


class Thing:
    """Something that threads share."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


A, B, C = Thing("A"), Thing("B"), Thing("C")


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    yield
    assert not HELD
    assert not WAITING


def inside(claim: AbstractContextManager[None], gate: Gate) -> None:
    with claim:
        gate()


def entering(claim: AbstractContextManager[None]) -> Doing:
    def enter() -> None:
        with claim:
            pass

    return Doing(enter)


# -- who waits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (lambda: accessing(A), lambda: accessing(A), True),
        (lambda: accessing(A), lambda: accessing(B), False),
        (lambda: accessing(A), lambda: using({A, B}), True),
        (lambda: using({A, B}), lambda: freeing(B), True),
        (lambda: using({A, B}), lambda: using({A}), False),
        (lambda: using({A, B}), lambda: accessing(C, B), True),
        (lambda: locked(A), lambda: locked(A), True),
        (lambda: Claim((A,), {B}), lambda: Claim((C,), {B}), False),
        (lambda: Claim((A,), {B}), lambda: Claim((B,), {C}), True),
    ],
)
def test_a_claim_waits_for_those_that_conflict_with_it(first: Any, second: Any, waits: bool) -> None:
    gate = Gate()
    with held(lambda: inside(first(), gate), gate):
        other = entering(second())
        assert other.settled() is waits
    other.result()


def test_claims_are_granted_in_the_order_in_which_they_came() -> None:
    order: list[int] = []

    def note(number: int, claim: AbstractContextManager[None]) -> None:
        with claim:
            order.append(number)

    gate = Gate()
    threads: list[Doing] = []
    with held(lambda: inside(using({A}), gate), gate):
        for number in range(6):
            claim = using({A}) if number == 3 else accessing(A)
            threads.append(Doing(lambda number=number, claim=claim: note(number, claim)))
            until(lambda: len(WAITING) == number + 1)  # noqa: B023
        # Sharing would be possible at once, but others have waited for longer.
        threads.append(Doing(lambda: note(6, using({A}))))
        until(lambda: len(WAITING) == 7)
        assert not order
    for thread in threads:
        thread.result()
    assert order == list(range(7))


def test_a_thread_that_claims_in_a_loop_lets_others_in() -> None:
    done = threading.Event()

    def loop() -> int:
        rounds = 0
        while not done.is_set():
            with using({A}):
                rounds += 1
        return rounds

    looping = [Doing(loop), Doing(loop)]
    for _ in range(50):
        with accessing(A):
            pass
    done.set()
    assert all(thread.result() for thread in looping)


def test_a_claim_is_granted_as_a_whole() -> None:
    gate = Gate()
    with held(lambda: inside(accessing(A), gate), gate):
        both = entering(accessing(B, A))
        assert both.settled()
        with locked(C), accessing(B):  # within another claim, so it does not stand in line: B is not taken yet
            pass
    both.result()


def test_claims_in_opposite_order_never_hold_what_the_other_waits_for() -> None:
    def cross(*things: Thing) -> None:
        for _ in range(2000):
            with accessing(*things):
                pass

    threads = [Doing(lambda: cross(A, B)), Doing(lambda: cross(B, A)), Doing(lambda: cross(A, C, B))]
    for thread in threads:
        thread.result()


@pytest.mark.parametrize("seed", range(3))
def test_claims_that_conflict_are_never_in_force_at_once(seed: int) -> None:
    """Threads that are switched as often as can be, some of them within claims of their own."""
    things = [Thing(name) for name in "abcd"]
    users: dict[Thing, dict[tuple[int, bool], bool]] = {thing: {} for thing in things}
    outcomes: list[str] = []

    def claimed(random: Random, within: bool = False) -> None:
        own, shared = random.sample(things, random.randrange(3)), random.sample(things, random.randrange(3))
        try:
            with Claim(own, frozenset(shared), OPEN):
                me = threading.get_ident(), within
                for thing in {*own, *shared}:
                    users[thing][me] = thing in own
                for thing in {*own, *shared}:
                    others = {user: alone for user, alone in users[thing].copy().items() if user[0] != me[0]}
                    assert not any(others.values()) if thing not in own else not others
                if not within and random.random() < 0.5:
                    claimed(random, within=True)
                for thing in {*own, *shared}:
                    del users[thing][me]
        except BusyError:
            outcomes.append("refused")

    def loop(number: int) -> None:
        random = Random(f"{seed} {number}")
        for _ in range(2000):
            claimed(random)
        outcomes.append("done")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in [Doing(lambda number=number: loop(number)) for number in range(4)]:
            thread.result()
    finally:
        sys.setswitchinterval(before)
    assert outcomes.count("done") == 4


def test_a_claim_that_is_granted_while_another_one_looks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    look, gate, main = sharing._blockers, Gate(), threading.get_ident()

    def slow(claim: Any, claims: Any) -> Any:
        found = look(claim, claims)
        if claim.thread != main:
            gate()
        return found

    monkeypatch.setattr(sharing, "_blockers", slow)
    with locked(C):
        other = entering(accessing(A))
        until(gate.reached.is_set)
        with accessing(A):  # within another claim, so it does not stand in line
            gate.open()
            assert other.settled()
    other.result()


# -- claims within claims ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner", "refused"),
    [
        (lambda: accessing(A), lambda: accessing(A), False),
        (lambda: using({A}), lambda: accessing(A), False),
        (lambda: using({A}), lambda: freeing(A), True),
        (lambda: accessing(A), lambda: freeing(A), True),
        (lambda: freeing(A, B), lambda: freeing(A), False),
        (lambda: freeing(A), lambda: accessing(A), False),
        (lambda: freeing(A), lambda: Claim((B,), {A}), True),
        (lambda: Claim((A,), {B}), lambda: accessing(B), True),
        (lambda: Claim((A,), {B}), lambda: freeing(B), True),
        (lambda: Claim((A,), {B}), lambda: locked(A), True),
        (lambda: Claim((A,), {B}), lambda: Claim((C,), {B}), False),
        (lambda: Claim((A,), {B}), lambda: freeing(C), False),
    ],
)
def test_what_a_thread_may_claim_within_its_own_claim(outer: Any, inner: Any, refused: bool) -> None:
    with outer():
        before = dict(HELD)
        if refused:
            with pytest.raises(BusyError, match="made from within") as caught, inner():
                pass
            assert caught.value.thing in (A, B)
        else:
            with inner():
                pass
        assert before == HELD


def test_what_lies_two_claims_above_counts_too() -> None:
    with Claim((A,), {B}), accessing(C), pytest.raises(BusyError), freeing(B):
        pass


def test_who_waits_while_it_holds_something_does_not_stand_in_line() -> None:
    # The computation of A holds its team; a second one waits for that, and would share B.  What the first does to B
    # from within must not wait for the second.
    team = Thing("team")
    with locked(team):
        second = entering(Claim((team,), {B}))
        assert second.settled()
        with freeing(B):
            pass
    second.result()


def test_who_waits_while_it_holds_something_waits_for_those_alone_that_hold_what_it_wants() -> None:
    team, gate = Thing("team"), Gate()

    def open_soon() -> None:
        until(lambda: len(WAITING) == 2)
        gate.open()

    with locked(team), held(lambda: inside(accessing(B), gate), gate):
        second = entering(Claim((team,), {B}))
        assert second.settled()
        opening = Doing(open_soon)
        with freeing(B):  # behind the one that has B, and not behind the one that waits for the team
            pass
    opening.result()
    second.result()


def test_threads_that_would_wait_for_each_other_get_an_error() -> None:
    gate = Gate()

    def first() -> None:
        with accessing(A):
            gate()
            with accessing(B):
                pass

    with held(first, gate) as thread, accessing(B):
        gate.open()
        until(lambda: thread.waits)
        with pytest.raises(BusyError, match="neither could go on"), accessing(A):
            pass


def test_a_claim_is_for_one_block_at_a_time() -> None:
    claim = using({A})
    with claim, pytest.raises(BusyError, match="one block at a time"), claim:
        pass
    with claim:
        assert not entering(using({A})).settled()


def test_a_claim_that_was_refused_leaves_nothing_behind() -> None:
    gate = Gate()
    with held(lambda: inside(locked(A), gate), gate):
        with locked(B), pytest.raises(BusyError), locked(B):
            pass
        behind = entering(accessing(A))
        assert behind.settled()
    behind.result()


# -- interruptions ------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to threads")
def test_ctrl_c_ends_waiting() -> None:
    gate = Gate()

    def press() -> None:
        until(lambda: len(WAITING) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with held(lambda: inside(accessing(A), gate), gate):
        presses = Doing(press)
        with pytest.raises(KeyboardInterrupt), accessing(A):
            pass
        presses.result()
        assert not WAITING


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to threads")
def test_a_signal_handler_that_waits_behind_what_it_interrupted_gets_an_error() -> None:
    gate = Gate()
    outcomes: list[Any] = []

    def handler(number: int, frame: Any) -> None:
        with accessing(B):
            outcomes.append("free things are to be had")
        other = entering(accessing(A))
        until(lambda: len(WAITING) == 2)
        try:
            with accessing(A):
                pass
        except BusyError as error:
            outcomes.append(type(error))
        gate.open()
        threads.append(other)

    def press() -> None:
        until(lambda: len(WAITING) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threads: list[Doing] = []
    before = signal.signal(signal.SIGINT, handler)
    try:
        with held(lambda: inside(using({A}), gate), gate):
            threads.append(Doing(press))
            with accessing(A):
                outcomes.append("locked in the end")
    finally:
        signal.signal(signal.SIGINT, before)
    for thread in threads:
        thread.result()
    assert outcomes == ["free things are to be had", BusyError, "locked in the end"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_waits_for_none_of_its_parents_threads() -> None:
    gate = Gate()
    with held(lambda: inside(accessing(A), gate), gate):
        waiting = entering(accessing(A))
        assert waiting.settled()
        with accessing(B), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: this process has threads
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                with accessing(A):
                    os._exit(0 if len(HELD) == 2 and not WAITING else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    waiting.result()


# -- one thread at a time -------------------------------------------------------------------------------------


class Counter:
    _entered_by = 0

    def __repr__(self) -> str:
        return "<a counter>"

    @one_thread_at_a_time
    def count(self, action: Any) -> Any:
        return action()

    @one_thread_at_a_time
    def other(self) -> int:
        return 1


def test_a_second_thread_in_an_object_for_one_gets_an_error() -> None:
    counter, gate = Counter(), Gate()
    with held(lambda: counter.count(gate), gate):
        with pytest.raises(BusyError, match="<a counter> is in use by another thread") as caught:
            counter.other()
        assert caught.value.thing is counter
    assert counter.other() == 1


def test_a_call_from_within_an_object_for_one_thread_gets_an_error() -> None:
    counter = Counter()
    with pytest.raises(BusyError, match="from within"):
        counter.count(counter.other)
    with pytest.raises(ZeroDivisionError):
        counter.count(lambda: 1 // 0)
    assert counter.other() == 1


# -- the end --------------------------------------------------------------------------------------------------

_LEAVE = """
    import sys, threading
    from ggplug import sharing

    class Thing: pass
    thing, inside = Thing(), threading.Event()

    def hold():
        with sharing.accessing(thing):
            inside.set()
            while True:
                with sharing.accessing(Thing()):
                    pass

    def wait():
        try:
            with sharing.accessing(thing):
                print("never")
        finally:
            print("a waiting thread was ended")

    threading.Thread(target=hold, daemon=True).start()
    inside.wait()
    threading.Thread(target=wait, daemon=True).start()
    while not sharing.WAITING:
        pass
    print("leaving")
    sys.exit(3)
"""


def test_leaving_the_interpreter_ends_daemon_threads_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(_LEAVE)], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 3)
    # Where the processor has no time for it, the interpreter is gone before that thread has said so.
    assert done.stdout in ("leaving\n", "leaving\na waiting thread was ended\n")


def test_leaving_the_interpreter_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_LEAVE_WITHIN", 0.05)
    monkeypatch.setattr(sharing, "_leaving", 0)
    stopped: list[int] = []
    gate = Gate()
    try:
        with held(lambda: inside(locked(A), gate), gate):
            sharing.leave(lambda: stopped.append(1))
            assert stopped
            with locked(B):  # the thread that leaves goes on as before
                pass
            with pytest.raises(SystemExit):
                entering(locked(B)).result()
    finally:
        sharing._leaving = 0
        HELD.clear()

"""An interrupt at any moment leaves nothing locked: the same thread and all others go on."""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from held import Doing, Gate, held, until
from installed import device_or_skip
from interrupts import interrupted_everywhere, still_held
from simt_stand_in import StandInDevice

import ggplug as gg
from ggplug import sharing
from ggplug.backend import Device
from ggplug.errors import BusyError, TensorStateError
from ggplug.sharing import HELD, WAITING, Claim, accessing, freeing, locked, using


class Thing:
    pass


A, B = Thing(), Thing()


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    yield
    with locked(Thing()):  # ends what an interrupt left behind in this thread
        pass
    gc.collect()  # frames that were interrupted may be in cycles, and hold locks of claims that have ended
    assert not HELD
    assert not WAITING


def in_sharing(frame: Any) -> bool:
    return frame.f_code.co_filename == sharing.__file__


def nested() -> None:
    with locked(A), contextlib.suppress(BusyError), using({B}), accessing(B), locked(A):
        pass


@pytest.mark.parametrize("action", [nested, lambda: claim_once(locked(A)), lambda: claim_once(freeing(A, B))])
def test_a_claim_ends_wherever_it_is_interrupted(action: Any) -> None:
    for _ in interrupted_everywhere(action, in_sharing):
        assert not still_held()
        assert Doing(nested).result() is None
        nested()


def claim_once(claim: Claim) -> None:
    with claim:
        pass


@pytest.mark.parametrize("outer", [None, B])
def test_a_claim_that_waits_leaves_the_line_wherever_it_is_interrupted(
    outer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_LOOK_AGAIN", 0.001)

    def wait() -> None:
        gate = Gate()
        with held(lambda: holding(locked(A), gate), gate), locked(outer) if outer else contextlib.nullcontext():
            claim_once(Claim((A,), {B} if outer is None else ()))  # only the interrupt ends the waiting

    seen = []
    for place in itertools.islice(interrupted_everywhere(wait, in_sharing), 90):
        seen.append(place)
        assert not WAITING
        until(lambda: not still_held())  # the other thread goes
        assert Doing(nested).result() is None
    assert {"settle", "_wait", "_blockers", "_check_cycle"} <= set(seen)


def holding(claim: Claim, gate: Gate) -> None:
    with claim:
        gate()


def test_no_interrupt_comes_between_a_block_and_the_end_of_its_claim() -> None:
    """What ends it is written in C, and named by no function in which Python would look for an interrupt."""
    events: list[tuple[str, str]] = []

    def profile(frame: Any, event: str, called: Any) -> None:
        if frame.f_code.co_name == "claim_once" and event != "return":
            events.append((event, getattr(called, "__name__", "")))

    sys.setprofile(profile)
    try:
        claim_once(locked(A))
    finally:
        sys.setprofile(None)
    assert events == [("call", ""), ("c_call", "__exit__"), ("c_return", "__exit__")]


_STORM = """
    import signal, threading, time
    from ggplug.sharing import HELD, WAITING, accessing, locked, using

    A, B = object(), object()
    kept, rounds, ready = [], 0, False

    def press():
        global ready
        while len(kept) < 300:
            time.sleep(0.0007)
            if ready:
                ready = False
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def others():
        global rounds
        while len(kept) < 300:
            with accessing(A):
                rounds += 1

    threads = [threading.Thread(target=each) for each in (press, others, others)]
    for thread in threads:
        thread.start()
    while len(kept) < 300:
        try:
            ready = True
            while True:
                with locked(B), using({A}):
                    with accessing(A), locked(object()):
                        pass
        except KeyboardInterrupt as error:
            kept.append(error)
    for thread in threads:
        thread.join()
    with accessing(A), locked(B):
        pass
    assert not any(held.lasts for held in HELD.values()), HELD
    assert rounds and not WAITING
    print("all is free")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to threads")
def test_a_storm_of_interrupts_leaves_nothing_locked() -> None:
    """The frame that was interrupted catches it and goes on, as a loop over requests does."""
    storm = textwrap.dedent(_STORM)
    done = subprocess.run([sys.executable, "-c", storm], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("all is free\n", "")


def test_a_claim_in_a_generator_or_entered_by_hand_is_held_until_it_is_left() -> None:
    @contextlib.contextmanager
    def by_generator() -> Any:
        with locked(A):
            yield

    def by_hand() -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(locked(A))
        return stack

    for made in (by_generator, by_hand):
        with made():
            with pytest.raises(BusyError), locked(A):
                pass
            waiting = Doing(nested)
            assert waiting.settled()
        waiting.result()


# -- computations -------------------------------------------------------------------------------------


def in_ggplug(frame: Any) -> bool:
    return "ggplug" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename


def chain(device: Device) -> Any:
    x = gg.tensor(np.arange(8, dtype=np.float32))
    context = gg.Context()
    w = context.new_tensor("f32", 8, "w")
    gg.allocate(context, device)
    w.set(np.ones(8))
    y = (x + w).set_output()
    return context, y, gg.Graph(y)


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
@pytest.mark.parametrize("way", ["scheduler", "stream", "access"])
def test_computations_and_accesses_go_on_wherever_the_last_was_interrupted(name: str, way: str) -> None:
    device = device_or_skip(name)
    context, y, graph = chain(device)
    w = context["w"]
    wanted = np.arange(8, dtype=np.float32) + 1
    with gg.Scheduler([device]) as scheduler, device.init() as stream, context:
        own = gg.memory.GraphAllocator(device.buffer_type)
        on_device = gg.Graph((w + w).set_output())
        allocation = own.allocate(on_device)
        actions = {
            "scheduler": lambda: scheduler.compute(graph),
            "stream": lambda: (stream.compute(on_device, allocation), stream.synchronize()),
            "access": lambda: w.set(w.numpy()),
        }
        action = actions[way]
        action()
        n = 0
        for place in interrupted_everywhere(action, in_ggplug):
            n += 1
            assert not still_held(), place
            other = Doing(lambda: (w.numpy(), action(), w.set(np.ones(8))))
            other.result()
            action()
            if way == "scheduler":
                assert (y.numpy() == wanted).all(), place
        assert n >= 5
        with contextlib.suppress(TensorStateError):
            y.numpy()


def test_an_interrupted_transfer_gives_its_lock_back_while_the_error_is_kept() -> None:
    device = StandInDevice()
    context, _, _ = chain(device)
    w = context["w"]
    for _ in interrupted_everywhere(w.numpy):
        assert (Doing(w.numpy).result() == 1).all()


@pytest.mark.parametrize("name", ["stand-in", "OpenCL0"])
def test_an_interrupt_loses_no_memory_of_a_device(name: str) -> None:
    if name == "OpenCL0":
        pytest.importorskip("ggplug_opencl")
    device = StandInDevice() if name == "stand-in" else gg.device(name)
    device.buffer_type.alloc(64).free()
    gc.collect()
    ledger: Any = device.runtime.ledger  # type: ignore[attr-defined]
    ledger.give_dropped()
    before = ledger.used
    kept: list[gg.Buffer] = []
    for _ in interrupted_everywhere(lambda: kept.append(device.buffer_type.alloc(4096))):
        pass
    gc.collect()
    ledger.give_dropped()
    assert ledger.used == before + 4096 * len(kept)
    for where in interrupted_everywhere(lambda: kept[-1].free()):
        kept.pop().free()
        assert ledger.used == before + 4096 * len(kept), where
        kept.append(device.buffer_type.alloc(4096))
    kept.pop()
    assert ledger.used == before + 4096 * len(kept)

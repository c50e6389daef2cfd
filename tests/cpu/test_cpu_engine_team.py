"""ggplug-cpu's tapes and thread team: computed in order, without Python, and stopped on request."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from paths import SUPPORT

pytest.importorskip("ggplug_cpu")

from ggplug.errors import ComputeAborted, ComputeError, ParameterError
from ggplug.sharing import held_by_others
from ggplug_cpu import topology
from ggplug_cpu.compiler import Body, intrinsic, kernel
from ggplug_cpu.context import (
    Counter,
    aborted,
    barrier,
    load_word,
    next_chunk,
    pause,
    real,
    scratch,
    store_word,
    thread_count,
    thread_index,
    word,
)
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import WORKSPACE, BoundTape, Entry, Tape, TraceRing
from ggplug_cpu.team import Team

Array = npt.NDArray[np.int64]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled kernels go to a folder of these tests, which their child processes find again."""
    before = os.environ.get("GGPLUG_CACHE_DIR")
    chosen = tmp_path_factory.mktemp("kernels of the team")
    os.environ["GGPLUG_CACHE_DIR"] = str(chosen)
    yield chosen
    del os.environ["GGPLUG_CACHE_DIR"]
    if before is not None:
        os.environ["GGPLUG_CACHE_DIR"] = before


@pytest.fixture(params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    """Teams with fewer, as many, and perhaps more threads than there are processors."""
    with Team(request.param) as made:
        yield made


def at(array: Array) -> int:
    return int(array.ctypes.data)


# -- kernels ----------------------------------------------------------------------------------------


@kernel
def add_one() -> Body:
    """The first word is an address, the second how many words there; all threads take part."""

    def body(ctx: int, params: int) -> None:
        for i in range(thread_index(ctx), word(params, 1), thread_count(ctx)):
            store_word(word(params, 0) + 8 * i, load_word(word(params, 0) + 8 * i) + 1)

    return body


@kernel
def neighbours() -> Body:
    """``y[i] = x[i - 1] + x[i] + x[i + 1]`` on a ring, modulo 2**32."""

    def body(ctx: int, params: int) -> None:
        y, x, n = word(params, 0), word(params, 1), word(params, 2)
        for i in range(thread_index(ctx), n, thread_count(ctx)):
            total = load_word(x + 8 * ((i + n - 1) % n)) + load_word(x + 8 * i) + load_word(x + 8 * ((i + 1) % n))
            store_word(y + 8 * i, total & 0xFFFFFFFF)

    return body


@kernel
def neighbours_in_phases() -> Body:
    """The same several times, back and forth between two arrays, inside one kernel."""

    def body(ctx: int, params: int) -> None:
        y, x, n = word(params, 0), word(params, 1), word(params, 2)
        for _ in range(word(params, 3)):
            for i in range(thread_index(ctx), n, thread_count(ctx)):
                total = load_word(x + 8 * ((i + n - 1) % n)) + load_word(x + 8 * i) + load_word(x + 8 * ((i + 1) % n))
                store_word(y + 8 * i, total & 0xFFFFFFFF)
            if not barrier(ctx):
                return
            y, x = x, y

    return body


@kernel
def who() -> Body:
    """Adds 1 at ``[thread_index]`` and writes the thread count behind the last of 16."""

    def body(ctx: int, params: int) -> None:
        Counter(word(params, 0) + 8 * thread_index(ctx)).next.add(1)
        store_word(word(params, 0) + 8 * 16, thread_count(ctx))

    return body


@kernel
def claim() -> Body:
    """Adds 1 to every word, in chunks of one that the threads take."""

    def body(ctx: int, params: int) -> None:
        i = next_chunk(ctx)
        while i < word(params, 1):
            store_word(word(params, 0) + 8 * i, load_word(word(params, 0) + 8 * i) + 1)
            i = next_chunk(ctx)

    return body


@kernel
def until_aborted() -> Body:
    """Counts the threads that began at the first word, then runs until the computation is aborted."""

    def body(ctx: int, params: int) -> None:
        Counter(word(params, 0)).next.add(1)
        while not aborted(ctx):
            pause()

    return body


@kernel
def stuck_at_a_barrier() -> Body:
    """Counts like ``until_aborted``; thread 0 runs until the computation is aborted, the others wait for it."""

    def body(ctx: int, params: int) -> None:
        Counter(word(params, 0)).next.add(1)
        if thread_index(ctx) == 0:
            while not aborted(ctx):
                pause()
        if not barrier(ctx):
            return
        Counter(word(params, 0)).next.add(1000)

    return body


@kernel
def until_set() -> Body:
    """Runs until another thread of the process sets the first word."""

    def body(ctx: int, params: int) -> None:
        while Counter(word(params, 0)).next.value == 0 and not aborted(ctx):
            pause()

    return body


@kernel
def scratch_address() -> Body:
    def body(ctx: int, params: int) -> None:
        store_word(scratch(ctx), thread_index(ctx))
        store_word(word(params, 0) + 8 * thread_index(ctx), scratch(ctx))

    return body


@intrinsic("i64(f64)")
def bits(builder: Any, value: Any) -> Any:
    from llvmlite import ir

    return builder.bitcast(value, ir.IntType(64))


@kernel
def copy_parameters() -> Body:
    """Writes its parameters, the first but one as a float, to the address that is the first."""

    def body(ctx: int, params: int) -> None:
        store_word(word(params, 0), bits(real(params, 1) * 2.0))
        store_word(word(params, 0) + 8, word(params, 2))
        store_word(word(params, 0) + 16, word(params, 3))

    return body


def smoothed(x: Array, times: int) -> Array:
    """What ``neighbours`` does, by NumPy."""
    for _ in range(times):
        x = (np.roll(x, 1) + x + np.roll(x, -1)) & 0xFFFFFFFF
    return x


# -- order ------------------------------------------------------------------------------------------


def test_entries_see_all_that_the_entries_before_them_wrote(team: Team) -> None:
    x = np.random.default_rng(2).integers(0, 100, 97)
    expected, y = smoothed(x, 3000), np.zeros_like(x)
    pair = [Entry(neighbours(), [Ref(1), Ref(0), 97]), Entry(neighbours(), [Ref(0), Ref(1), 97])]
    team.run(Tape(pair * 1500, 2).bind([at(x), at(y)]))
    assert (x == expected).all()


def test_phases_inside_a_kernel_are_kept_apart_by_its_barrier(team: Team) -> None:
    x = np.random.default_rng(3).integers(0, 100, 97)
    expected, y = smoothed(x, 2000), np.zeros_like(x)
    for _ in range(2):  # the second call finds the barrier as the first left it
        team.call(neighbours_in_phases(), at(y), at(x), 97, 1000)
    assert (x == expected).all()


def test_entries_for_one_thread_and_for_all_may_alternate(team: Team) -> None:
    x = np.random.default_rng(4).integers(0, 100, 97)
    expected, y = smoothed(x, 600), np.zeros_like(x)
    tasks = [None, 1, 1, 2, 1, None]
    entries = [Entry(neighbours(), [Ref(1 - i % 2), Ref(i % 2), 97], tasks[i % 6]) for i in range(600)]
    team.run(Tape(entries, 2).bind([at(x), at(y)]))
    assert (x == expected).all()


def waits(*entries: tuple[int | None, bool]) -> list[bool]:
    tape = Tape([Entry(who(), [0], tasks, before) for tasks, before in entries])
    return [bool(row) for row in tape._rows[:, 3]]


def test_which_entries_wait() -> None:
    all_threads, thread_0 = (None, True), (1, True)
    assert waits(all_threads, all_threads, thread_0, all_threads) == [False, True, True, True]
    assert waits(thread_0, thread_0, thread_0, all_threads) == [False, False, False, True]
    assert waits(all_threads, (None, False), all_threads) == [False, False, True]
    # entry 1 does not wait for entry 0, so entry 2 has to, though both run on thread 0
    assert waits(all_threads, (1, False), thread_0) == [False, False, True]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_each_entry_waits_for_those_before_its_barrier_unless_thread_0_computes_both_in_order(n: int) -> None:
    for entries in itertools.product(itertools.product((1, 2, None), (True, False)), repeat=n):
        found = waits(*entries)
        for later, earlier in itertools.combinations(reversed(range(n)), 2):
            between = range(earlier + 1, later + 1)
            if any(entries[i][1] for i in between):
                in_order = entries[earlier][0] == entries[later][0] == 1
                assert in_order or any(found[i] for i in between), (entries, earlier, later)


def test_every_thread_takes_part_once_with_the_requested_count() -> None:
    with Team(3) as team:
        for tasks, threads in ((None, 3), (1, 1), (2, 2), (3, 3), (9, 3)):
            seen = np.zeros(17, np.int64)
            team.run(Tape([Entry(who(), [at(seen)], tasks)] * 50).bind())
            assert seen.tolist() == [50] * threads + [0] * (16 - threads) + [threads]


def test_each_chunk_goes_to_one_thread_in_every_entry_and_every_run(team: Team) -> None:
    x = np.zeros(1000, np.int64)
    bound = Tape([Entry(claim(), [at(x), 1000])] * 5).bind()
    for _ in range(3):
        team.run(bound)
    assert (x == 15).all()


def test_an_empty_tape_computes_nothing(team: Team) -> None:
    team.run(Tape([]).bind())


# -- parameters and memory --------------------------------------------------------------------------


def test_parameters_arrive_as_they_were_given(team: Team) -> None:
    out = np.zeros(3, np.int64)
    tape = Tape([Entry(copy_parameters(), [Ref(0), 0.1, -(2**63), Ref(1, 40)], 1)], 2)
    team.run(tape.bind([at(out), 1000]))
    assert out[:1].view(np.float64)[0] == 0.2
    assert out[1:].tolist() == [-(2**63), 1040]
    entry = Entry(copy_parameters(), [at(out), np.float32(0.5), np.int32(-7), True], 1)
    team.run(Tape([entry]).bind())
    assert out[:1].view(np.float64)[0] == 1.0
    assert out[1:].tolist() == [-7, 1]


def test_a_tape_may_be_bound_several_times_and_anew(team: Team) -> None:
    a, b, c = (np.zeros(4, np.int64) for _ in range(3))
    tape = Tape([Entry(add_one(), [Ref(0, 8), 3])], 1)
    first, second = tape.bind([at(a)]), tape.bind([at(b)])
    team.run(first)
    team.run(second)
    team.run(second)
    first.rebind(np.array([at(c)]))
    team.run(first)
    assert [x.tolist() for x in (a, b, c)] == [[0, 1, 1, 1], [0, 2, 2, 2], [0, 1, 1, 1]]


def test_wrong_slots_and_words_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"add_one: Ref\(slot=2, offset=0\) is outside the tape's 2 slots"):
        Tape([Entry(add_one(), [Ref(2), 1])], 2)
    with pytest.raises(ParameterError, match="needs 2 base addresses"):
        Tape([Entry(add_one(), [Ref(1), 1])], 2).bind([1])
    with pytest.raises(ParameterError, match="64 bits"):
        Tape([Entry(add_one(), [2**63, 1])])
    with pytest.raises(ParameterError, match="tasks is 0"):
        Tape([Entry(add_one(), [0, 0], 0)])


def test_the_workspace_is_the_teams_and_moves_when_it_grows(team: Team) -> None:
    out = np.zeros(3, np.int64)

    def tape(n_bytes: int) -> Tape:
        return Tape([Entry(copy_parameters(), [Ref(0), 0.0, Ref(WORKSPACE, 256), Ref(WORKSPACE)], 1)], 1, n_bytes)

    small, large = tape(1000).bind([at(out)]), tape(5_000_000).bind([at(out)])
    team.run(small)
    before = int(out[2])
    assert (before % 128, int(out[1])) == (0, before + 256)
    team.run(large)
    moved = int(out[2])
    assert moved != before
    ctypes.memset(moved, 1, 5_000_000)
    team.run(small)
    assert int(out[2]) == moved


def test_each_thread_has_scratch_memory_of_its_own(team: Team) -> None:
    out = np.zeros(team.n_threads, np.int64)
    team.run(Tape([Entry(scratch_address(), [at(out)])], thread_scratch_bytes=1000).bind())
    addresses = sorted(out.tolist())
    assert all(address % 128 == 0 for address in addresses)
    assert all(b - a >= 1000 for a, b in itertools.pairwise(addresses))
    assert [ctypes.c_int64.from_address(address).value for address in out.tolist()] == list(range(team.n_threads))


def test_reserved_memory_is_there_before_the_first_computation(team: Team) -> None:
    team.reserve(10_000, 500)
    crew = team._crew
    assert crew is not None
    address = crew.workspace_address
    out = np.zeros(3, np.int64)
    team.run(Tape([Entry(copy_parameters(), [at(out), 0.0, Ref(WORKSPACE), 0])], 0, 10_000, 500).bind())
    assert int(out[1]) == address


# -- cost -------------------------------------------------------------------------------------------


def calls_of_a_run(team: Team, n_entries: int) -> int:
    """How many Python and C functions a warm computation of ``n_entries`` calls."""
    x = np.zeros(8, np.int64)
    bound = Tape([Entry(add_one(), [at(x), 8], (None, 1)[i % 2]) for i in range(n_entries)]).bind()
    team.run(bound)
    count = 0

    def hook(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(hook)
    try:
        team.run(bound)
    finally:
        sys.setprofile(None)
    assert (x == 2 * n_entries).all()
    return count


def test_the_number_of_python_calls_does_not_depend_on_the_number_of_entries(team: Team) -> None:
    assert calls_of_a_run(team, 100) == calls_of_a_run(team, 10_000) < 20


# -- stopping ---------------------------------------------------------------------------------------


def wait_for(array: Array, value: int) -> None:
    """Until the kernel that runs in another thread has written ``value``."""
    deadline = time.monotonic() + 20
    while array[0] != value:
        assert time.monotonic() < deadline
        os.sched_yield() if hasattr(os, "sched_yield") else None


def run_for_ever(team: Team, bound: BoundTape) -> None:
    while True:
        team.run(bound)


def still_works(team: Team) -> None:
    x = np.zeros(100, np.int64)
    team.call(claim(), at(x), 100)
    team.call(neighbours_in_phases(), at(x), at(x.copy()), 100, 0)
    assert (x == 1).all()


@pytest.mark.parametrize("make", [until_aborted, stuck_at_a_barrier])
def test_abort_ends_a_computation_from_another_thread(team: Team, make: Callable[[], Any]) -> None:
    x = np.zeros(1, np.int64)
    failures: list[BaseException] = []

    def compute() -> None:
        try:
            team.run(Tape([Entry(make(), [at(x)]), Entry(add_one(), [at(x), 1])]).bind())
        except ComputeAborted as error:
            failures.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    while thread.is_alive():
        team.abort()  # until it takes effect: the computation may not have begun
    thread.join()
    assert len(failures) == 1
    still_works(team)


def test_abort_without_a_computation_does_nothing(team: Team) -> None:
    team.abort()
    still_works(team)
    team.abort()
    still_works(team)


@pytest.mark.parametrize("make", [until_aborted, stuck_at_a_barrier])
def test_a_true_answer_of_the_abort_callback_ends_a_computation(team: Team, make: Callable[[], Any]) -> None:
    answers = iter([False, 0, [], "yes"])
    team.set_abort_callback(lambda: next(answers))
    with pytest.raises(ComputeAborted, match="aborted"):
        team.call(make(), at(np.zeros(1, np.int64)))
    team.set_abort_callback(None)
    assert list(answers) == []
    still_works(team)


def test_a_callback_may_be_set_during_a_computation_and_take_itself_back(team: Team) -> None:
    x = np.zeros(1, np.int64)
    outcomes: list[BaseException | None] = []

    def callback() -> bool:
        team.set_abort_callback(None)
        gc.collect()
        return True

    def compute() -> None:
        try:
            team.call(until_aborted(), at(x))
        except ComputeAborted as error:
            outcomes.append(error)

    still_works(team)
    thread = threading.Thread(target=compute)
    thread.start()
    wait_for(x, team.n_threads)
    team.set_abort_callback(callback)
    del callback
    thread.join()
    assert len(outcomes) == 1
    still_works(team)


def test_the_callback_is_called_between_entries_too(team: Team) -> None:
    callers = []

    def callback() -> bool:
        callers.append(threading.current_thread())
        return True

    team.set_abort_callback(callback)
    x = np.zeros(8, np.int64)
    bound = Tape([Entry(add_one(), [at(x), 8])] * 100_000).bind()
    with pytest.raises(ComputeAborted):
        run_for_ever(team, bound)
    assert callers == [threading.main_thread()]


def test_an_exception_of_the_callback_ends_the_computation_and_comes_out(team: Team) -> None:
    def callback() -> bool:
        raise LookupError("from the callback")

    team.set_abort_callback(callback)
    with pytest.raises(LookupError, match="from the callback"):
        team.call(until_aborted(), at(np.zeros(1, np.int64)))
    team.set_abort_callback(None)
    still_works(team)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to threads")
@pytest.mark.parametrize("make", [until_aborted, stuck_at_a_barrier])
def test_ctrl_c_ends_a_computation_of_the_main_thread(team: Team, make: Callable[[], Any]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    x = np.zeros(1, np.int64)

    def press() -> None:
        wait_for(x, team.n_threads)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        team.call(make(), at(x))
    assert time.perf_counter() - started < 5
    thread.join()
    assert x[0] == team.n_threads
    still_works(team)


def test_signal_handlers_run_while_a_computation_goes_on(team: Team) -> None:
    x = np.zeros(1, np.int64)

    def handler(number: int, frame: Any) -> None:
        x[0] = 1  # what the kernel waits for

    before = signal.signal(signal.SIGINT, handler)
    try:
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        team.call(until_set(), at(x))
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert x[0] == 1
    still_works(team)


# -- several users, processes, the end ----------------------------------------------------------------


def test_two_python_threads_on_one_team_compute_one_after_the_other(team: Team) -> None:
    x = np.zeros(97, np.int64)
    tape = Tape([Entry(add_one(), [Ref(0), 97])] * 50, 1)

    def compute() -> None:
        bound = tape.bind([at(x)])
        for _ in range(40):
            team.run(bound)

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (x == 3 * 40 * 50).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_computes_with_threads_of_its_own(team: Team) -> None:
    still_works(team)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: this process has threads
        child = os.fork()
    if child == 0:
        try:
            still_works(team)
            team.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    still_works(team)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_during_a_computation_leaves_the_child_a_usable_team(team: Team) -> None:
    x = np.zeros(1, np.int64)
    thread = threading.Thread(target=lambda: team.call(until_set(), at(x)))
    still_works(team)
    thread.start()
    while not held_by_others(team):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            still_works(team)
            os._exit(0)
        finally:
            os._exit(1)
    x[0] = 1
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_LEAVE = """
    import sys, threading
    sys.path[:0] = {folders}
    from test_cpu_engine_team import *
    team = Team(2)
    still_works(team)
    x = np.zeros(1, np.int64)
    threading.Thread(target=lambda: team.call(until_aborted(), at(x)), daemon=True).start()
    wait_for(x, 2)
    print("leaving")
"""


def test_leaving_the_interpreter_during_a_computation_does_not_hang() -> None:
    text = textwrap.dedent(_LEAVE).format(folders=[str(Path(__file__).parent), str(SUPPORT)])
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=1200)
    assert (done.stdout, done.returncode) == ("leaving\n", 0)


def test_a_closed_team_refuses_and_its_threads_have_ended() -> None:
    team = Team(3)
    still_works(team)
    crew = team._crew
    assert crew is not None
    team.close()
    team.close()
    assert not any(thread.is_alive() for thread in crew.threads)
    with pytest.raises(ComputeError, match="closed"):
        still_works(team)


def test_the_threads_of_a_forgotten_team_end() -> None:
    team = Team(3)
    still_works(team)
    assert team._crew is not None
    threads = list(team._crew.threads)
    del team
    gc.collect()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


# -- configuration ----------------------------------------------------------------------------------


def test_the_number_of_threads_can_be_changed() -> None:
    with Team(1) as team:
        for n_threads in (3, 1, 2):
            team.set_n_threads(n_threads)
            assert team.n_threads == n_threads
            seen = np.zeros(17, np.int64)
            team.call(who(), at(seen))
            assert seen[16] == n_threads


def test_a_paused_team_sleeps_and_still_computes() -> None:
    with Team(2, poll=100) as team:
        team.pause()
        still_works(team)
        team.pause()
        team.resume()
        still_works(team)
        team.pause()
        team.set_n_threads(3)
        still_works(team)


@pytest.mark.parametrize("poll", [0, 1, 100])
def test_every_level_of_polling_wakes_up(poll: int) -> None:
    x = np.zeros(8, np.int64)
    with Team(2, poll=poll) as team:
        bound = Tape([Entry(add_one(), [at(x), 8])]).bind()
        for _ in range(300):
            team.run(bound)
    assert (x == 300).all()


def test_unusable_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="n_threads must be 1 to 4096, got 0"):
        Team(0)
    with pytest.raises(ParameterError, match="no priority 'urgent'"):
        Team(1, priority="urgent")
    with pytest.raises(ParameterError, match="poll is 101"):
        Team(1, poll=101)
    with pytest.raises(ParameterError, match="no processor"):
        Team(1, affinity=[])
    for chosen in ("many", "-1", "0", "1e3", "²", "9" * 5000):
        monkeypatch.setenv(topology.ENVIRONMENT_VARIABLE, chosen)
        with pytest.raises(ParameterError, match=f"GGPLUG_THREADS='{chosen}'"):
            Team()


def test_the_default_number_of_threads_is_the_environments_or_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(topology.ENVIRONMENT_VARIABLE, "3")
    assert Team().n_threads == 3
    monkeypatch.delenv(topology.ENVIRONMENT_VARIABLE)
    assert 1 <= Team().n_threads <= len(topology.allowed_processors())
    monkeypatch.setattr(topology, "allowed_processors", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(topology, "_siblings", lambda processor: f"core {processor // 2}")
    monkeypatch.setattr(topology, "_quota", lambda: 8)
    assert topology.default_threads() == 2
    monkeypatch.setattr(topology, "_quota", lambda: 1)
    assert topology.default_threads() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no thread affinity")
def test_threads_stay_on_the_requested_processors() -> None:
    processor = topology.allowed_processors()[-1]
    before = os.sched_getaffinity(0)
    with Team(2, affinity=[processor], strict=True) as team:
        still_works(team)
        assert team._crew is not None
        native = team._crew.threads[0].native_id
        assert native is not None
        assert os.sched_getaffinity(native) == {processor}
    assert os.sched_getaffinity(0) == before
    assert topology.processors_for(2, (4, 5), strict=True) == (4,)
    assert topology.processors_for(2, (4, 5), strict=False) == (4, 5)


def test_what_the_system_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    topology.place_this_thread((1 << 20,), "normal")
    assert "affinity (1048576,) refused" in caplog.text


# -- traces -----------------------------------------------------------------------------------------


def test_a_trace_has_a_row_for_every_entry_in_order(team: Team) -> None:
    x = np.zeros(64, np.int64)
    bound = Tape([Entry(add_one(), [at(x), 64], (None, 1, 2)[i % 3]) for i in range(30)]).bind()
    ring = TraceRing(100)
    earliest = time.perf_counter_ns()
    team.run(bound, trace=ring)
    latest = time.perf_counter_ns()
    team.run(bound)
    rows = ring.rows()
    assert rows[:, 0].tolist() == list(range(30))
    spans = rows[:, 1:].ravel()
    assert (np.diff(spans) >= 0).all()
    assert earliest <= spans[0] <= spans[-1] <= latest
    assert (x == 60).all()


def test_a_full_ring_keeps_the_latest_rows() -> None:
    x = np.zeros(8, np.int64)
    bound = Tape([Entry(add_one(), [at(x), 8])] * 7).bind()
    ring = TraceRing(4)
    with Team(1) as team:
        team.run(bound, trace=ring)
        assert ring.rows()[:, 0].tolist() == [3, 4, 5, 6]
        assert ring.rows_written == 7
        ring.clear()
        assert len(ring.rows()) == 0
        team.run(bound, trace=ring)
        team.run(bound, trace=ring)
        assert ring.rows()[:, 0].tolist() == [3, 4, 5, 6]
    with pytest.raises(ParameterError, match="capacity must be at least 1"):
        TraceRing(0)

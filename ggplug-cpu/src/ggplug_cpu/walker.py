"""The native half of the team: the loop that walks a tape, what the threads run, and the visits to Python.

These are kernels like any other (compiled by the same compiler, kept in the same cache), only that the team calls them
itself.  Memory is laid out in :mod:`ggplug_cpu.context`.
"""

from __future__ import annotations

from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import (
    ABORT,
    ABORT_CALLBACK,
    ARRIVED,
    ASLEEP,
    CLOSING,
    CONTEXT_BYTES,
    CONTEXTS,
    COUNTER,
    COUNTERS,
    DEADLINE,
    FINISHED,
    FOREIGN,
    GENERATION,
    KERNEL_ARRIVED,
    LAST_GENERATION,
    LOCK,
    N_ROWS,
    N_THREADS,
    PASSED,
    POLLED_AT,
    ROWS,
    SLICE,
    SPINS,
    TEAM,
    THREAD_COUNT,
    THREAD_INDEX,
    THREAD_STATE,
    TRACE,
    atomic_add,
    atomic_exchange,
    atomic_load,
    atomic_store,
    call_0,
    call_1,
    call_2,
    foreign,
    load_word,
    meet,
    nanoseconds,
    pause,
    poll_if_due,
    store_word,
    ticks,
    wait_a_little,
)

# A row of a tape, in bytes.
ROW_KERNEL = 0
ROW_PARAMS = 8
ROW_TASKS = 16
ROW_BARRIER = 24
ROW_BYTES = 32

# The description of a tape that is bound to memory.
TAPE_ROWS = 0
TAPE_N_ROWS = 8
TAPE_COUNTERS = 16
TAPE_PARALLEL = 24
TAPE_WORDS = 4

# A ring of time stamps: its rows, how many there are room for, how many were written.
RING_ROWS = 0
RING_CAPACITY = 8
RING_WRITTEN = 16
RING_ROW_BYTES = 24

#: Values of the word at ABORT.
RUNNING, STOPPED = 0, 1

#: How long thread 0 computes before it lets Python handle signals.
POLL_NANOSECONDS = 50_000_000

(_SAVE, _RESTORE, _SIGNALS, _ASK, _TRUTH, _RELEASE, _SLEEP, _WAKE) = range(8)
assert FOREIGN[_SAVE] == "PyEval_SaveThread"
assert FOREIGN[_WAKE] == "PyThread_release_lock"


@device_function
def narrow(value: int) -> int:
    """The C ``int`` in a word that a C function returned."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@device_function
def stamp(team: int, trace: int, row: int, start: int) -> None:
    """Write ``(row, start, now)`` into the ring."""
    written = load_word(trace + RING_WRITTEN)
    place = load_word(trace + RING_ROWS) + RING_ROW_BYTES * (written % load_word(trace + RING_CAPACITY))
    store_word(place, row)
    store_word(place + 8, start)
    store_word(place + 16, nanoseconds(team))
    store_word(trace + RING_WRITTEN, written + 1)


@device_function
def walk(ctx: int) -> None:
    """Run the tape at hand on this thread, to its end or until the computation is aborted."""
    team = load_word(ctx + TEAM)
    index = load_word(ctx + THREAD_INDEX)
    n_threads = load_word(team + N_THREADS)
    rows = load_word(team + ROWS)
    n_rows = load_word(team + N_ROWS)
    counter = load_word(team + COUNTERS)
    trace = load_word(team + TRACE)
    start = 0
    for i in range(n_rows):
        row = rows + ROW_BYTES * i
        if n_threads > 1 and trace == 0 and load_word(row + ROW_BARRIER) != 0:
            if not meet(team, index, n_threads, team + ARRIVED, team + PASSED):
                return
        elif atomic_load(team + ABORT) != 0:
            return
        tasks = load_word(row + ROW_TASKS)
        count = n_threads if tasks == 0 else min(tasks, n_threads)
        if index == 0:
            poll_if_due(team)
            if trace != 0:
                start = nanoseconds(team)
        if index < count:
            store_word(ctx + THREAD_COUNT, count)
            store_word(ctx + COUNTER, counter + 8 * i)
            call_2(load_word(row + ROW_KERNEL), ctx, load_word(row + ROW_PARAMS))
        if trace != 0:
            # an entry's span ends when its last thread has ended
            if n_threads > 1 and not meet(team, index, n_threads, team + ARRIVED, team + PASSED):
                return
            if index == 0 and atomic_load(team + ABORT) == 0:
                stamp(team, trace, i, start)


@device_function
def wake(team: int, ctx: int) -> None:
    """Wake the thread of ``ctx`` if it sleeps; after the generation has changed."""
    if atomic_exchange(ctx + ASLEEP, 0) == 1:
        call_1(foreign(team, _WAKE), load_word(ctx + LOCK))


@kernel
def team_compute() -> Body:
    """Thread 0: start the others, walk, wait for them.  Called with Python's lock held; may leave an exception set."""

    def body(team: int, tape: int) -> None:
        n_rows = load_word(tape + TAPE_N_ROWS)
        counters = load_word(tape + TAPE_COUNTERS)
        n_threads = load_word(team + N_THREADS)
        contexts = load_word(team + CONTEXTS)
        store_word(team + ROWS, load_word(tape + TAPE_ROWS))
        store_word(team + N_ROWS, n_rows)
        store_word(team + COUNTERS, counters)
        atomic_store(team + ABORT, RUNNING)
        atomic_store(team + FINISHED, 0)
        atomic_store(team + ARRIVED, 0)
        atomic_store(team + KERNEL_ARRIVED, 0)
        store_word(team + THREAD_STATE, call_0(foreign(team, _SAVE)))
        for i in range(n_rows):
            store_word(counters + 8 * i, 0)
        store_word(team + POLLED_AT, nanoseconds(team))
        store_word(team + DEADLINE, ticks() + load_word(team + SLICE))

        # a tape of entries for one thread wakes nobody, and thread 0 meets nobody
        together = n_threads > 1 and load_word(tape + TAPE_PARALLEL) != 0
        if together:
            atomic_add(team + GENERATION, 1)
            for i in range(1, n_threads):
                wake(team, contexts + CONTEXT_BYTES * i)
            walk(contexts)
            rounds = 0
            while atomic_load(team + FINISHED) != n_threads - 1:
                rounds = wait_a_little(team, 0, rounds)
        else:
            store_word(team + N_THREADS, 1)
            walk(contexts)
            store_word(team + N_THREADS, n_threads)
        call_1(foreign(team, _RESTORE), load_word(team + THREAD_STATE))

    return body


@kernel
def team_work() -> Body:
    """Any other thread: spin for a while, sleep, walk when there is something, until the team closes."""

    def body(ctx: int, team: int) -> None:
        seen = load_word(ctx + LAST_GENERATION)
        while True:
            spins = load_word(team + SPINS)
            while atomic_load(team + GENERATION) == seen and spins > 0:
                pause()
                spins = spins - 1 if atomic_load(team + SPINS) > 0 else 0  # paused: sleep at once
            if atomic_load(team + GENERATION) == seen:
                atomic_exchange(ctx + ASLEEP, 1)
                # whoever starts a computation after this finds this thread asleep and wakes it; whoever did before
                # either shows in the generation, or has taken the mark back and is about to wake it
                if atomic_load(team + GENERATION) == seen or atomic_exchange(ctx + ASLEEP, 0) == 0:
                    call_2(foreign(team, _SLEEP), load_word(ctx + LOCK), 1)
            else:
                seen = atomic_load(team + GENERATION)
                if load_word(team + CLOSING) != 0:
                    return
                walk(ctx)
                atomic_add(team + FINISHED, 1)

    return body


@kernel
def team_dismiss() -> Body:
    """Send the other threads home.  Only between computations."""

    def body(team: int, unused: int) -> None:
        store_word(team + CLOSING, 1)
        atomic_add(team + GENERATION, 1)
        for i in range(1, load_word(team + N_THREADS)):
            wake(team, load_word(team + CONTEXTS) + CONTEXT_BYTES * i)

    return body


@kernel
def team_poll() -> Body:
    """Thread 0 visits Python: signal handlers run, the abort callback is asked; either may end the computation."""

    def body(team: int, unused: int) -> None:
        now = nanoseconds(team)
        length = load_word(team + SLICE)
        # the counter's rate is unknown: what the last slice took says how long the next should be
        length = length * POLL_NANOSECONDS // max(now - load_word(team + POLLED_AT), POLL_NANOSECONDS // 64)
        store_word(team + SLICE, max(length, 1))
        if atomic_load(team + ABORT) == RUNNING:
            call_1(foreign(team, _RESTORE), load_word(team + THREAD_STATE))
            stop = narrow(call_0(foreign(team, _SIGNALS))) != 0
            callback = load_word(team + ABORT_CALLBACK)
            if callback != 0 and not stop:
                answer = call_1(foreign(team, _ASK), callback)
                stop = True  # when it raised
                if answer != 0:
                    stop = narrow(call_1(foreign(team, _TRUTH), answer)) != 0
                    call_1(foreign(team, _RELEASE), answer)
            store_word(team + THREAD_STATE, call_0(foreign(team, _SAVE)))
            if stop:
                atomic_store(team + ABORT, STOPPED)
        store_word(team + POLLED_AT, nanoseconds(team))
        store_word(team + DEADLINE, ticks() + load_word(team + SLICE))

    return body

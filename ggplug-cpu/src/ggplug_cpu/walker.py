"""The native part of the team: the loop over a tape, the main functions of threads, and calls of Python.

These are kernels (compiled by the same compiler, kept in the same cache) that the team calls itself.  Memory is laid
out in :mod:`ggplug_cpu.context`.

Memory order
------------
Processors such as Arm's let one thread's plain loads and stores appear to others in another order than the program's.
Threads therefore pass data to each other at only five places, each by an atomic word; all other accesses are plain:

==========================  =================================================================================
passed on                    how
==========================  =================================================================================
a computation                :func:`start_others` adds to GENERATION behind all that describes it (the words of the
                             team and of the tape, parameters, the inputs' bytes, machine code); the others read
                             GENERATION before they read any of that
results between entries      :func:`~ggplug_cpu.context.meet`
results to the caller        :func:`finish` adds to FINISHED behind a thread's last store; :func:`wait_for_others` reads
                             it before thread 0 returns.  So no thread reads the tape when its words are written
                             again, and the next GENERATION publishes the plain resets of the next computation
sleep and waking             :func:`falls_asleep` and :func:`wake`: each writes one word and then reads the other's, and
                             both are sequentially consistent, so at least one of the two sees the other
chunks of one entry          ``next_chunk`` returns each number once; a chunk's bytes have one writer
==========================  =================================================================================

The word ABORT needs no order: a thread that sees it late computes a little longer.  The words that Python writes
(``Team.run``) are written by the thread that starts the computation.  ``nox -s litmus`` asks a model of AArch64's
memory whether the machine code of these functions keeps these promises.
"""

# only the compiler of kernels knows what intrinsics return
# mypy: disable-error-code="no-any-return"

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
    refetch_instructions,
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

# A ring of time stamps: the address of its rows, its capacity, the number of rows written.
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
    """Run the current tape on this thread, to its end or until the computation is aborted."""
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


# -- synchronisation -----------------------------------------------------------------------------------


@device_function
def wake(ctx: int) -> bool:
    """Clear the mark of a thread that sleeps, or is about to; True if it was set, and the thread's lock has to be
    released.
    """
    return atomic_exchange(ctx + ASLEEP, 0) == 1


@device_function
def falls_asleep(ctx: int, team: int, seen: int) -> bool:
    """Mark this thread asleep; False if a new computation has started.  After True the caller waits for its lock.

    A thread that starts a computation after the mark is set finds it and releases the lock.  A computation that started
    before shows in the generation; if its starter has cleared the mark nevertheless, it will release the lock, so this
    thread waits for that.
    """
    atomic_exchange(ctx + ASLEEP, 1)
    return atomic_load(team + GENERATION) == seen or atomic_exchange(ctx + ASLEEP, 0) == 0


@device_function
def start_others(team: int, n_threads: int) -> None:
    """Thread 0: start the computation that the team's words describe on the other threads."""
    atomic_add(team + GENERATION, 1)
    for i in range(1, n_threads):
        ctx = load_word(team + CONTEXTS) + CONTEXT_BYTES * i
        if wake(ctx):
            call_1(foreign(team, _WAKE), load_word(ctx + LOCK))


@device_function
def finish(team: int) -> None:
    """Other threads: report that this thread has left the tape."""
    atomic_add(team + FINISHED, 1)


@device_function
def wait_for_others(team: int, n_threads: int) -> None:
    """Thread 0: wait until all threads have left the tape; their results are visible then."""
    rounds = 0
    while atomic_load(team + FINISHED) != n_threads - 1:
        rounds = wait_a_little(team, 0, rounds)


# -- main functions of threads ---------------------------------------------------------------------------


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
        refetch_instructions()  # another Python thread may have loaded a kernel

        # a tape of entries for one thread wakes no thread and has no barriers
        together = n_threads > 1 and load_word(tape + TAPE_PARALLEL) != 0
        if together:
            start_others(team, n_threads)
            walk(contexts)
            wait_for_others(team, n_threads)
        else:
            store_word(team + N_THREADS, 1)
            walk(contexts)
            store_word(team + N_THREADS, n_threads)
        call_1(foreign(team, _RESTORE), load_word(team + THREAD_STATE))

    return body


@kernel
def team_work() -> Body:
    """Other threads: spin for a while, sleep, and run tapes, until the team closes."""

    def body(ctx: int, team: int) -> None:
        seen = load_word(ctx + LAST_GENERATION)
        while True:
            spins = load_word(team + SPINS)
            while atomic_load(team + GENERATION) == seen and spins > 0:
                pause()
                spins = spins - 1 if atomic_load(team + SPINS) > 0 else 0  # paused: sleep at once
            if atomic_load(team + GENERATION) == seen:
                if falls_asleep(ctx, team, seen):
                    call_2(foreign(team, _SLEEP), load_word(ctx + LOCK), 1)
            else:
                seen = atomic_load(team + GENERATION)
                if load_word(team + CLOSING) != 0:
                    return
                refetch_instructions()
                walk(ctx)
                finish(team)

    return body


@kernel
def team_dismiss() -> Body:
    """End the other threads.  Only between computations."""

    def body(team: int, unused: int) -> None:
        store_word(team + CLOSING, 1)
        start_others(team, load_word(team + N_THREADS))

    return body


@kernel
def team_poll() -> Body:
    """Thread 0: run signal handlers and call the abort callback; either may end the computation."""

    def body(team: int, unused: int) -> None:
        now = nanoseconds(team)
        length = load_word(team + SLICE)
        # the counter's rate is unknown, so the length of the next time slice follows from the last one
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

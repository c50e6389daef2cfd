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

from ggplug_cpu.compiler import Body, Record, device_function, kernel
from ggplug_cpu.context import (
    FOREIGN,
    TeamMemory,
    ThreadMemory,
    call_0,
    call_1,
    call_2,
    foreign,
    meet,
    nanoseconds,
    pause,
    poll_if_due,
    refetch_instructions,
    store_word,
    ticks,
    wait_a_little,
)
from ggplug_cpu.records import Word


class Row(Record):
    """A row of a tape."""

    kernel = Word(0)
    params = Word(8)
    tasks = Word(16)
    barrier = Word(24)
    bytes = 32


class TapeMemory(Record):
    """The description of a tape that is bound to memory."""

    rows = Word(0)
    n_rows = Word(8)
    counters = Word(16)
    parallel = Word(24)
    bytes = 32


class Ring(Record):
    """A ring of time stamps: the address of its rows, its capacity, the number of rows written."""

    rows = Word(0)
    capacity = Word(8)
    written = Word(16)


class Stamp(Record):
    """A row of a ring: the number of a tape's row, and when it started and ended."""

    row = Word(0)
    start = Word(8)
    end = Word(16)
    bytes = 24


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
def stamp(team: TeamMemory, ring: Ring, row: int, start: int) -> int:
    """Write ``(row, start, now)`` into the ring; returns now."""
    now = nanoseconds(team)
    written = ring.written
    place = Stamp(ring.rows + Stamp.bytes * (written % ring.capacity))
    place.row = row
    place.start = start
    place.end = now
    ring.written = written + 1
    return now


@device_function
def walk(thread: ThreadMemory) -> None:
    """Run the current tape on this thread, to its end or until the computation is aborted."""
    team = TeamMemory(thread.team)
    index, n_threads, rows, n_rows = thread.index, team.n_threads, team.rows, team.n_rows
    counters, trace = team.counters, team.trace
    start = 0
    for i in range(n_rows):
        row = Row(rows + Row.bytes * i)
        if n_threads > 1 and row.barrier != 0:
            if not meet(team, index, n_threads, team.arrived, team.passed):
                return
        elif team.abort.value != 0:
            return
        tasks = row.tasks
        count = n_threads if tasks == 0 else min(tasks, n_threads)
        if index == 0:
            poll_if_due(team)
            if trace != 0:
                # Reading the clock takes as long as a small kernel, so an entry ends where the next one starts: when
                # its last thread has ended, or, where threads do not wait, thread 0.
                if i == 0:
                    start = nanoseconds(team)
                else:
                    start = stamp(team, Ring(trace), i - 1, start)
            team.row = i
        if index < count:
            thread.count = count
            thread.counter = counters + 8 * i
            call_2(row.kernel, int(thread), row.params)
    if trace != 0:
        if n_threads > 1 and not meet(team, index, n_threads, team.arrived, team.passed):
            return
        if index == 0 and n_rows > 0 and team.abort.value == 0:
            stamp(team, Ring(trace), n_rows - 1, start)


# -- synchronisation -----------------------------------------------------------------------------------


@device_function
def wake(thread: ThreadMemory) -> bool:
    """Clear the mark of a thread that sleeps, or is about to; True if it was set, and the thread's lock has to be
    released.
    """
    return thread.asleep.exchange(0) == 1


@device_function
def falls_asleep(thread: ThreadMemory, team: TeamMemory, seen: int) -> bool:
    """Mark this thread asleep; False if a new computation has started.  After True the caller waits for its lock.

    A thread that starts a computation after the mark is set finds it and releases the lock.  A computation that started
    before shows in the generation; if its starter has cleared the mark nevertheless, it will release the lock, so this
    thread waits for that.
    """
    thread.asleep.exchange(1)
    return team.generation.value == seen or thread.asleep.exchange(0) == 0


@device_function
def start_others(team: TeamMemory, n_threads: int) -> None:
    """Thread 0: start the computation that the team's words describe on the other threads."""
    team.generation.add(1)
    for i in range(1, n_threads):
        thread = ThreadMemory(team.contexts + ThreadMemory.bytes * i)
        if wake(thread):
            call_1(foreign(team, _WAKE), thread.lock)


@device_function
def finish(team: TeamMemory) -> None:
    """Other threads: report that this thread has left the tape."""
    team.finished.add(1)


@device_function
def wait_for_others(team: TeamMemory, n_threads: int) -> None:
    """Thread 0: wait until all threads have left the tape; their results are visible then."""
    rounds = 0
    while team.finished.value != n_threads - 1:
        rounds = wait_a_little(team, 0, rounds)


# -- main functions of threads ---------------------------------------------------------------------------


@kernel
def team_compute() -> Body:
    """Thread 0: start the others, walk, wait for them.  Called with Python's lock held; may leave an exception set."""

    def body(team: TeamMemory, tape: TapeMemory) -> None:
        n_rows, counters, n_threads, contexts = tape.n_rows, tape.counters, team.n_threads, team.contexts
        team.rows = tape.rows
        team.n_rows = n_rows
        team.counters = counters
        team.abort.set(RUNNING)
        team.finished.set(0)
        team.arrived.set(0)
        team.kernel_arrived.set(0)
        team.thread_state = call_0(foreign(team, _SAVE))
        for i in range(n_rows):
            store_word(counters + 8 * i, 0)
        team.polled_at = nanoseconds(team)
        team.deadline = ticks() + team.slice
        refetch_instructions()  # another Python thread may have loaded a kernel

        # a tape of entries for one thread wakes no thread and has no barriers
        together = n_threads > 1 and tape.parallel != 0
        if together:
            start_others(team, n_threads)
            walk(ThreadMemory(contexts))
            wait_for_others(team, n_threads)
        else:
            team.n_threads = 1
            walk(ThreadMemory(contexts))
            team.n_threads = n_threads
        call_1(foreign(team, _RESTORE), team.thread_state)

    return body


@kernel
def team_work() -> Body:
    """Other threads: spin for a while, sleep, and run tapes, until the team closes."""

    def body(thread: ThreadMemory, team: TeamMemory) -> None:
        seen = thread.last_generation
        while True:
            spins = team.spins.value
            while team.generation.value == seen and spins > 0:
                pause()
                spins = spins - 1 if team.spins.value > 0 else 0  # paused: sleep at once
            if team.generation.value == seen:
                if falls_asleep(thread, team, seen):
                    call_2(foreign(team, _SLEEP), thread.lock, 1)
            else:
                seen = team.generation.value
                if team.closing != 0:
                    return
                refetch_instructions()
                walk(thread)
                finish(team)

    return body


@kernel
def team_dismiss() -> Body:
    """End the other threads.  Only between computations."""

    def body(team: TeamMemory, unused: int) -> None:
        team.closing = 1
        start_others(team, team.n_threads)

    return body


@kernel
def team_poll() -> Body:
    """Thread 0: run signal handlers and call the abort callback; either may end the computation."""

    def body(team: TeamMemory, unused: int) -> None:
        now, length = nanoseconds(team), team.slice
        # the counter's rate is unknown, so the length of the next time slice follows from the last one
        length = length * POLL_NANOSECONDS // max(now - team.polled_at, POLL_NANOSECONDS // 64)
        team.slice = max(length, 1)
        if team.abort.value == RUNNING:
            call_1(foreign(team, _RESTORE), team.thread_state)
            stop = narrow(call_0(foreign(team, _SIGNALS))) != 0
            callback = team.abort_callback
            if callback != 0 and not stop:
                answer = call_1(foreign(team, _ASK), callback)
                stop = True  # when it raised
                if answer != 0:
                    stop = narrow(call_1(foreign(team, _TRUTH), answer)) != 0
                    call_1(foreign(team, _RELEASE), answer)
            team.thread_state = call_0(foreign(team, _SAVE))
            if stop:
                team.abort.set(STOPPED)
        team.polled_at = nanoseconds(team)
        team.deadline = ticks() + team.slice

    return body

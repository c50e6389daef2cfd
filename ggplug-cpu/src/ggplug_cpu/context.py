"""Functions of the thread team for kernels: thread index and count, parameters, scratch memory, barrier, abort.

A kernel is ``body(ctx, params)``.  ``params`` is the address of the entry's parameters, 64-bit words in the order of
:class:`ggplug_cpu.tape.Entry`'s ``words``: a kernel declares their names (:mod:`ggplug_cpu.parameters`).  ``ctx`` is
the address of the calling thread's context; kernels read it by the functions at the end.  All addresses are int64.

Every thread that takes part calls the kernel once.  Work is divided by :func:`thread_index` and :func:`thread_count`,
or by :func:`next_chunk` where chunks take unequal time::

    def body(ctx: int, p: Declared) -> None:
        rows, row = p.rows, next_chunk(ctx)
        while row < rows and not aborted(ctx):
            ...
            row = next_chunk(ctx)

A kernel with phases puts a :func:`barrier` between them.  It returns False when the computation was aborted; the other
threads may then be anywhere, what they were to write may be missing, and the kernel must return at once::

        if not barrier(ctx):
            return
"""

# only the compiler of kernels knows what intrinsics return
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ggplug_cpu.compiler import Record, device_function, intrinsic, llvm_call
from ggplug_cpu.records import Atomic, Word

if TYPE_CHECKING:
    from llvmlite import ir

# -- the memory behind ``ctx``: team.py lays it out, the functions below read it ---------------------

#: Two cache lines: neighbours are fetched in pairs, so words that different threads write are this far apart.
LINE = 128


class ThreadMemory(Record):
    """The context of one thread: what kernels get as ``ctx``."""

    index = Word(0)
    count = Word(8)
    """How many threads take part in the entry at hand."""
    scratch = Word(16)
    team = Word(24)
    counter = Word(32)
    """The address of the entry's counter of chunks."""
    last_generation = Word(40)
    asleep = Atomic(LINE)
    lock = Word(LINE + 8)
    bytes = 2 * LINE


class Counter(Record):
    """The next chunk of an entry."""

    next = Atomic(0)


class TeamMemory(Record):
    """The words of the whole team.  Those that change during a computation lie on cache lines of their own."""

    n_threads = Word(0)
    spins = Atomic(8)
    contexts = Word(16)
    poll = Word(24)
    functions = Word(32)
    closing = Word(40)
    patience = Word(48)
    # the computation at hand
    rows = Word(LINE)
    n_rows = Word(LINE + 8)
    counters = Word(LINE + 16)
    trace = Word(LINE + 24)
    # what changes during it
    generation = Atomic(2 * LINE)
    finished = Atomic(3 * LINE)
    arrived = Atomic(4 * LINE)
    passed = Atomic(5 * LINE)
    kernel_arrived = Atomic(6 * LINE)
    kernel_passed = Atomic(7 * LINE)
    abort = Atomic(8 * LINE)
    # for thread 0 only
    deadline = Word(9 * LINE)
    slice = Word(9 * LINE + 8)
    polled_at = Word(9 * LINE + 16)
    thread_state = Word(9 * LINE + 24)
    abort_callback = Word(9 * LINE + 32)
    may_poll = Word(9 * LINE + 40)
    seconds = Word(9 * LINE + 48)
    """What the system's clock writes, with the next word."""
    nanoseconds = Word(9 * LINE + 56)
    row = Word(9 * LINE + 64)
    """The row of the tape whose kernel runs, or ran last."""
    bytes = 10 * LINE


#: Foreign functions the walker calls, in the order of the table at FUNCTIONS.
FOREIGN = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_CheckSignals",
    "PyObject_CallNoArgs",
    "PyObject_IsTrue",
    "Py_DecRef",
    "PyThread_acquire_lock",
    "PyThread_release_lock",
    "yield",
    "clock",
)


# -- words ------------------------------------------------------------------------------


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    from llvmlite import ir

    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@intrinsic("i64(i64)")
def load_word(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The 64-bit word at an address."""
    return builder.load(_pointer(builder, address), align=8)


@intrinsic("void(i64, i64)")
def store_word(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Write a 64-bit word."""
    builder.store(value, _pointer(builder, address), align=8)


@intrinsic("f64(i64)")
def _load_real(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    from llvmlite import ir

    return builder.load(builder.inttoptr(address, ir.DoubleType().as_pointer()), align=8)


@intrinsic("void()")
def pause(builder: ir.IRBuilder) -> None:
    """Hint to the processor that this thread spins in a waiting loop."""
    from llvmlite import ir

    triple = builder.module.triple
    if triple.startswith("x86_64"):
        llvm_call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif triple.startswith(("aarch64", "arm64")):
        llvm_call(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(ir.IntType(32), 1))


@intrinsic("void()")
def refetch_instructions(builder: ir.IRBuilder) -> None:
    """Discard prefetched instructions before this thread runs code that another thread has loaded.

    x86-64 does so by itself.  On AArch64 the thread that loads code invalidates the instruction caches of all
    processors, but what one of them has fetched already it drops only at an ISB of its own (Arm ARM, B2.2.5).
    """
    from llvmlite import ir

    if builder.module.triple.startswith(("aarch64", "arm64")):
        llvm_call(builder, "llvm.aarch64.isb", ir.VoidType(), ir.Constant(ir.IntType(32), 15))


# -- foreign functions by address -------------------------------------------------------------------


def _call(builder: ir.IRBuilder, function: ir.Value, *arguments: ir.Value) -> ir.Value:
    from llvmlite import ir

    kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * len(arguments))
    return builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)


@intrinsic("i64(i64)")
def call_0(builder: ir.IRBuilder, function: ir.Value) -> ir.Value:
    """Call a C function by address, without arguments; the caller masks a result narrower than a word."""
    return _call(builder, function)


@intrinsic("i64(i64, i64)")
def call_1(builder: ir.IRBuilder, function: ir.Value, a: ir.Value) -> ir.Value:
    """Call a C function by address, with one argument; see :func:`call_0`."""
    return _call(builder, function, a)


@intrinsic("i64(i64, i64, i64)")
def call_2(builder: ir.IRBuilder, function: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Call a C function or a kernel by address, with two arguments; see :func:`call_0`."""
    return _call(builder, function, a, b)


@device_function
def foreign(team: TeamMemory, number: int) -> int:
    """The address of function ``number`` of :data:`FOREIGN`."""
    return load_word(team.functions + 8 * number)


# -- waiting ----------------------------------------------------------------------------------------


@intrinsic("i64()")
def _processor_ticks(builder: ir.IRBuilder) -> ir.Value:
    from llvmlite import ir

    if builder.module.triple.startswith("x86_64"):
        return llvm_call(builder, "llvm.readcyclecounter", ir.IntType(64))
    if builder.module.triple.startswith(("aarch64", "arm64")):  # the cycle counter is the kernel's there
        register = builder.module.add_metadata(["cntvct_el0"])
        return llvm_call(builder, "llvm.read_volatile_register.i64", ir.IntType(64), register)
    return ir.Constant(ir.IntType(64), 0)


_CLOCK_ID = 8 if sys.platform == "darwin" else 1  # CLOCK_UPTIME_RAW, CLOCK_MONOTONIC: what time.perf_counter_ns reads
_WINDOWS = sys.platform == "win32"
_YIELD = FOREIGN.index("yield")
_CLOCK = FOREIGN.index("clock")


@device_function
def nanoseconds(team: TeamMemory) -> int:
    """The time of ``time.perf_counter_ns``; for thread 0 only."""
    if _WINDOWS:
        call_1(foreign(team, _CLOCK), int(team) + TeamMemory.seconds.offset)
        return team.seconds * 100  # QueryPerformanceCounter counts 10 MHz
    call_2(foreign(team, _CLOCK), _CLOCK_ID, int(team) + TeamMemory.seconds.offset)
    return team.seconds * 1_000_000_000 + team.nanoseconds


@device_function
def ticks() -> int:
    """A counter that runs evenly and costs a few nanoseconds to read; its rate is unknown."""
    return _processor_ticks()


@device_function
def poll_if_due(team: TeamMemory) -> None:
    """On thread 0: regularly run Python's signal handlers and the abort callback."""
    if team.may_poll != 0 and ticks() >= team.deadline:
        call_2(team.poll, int(team), 0)


@device_function
def wait_a_little(team: TeamMemory, index: int, rounds: int) -> int:
    """One round of a waiting loop; returns the number of rounds so far."""
    if rounds < team.patience:
        pause()
    else:
        call_0(foreign(team, _YIELD))
        if index == 0:
            poll_if_due(team)
    return rounds + 1


@device_function
def meet(team: TeamMemory, index: int, count: int, arrived: Atomic, passed: Atomic) -> bool:
    """A barrier of ``count`` threads at two words of the team; False if the computation is aborted.

    Stores of any thread before it are visible to all threads after it: the additions to ``arrived`` form a chain, each
    of which releases the stores of its thread and of the threads before it; the last thread has acquired all of them
    and releases them by ``passed``.  ``arrived`` is 0 again before a thread can leave, so the words can be used again.
    """
    before = passed.value
    if arrived.add(1) == count - 1:
        arrived.set(0)
        passed.set(before + 1)
        return team.abort.value == 0
    rounds = 0
    while passed.value == before:
        if team.abort.value != 0:
            return False
        rounds = wait_a_little(team, index, rounds)
    # after an abort a thread may arrive here without having done its part
    return team.abort.value == 0


# -- for kernels ------------------------------------------------------------------------------------


@device_function
def thread_index(ctx: int) -> int:
    """The index of this thread, from 0 to ``thread_count(ctx) - 1``."""
    return ThreadMemory(ctx).index


@device_function
def thread_count(ctx: int) -> int:
    """The number of threads that take part in this entry."""
    return ThreadMemory(ctx).count


@device_function
def scratch(ctx: int) -> int:
    """The address of this thread's scratch memory: as many bytes as the tape declares, aligned to 128, not
    initialised.
    """
    return ThreadMemory(ctx).scratch


@device_function
def next_chunk(ctx: int) -> int:
    """The next of the numbers 0, 1, 2, ...; each is returned to one thread of this entry."""
    return Counter(ThreadMemory(ctx).counter).next.add(1)


@device_function
def barrier(ctx: int) -> bool:
    """Wait until every thread of this entry arrives.  False: the computation is aborted, so the kernel must return."""
    thread = ThreadMemory(ctx)
    count, team = thread.count, TeamMemory(thread.team)
    if count == 1:
        return team.abort.value == 0
    return meet(team, thread.index, count, team.kernel_arrived, team.kernel_passed)


@device_function
def aborted(ctx: int) -> bool:
    """Whether the computation is aborted.  A kernel that may run for more than a few milliseconds calls it about once a
    millisecond, and returns when it is True; its results are not read then.
    """
    thread = ThreadMemory(ctx)
    team = TeamMemory(thread.team)
    if thread.index == 0:
        poll_if_due(team)
    return team.abort.value != 0


@device_function
def word(params: int, index: int) -> int:
    """Parameter ``index`` as int64: an integer or an address."""
    return load_word(params + 8 * index)


@device_function
def real(params: int, index: int) -> float:
    """Parameter ``index`` as float64."""
    return _load_real(params + 8 * index)

"""Functions of the thread team for kernels: thread index and count, parameters, scratch memory, barrier, abort.

A kernel is ``body(ctx, params)``.  ``params`` is the address of the entry's parameter block, 64-bit words in the
order of :class:`ggplug_cpu.tape.Entry`'s ``words``: a kernel declares what they are (:mod:`ggplug_cpu.parameters`) and
reads them by its declaration, or by number with :func:`word` and :func:`real`.  ``ctx`` is the address of the calling
thread's context; the functions below are the only way to read it.  All addresses are int64; indices count words.

Every thread that takes part calls the kernel once.  Work is divided by :func:`thread_index` and :func:`thread_count`,
or by :func:`next_chunk` where chunks take unequal time::

    def body(ctx, params):
        rows = Declared.rows(params)
        row = next_chunk(ctx)
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

from ggplug_cpu.compiler import device_function, intrinsic, llvm_call

if TYPE_CHECKING:
    from llvmlite import ir

# -- the memory behind ``ctx``, in bytes: what team.py lays out and the functions below read ----------

#: Two cache lines: neighbours are fetched in pairs, so words that different threads write are this far apart.
LINE = 128

# The context of one thread.
THREAD_INDEX = 0
THREAD_COUNT = 8
SCRATCH = 16
TEAM = 24
COUNTER = 32
LAST_GENERATION = 40
ASLEEP = LINE
LOCK = LINE + 8
CONTEXT_BYTES = 2 * LINE

# Memory of the whole team.  Words that all threads read and that are written between computations:
N_THREADS = 0
SPINS = 8
CONTEXTS = 16
POLL = 24
FUNCTIONS = 32
CLOSING = 40
PATIENCE = 48
# the computation at hand,
ROWS = LINE
N_ROWS = LINE + 8
COUNTERS = LINE + 16
TRACE = LINE + 24
# and words that change during it, each on cache lines of its own.
GENERATION = 2 * LINE
FINISHED = 3 * LINE
ARRIVED = 4 * LINE
PASSED = 5 * LINE
KERNEL_ARRIVED = 6 * LINE
KERNEL_PASSED = 7 * LINE
ABORT = 8 * LINE
# For thread 0 only:
DEADLINE = 9 * LINE
SLICE = 9 * LINE + 8
POLLED_AT = 9 * LINE + 16
THREAD_STATE = 9 * LINE + 24
ABORT_CALLBACK = 9 * LINE + 32
MAY_POLL = 9 * LINE + 40
CLOCK_VALUE = 9 * LINE + 48
TEAM_BYTES = 10 * LINE

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


# -- words and atomics ------------------------------------------------------------------------------


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


@intrinsic("i64(i64)")
def atomic_load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Load a word that other threads write, sequentially consistent: later accesses stay behind it (AArch64: LDAR)."""
    return builder.load_atomic(_pointer(builder, address), "seq_cst", 8)


@intrinsic("void(i64, i64)")
def atomic_store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Store a word that other threads read, with release order: earlier accesses stay before it (AArch64: STLR)."""
    builder.store_atomic(value, _pointer(builder, address), "release", 8)


@intrinsic("i64(i64, i64)")
def atomic_add(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> ir.Value:
    """Add to a word of all threads; returns the old value.  Sequentially consistent (AArch64: LDADDAL)."""
    return builder.atomic_rmw("add", _pointer(builder, address), value, "seq_cst")


@intrinsic("i64(i64, i64)")
def atomic_exchange(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> ir.Value:
    """Replace a word of all threads; returns the old value.  Sequentially consistent (AArch64: SWPAL)."""
    return builder.atomic_rmw("xchg", _pointer(builder, address), value, "seq_cst")


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
def foreign(team: int, number: int) -> int:
    """The address of function ``number`` of :data:`FOREIGN`."""
    return load_word(load_word(team + FUNCTIONS) + 8 * number)


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
def nanoseconds(team: int) -> int:
    """The time of ``time.perf_counter_ns``; for thread 0 only."""
    if _WINDOWS:
        call_1(foreign(team, _CLOCK), team + CLOCK_VALUE)
        return load_word(team + CLOCK_VALUE) * 100  # QueryPerformanceCounter counts 10 MHz
    call_2(foreign(team, _CLOCK), _CLOCK_ID, team + CLOCK_VALUE)
    return load_word(team + CLOCK_VALUE) * 1_000_000_000 + load_word(team + CLOCK_VALUE + 8)


@device_function
def ticks() -> int:
    """A counter that runs evenly and costs a few nanoseconds to read; its rate is unknown."""
    return _processor_ticks()


@device_function
def poll_if_due(team: int) -> None:
    """On thread 0: regularly run Python's signal handlers and the abort callback."""
    if load_word(team + MAY_POLL) != 0 and ticks() >= load_word(team + DEADLINE):
        call_2(load_word(team + POLL), team, 0)


@device_function
def wait_a_little(team: int, index: int, rounds: int) -> int:
    """One round of a waiting loop; returns the number of rounds so far."""
    if rounds < load_word(team + PATIENCE):
        pause()
    else:
        call_0(foreign(team, _YIELD))
        if index == 0:
            poll_if_due(team)
    return rounds + 1


@device_function
def meet(team: int, index: int, count: int, arrived: int, passed: int) -> bool:
    """A barrier of ``count`` threads at the words ``arrived`` and ``passed``; False if the computation is aborted.

    Stores of any thread before it are visible to all threads after it: the additions to ``arrived`` form a chain, each
    of which releases the stores of its thread and of the threads before it; the last thread has acquired all of them
    and releases them by ``passed``.  ``arrived`` is 0 again before a thread can leave, so the words can be used again.
    """
    before = atomic_load(passed)
    if atomic_add(arrived, 1) == count - 1:
        atomic_store(arrived, 0)
        atomic_store(passed, before + 1)
        return atomic_load(team + ABORT) == 0
    rounds = 0
    while atomic_load(passed) == before:
        if atomic_load(team + ABORT) != 0:
            return False
        rounds = wait_a_little(team, index, rounds)
    # after an abort a thread may arrive here without having done its part
    return atomic_load(team + ABORT) == 0


# -- for kernels ------------------------------------------------------------------------------------


@device_function
def thread_index(ctx: int) -> int:
    """The index of this thread, from 0 to ``thread_count(ctx) - 1``."""
    return load_word(ctx + THREAD_INDEX)


@device_function
def thread_count(ctx: int) -> int:
    """The number of threads that take part in this entry."""
    return load_word(ctx + THREAD_COUNT)


@device_function
def scratch(ctx: int) -> int:
    """The address of this thread's scratch memory: as many bytes as the tape declares, aligned to 128, not
    initialised.
    """
    return load_word(ctx + SCRATCH)


@device_function
def next_chunk(ctx: int) -> int:
    """The next of the numbers 0, 1, 2, ...; each is returned to one thread of this entry."""
    return atomic_add(load_word(ctx + COUNTER), 1)


@device_function
def barrier(ctx: int) -> bool:
    """Wait until every thread of this entry arrives.  False: the computation is aborted, so the kernel must return."""
    count = load_word(ctx + THREAD_COUNT)
    team = load_word(ctx + TEAM)
    if count == 1:
        return atomic_load(team + ABORT) == 0
    return meet(team, load_word(ctx + THREAD_INDEX), count, team + KERNEL_ARRIVED, team + KERNEL_PASSED)


@device_function
def aborted(ctx: int) -> bool:
    """Whether the computation is aborted.  A kernel that may run for more than a few milliseconds calls it about once a
    millisecond, and returns when it is True; its results are not read then.
    """
    team = load_word(ctx + TEAM)
    if load_word(ctx + THREAD_INDEX) == 0:
        poll_if_due(team)
    return atomic_load(team + ABORT) != 0


@device_function
def word(params: int, index: int) -> int:
    """Parameter ``index`` as int64: an integer or an address."""
    return load_word(params + 8 * index)


@device_function
def real(params: int, index: int) -> float:
    """Parameter ``index`` as float64."""
    return _load_real(params + 8 * index)

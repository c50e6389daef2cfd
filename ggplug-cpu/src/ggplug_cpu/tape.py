"""A computation as a flat array: which kernel runs with which parameters, in which order.

A :class:`Tape` is made once for a graph's structure and says nothing about addresses: an address among the words is a
:class:`~ggplug_cpu.parameters.Ref` to a numbered slot (or to :data:`WORKSPACE`).  :meth:`Tape.bind` fills in the
addresses of the slots, and a :class:`~ggplug_cpu.team.Team` runs the :class:`BoundTape`::

    tape = Tape([Entry(add("f32", "f32", "f32"), [Ref(0), Ref(1, 64), Ref(2), 1024])], n_slots=3)
    bound = tape.bind(numpy.array([a, b, c]))      # base addresses, int64
    team.run(bound)
    bound.rebind(other_bases)                      # cheap: a handful of NumPy calls, whatever the length

No Python code runs per entry when a tape is computed or bound again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_cpu.compiler import Kernel, prebuild
from ggplug_cpu.parameters import Ref, Word
from ggplug_cpu.walker import Row, Stamp, TapeMemory

#: The slot of the team's workspace: memory that lives as long as one computation.
WORKSPACE = -1

_ALIGNMENT = 128

Words: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a kernel.

    ``words`` are its parameters: integers, floats (kept as float64), addresses, and kernels that it calls.
    ``tasks`` is the number of threads that may take part: None for all of them, 1 for only thread 0.
    ``barrier_before=False`` declares that the entry neither reads nor overwrites what the entries since the last
    barrier write (nor overwrites what they read), so threads may begin it while others are still busy.
    Consecutive entries with ``tasks=1`` never wait for each other.
    """

    kernel: Kernel
    words: Sequence[Word]
    tasks: int | None = None
    barrier_before: bool = True


class Tape:
    """Entries in the order in which they are computed; immutable.

    ``n_slots`` is how many base addresses :meth:`bind` takes.  ``workspace_bytes`` is the memory behind
    :data:`WORKSPACE`, ``thread_scratch_bytes`` that of each thread's ``scratch(ctx)``.  Making a tape compiles the
    kernels that are not ready.
    """

    def __init__(
        self, entries: Iterable[Entry], n_slots: int = 0, workspace_bytes: int = 0, thread_scratch_bytes: int = 0
    ) -> None:
        self.entries = tuple(entries)
        self.n_slots = n_slots
        self.workspace_bytes = workspace_bytes
        self.thread_scratch_bytes = thread_scratch_bytes
        self._flatten()

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<tape of {len(self)} entries, {self.n_slots} slots>"

    def _flatten(self) -> None:
        words: list[int] = []
        reals: list[tuple[int, float]] = []
        refs: list[tuple[int, int, int]] = []
        workspace_refs: list[tuple[int, int]] = []
        called: list[tuple[int, Kernel]] = []
        starts: list[int] = []
        for entry in self.entries:
            starts.append(len(words))
            for value in entry.words:
                if type(value) is int:  # most are
                    words.append(value)
                elif isinstance(value, Ref):
                    if value.slot == WORKSPACE:
                        workspace_refs.append((len(words), value.offset))
                    elif 0 <= value.slot < self.n_slots:
                        refs.append((len(words), value.slot, value.offset))
                    else:
                        raise self._bad(entry, f"{value} is outside the tape's {self.n_slots} slots")
                    words.append(0)
                elif isinstance(value, Kernel):
                    called.append((len(words), value))
                    words.append(0)
                elif isinstance(value, float | np.floating):
                    reals.append((len(words), float(value)))
                    words.append(0)
                else:
                    words.append(int(value))
        prebuild([*(entry.kernel for entry in self.entries), *(kernel for _, kernel in called)])
        for at, kernel in called:
            words[at] = kernel.address()
        try:
            self._words: Words = np.array(words, np.int64)
        except OverflowError:
            raise ParameterError("a word of a tape does not fit into 64 bits", got=max(words, key=abs)) from None
        where = np.array([place for place, _ in reals], np.int64)
        self._words[where] = np.array([value for _, value in reals], np.float64).view(np.int64)
        self._places, self._slots, self._offsets = np.array(refs, np.int64).reshape(-1, 3).T.copy()
        self._workspace_places, self._workspace_offsets = np.array(workspace_refs, np.int64).reshape(-1, 2).T.copy()
        self._starts = np.array(starts, np.int64)
        self._rows = self._make_rows()
        #: Whether any entry may use more than one thread.
        self.parallel = bool((self._rows[:, 2] != 1).any())

    def _make_rows(self) -> Words:
        addresses = {kernel: kernel.address() for kernel in {entry.kernel for entry in self.entries}}
        rows = np.zeros((len(self.entries), Row.bytes // 8), np.int64)
        only_thread_0 = True  # nothing runs before the first entry
        left_out = False
        for i, entry in enumerate(self.entries):
            if entry.tasks is not None and entry.tasks < 1:
                raise self._bad(entry, f"tasks is {entry.tasks}; it is None for all threads, or at least 1")
            needed = left_out or (entry.barrier_before and i > 0)
            waits = needed and not (only_thread_0 and entry.tasks == 1)
            # a barrier that thread 0 alone does not need is one before the next entry of other threads
            left_out = needed and not waits
            # once another thread may be busy, an entry for thread 0 has to wait, too
            only_thread_0 = entry.tasks == 1 and (only_thread_0 or waits)
            rows[i] = addresses[entry.kernel], 0, entry.tasks or 0, waits
        return rows

    @staticmethod
    def _bad(entry: Entry, why: str) -> ParameterError:
        return ParameterError(f"tape entry of {entry.kernel.name}: {why}", op=entry.kernel.name)

    def bind(self, bases: npt.ArrayLike = ()) -> BoundTape:
        """A copy whose addresses are filled in: slot ``i`` lies at ``bases[i]``."""
        return BoundTape(self, bases)


class BoundTape:
    """A :class:`Tape` with the addresses of its slots, for one team.  Its caller keeps the memory alive."""

    def __init__(self, tape: Tape, bases: npt.ArrayLike) -> None:
        self.tape = tape
        #: The address of the workspace when the words were last relocated; the team updates it.
        self.workspace_address = 0
        self._words = tape._words.copy()
        self._relocated = np.empty_like(tape._offsets)
        self._rows = tape._rows.copy()
        self._rows[:, 1] = self._words.ctypes.data + 8 * tape._starts
        self._counters = np.zeros(len(tape), np.int64)
        self._description = np.array(
            [self._rows.ctypes.data, len(tape), self._counters.ctypes.data, tape.parallel], np.int64
        )
        assert len(self._description) == TapeMemory.bytes // 8
        #: The address of the description that the native walker reads.
        self.address = int(self._description.ctypes.data)
        self.rebind(bases)

    def rebind(self, bases: npt.ArrayLike) -> None:
        """Move the slots: slot ``i`` lies at ``bases[i]`` from now on.  Not while the tape is being computed."""
        tape = self.tape
        addresses = np.asarray(bases, np.int64)
        if addresses.shape != (tape.n_slots,):
            raise ParameterError(
                f"{tape!r} needs {tape.n_slots} base addresses", got=addresses.shape, wanted=(tape.n_slots,)
            )
        np.take(addresses, tape._slots, out=self._relocated)
        np.add(self._relocated, tape._offsets, out=self._relocated)
        self._words[tape._places] = self._relocated

    def place_workspace(self, address: int) -> None:
        """Sets the address of the team's workspace; called by the team."""
        self._words[self.tape._workspace_places] = self.tape._workspace_offsets + address
        self.workspace_address = address

    def __len__(self) -> int:
        return len(self.tape)


class Span:
    """The entries ``first`` to ``end - 1`` of a bound tape, to be computed separately; rebinding the tape moves it,
    too.
    """

    def __init__(self, whole: BoundTape, first: int, end: int) -> None:
        self._whole = whole
        self.first = first
        self._length = end - first
        parallel = bool((whole.tape._rows[first:end, 2] != 1).any())
        self._description = np.array(
            [whole._rows.ctypes.data + first * Row.bytes, end - first, whole._counters.ctypes.data, parallel], np.int64
        )
        assert len(self._description) == TapeMemory.bytes // 8
        #: The address of the description that the native walker reads.
        self.address = int(self._description.ctypes.data)

    @property
    def tape(self) -> Tape:
        """The tape that it is a part of."""
        return self._whole.tape

    @property
    def workspace_address(self) -> int:
        """The workspace address of the whole tape."""
        return self._whole.workspace_address

    def place_workspace(self, address: int) -> None:
        """Sets the address of the team's workspace in the whole tape."""
        self._whole.place_workspace(address)

    def __len__(self) -> int:
        return self._length


class TraceRing:
    """The time stamps of a traced computation: those of the last ``capacity`` entries that were computed.

    Rows are (index of the entry in its tape, start, end) in nanoseconds of ``time.perf_counter_ns``; an entry ends when
    its last thread has, and the next one starts then.  A ring may serve many computations.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ParameterError(f"capacity must be at least 1, got {capacity}", got=capacity)
        self.capacity = capacity
        self._rows = np.zeros((capacity, Stamp.bytes // 8), np.int64)
        self._head = np.array([self._rows.ctypes.data, capacity, 0], np.int64)
        #: The address of the description that the native walker reads.
        self.address = int(self._head.ctypes.data)

    @property
    def rows_written(self) -> int:
        """Number of rows written since the ring was made or cleared; only the last ``capacity`` are kept."""
        return int(self._head[2])

    def rows(self) -> Words:
        """A copy of the kept rows, oldest first."""
        written = self.rows_written
        if written <= self.capacity:
            return self._rows[:written].copy()
        return np.roll(self._rows, -(written % self.capacity), axis=0)

    def clear(self) -> None:
        """Removes all rows."""
        self._head[2] = 0


def aligned_memory(n_bytes: int) -> tuple[npt.NDArray[np.uint8], int]:
    """An array that owns at least ``n_bytes`` of zeros, and an address in it that is a multiple of 128."""
    array = np.zeros(n_bytes + _ALIGNMENT, np.uint8)
    return array, -(-int(array.ctypes.data) // _ALIGNMENT) * _ALIGNMENT

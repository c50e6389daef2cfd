"""Has one thread of the CPU device begin each kernel late, which shows accesses that no barrier orders.

``PYTHONPATH=tests/support python -m litmus.late_threads 0 conformance CPU`` does so in a command; 0 is the late thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ggplug.cli.app import run
from ggplug_cpu import backend
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import pause, thread_index, word
from ggplug_cpu.tape import Entry, Tape

PAUSES = 300
"""Some microseconds: longer than most kernels of small tensors."""


@kernel
def late() -> Body:
    """The thread in the first word pauses as often as the second says."""

    def body(ctx: int, params: int) -> None:
        if thread_index(ctx) == word(params, 0):
            for _ in range(word(params, 1)):
                pause()

    return body


def changes(thread: int) -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    """What is to be set: objects, the names of attributes, and values.  ``thread`` begins late."""
    placed, rows = backend._placed, Tape._make_rows
    waiting = Entry(late(), [thread, PAUSES], None, barrier_before=False)

    def with_waiting(*how: Any) -> list[Entry]:
        return [each for entry in placed(*how) for each in (waiting, entry)]

    def rows_as_without(tape: Tape) -> Any:
        """The rows, where those between the others need no barriers, and spare no others theirs."""
        found = rows(tape)
        others = [i for i, entry in enumerate(tape.entries) if entry.kernel is not waiting.kernel]
        found[:, 3] = 0
        found[others, 3] = rows(_of([tape.entries[i] for i in others]))[:, 3]
        return found

    return (backend, "_placed", with_waiting), (Tape, "_make_rows", rows_as_without)


def _of(entries: list[Entry]) -> Tape:
    made = object.__new__(Tape)
    made.entries = tuple(entries)
    return made


if __name__ == "__main__":
    for where, name, value in changes(int(sys.argv[1])):
        setattr(where, name, value)
    sys.exit(run(sys.argv[2:]))

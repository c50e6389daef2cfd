"""Threads and computations that tests hold still where a fault would show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ggplug.sharing import HELD, WAITING

PATIENCE = 60.0
"""Seconds after which a test gives up; nothing that is right takes long."""


class Doing(threading.Thread):
    """A thread that does one thing; ``result()`` is what it returned, or raises what it raised."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._action()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), "the thread hangs"
        if self.error is not None:
            raise self.error
        return self._value

    @property
    def waits(self) -> bool:
        """Whether it waits for a claim of another thread."""
        return any(each.thread == self.ident for each in WAITING.copy())

    def settled(self) -> bool:
        """When it either waits, which is the answer, or has ended."""
        until(lambda: self.waits or not self.is_alive())
        return self.waits


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never comes to that"
        threading.Event().wait(0.001)


def holds(thread: Doing) -> bool:
    """Whether a thread holds something."""
    return any(each.thread == thread.ident and each.granted for each in [*HELD.values()])


class Gate:
    """Where a computation stops until the test lets it go on: called from within it, as often as it likes."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self, *ignored: Any) -> bool:
        if not self.reached.is_set():
            self.reached.set()
            assert self._opened.wait(PATIENCE)
        return False

    def open(self) -> None:
        self._opened.set()


@contextmanager
def held(action: Callable[[], Any], gate: Gate) -> Iterator[Doing]:
    """A thread inside ``action``, at the gate; at the end of the block it goes on, and must have ended well."""
    thread = Doing(action)
    try:
        until(lambda: gate.reached.is_set() or not thread.is_alive())
        if not gate.reached.is_set():
            thread.result()
            raise AssertionError("the thread did not come to the gate")
        yield thread
    finally:
        gate.open()
    thread.result()

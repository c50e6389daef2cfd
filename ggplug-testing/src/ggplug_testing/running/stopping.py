"""Runs of the suite that are stopped: by SIGINT, which Ctrl-C sends, SIGTERM, or a terminal that is closed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ggplug.system.signals import raising


class Stopped(KeyboardInterrupt):
    """Raised by a signal other than SIGINT that ends the process; it is handled as KeyboardInterrupt is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside of the block SIGTERM and SIGHUP raise Stopped, as SIGINT raises KeyboardInterrupt."""
    with raising(Stopped):
        yield


def number_of(stop: KeyboardInterrupt) -> int:
    """The signal that has stopped a run."""
    return stop.number if isinstance(stop, Stopped) else int(signal.SIGINT)


def in_words(stop: KeyboardInterrupt, where: str, left: str = "") -> str:
    """By which signal a run was stopped, at what (``where``), if at anything, and what did not run (``left``)."""
    at = f" at {where}" if where else ""
    return f"by {signal.Signals(number_of(stop)).name}{at}{f'; {left}' if left else ''}"

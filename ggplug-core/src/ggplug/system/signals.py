"""Signals that ask a process to end, as exceptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


class _Raises:
    """A handler that raises an error for a signal."""

    def __init__(self, error: Callable[[int], BaseException]) -> None:
        self._error = error

    def __call__(self, number: int, frame: object) -> NoReturn:
        raise self._error(number)


@contextmanager
def raising(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Inside of the block SIGTERM and SIGHUP raise ``error(number)``, unless a handler of somebody else's is set.

    For the main thread, to which Python delivers signals; in others the block changes nothing.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)):
            # Set anew inside of another such block: LLVM, once it saw a Ctrl-C, restores the system's older handlers.
            if signal.getsignal(number) is signal.SIG_DFL or isinstance(signal.getsignal(number), _Raises):
                before[number] = signal.signal(number, _Raises(error))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

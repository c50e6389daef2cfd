"""Signals that ask a process to end, as exceptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def raising(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Inside of the block SIGTERM and SIGHUP raise ``error(number)`` if nothing handles them yet.

    For the main thread, to which Python delivers signals; in others the block changes nothing.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def end(number: int, frame: object) -> NoReturn:
        raise error(number)

    before = {number: signal.signal(number, end) for number in numbers if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

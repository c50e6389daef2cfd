"""Running a plugin's code so that its failures concern no other plugin."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

PLUGIN_CODE: contextvars.ContextVar[bool] = contextvars.ContextVar("ggplug_plugin_code", default=False)
"""Whether a plugin's code runs: the command line lets nothing that it prints get among its own output."""


class HangError(Exception):
    """Code of a plugin did not come back in time and was abandoned."""


class FaultError(Exception):
    """Code of a plugin raised ``cause``, which may be a SystemExit."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(type(cause).__name__)
        self.cause = cause


def within(seconds: float, name: str, function: Callable[[], T]) -> T:
    """The result of a plugin's code, if it comes within ``seconds`` (0: no limit, and in the calling thread).

    The code runs in a daemon thread of its own, with the caller's context.  A thread that does not come back is
    abandoned: it holds the import locks of the modules that it is importing, and nothing else, so other imports go on.
    (A plugin that hangs while it holds the interpreter's lock stops the process; only a child process finds that.)

    Raises HangError, FaultError with whatever the code raised, and a KeyboardInterrupt of the calling thread as it is.
    """
    if not seconds:
        return _guarded(function)
    return _PluginThread(name, function).result(time.monotonic() + seconds, seconds)


def all_within(seconds: float, questions: Mapping[K, Callable[[], T]]) -> dict[K, T | HangError | FaultError]:
    """As :func:`within` for several at once; ``seconds`` is for all of them together.  Errors stand for results."""

    def answer(ask: Callable[[], T]) -> T | HangError | FaultError:
        try:
            return ask()
        except (HangError, FaultError) as error:
            return error

    if not seconds:
        return {key: answer(partial(_guarded, question)) for key, question in questions.items()}
    calls = {key: _PluginThread(str(key), question) for key, question in questions.items()}
    until = time.monotonic() + seconds
    return {key: answer(partial(call.result, until, seconds)) for key, call in calls.items()}


class _PluginThread(Generic[T]):
    """A plugin's code in a thread of its own, begun at once."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._done = threading.Event()
        context = contextvars.copy_context()
        context.run(PLUGIN_CODE.set, True)

        def run() -> None:
            try:
                self._results.append(context.run(function))
            except BaseException as error:
                self._errors.append(error)
            finally:
                self._done.set()

        threading.Thread(target=run, name=f"ggplug-load-{name}", daemon=True).start()

    def result(self, until: float, limit: float) -> T:
        """What the code returned, if it does so ``until`` then; ``limit``: the seconds that it may take."""
        if not self._done.wait(min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)):
            raise HangError(f"no answer within {limit:.3g} seconds")
        if self._errors:  # a KeyboardInterrupt too: Ctrl-C interrupts the main thread, not this one
            raise FaultError(self._errors[0])
        return self._results[0]


def _guarded(function: Callable[[], T]) -> T:
    token = PLUGIN_CODE.set(True)
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise FaultError(error) from error
    finally:
        PLUGIN_CODE.reset(token)

"""The standard streams of the process: only results of commands reach standard output, and errors name the stream.

Plugins print, in Python or in C, from threads of their own and from child processes, when they are imported and when
the process ends.  So :func:`protect` puts the real standard output under a number that only this module knows, and
standard error under the number 1.  Commands of ggplug write to :func:`stdout`.  What ``print`` and ``click.echo`` write
in the main thread goes there too (help, and commands of other distributions), except while a plugin's code or a
:class:`Command` runs; then it goes to standard error.

A stream may be closed, its disk may be full, or its reader may have exited.  A closed stream is an error only when a
command writes to it.  On standard error all three are ignored.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any, NoReturn, TextIO

from ggplug.registry.isolation import PLUGIN_CODE
from ggplug.system.signals import raising

EXIT_BROKEN_PIPE = 141
"""128 plus the signal's number, as a shell reports it."""

STDIN, STDOUT, STDERR = "standard input", "standard output", "standard error"


class Ending(BaseException):
    """Ends the command with an exit code, past everything that catches exceptions."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


# -- output ----------------------------------------------------------------------------------------


class _Raw(io.RawIOBase):
    """Writes to a descriptor; ``None`` is a stream that was closed before the process began.

    A failure is raised once, as an OSError with the stream's name, or as an Ending where the reader has gone; then,
    and at once if it is ``forgiving``, what is written is dropped, so that the interpreter can end in peace.
    """

    def __init__(self, descriptor: int | None, name: str, *, forgiving: bool = False) -> None:
        self._descriptor = descriptor
        self.name = name
        self._forgiving = forgiving
        self._failed = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "it is closed", self.name)
        return self._descriptor

    def isatty(self) -> bool:
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._failed:
            return size
        try:
            return self._write(data)
        except OSError as error:
            self._failed = True
            if self._forgiving:
                return size
            if error.errno == errno.EPIPE:
                raise Ending(EXIT_BROKEN_PIPE) from None
            raise OSError(error.errno, error.strerror, self.name) from None

    def _write(self, data: Any) -> int:
        descriptor = self.fileno()
        while True:
            try:
                return os.write(descriptor, data)
            except BlockingIOError:  # the pipe was made one that does not wait
                select.select([], [descriptor], [])


def _text(raw: _Raw, like: TextIO | None, *, lines: bool) -> io.TextIOWrapper:
    """A text stream over ``raw`` in the encoding that the interpreter chose; what has no bytes in it is escaped."""
    encoding = getattr(like, "encoding", None) or "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=lines)


_own: TextIO | None = None
"""The real standard output; None where nothing is protected, as in tests of single commands."""

_PRINTS: contextvars.ContextVar[bool] = contextvars.ContextVar("ggplug_prints", default=False)
"""Whether ``print`` means standard output: in the command line's own context, not in threads of plugins."""


def stdout() -> TextIO:
    """Where a command's output goes, and nothing else."""
    return _own or sys.stdout


class _Routed:
    """What ``sys.stdout`` is: the real one for those who may print, and standard error for the others."""

    def __getattr__(self, name: str) -> Any:
        prints = _PRINTS.get() and not PLUGIN_CODE.get()
        return getattr(stdout() if prints else sys.stderr, name)

    def __iter__(self) -> Iterator[str]:
        raise io.UnsupportedOperation("not readable")


@contextlib.contextmanager
def own_output_only() -> Iterator[None]:
    """Inside of the block only what is written to :func:`stdout` arrives there."""
    token = _PRINTS.set(False)
    try:
        yield
    finally:
        _PRINTS.reset(token)


def protect() -> None:
    """Sets all of this up, once a process, before anything opens a file or imports a plugin."""
    global _own
    closed = _occupy()
    out = None
    if 1 not in closed:
        sys.stdout.flush()
        out = os.dup(1)
    on_console = sys.platform == "win32" and sys.stdout is not None and sys.stdout.isatty()
    if not on_console:  # a console there is written to by other means than its descriptor
        terminal = out is not None and os.isatty(out)
        _own = _text(_Raw(out, STDOUT), sys.stdout, lines=terminal)
        os.dup2(2, 1)
        sys.stderr = _text(_Raw(2, STDERR, forgiving=True), sys.stderr, lines=True)
        sys.stdout = _Routed()
    _PRINTS.set(True)


def _occupy() -> set[int]:
    """Puts the null device where a standard stream is closed: a model's file must not be opened there."""
    closed = set()
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            closed.add(descriptor)
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    return closed


# -- input -----------------------------------------------------------------------------------------


class _Input:
    """Standard input in bytes; an error names it."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream = stream

    def readline(self, limit: int) -> bytes:
        """Up to ``limit`` bytes, and no more than a line; empty at the end."""
        if self._stream is None:
            raise OSError(errno.EBADF, "it is closed", STDIN)
        try:
            return self._stream.readline(limit)
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDIN) from error


def stdin() -> _Input:
    """Standard input, which may be closed."""
    return _Input(None if sys.stdin is None else sys.stdin.buffer)


# -- the end ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside of the block a signal to end the process ends it in good order, so that no half of a file stays behind."""
    with raising(lambda number: Ending(128 + number)):
        yield


def leave(code: int, patience: float) -> NoReturn:
    """Ends the process.

    What plugins print at the end goes to standard error, and what they do takes at most ``patience`` seconds (0: no
    limit): a thread that they left behind does not hold the process.
    """
    _PRINTS.set(False)
    if patience:
        timer = threading.Timer(min(patience, threading.TIMEOUT_MAX), os._exit, [code])
        timer.daemon = True
        timer.start()
    sys.exit(code)

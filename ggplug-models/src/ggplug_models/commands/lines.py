"""Reads the texts of commands: whole files, and lines of standard input, of which long ones are kept on disk."""

from __future__ import annotations

import codecs
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from ggplug.cli.streams import stdin
from ggplug.errors import ParameterError
from ggplug.system.files import naming, open_regular
from ggplug_models.tokenizers.long_text import LongText

LINES, BYTES = 4096, 1 << 22
"""Limits of a window: enough lines to batch texts of similar length, few enough that output does not stall."""

PIECE = 1 << 16
"""Bytes that are read at once; a longer line is kept on disk."""


class Source(Protocol):
    """A binary stream that is read by lines."""

    def readline(self, limit: int, /) -> bytes:
        """Up to ``limit`` bytes of the next line; empty at the end."""


class LongLine(LongText):
    """A line that is kept in a temporary file, without its line end."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        super().__init__(self._pieces)
        self._file = file
        self._size = size

    def _pieces(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        with naming(tempfile.gettempdir()):
            self._file.seek(0)
            for start in range(0, self._size, PIECE):
                yield decoder.decode(self._file.read(min(PIECE, self._size - start)))

    def close(self) -> None:
        """Closes the temporary file."""
        self._file.close()


Line = str | LongLine


def windows(source: Source) -> Iterator[list[Line]]:
    """Yields the lines of ``source`` in windows of some thousand, decoded as UTF-8 whatever the locale.

    A long line is the last of its window; it is closed when the caller takes the next window.  Where reading fails, the
    lines before the error are yielded first.  Raises ParameterError for a line that is not UTF-8, OSError.
    """
    window: list[Line] = []
    size = 0
    try:
        for line in _lines(source):
            window.append(line)
            size += len(line) if isinstance(line, str) else BYTES
            if len(window) >= LINES or size >= BYTES:
                yield from _closing(window)
                window, size = [], 0
    except (ParameterError, OSError):
        if window:
            yield from _closing(window)
        raise
    if window:
        yield from _closing(window)


def _closing(window: list[Line]) -> Iterator[list[Line]]:
    try:
        yield window
    finally:
        for line in window:
            if isinstance(line, LongLine):
                line.close()


def _lines(source: Source) -> Iterator[Line]:
    number = 0
    while first := source.readline(PIECE):
        number += 1
        if first.endswith(b"\n") or len(first) < PIECE:
            try:
                yield _without_end(first).decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(number, error.start) from None
        else:
            yield _long(source, first, number)


def _long(source: Source, first: bytes, number: int) -> LongLine:
    """Writes a long line to a temporary file, and checks that it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        size, piece, last = 0, first, b""
        while piece:
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(piece)
            except UnicodeDecodeError as error:
                raise _not_utf8(number, size - pending + error.start) from None
            with naming(tempfile.gettempdir()):
                file.write(piece)
            size += len(piece)
            last = (last + piece)[-2:]
            piece = b"" if last.endswith(b"\n") else source.readline(PIECE)
        if pending := len(decoder.getstate()[0]):
            raise _not_utf8(number, size - pending)
        stack.pop_all()
    return LongLine(file, size - (len(last) - len(_without_end(last))))


def _without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _not_utf8(number: int, byte: int) -> ParameterError:
    return ParameterError(f"line {number} of standard input is not valid UTF-8 at byte {byte}", got=byte)


def write_text(line: Line, write: Callable[[str], object], *, ascii_only: bool) -> None:
    """Writes a line as a JSON string."""
    write('"')
    for piece in (line,) if isinstance(line, str) else line.read():
        write(json.dumps(piece, ensure_ascii=ascii_only)[1:-1])
    write('"')


def bytes_of(file: Path | None) -> bytes:
    """The bytes of a file, or of standard input if it is ``-``.  Raises OSError."""
    assert file is not None
    if str(file) == "-":
        return b"".join(iter(lambda: stdin().readline(1 << 16), b""))
    with open_regular(file) as opened:
        return opened.read()


def content_of(file: Path | None) -> str:
    """The text of a file, or of standard input if it is ``-``.  Raises ParameterError if it is not UTF-8, OSError."""
    data = bytes_of(file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "standard input" if str(file) == "-" else str(file)
        raise ParameterError(f"{name} is not valid UTF-8 at byte {error.start}", got=error.start) from None

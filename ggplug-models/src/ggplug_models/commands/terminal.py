"""Reads messages from a terminal: typed lines, and pasted texts of several lines."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

BEGIN, END = "\x1b[200~", "\x1b[201~"
"""What a terminal in the mode "bracketed paste" sends before and after a pasted text."""

ENABLE, DISABLE = "\x1b[?2004h", "\x1b[?2004l"
"""What switches that mode on and off."""


@contextlib.contextmanager
def messages() -> Iterator[Callable[[str], str]]:
    """Yields a function that prints a prompt and returns a message: a typed line, or a pasted text with all its lines.

    Lines can be edited and recalled where Python has ``readline``.  The function raises EOFError, KeyboardInterrupt,
    UnicodeDecodeError.
    """
    readline: Any = None
    with contextlib.suppress(ImportError):  # Windows has none
        readline = importlib.import_module("readline")  # now input() edits and recalls lines
    if readline is not None and "libedit" not in (readline.__doc__ or ""):
        readline.parse_and_bind("set enable-bracketed-paste on")  # GNU readline then handles pasted texts itself
        yield _line
        return
    if readline is not None:
        for mark in (BEGIN, END):  # libedit would interpret them as keys; so it inserts them
            keys = mark.replace("\x1b", r"\e")
            readline.parse_and_bind(f'bind -s "{keys}" "^V{keys}"')
    if sys.platform == "win32":  # some consoles there print the sequences
        yield _line
        return
    _send(ENABLE)
    try:
        yield _whole
    finally:
        _send(DISABLE)


def _send(sequence: str) -> None:
    if sys.__stdout__ is not None:
        sys.__stdout__.write(sequence)
        sys.__stdout__.flush()


def _whole(prompt: str) -> str:
    """A message: a line, or all lines of a pasted text."""
    text = _line(prompt)
    while text.count(BEGIN) > text.count(END):
        text += "\n" + _line("")
    return text.replace(BEGIN, "").replace(END, "")


def _line(prompt: str) -> str:
    """What input() returns; with GNU readline that may be several lines."""
    held = sys.stdout
    sys.stdout = sys.__stdout__ or held  # input() edits lines only on the process's own standard output
    try:
        return input(prompt)
    finally:
        sys.stdout = held

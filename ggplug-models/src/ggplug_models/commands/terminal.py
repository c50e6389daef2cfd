"""What a person types or pastes into a terminal, message by message."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

BEGIN, END = "\x1b[200~", "\x1b[201~"
"""Where a pasted text begins and ends, as terminals say that were asked to ("bracketed paste")."""

ASK, ASK_NO_MORE = "\x1b[?2004h", "\x1b[?2004l"


@contextlib.contextmanager
def messages() -> Iterator[Callable[[str], str]]:
    """While it lasts, lines are edited and remembered where Python can do that, and pasted texts are recognised.

    Gives a function that shows a prompt and returns what a person says: a line, or with all its lines a text that was
    pasted.  That raises EOFError, KeyboardInterrupt, UnicodeDecodeError.
    """
    readline: Any = None
    with contextlib.suppress(ImportError):  # which Windows does not have
        readline = importlib.import_module("readline")  # from now on input() edits lines, and remembers them
    if readline is not None and "libedit" not in (readline.__doc__ or ""):
        readline.parse_and_bind("set enable-bracketed-paste on")  # GNU's does all, for itself
        yield _line
        return
    if readline is not None:
        for mark in (BEGIN, END):  # libedit writes them into the line, character by character
            keys = mark.replace("\x1b", r"\e")
            readline.parse_and_bind(f'bind -s "{keys}" "^V{keys}"')
    if sys.platform == "win32":  # where not every console knows how to be asked
        yield _line
        return
    _tell(ASK)
    try:
        yield _whole
    finally:
        _tell(ASK_NO_MORE)


def _tell(terminal: str) -> None:
    if sys.__stdout__ is not None:
        sys.__stdout__.write(terminal)
        sys.__stdout__.flush()


def _whole(prompt: str) -> str:
    """Lines up to the one in which a pasted text ends."""
    text = _line(prompt)
    while text.count(BEGIN) > text.count(END):
        text += "\n" + _line("")
    return text.replace(BEGIN, "").replace(END, "")


def _line(prompt: str) -> str:
    """What input() returns; GNU's readline may have several lines in it."""
    held = sys.stdout
    sys.stdout = sys.__stdout__ or held  # input() edits lines only where it finds the process's own stream
    try:
        return input(prompt)
    finally:
        sys.stdout = held

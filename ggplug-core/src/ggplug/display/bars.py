"""Progress on a terminal: drawn while the process is in the terminal's foreground, and gone at the end.

A process in the background of a terminal must not write to it: where the terminal is set so (``stty tostop``), the
kernel stops the process for that, until somebody notices.  The terminal's settings are left as they are: the cursor is
not hidden, because a process that is killed, or is in the background at its end, could not show it again.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleRenderable
from rich.live import Live
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn


def bar(*columns: ProgressColumn, width: int | None = None) -> Progress:
    """A bar of these columns on standard error; nothing where that is no terminal.

    ``width``: in characters, if it is not that of the terminal.
    """
    return _Bar(*columns, width=width)


def busy(words: str, *, width: int | None = None) -> Progress:
    """These words with something that moves, for what does not tell how far it is; ``width`` as for :func:`bar`."""
    shown = _Bar(SpinnerColumn(), TextColumn("{task.description}", markup=False), width=width)
    shown.add_task(words, total=None)
    return shown


def in_foreground(descriptor: int) -> bool:
    """Whether this process may write to what is open there without being stopped for it.

    It may not if that is the terminal which controls this process, and another group of processes has its foreground.
    """
    if not hasattr(os, "tcgetpgrp"):  # Windows has no such groups
        return True
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # no terminal, or one that does not control this process
        return True


class _Stderr:
    """Standard error for Rich, which also writes empty text: that stops a process in the background like any other."""

    def __init__(self) -> None:
        self._file: TextIO = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # beside another bar

    def write(self, text: str) -> int:
        return self._file.write(text) if text else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Console(Console):
    """Standard error, where bars are drawn, and what others print meanwhile goes above them."""

    @property
    def draws(self) -> bool:
        """Whether bars may be drawn now: a job goes to the background and comes back as its user likes."""
        try:
            return in_foreground(self.file.fileno())
        except (AttributeError, OSError, ValueError):  # a stream of Python's own, which has no descriptor
            return True

    def show_cursor(self, show: bool = True) -> bool:
        return False

    def control(self, *control: Any) -> None:
        if self.draws:
            super().control(*control)

    def line(self, count: int = 1) -> None:
        if self.draws:
            super().line(count)


class _Live(Live):
    """Draws only where its console does; what others print is printed in any case."""

    console: _Console

    def refresh(self) -> None:
        if self.console.draws:
            super().refresh()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return super().process_renderables(renderables) if self.console.draws else renderables


class _Bar(Progress):
    def __init__(self, *columns: ProgressColumn, width: int | None) -> None:
        file = cast("IO[str]", _Stderr())
        err = _Console(file=file, width=width, highlight=False, markup=False, emoji=False)
        super().__init__(*columns, console=err, disable=not err.is_terminal, transient=True)
        self.live = _Live(console=err, refresh_per_second=10, transient=True, get_renderable=self.get_renderable)

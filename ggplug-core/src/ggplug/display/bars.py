"""Progress bars on a terminal: drawn while the process is in the terminal's foreground, and erased at the end.

A process in the background of a terminal must not write to it: with ``stty tostop`` the kernel stops a process that
does.  The terminal's settings are not changed: the cursor is not hidden, because a process that is killed, or is in the
background at its end, could not show it again.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleRenderable
from rich.live import Live
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn


def bar(*columns: ProgressColumn, width: int | None = None) -> Progress:
    """A progress bar with these columns on standard error; draws nothing where that is no terminal.

    ``width``: in characters; by default the terminal's.
    """
    return _Bar(*columns, width=width)


def busy(words: str, *, width: int | None = None) -> Progress:
    """A text with an animation, for work of unknown length; ``width`` as for :func:`bar`."""
    spinner = _Bar(SpinnerColumn(), TextColumn("{task.description}", markup=False), width=width)
    spinner.add_task(words, total=None)
    return spinner


def in_foreground(descriptor: int) -> bool:
    """Whether this process may write to a file descriptor without being stopped.

    It may not if that is the terminal that controls this process, and another process group is in the foreground.
    """
    if not hasattr(os, "tcgetpgrp"):  # on Windows a terminal has no process groups
        return True
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # no terminal, or one that does not control this process
        return True


class _Stderr:
    """Standard error without empty writes: Rich makes them, and even they stop a process in the background."""

    def __init__(self) -> None:
        self._file: TextIO = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # while another bar is drawn

    def write(self, text: str) -> int:
        return self._file.write(text) if text else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Console(Console):
    """A Rich console on standard error; what other code prints meanwhile appears above the bars."""

    @property
    def draws(self) -> bool:
        """Whether bars may be drawn now: the user may move the job to the background and back at any time."""
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
    """Draws only while its console does; what other code prints is printed in any case."""

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

    def stop(self) -> None:
        if not self.disable:  # else some versions of Rich end a line that they did not begin
            super().stop()

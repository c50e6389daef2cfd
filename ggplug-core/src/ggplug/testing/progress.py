"""How far a run of the suite is, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column


class Bar:
    """What is computed now, and how many parts of how many are done.  It is told of both; see :func:`bar`."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def at(self, subject: str, case: str) -> None:
        """This case begins."""
        self._progress.update(self._task, description=f"{subject}: {case}")

    def done(self) -> None:
        """A part of the run is done."""
        self._progress.advance(self._task)


@contextmanager
def bar(total: int) -> Iterator[Bar]:
    """A bar on standard error for ``total`` parts, which vanishes at the end; nothing where that is no terminal."""
    shown = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    err = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (BarColumn(20), MofNCompleteColumn(), shown)
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        yield Bar(progress, progress.add_task("", total=total))

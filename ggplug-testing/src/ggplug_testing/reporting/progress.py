"""How far a run of the suite is, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Bar:
    """Shows which case is computed and how many parts are done; see :func:`bar`."""

    def __init__(self, describe: Callable[[str], object], advance: Callable[[], object]) -> None:
        self._describe = describe
        self._advance = advance

    def at(self, subject: str, case: str) -> None:
        """This case begins."""
        self._describe(f"{subject}: {case}")

    def done(self) -> None:
        """A part of the run is done."""
        self._advance()


@contextmanager
def bar(total: int) -> Iterator[Bar]:
    """A bar on standard error for ``total`` parts, which vanishes at the end; nothing where that is no terminal.

    In the background of the terminal it waits for the foreground; see :mod:`ggplug.display.bars`.
    """
    # Rich takes longer to import than most that imports this module.
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.table import Column

    from ggplug.display import bars

    shown = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    with bars.bar(BarColumn(20), MofNCompleteColumn(), shown) as progress:
        task = progress.add_task("", total=total)
        yield Bar(lambda text: progress.update(task, description=text), lambda: progress.advance(task))

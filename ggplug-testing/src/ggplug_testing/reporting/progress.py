"""How far a run of the suite is, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Bar(NamedTuple):
    """``at(subject, case)``: a case begins.  ``done()``: a part of the run is done."""

    at: Callable[[str, str], object]
    done: Callable[[], object]


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
        yield Bar(
            lambda subject, case: progress.update(task, description=f"{subject}: {case}"),
            lambda: progress.advance(task),
        )

"""Progress bars with a count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ggplug.cli.output import progress

if TYPE_CHECKING:
    from rich.progress import Progress


def counting() -> Progress:
    """A progress bar on standard error, if that is a terminal; it is erased at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return progress(*columns)

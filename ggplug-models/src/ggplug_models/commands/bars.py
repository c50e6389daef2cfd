"""The progress of commands that count what they have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ggplug.cli.output import progress

if TYPE_CHECKING:
    from rich.progress import Progress


def counting() -> Progress:
    """A bar on standard error where that is a terminal, which leaves nothing behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return progress(*columns)

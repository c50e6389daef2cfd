"""The option ``--trace`` of commands that compute."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggplug.cli.output import NewPath, console, print_table, text

if TYPE_CHECKING:
    from ggplug.trace import Recording
    from ggplug.trace.summary import Row

MOST = 20
"""Rows of the summary."""

trace_option = click.option(
    "--trace",
    type=NewPath(),
    metavar="FILE",
    help="Record what each device computes, copies and waits for, and print a summary by operation. FILE.json is for "
    "Perfetto or chrome://tracing, FILE.html a page for any browser. Computing takes longer meanwhile.",
)


def traced(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds the option to a command, whose computations are recorded if it is given."""

    @trace_option
    @functools.wraps(command)
    def run(*args: Any, trace: Path | None, **options: Any) -> Any:
        with recorded(trace):
            return command(*args, **options)

    return run


@contextmanager
def recorded(path: Path | None) -> Iterator[None]:
    """A ``with`` block whose computations are recorded, if there is a path to write them to.

    Also writes them if the block ends with an exception.  Raises ParameterError for a path that cannot be one.
    """
    if path is None:
        yield
        return
    from ggplug import trace
    from ggplug.trace.recorder import checked_path

    checked_path(path)
    with trace.recording() as found:
        try:
            yield
        finally:
            found.stop()
            found.save(path)
            sys.stdout.flush()  # the summary follows what the command printed
            show_summary(found)
            console(stderr=True).print(text(f"{len(found.spans):,} spans are in {path}"), soft_wrap=True)


def show_summary(found: Recording) -> None:
    """Prints the times by device and op, and the totals, on standard error."""
    from ggplug.trace.recorder import MOST_GRAPHS

    rows, totals = found.summary(), found.totals()
    headings = ["device", "what", "count", "ms", "of it", "GFLOP/s", "GB/s"]
    print_table(headings, [*map(_cells, rows[:MOST]), *map(_cells, totals)], right=headings[2:], stderr=True)
    if len(rows) > MOST:
        console(stderr=True).print(f"({len(rows) - MOST} shorter ones are left out; the totals include them)")
    computed = sum(row.spans for row in totals if row.what.startswith("graph"))
    most = " or more" if len(found.graphs) == MOST_GRAPHS else ""
    console(stderr=True).print(f"computations: {computed:,}; different graphs: {len(found.graphs)}{most}")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.track,
        row.what,
        f"{row.spans:,}",
        f"{row.milliseconds:,.2f}",
        f"{row.fraction:.1%}",
        _rate(row.gigaflops),
        _rate(row.gigabytes_per_second),
    )


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"

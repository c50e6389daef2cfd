"""What commands print: tables for people, JSON for programs, one clean line for errors."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import numpy as np
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ggplug.cli.streams import own_output_only, stdout
from ggplug.cli.table import layout
from ggplug.display.escapes import on_one_line as on_one_line
from ggplug.display.escapes import printable as printable
from ggplug.system.files import check_differs

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

NARROWEST, WIDEST = 20, 1000
"""Columns that are believed of a terminal."""


class NewPath(click.Path):
    """The type of a parameter that names a file to be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)


class Command(click.Command):
    """A command whose standard output holds what this module prints, and nothing else.

    Raises ParameterError, before it begins, if a file that it would write is one of the others that it is given.
    """

    def invoke(self, ctx: click.Context) -> Any:
        paths = {
            each.name: ctx.params.get(each.name or "") for each in self.params if isinstance(each.type, click.Path)
        }
        for each in self.params:
            written = paths.pop(each.name, None) if isinstance(each.type, NewPath) else None
            if written is not None:
                others = (value if isinstance(value, tuple) else (value,) for value in paths.values())
                check_differs(written, [path for path in chain(*others) if path is not None])
        with own_output_only():
            return super().invoke(ctx)


def console(*, stderr: bool = False) -> Console:
    """Prints to a terminal in colour, to files and pipes without, in 80 columns unless COLUMNS says otherwise."""
    file = sys.stderr if stderr else stdout()
    return Console(file=file, width=columns(file), highlight=False, markup=False, emoji=False)


def progress(*parts: ProgressColumn) -> Progress:
    """A bar of these columns on standard error; see :func:`ggplug.display.bars.bar`."""
    from ggplug.display import bars  # most commands have none, and it takes long to import

    return bars.bar(*parts, width=columns(sys.stderr))


def busy(words: str) -> Progress:
    """Says on standard error what takes long; see :func:`ggplug.display.bars.busy`."""
    from ggplug.display import bars

    return bars.busy(printable(words), width=columns(sys.stderr))


def columns(file: TextIO | None = None) -> int:
    """How wide to print: what COLUMNS says, else the terminal behind ``file`` or standard error, else 80."""
    chosen = os.environ.get("COLUMNS", "")
    width = 80
    if chosen.isdecimal() and len(chosen) < 10 and int(chosen):
        width = int(chosen)
    else:
        for stream in (file or stdout(), sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                width = os.get_terminal_size(stream.fileno()).columns or width
                break
    return min(max(width, NARROWEST), WIDEST)


def echo(line: str) -> None:
    """Prints a line."""
    stdout().write(f"{printable(line)}\n")


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), stderr: bool = False
) -> None:
    """Prints rows of text from anywhere; see :func:`ggplug.cli.table.layout`."""
    out = console(stderr=stderr)
    rule = "─" if out.encoding.startswith("utf") else "-"
    lines = layout(headings, [tuple(map(printable, row)) for row in rows], out.width, right, rule)
    out.print(Text(next(lines, ""), style="bold"), soft_wrap=True)
    write = out.file.write
    for line in lines:
        write(f"{line}\n")


def text(content: str, style: str = "") -> Text:
    """Text from anywhere, such as a file: its control characters are shown, not obeyed."""
    return Text(printable(content), style=style, overflow="fold")


def byte_count(count: int | None) -> str:
    """``1.5 GiB``; ``?`` where it is not known."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def print_json(value: Any) -> None:
    """Prints a value as JSON that every reader takes: NumPy's values as Python's, what is not finite as a string."""
    stdout().write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """The value in the types that JSON has."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def indented(content: str, by: int, style: str = "") -> RenderableType:
    """Text whose lines all begin ``by`` columns in, however they are folded."""
    return Padding(text(content, style), (0, 0, 0, by), expand=False)


def advice(content: str, by: int = 2) -> RenderableType:
    """What to do about something, behind an arrow."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("->", text(content))
    return Padding(grid, (0, 0, 0, by), expand=False)


def print_error(message: str, remedy: str | None = None) -> None:
    """One message on standard error, and what to do on a line of its own."""
    out = console(stderr=True)
    whole = not out.is_terminal  # a log or a pipe gets lines that can be searched
    out.print(Text.assemble(("error: ", "bold red"), _hanging(printable(message), 2)), soft_wrap=whole)
    if remedy:
        shown = _hanging(remedy, 5)
        out.print(text(f"  -> {shown}") if whole else advice(remedy), soft_wrap=whole)


def _hanging(content: str, by: int) -> str:
    """Further lines are indented, so that what a file says does not look like another message."""
    return content.replace("\n", "\n" + " " * by)

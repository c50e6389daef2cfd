"""What commands print: tables for people, JSON for programs, one clean line for errors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console(*, stderr: bool = False) -> Console:
    """Prints to a terminal in colour, and elsewhere plainly, in 80 columns unless COLUMNS says otherwise."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, right: Sequence[str] = ()) -> Table:
    """A table that folds what is too long, and so never hides a part of a name."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column in right else "left")
    for row in rows:
        made.add_row(*(text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def text(content: str, style: str = "") -> Text:
    """Text from anywhere, such as a file: its control characters are shown, not obeyed."""
    return Text(printable(content), style=style, overflow="fold")


def printable(content: str) -> str:
    """The text with control characters, and halves of surrogate pairs, as escapes; line ends stay."""
    if content.isprintable():
        return content
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in content
    )


def byte_count(count: int | None) -> str:
    """``1.5 GiB``; ``?`` where nobody knows."""
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
    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


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
    out.print(Text.assemble(("error: ", "bold red"), printable(message)), soft_wrap=whole)
    if remedy:
        out.print(text(f"  -> {remedy}") if whole else advice(remedy), soft_wrap=whole)

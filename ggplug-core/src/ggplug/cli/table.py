"""Tables in as many columns as a terminal has: nothing is hidden, and words stay whole where the width suffices.

A table that is too wide gives up width where cells have several words; a name such as ``tokenizer.ggml.tokens`` may
then be continued in the next line behind a dot or an underscore.  If that is not enough, each row becomes a block of
lines: its first cell, and below it the others with their headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells

GAP = "   "
"""Between columns."""

LONG_WORD = 24
"""Columns that a word may claim for itself; longer ones, such as paths, are broken where they must be."""

NARROW = 16
"""Columns below which text is not folded in the table."""

_WORDS = re.compile(r"\s+|\S+")
_PARTS = re.compile(r"[^._/,;:=-]*[._/,;:=-]+|[^._/,;:=-]+")
"""What a word that is too long is broken between: its parts, up to the marks that join them."""


def layout(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, right: Sequence[str] = (), rule: str = "─"
) -> Iterator[str]:
    """The lines of a table: its headings, a rule, its rows.

    ``rows``: a cell for each heading, which may have several lines.  ``right``: headings of columns whose cells end
    at their right edge.  Without columns there are no lines.
    """
    if not headings:
        return
    widths = _fitted(headings, rows, width)
    if widths is None:
        yield from _blocks(headings, rows, width)
        return
    aligned = [heading in right for heading in headings]
    yield from _row(headings, widths, aligned)
    yield rule * (sum(widths) + len(GAP) * (len(widths) - 1))
    for row in rows:
        yield from _row(row, widths, aligned)


def _fitted(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The width of each column, if the table can have them."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(_width, column)) for column in columns]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    if excess <= 0:
        return widths
    words = [max(NARROW, *map(_longest_word, column)) for column in columns]
    least = [min(word, LONG_WORD, widest) for word, widest in zip(words, widths, strict=True)]
    while excess > 0:
        spare = [wide - low for wide, low in zip(widths, least, strict=True)]
        most, position = max((most, position) for position, most in enumerate(spare))
        if most == 0:
            return None
        # The widest gives way down to the next one, so that those that are narrow stay as they are.
        others = [wide for place, wide in enumerate(widths) if place != position and wide < widths[position]]
        step = min(most, excess, max(1, widths[position] - max(others, default=0)))
        widths[position] -= step
        excess -= step
    return widths


def _width(cell: str) -> int:
    if cell.isascii() and "\n" not in cell:
        return len(cell)
    return max(map(cell_len, cell.split("\n")))


def _longest_word(cell: str) -> int:
    return max(map(cell_len, cell.split()), default=0)


def _row(cells: Sequence[str], widths: Sequence[int], aligned: Sequence[bool]) -> Iterator[str]:
    folded = [list(fold(cell, width)) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, folded))):
        padded = []
        for lines, width, at_right in zip(folded, widths, aligned, strict=True):
            part = lines[number] if number < len(lines) else ""
            space = " " * (width - (len(part) if part.isascii() else cell_len(part)))
            padded.append(space + part if at_right else part + space)
        yield GAP.join(padded).rstrip()


def _blocks(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row as its first cell, and the others below it with their headings."""
    indent = 2
    margin = indent + max(map(_width, headings[1:]), default=0) + 2
    if margin > width // 2:
        margin = indent + 2
    for row in rows:
        yield from fold(row[0], width)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            label = (" " * indent + heading).ljust(margin)
            if cell_len(label) > margin:
                yield label
                label = " " * margin
            for line in fold(cell, width - margin) if cell else ():
                yield (label + line).rstrip()
                label = " " * margin


def fold(text: str, width: int) -> Iterator[str]:
    """The text in lines of at most ``width`` columns, broken between words, or inside of them where they are longer."""
    for line in text.split("\n"):
        if len(line) <= width and line.isascii():
            yield line
            continue
        yield from _folded(line, width)


def _folded(line: str, width: int) -> Iterator[str]:
    current, used = "", 0
    for piece in _pieces(line, width):
        size = cell_len(piece)
        if used + size > width:
            if current.strip():
                yield current.rstrip()
            current, used = "", 0
        if current or not piece.isspace():
            current, used = current + piece, used + size
    if current.strip() or not line:
        yield current.rstrip()


def _pieces(line: str, width: int) -> Iterator[str]:
    """Words and what is between them; words that do not fit into a line are in parts."""
    for word in _WORDS.findall(line):
        if cell_len(word) <= width or word.isspace():
            yield word
            continue
        for part in _PARTS.findall(word):
            yield from chop_cells(part, max(width, 2)) if cell_len(part) > width else (part,)

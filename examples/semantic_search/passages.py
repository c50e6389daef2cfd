"""Splits text and Markdown files into passages that an encoder can read as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WORDS = 120
"""Number of words of a passage: about 160 tokens, less than the 256 that MiniLM reads."""

SUFFIXES = {".md", ".txt", ".rst"}


class Passage(NamedTuple):
    """A passage of a file, with the ``heading`` above it, and the number of its first ``line``."""

    path: Path
    line: int
    heading: str
    text: str


def read_folder(folder: Path) -> list[Passage]:
    """The passages of all text files in ``folder``, in the order of the files."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return [passage for path in files for passage in split(path, path.read_text(encoding="utf-8", errors="replace"))]


def split(path: Path, text: str) -> Iterator[Passage]:
    """Yields passages: paragraphs that are joined until they are long enough.  A heading starts a new passage."""
    heading, held, first = "", [], 1
    fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fenced ^= line.lstrip().startswith("```")
        title = None if fenced else re.match(r"#+\s+(.*)", line)
        full = not line.strip() and sum(len(part.split()) for part in held) >= WORDS
        if (title or full) and held:
            yield from _passage(path, first, heading, held)
            held = []
        if title:
            heading = title.group(1).strip()
        elif line.strip() and not line.lstrip().startswith("|"):  # tables are skipped: they have no sentences
            if not held:
                first = number
            held.append(line.strip())
    yield from _passage(path, first, heading, held)


def _passage(path: Path, line: int, heading: str, lines: list[str]) -> Iterator[Passage]:
    words = " ".join(lines).split()
    for start in range(0, len(words), 2 * WORDS):
        yield Passage(path, line, heading, " ".join(words[start : start + 2 * WORDS]))

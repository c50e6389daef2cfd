"""The documentation as one text, and how well counts of three characters predict it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parents[2] / "docs"


def read(folder: Path = DOCS, suffix: str = ".md") -> str:
    """The text of all files with this suffix, by name."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob(f"*{suffix}")))


def divided(text: str, part: float = 0.1) -> tuple[str, str]:
    """The text to learn from, and its last part, to test."""
    end = round(len(text) * (1 - part))
    return text[:end], text[end:]


def trigram_loss(text: str, test: str) -> float:
    """The mean of -log p of each character of ``test`` from the two before it, by counts of ``text``.

    Counts of one, two and three characters are mixed as I. H. Witten and T. C. Bell do (1991, method C), so that no
    character is impossible.
    """
    known = {character: number for number, character in enumerate(sorted(set(text + test)))}
    size = len(known)
    ids, wanted = (np.array([known[each] for each in part]) for part in (text, test))
    probabilities = np.full(len(wanted) - 2, 1 / size)
    for before in range(3):  # characters that the next one is predicted from
        contexts, places = (_numbers(each, before, size) for each in (ids, wanted))
        pairs, counts = np.unique(contexts * size + ids[before:], return_counts=True)
        totals = np.bincount(pairs // size, counts, minlength=size**before)
        kinds = np.bincount(pairs // size, minlength=size**before)
        at = places[2 - before :]
        rows = np.searchsorted(pairs, at * size + wanted[2:]).clip(max=len(pairs) - 1)
        seen = np.where(pairs[rows] == at * size + wanted[2:], counts[rows], 0)
        new = kinds[at] / np.maximum(totals[at] + kinds[at], 1)
        mixed = seen / np.maximum(totals[at] + kinds[at], 1) + new * probabilities
        probabilities = np.where(totals[at] > 0, mixed, probabilities)
    return float(-np.log(probabilities).mean())


def _numbers(ids: np.ndarray, before: int, size: int) -> np.ndarray:
    """For each character that has so many before it, a number for these."""
    found = np.zeros(len(ids) - before, np.int64)
    for n in range(before):
        found = found * size + ids[n : len(ids) - before + n]
    return found

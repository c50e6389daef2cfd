"""Words whose ids were found before: texts have few different ones, and each is looked up once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

WORDS = 1 << 16
"""Words whose ids are kept."""

LONGEST = 64
"""Characters of a word whose ids are kept."""


class KnownWords:
    """The ids of words, as ``find`` finds them.  Several threads may use it."""

    def __init__(self, find: Callable[[str], tuple[int, ...]]) -> None:
        self._find = find
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, words: Iterable[str]) -> list[int]:
        """The ids of words, one after the other."""
        found: list[int] = []
        known = self._known
        for word in words:
            ids = known.get(word)
            if ids is None:
                ids = self._find(word)
                if len(word) <= LONGEST:
                    if len(known) >= WORDS:
                        known.clear()
                    known[word] = ids
            found += ids
        return found

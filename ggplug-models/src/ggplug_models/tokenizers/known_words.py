"""A cache of the token ids of words, because texts repeat few different words."""

from __future__ import annotations

from collections.abc import Callable, Iterable

WORDS = 1 << 16
"""Maximum number of words in the cache."""

LONGEST = 64
"""Maximum length of a word in the cache."""


class KnownWords:
    """Caches the results of ``find``, the ids of a word.  Several threads may use it."""

    def __init__(self, find: Callable[[str], tuple[int, ...]]) -> None:
        self._find = find
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, words: Iterable[str]) -> list[int]:
        """The joined ids of words."""
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

"""Drafts from counts: which token mostly followed the last tokens, in this text and in others before."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug_models.checks.ids import in_common
from ggplug_models.generation.drafts import MOST, Drafts

LEAST_COUNTS = {4: 1, 3: 1, 2: 2, 1: 2}
"""By the number of last tokens, the longest first: how often they must have occurred (llama.cpp's ``ngram-cache``)."""

LEAST_PARTS = {4: 1 / 2, 3: 1 / 2, 2: 1 / 2, 1: 2 / 3}
"""In which part of these the same token must have followed."""

MOST_RUNS = 1 << 19
"""Number of runs of tokens that are counted; then the counts begin anew."""


class NgramCounts:
    """For runs of one to four tokens, which tokens followed them, and how often, in texts of one or several drafts."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}

    def add(self, text: Sequence[int], begin: int) -> None:
        """Counts the tokens of a text from position ``begin`` on."""
        for end in range(begin, len(text)):
            for size in LEAST_COUNTS:
                if size <= end:
                    if len(self._counts) >= MOST_RUNS:
                        self._counts.clear()
                    found = self._counts.setdefault(tuple(text[end - size : end]), {})
                    found[text[end]] = found.get(text[end], 0) + 1

    def best(self, text: Sequence[int]) -> int | None:
        """The token that mostly followed the last tokens of a text, as many of them as possible; None: no such token.

        Of several with the same count, the one that came first.
        """
        for size, least in LEAST_COUNTS.items():
            found = self._counts.get(tuple(text[-size:]), {}) if size <= len(text) else {}
            total = sum(found.values())
            if total >= max(least, 1):
                token = max(found, key=found.__getitem__)
                if found[token] >= LEAST_PARTS[size] * total:
                    return token
        return None


class NgramDrafts(Drafts):
    """Drafts the tokens that mostly followed the last one to four tokens, by counts of all texts so far.

    Unlike :class:`.PromptLookup`, it learns from earlier texts too, and it ends where no token is likely.  ``counts``:
    to count together with other drafts.
    """

    def __init__(self, most: int = MOST, *, counts: NgramCounts | None = None) -> None:
        super().__init__(most)
        self.counts = NgramCounts() if counts is None else counts
        self._text: list[int] = []

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        begin = in_common(self._text, text)
        self.counts.add(text, begin)
        self._text = list(text)
        tail = list(text[-max(LEAST_COUNTS) :])
        found: list[int] = []
        while len(found) < most and (token := self.counts.best(tail)) is not None:
            found.append(token)
            tail = [*tail, token][-max(LEAST_COUNTS) :]
        return found

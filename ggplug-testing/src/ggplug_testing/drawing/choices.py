"""Draws that can be repeated one by one.

Everything that a case leaves to chance is a choice with a name.  What is chosen follows from the case's name and the
choice's name alone, so that one choice can be changed (by the minimiser, or on the command line) and all others stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

T = TypeVar("T")


class Choices:
    """The choices of the case ``name``; ``fixed`` has values for some of them.

    ``made``: every choice that was made so far with the options that it had, the simplest option first.
    """

    def __init__(self, name: str, fixed: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.fixed = dict(fixed or {})
        self.made: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def number(self, what: str) -> int:
        """64 random bits that belong to ``what``."""
        digest = hashlib.blake2b(f"{self.name}\0{what}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def pick(self, what: str, options: Sequence[T], weights: Sequence[int] | None = None) -> T:
        """One of ``options``, the simplest of which comes first; ``weights`` make some more likely.

        A fixed choice must be one of the options, or a number.
        """
        if what not in self.made:
            self.made[what] = self._chosen(what, options, weights), tuple(options)
        chosen: T = self.made[what][0]
        return chosen

    def _chosen(self, what: str, options: Sequence[Any], weights: Sequence[int] | None) -> Any:
        if what in self.fixed:
            chosen = self.fixed[what]
            if isinstance(chosen, list):
                chosen = tuple(chosen)
            if chosen not in options and not isinstance(chosen, (int, float)):
                raise ValueError(f"{what} is none of {options!r}: {chosen!r}")
            return chosen
        if weights is None:
            return options[self.number(what) % len(options)]
        place = self.number(what) % sum(weights)
        return next(each for each, end in zip(options, accumulate(weights), strict=True) if place < end)

    def rarely(self, what: str, one_in: int) -> bool:
        """True in one of ``one_in`` cases, at random."""
        return self.pick(what, (False, True), (one_in - 1, 1))

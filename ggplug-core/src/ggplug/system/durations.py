"""Time limits from command lines and variables."""

from __future__ import annotations

_LONGEST = 1e8
"""Seconds, three years: the system's calls that wait refuse much more."""


def seconds(text: str) -> float:
    """The number of seconds that a text says, at most three years.  Raises ValueError."""
    found = float(text)
    if not 0 <= found < float("inf"):
        raise ValueError(f"{text!r} is not a number of seconds")
    return min(found, _LONGEST)

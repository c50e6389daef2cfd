"""Strings that end a text, found while it comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug.errors import ParameterError


class StopStrings:
    """Lets text through up to the first of the stop strings.

    What may be the beginning of one is held back until it is clear.  ``stopped``: the string that was found, or None.

    >>> stop = StopStrings(["</s>"])
    >>> stop.push("a <"), stop.push("/b> </"), stop.push("s> c")
    ('a ', '</b> ', '')

    Raises ParameterError for strings that are none, or empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if isinstance(strings, str) or not all(isinstance(each, str) and each for each in strings):
            raise ParameterError(f"stop strings are a list of strings that are not empty, got {strings!r}", got=strings)
        self._strings = tuple(strings)
        self._longest = max(map(len, self._strings), default=0)
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far is certain to be none of a stop string, and was not given before."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        found = [(place, -len(each), each) for each in self._strings if (place := text.find(each)) >= 0]
        if found:
            place, _, self.stopped = min(found)
            self._held = ""
            return text[:place]
        certain = len(text) - self._beginning(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """How long an end of the text is the beginning of a stop string; the longest."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(each.startswith(end) for each in self._strings):
                return length
        return 0

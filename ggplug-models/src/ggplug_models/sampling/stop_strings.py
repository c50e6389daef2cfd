"""Strings that end a text, found while it comes in pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr


class StopStrings:
    """Lets text through up to the stop string that is complete first; of several, to the one that begins first.

    What may be the beginning of one is held back until it is clear.  ``stopped``: the string that was found, or None.

    >>> stop = StopStrings(["</s>"])
    >>> stop.push("a <"), stop.push("/b> </"), stop.push("s> c")
    ('a ', '</b> ', '')

    Raises ParameterError for strings that are none, or empty.
    """

    def __init__(self, strings: Collection[str]) -> None:
        fits = isinstance(strings, (Sequence, Set)) and not isinstance(strings, (str, bytes))
        if not fits or not all(isinstance(each, str) and each for each in strings):
            wanted = "a list of strings that are not empty"
            raise ParameterError(f"stop strings are {wanted}, got {short_repr(strings)}", got=strings, wanted=wanted)
        self._strings = tuple(strings)
        self._shorter = [_shorter(each) for each in self._strings]
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far is certain to be none of a stop string, and was not given before."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        found = [(place + len(each), place, each) for each in self._strings if (place := text.find(each)) >= 0]
        if found:
            _, place, self.stopped = min(found)
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
        found = 0
        for string, shorter in zip(self._strings, self._shorter, strict=True):
            length = 0
            for character in text[-(len(string) - 1) :] if len(string) > 1 else "":
                while length and string[length] != character:
                    length = shorter[length - 1]
                length += string[length] == character
            found = max(found, length)
        return found


def _shorter(string: str) -> list[int]:
    """For each beginning of a string, how long the longest shorter one is that it ends with (Knuth, Morris, Pratt)."""
    found = [0] * len(string)
    length = 0
    for place in range(1, len(string)):
        while length and string[length] != string[place]:
            length = found[length - 1]
        length += string[length] == string[place]
        found[place] = length
    return found

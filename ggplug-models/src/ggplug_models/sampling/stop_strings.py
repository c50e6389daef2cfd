"""Finds stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr


class StopStrings:
    """Passes text through, up to the first stop string: the one that ends first, then the one that begins first.

    Text that may be the beginning of a stop string is held back.  ``stopped``: the string that was found, or None.

    >>> stop = StopStrings(["</s>"])
    >>> stop.push("a <"), stop.push("/b> </"), stop.push("s> c")
    ('a ', '</b> ', '')

    Raises ParameterError for stop strings that are empty or not strings.
    """

    def __init__(self, strings: Collection[str]) -> None:
        fits = isinstance(strings, (Sequence, Set)) and not isinstance(strings, (str, bytes))
        if not fits or not all(isinstance(each, str) and each for each in strings):
            wanted = "a list of strings that are not empty"
            raise ParameterError(
                f"stop strings must be {wanted}, got {short_repr(strings)}", got=strings, wanted=wanted
            )
        self._strings = tuple(strings)
        self._shorter = [_shorter(each) for each in self._strings]
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """Adds text, and returns the text that can be emitted now."""
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
        """Ends the text, and returns what was held back."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """The length of the longest end of the text that is the beginning of a stop string."""
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
    """Knuth's, Morris's and Pratt's failure function: for each prefix, the longest shorter one that it ends with."""
    found = [0] * len(string)
    length = 0
    for place in range(1, len(string)):
        while length and string[length] != string[place]:
            length = found[length - 1]
        length += string[length] == string[place]
        found[place] = length
    return found

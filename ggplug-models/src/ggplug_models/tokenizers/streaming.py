"""Text from tokens as they come, never with half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns tokens into text one by one.

    ``piece``: the bytes of a token.  ``skip_space``: whether a space that the text begins with is left out;
    ``skips_space``: whether that is still to come.

    >>> decoder = tokenizer.stream()
    >>> text = "".join(decoder.push(token) for token in tokens) + decoder.finish()
    """

    def __init__(self, piece: Callable[[int], bytes], *, skip_space: bool) -> None:
        self._piece = piece
        self.skips_space = skip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is certain now; empty while a character lacks bytes.

        Raises ParameterError for an id that no token has.
        """
        piece = self.bytes_of(token)
        if self._piece(token):
            self.skips_space = False
        return self._decoder.decode(piece)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token would add now.  Raises ParameterError as :meth:`push` does."""
        piece = self._piece(token)
        return piece.removeprefix(b" ") if self.skips_space else piece

    @property
    def within_character(self) -> bool:
        """Whether the last character lacks bytes."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """What is left: U+FFFD if the last character lacks bytes."""
        return self._decoder.decode(b"", final=True)

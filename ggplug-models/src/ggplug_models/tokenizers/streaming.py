"""Decodes tokens one by one to text, never with incomplete characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Decodes tokens to text one by one.

    ``piece``: a function that returns the bytes of a token.  ``skip_space``: whether to remove a space at the beginning
    of the text.  ``skips_space``: whether the next token is at the beginning.

    >>> decoder = tokenizer.stream()
    >>> text = "".join(decoder.push(token) for token in tokens) + decoder.finish()
    """

    def __init__(self, piece: Callable[[int], bytes], *, skip_space: bool) -> None:
        self._piece = piece
        self.skips_space = skip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Adds a token, and returns the complete characters; empty if the token ends within a character.

        Raises ParameterError for an id outside of the vocabulary.
        """
        piece = self.bytes_of(token)
        if self._piece(token):
            self.skips_space = False
        return self._decoder.decode(piece)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token would add to the text.  Raises ParameterError as :meth:`push` does."""
        piece = self._piece(token)
        return piece.removeprefix(b" ") if self.skips_space else piece

    @property
    def within_character(self) -> bool:
        """Whether the last character is incomplete."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """Ends the text; returns U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)

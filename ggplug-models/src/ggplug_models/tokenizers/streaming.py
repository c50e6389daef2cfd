"""Text from tokens as they come, never with half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns tokens into text one by one.

    ``piece``: the bytes of a token.  ``skip_space``: whether a space that the text begins with is left out.

    >>> decoder = tokenizer.stream()
    >>> text = "".join(decoder.push(token) for token in tokens) + decoder.finish()
    """

    def __init__(self, piece: Callable[[int], bytes], *, skip_space: bool) -> None:
        self._piece = piece
        self._skip_space = skip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is certain now; empty while a character lacks bytes.

        Raises ParameterError for an id that no token has.
        """
        piece = self._piece(token)
        if self._skip_space and piece:
            self._skip_space = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left: U+FFFD if the last character lacks bytes."""
        return self._decoder.decode(b"", final=True)

"""The base class of the kinds of tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ggplug_models.tokenizers.vocabulary import FOUND_IN_TEXT, SPACE, Attribute, Vocabulary


class Kind(ABC):
    """Converts text between special tokens to ids, and ids to bytes."""

    longest: int | None = None
    """Maximum number of characters that one token stands for; None: no limit."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abstractmethod
    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """Tokenizes a text without special tokens.

        ``after_special``: whether the text is at the beginning, or after a special token behind which a space is added.
        Raises ModelError if the vocabulary has no token for the text.
        """

    def normal(self, text: str, *, after_special: bool) -> str:
        """A text as it is where late tokens are searched in it; :meth:`encode` does not change it further."""
        return text

    def spaced(self, text: str, *, after_special: bool) -> str:
        """A text with U+2581 for spaces, and with one before it where the file says so."""
        vocabulary, text = self.vocabulary, text.replace(" ", SPACE)
        adds = vocabulary.add_space_prefix and after_special and text
        return SPACE + text if adds and not (vocabulary.prepend_scheme and text.startswith(SPACE)) else text

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; a special token stands for its name."""
        vocabulary = self.vocabulary
        attribute, text = vocabulary.attributes[token], vocabulary.texts[token]
        if attribute & FOUND_IN_TEXT:
            return text.encode("utf-8", "replace")
        if attribute & Attribute.NORMAL:
            return self.word(text)
        return vocabulary.bytes.get(token, b"")

    def word(self, text: str) -> bytes:
        """The bytes that the text of a normal token stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "replace")

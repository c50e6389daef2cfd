"""What a kind of tokeniser does; the rest is the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ggplug_models.tokenizers.vocabulary import FOUND_IN_TEXT, SPACE, Attribute, Vocabulary


class Kind(ABC):
    """Text between special tokens to ids, and ids to bytes."""

    longest: int | None = None
    """Characters of a text that one token stands for at most; None where tokens may stand for any number of them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abstractmethod
    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text without special tokens.

        ``after_special``: whether the text stands at the beginning, or behind a special token.  Raises ModelError where
        the vocabulary has no token for the text.
        """

    def piece(self, token: int) -> bytes:
        """What a token stands for in a text; special tokens stand for themselves."""
        vocabulary = self.vocabulary
        attribute, text = vocabulary.attributes[token], vocabulary.texts[token]
        if attribute & FOUND_IN_TEXT:
            return text.encode("utf-8", "replace")
        if attribute & Attribute.NORMAL:
            return self.word(text)
        return vocabulary.bytes.get(token, b"")

    def word(self, text: str) -> bytes:
        """What a normal token's text stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "replace")

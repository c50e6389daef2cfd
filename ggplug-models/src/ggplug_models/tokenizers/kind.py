"""The base class of the kinds of tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ggplug_models.tokenizers.vocabulary import EVERY, FOUND_IN_TEXT, SPACE, Attribute, Vocabulary


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
        if not vocabulary.add_space_prefix or not after_special:
            return text
        if vocabulary.prepend_scheme in (None, EVERY):  # also before a text that replacements have left empty
            adds = text or not vocabulary.remove_extra_whitespaces
        else:
            adds = text and not text.startswith(SPACE)
        return SPACE + text if adds else text

    def trimmed(self, text: str, *, after_special: bool) -> str:
        """A text without further spaces, where the file says so: one between words, none at the ends.

        A text that continues another one keeps one before it.
        """
        if not self.vocabulary.remove_extra_whitespaces:
            return text
        kept = " " if text.startswith(" ") and not after_special else ""
        return kept + " ".join(filter(None, text.split(" "))).rstrip(f" {SPACE}")

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

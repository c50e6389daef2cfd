"""WordPiece (Schuster and Nakajima 2012) as llama.cpp implements it, for files with a vocabulary only.

It differs from the models' own tokenizer, which is in :mod:`~ggplug_models.tokenizers.encoders`: it keeps only the
first letter of each Hangul syllable, and words may have any length.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.known_words import KnownWords
from ggplug_models.tokenizers.library import encodable
from ggplug_models.tokenizers.vocabulary import SPACE, WHITE_SPACE, Defaults, Vocabulary

IDEOGRAPHS = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B920, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)
"""Characters that are words of their own."""


class _Normal(dict[int, str]):
    """A table for ``str.translate`` that normalises characters; an entry is computed when it is first used."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, code: int) -> str:
        self[code] = self._normal(code)
        return self[code]

    def _normal(self, code: int) -> str:
        if self._strip_accents:
            code = ord(unicodedata.normalize("NFD", chr(code))[0])
        character = chr(code)
        category = unicodedata.category(character)
        if character in WHITE_SPACE:
            return " "
        if code in (0, 0xFFFD) or category in ("Cc", "Cf", "Cs", "Co"):
            return ""
        if self._strip_accents and category.startswith("M"):
            return ""
        lower = character.lower() if self._lowercase else character
        normal = lower if len(lower) == 1 else character
        separate = category.startswith("P") or (code < 0x7F and category.startswith("S"))
        return f" {normal} " if separate or any(code in each for each in IDEOGRAPHS) else normal


class WordPieces(Kind):
    """Splits words into the longest tokens, from the left; a word for which that fails is the unknown token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        lowercase: bool = vocabulary.values.boolean("tokenizer.ggml.normalizer.lowercase", True)
        strip: bool = vocabulary.values.boolean("tokenizer.ggml.normalizer.strip_accents", lowercase)
        self._normal = _Normal(lowercase=lowercase, strip_accents=strip)
        self._longest = max(map(len, vocabulary.texts))
        self._known = KnownWords(self._word)
        if "unk" not in vocabulary.special:
            raise vocabulary.values.refused("tokenizer.ggml.unknown_token_id", "the id of a token")

    @classmethod
    def of(cls, values: Values) -> WordPieces:
        """The tokenizer that the metadata describes; see :class:`Vocabulary`.  Raises ModelError."""
        ids = {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}
        return cls(Vocabulary(values, Defaults(ids, add_bos=True, add_eos=False, clean_spaces=True)))

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        return self._known.ids(filter(None, encodable(text).translate(self._normal).split(" ")))

    def _word(self, word: str) -> tuple[int, ...]:
        word = SPACE + word
        ids = self.vocabulary.ids
        found: list[int] = []
        place = 0
        while place < len(word):
            for end in range(min(len(word), place + self._longest), place, -1):
                token = ids.get(word[place:end])
                if token is not None:
                    found.append(token)
                    place = end
                    break
            else:
                return (self.vocabulary.special["unk"],)
        return tuple(found)

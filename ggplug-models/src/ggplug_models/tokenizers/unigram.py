"""Unigram tokenization (Kudo 2018): the most probable of all ways to split a text into tokens (T5, XLM-R)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.charsmap import Replacements
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.library import encodable, library
from ggplug_models.tokenizers.vocabulary import (
    EVERY,
    MERGING,
    SPACE,
    TOKENS,
    WHITE_SPACE,
    WHITE_SPACES,
    Attribute,
    Defaults,
    Vocabulary,
)

BYTES = "tokenizer.ggml.byte_fallback"
"""A key of ggplug's: whether characters that no token has become tokens of their bytes, instead of the unknown one."""


class Unigrams(Kind):
    """Splits normalised text into the tokens with the largest sum of scores, which are log probabilities."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._replacements = Replacements.of(vocabulary)
        self._bytes = {text[0]: n for n, text in vocabulary.bytes.items()}
        self._unknown = vocabulary.special.get("unk")
        self._spells = vocabulary.values.boolean(BYTES, False)
        with required("tokenizers", "making token ids of texts"):
            from tokenizers import Tokenizer, models
        with library(TOKENS):
            self._tokenizer = Tokenizer(models.Unigram(_entries(vocabulary), self._unknown))

    @classmethod
    def of(cls, values: Values) -> Unigrams:
        """The tokenizer that the metadata describes; see :class:`Vocabulary`.  Raises ModelError."""
        return cls(Vocabulary(values, Defaults({"eos": 1, "unk": 2, "pad": 0}, add_eos=True)))

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        normal = self.normal(text, after_special=after_special)
        with library(TOKENS):
            ids: list[int] = self._tokenizer.encode_batch_fast([normal], add_special_tokens=False)[0].ids
            if not self._spells or self._unknown not in ids:
                return ids
            places = self._tokenizer.encode_batch([normal], add_special_tokens=False)[0].offsets
        found: list[int] = []
        for token, (begin, end) in zip(ids, places, strict=True):
            found += [token] if token != self._unknown else map(self._byte, normal[begin:end].encode("utf-8"))
        return found

    def normal(self, text: str, *, after_special: bool) -> str:
        """The text with its replacements and U+2581 for spaces; see :meth:`Kind.normal`."""
        return self._spaced(self._replacements.replaced(encodable(text)), after_special=after_special)

    def _byte(self, byte: int) -> int:
        token = self._bytes.get(byte, self._unknown)
        assert token is not None  # it is the token of the character
        return token

    def _spaced(self, text: str, *, after_special: bool) -> str:
        vocabulary = self.vocabulary
        if vocabulary.prepend_scheme == "words":
            words = filter(None, WHITE_SPACES.split(text))
            return "".join(word if word.startswith(SPACE) else SPACE + word for word in words)
        if vocabulary.prepend_scheme == EVERY:
            return self.spaced(self.trimmed(text, after_special=after_special), after_special=after_special)
        if vocabulary.prepend_scheme == MERGING:
            return self.spaced(re.sub(" {2,}", " ", text), after_special=after_special)
        if vocabulary.prepend_scheme is not None:
            if vocabulary.remove_extra_whitespaces:
                text = re.sub(" {2,}", SPACE, text.rstrip("".join(WHITE_SPACE)))
            return self.spaced(text, after_special=after_special)
        if vocabulary.remove_extra_whitespaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        if vocabulary.add_space_prefix and (behind := text.lstrip(" ")):
            text = text[: len(text) - len(behind)] + " " + behind
        return text.replace(" ", SPACE)


def _entries(vocabulary: Vocabulary) -> list[tuple[str, float]]:
    """The tokens with their scores, for the library.

    Tokens that no text may be encoded as get names that occur in no text, and a score that does not affect that of the
    unknown token.
    """
    scores: list[float] = vocabulary.scores.tolist()
    matched = Attribute.NORMAL | Attribute.USER_DEFINED | Attribute.UNUSED
    normal = [scores[n] for n in vocabulary.having(Attribute.NORMAL)]
    neutral = max(normal, default=0.0)
    nonce = secrets.token_hex(8)
    entries = []
    for n, (text, attribute) in enumerate(zip(vocabulary.texts, vocabulary.attributes, strict=True)):
        if not attribute & matched:
            entries.append((f"\ufdd0{nonce}{n}", neutral))
        else:
            entries.append((text, 0.0 if attribute & Attribute.USER_DEFINED else scores[n]))
    return entries

"""Byte pair encoding (Sennrich et al. 2016) of the bytes of words, as in GPT-2, or of characters, as in Gemma 4."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ggplug.errors import ModelError
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.library import encodable, library
from ggplug_models.tokenizers.pre_tokenizers import BY_NAME, PATTERNS, PRE, PreTokenizer, splitting
from ggplug_models.tokenizers.vocabulary import MODEL, SPACE, WHITE_SPACES, Defaults, Vocabulary

MERGES = "tokenizer.ggml.merges"
FORM = "tokenizer.ggml.normalizer.form"
"""A key of ggplug's: the normal form of Unicode, one of :data:`FORMS`, of texts before they are split."""

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
WHOLE_WORDS = "tokenizer.ggml.ignore_merges"
"""A key of ggplug's: whether a word that is a token is not split, whatever the merges, if the pre-tokenizer's name says
something else."""


def _letters() -> dict[str, int]:
    """GPT-2's characters for bytes: printable characters of Latin-1 are themselves, other bytes are from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


LETTERS = _letters()


class BytePairs(Kind):
    """Splits a text into words by ``tokenizer.ggml.pre``, and merges pairs in the order of the file's merges."""

    def __init__(self, vocabulary: Vocabulary, row: PreTokenizer) -> None:
        super().__init__(vocabulary)
        self._row = row
        self._lowercase: bool = vocabulary.values.boolean("tokenizer.ggml.normalizer.lowercase", False)
        self._words_only = "whitespace" in row.names
        # Gemma 4 has tokens for runs of line ends, for which there are no merges.
        self._line_ends = "gemma4" in row.names
        if row.bytes_as_text and not self._words_only and LETTERS.keys() <= vocabulary.ids.keys():
            self.longest = max(map(len, vocabulary.texts))
        form = vocabulary.values.text(FORM, None, one_of=FORMS)
        if form is not None and self.longest is not None:
            self.longest *= 2  # a composed character has at least half as many bytes as the characters it is made of
        whole_words: bool = vocabulary.values.boolean(WHOLE_WORDS, row.whole_words)
        with required("tokenizers", "making token ids of texts"):
            from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
        merges = _merges(vocabulary)
        with library(MERGES):
            model = models.BPE(vocabulary.ids, merges, ignore_merges=whole_words, byte_fallback=not row.bytes_as_text)
            self._tokenizer = Tokenizer(model)
            if form is not None:
                self._tokenizer.normalizer = getattr(normalizers, form)()
        with library(PATTERNS):
            steps: list[Any] = [pre_tokenizers.Split(Regex(each.pattern), each.behavior) for each in row.splits]
        if row.bytes_as_text:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)

    @classmethod
    def of(cls, values: Values) -> BytePairs:
        """The tokenizer that metadata describes; see :class:`Vocabulary` and :func:`splitting`.  Raises ModelError."""
        model = values.text(MODEL)
        row = splitting(values) if model != "gemma4" else BY_NAME[model]
        ids = {"bos": 11, "eos": 11} if model != "gemma4" else {}
        if not row.bos:
            del ids["bos"]
        escapes = "whitespace" not in row.names and not row.bytes_as_text
        rules = Defaults(ids, add_bos=row.add_bos, escape_whitespaces=escapes, clean_spaces=row.clean_spaces)
        vocabulary = Vocabulary(values, rules)
        if "gemma4" in row.names:
            vocabulary.add_bos = True  # files with another value are known to be wrong
        return cls(vocabulary, row)

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        text = encodable(text)
        if self._words_only:
            words = WHITE_SPACES.split(text.lower() if self._lowercase else text)
            return [token for word in words if word for token in self._merged(word)]
        if self.vocabulary.escape_whitespaces:
            text = text.replace(" ", SPACE)
        if not self._line_ends:
            return self._merged(text)
        found: list[int] = []
        for run in re.findall(r"\n+|[^\n]+", text):
            known = self.vocabulary.ids.get(run) if run[0] == "\n" else None
            found += self._merged(run) if known is None else [known]
        return found

    def normal(self, text: str, *, after_special: bool) -> str:
        """The text in the normal form; see :meth:`Kind.normal`."""
        text, normalizer = encodable(text), self._tokenizer.normalizer
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        return text.replace(" ", SPACE) if self.vocabulary.escape_whitespaces else text

    def _merged(self, text: str) -> list[int]:
        with library(MERGES):
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def word(self, text: str) -> bytes:
        """The bytes that the text of a normal token stands for."""
        if not self._row.bytes_as_text:
            return super().word(text)
        try:
            return bytes(map(LETTERS.__getitem__, text))
        except KeyError:
            return b"".join(
                bytes([LETTERS[each]]) if each in LETTERS else each.encode("utf-8", "replace") for each in text
            )


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges, without duplicates.  Raises ModelError for a merge with a token that the vocabulary does not have."""
    needed = vocabulary.values.text(PRE, None) != "kimi-k2"
    ids = vocabulary.ids
    merges: dict[tuple[str, str], None] = {}
    for n, merge in enumerate(vocabulary.values.texts(MERGES, *([] if needed else [[]]))):
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or left not in ids or right not in ids or left + right not in ids:
            raise ModelError(
                f"{MERGES}[{n}] must be two tokens separated by a space, which joined are a third token, got {merge!r}",
                got=merge,
            )
        merges[left, right] = None
    return list(merges)

"""Byte pair encoding (Sennrich et al. 2016) over the bytes of words, as GPT-2 has it, or over characters (Gemma 4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ggplug.errors import ModelError
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.library import encodable, library
from ggplug_models.tokenizers.pre_tokenizers import BY_NAME, PRE, PreTokenizer, splitting
from ggplug_models.tokenizers.vocabulary import MODEL, SPACE, WHITE_SPACE, Defaults, Vocabulary

MERGES = "tokenizer.ggml.merges"


def _letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable characters of Latin-1 stand for themselves, the others follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


LETTERS = _letters()

_SPACES = re.compile(f"[{re.escape(''.join(sorted(WHITE_SPACE)))}]+")


class BytePairs(Kind):
    """Words, split off by the rules of ``tokenizer.ggml.pre``, whose pairs of pieces are merged in the file's order."""

    def __init__(self, vocabulary: Vocabulary, row: PreTokenizer) -> None:
        super().__init__(vocabulary)
        self._row = row
        self._lowercase: bool = vocabulary.values.boolean("tokenizer.ggml.normalizer.lowercase", False)
        self._words_alone = "whitespace" in row.names
        # Gemma 4's runs of line ends are tokens, though no merges lead to them.
        self._line_ends = "gemma4" in row.names
        if row.bytes_as_text and not self._words_alone and LETTERS.keys() <= vocabulary.ids.keys():
            self.longest = max(map(len, vocabulary.texts))
        with required("tokenizers", "making token ids of texts"):
            from tokenizers import Regex, Tokenizer, models, pre_tokenizers
        merges = _merges(vocabulary)
        with library(MERGES):
            model = models.BPE(
                vocabulary.ids, merges, ignore_merges=row.whole_words, byte_fallback=not row.bytes_as_text
            )
            self._tokenizer = Tokenizer(model)
            steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.patterns]
            if row.bytes_as_text:
                steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
            self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)

    @classmethod
    def of(cls, values: Values) -> BytePairs:
        """From metadata; see :class:`Vocabulary` and :func:`splitting`.  Raises ModelError."""
        model = values.text(MODEL)
        row = splitting(values) if model != "gemma4" else BY_NAME[model]
        ids = {"bos": 11, "eos": 11} if model != "gemma4" else {}
        if not row.bos:
            del ids["bos"]
        escapes = "whitespace" not in row.names and not row.bytes_as_text
        rules = Defaults(ids, add_bos=row.add_bos, escape_whitespaces=escapes, clean_spaces=row.clean_spaces)
        vocabulary = Vocabulary(values, rules)
        if "gemma4" in row.names:
            vocabulary.add_bos = True  # files that say otherwise are known to be wrong
        return cls(vocabulary, row)

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        text = encodable(text)
        if self._words_alone:
            words = _SPACES.split(text.lower() if self._lowercase else text)
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

    def _merged(self, text: str) -> list[int]:
        with library(MERGES):
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def word(self, text: str) -> bytes:
        """What a normal token's text stands for."""
        if not self._row.bytes_as_text:
            return super().word(text)
        try:
            return bytes(map(LETTERS.__getitem__, text))
        except KeyError:
            return b"".join(
                bytes([LETTERS[each]]) if each in LETTERS else each.encode("utf-8", "replace") for each in text
            )


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges, each once.  Raises ModelError for one that names a token that there is not."""
    needed = vocabulary.values.text(PRE, None) != "kimi-k2"
    ids = vocabulary.ids
    merges: dict[tuple[str, str], None] = {}
    for n, merge in enumerate(vocabulary.values.texts(MERGES, *([] if needed else [[]]))):
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or left not in ids or right not in ids or left + right not in ids:
            raise ModelError(
                f"{MERGES}[{n}] is {merge!r}; it must be two tokens with a space between, that make a third one",
                got=merge,
            )
        merges[left, right] = None
    return list(merges)

"""Unigram tokenization (Kudo 2018): the most probable of all ways to split a text into tokens (T5, XLM-R)."""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Sequence

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.library import encodable, library
from ggplug_models.tokenizers.vocabulary import (
    SPACE,
    TOKENS,
    WHITE_SPACE,
    WHITE_SPACES,
    Attribute,
    Defaults,
    Vocabulary,
)

CHARSMAP = "tokenizer.ggml.precompiled_charsmap"

REPLACED = 1 << 16
"""Maximum number of words whose normalised forms are cached."""


class CharsMap:
    """SentencePiece's table of replacements: a double array trie (Kanda 2018), followed by the replacements.

    An entry of the array has its label in bits 0 to 7, whether a key ends there in bit 8, and the offset of its
    children in bits 10 to 30, shifted by 8 if bit 9 is set.  The child for a byte is at the entry's index xor offset
    xor byte.
    """

    def __init__(self, data: bytes) -> None:
        size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else -1
        if size < 4 or size % 4 or 4 + size >= len(data):
            raise ModelError(
                f"{CHARSMAP} has {len(data)} bytes, which are not a valid table of replacements", got=len(data)
            )
        self._nodes: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._replacements = data[4 + size :]

    def longest(self, text: bytes, place: int) -> tuple[bytes, int] | None:
        """The replacement of the longest key at a position of the text, and the key's length; None if there is none."""
        found: tuple[int, int] | None = None
        node = self._children(0)
        for end in range(place, len(text)):
            byte = text[end]
            node ^= byte
            entry = self._node(node)
            if not byte or entry & 0x800000FF != byte:
                break
            node ^= self._children(node)
            if entry & 0x100:
                found = self._node(node) & 0x7FFFFFFF, end + 1 - place
        if found is None:
            return None
        begin, length = found
        end = self._replacements.find(b"\0", begin)
        if begin >= len(self._replacements) or end < 0:
            raise ModelError(f"{CHARSMAP} is damaged: it has no replacement at byte {begin}", got=begin)
        return self._replacements[begin:end], length

    def _children(self, node: int) -> int:
        entry = self._node(node)
        return (entry >> 10) << ((entry & 0x200) >> 6)

    def _node(self, node: int) -> int:
        if node >= len(self._nodes):
            raise ModelError(f"{CHARSMAP} is damaged: it refers to the entry {node} of {len(self._nodes)}", got=node)
        return self._nodes[node]


class Unigrams(Kind):
    """Splits normalised text into the tokens with the largest sum of scores, which are log probabilities."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        charsmap = _bytes(vocabulary.values)
        self._charsmap = CharsMap(charsmap) if charsmap else None
        self._replaced: dict[str, str] = {}
        fixed = sorted((vocabulary.texts[n] for n in vocabulary.having(Attribute.USER_DEFINED)), key=len, reverse=True)
        self._fixed = re.compile(f"({'|'.join(map(re.escape, fixed))})") if fixed else None
        with required("tokenizers", "making token ids of texts"):
            from tokenizers import Tokenizer, models
        with library(TOKENS):
            self._tokenizer = Tokenizer(models.Unigram(_entries(vocabulary), vocabulary.special.get("unk")))

    @classmethod
    def of(cls, values: Values) -> Unigrams:
        """The tokenizer that the metadata describes; see :class:`Vocabulary`.  Raises ModelError."""
        return cls(Vocabulary(values, Defaults({"eos": 1, "unk": 2, "pad": 0}, add_eos=True)))

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        normal = self._spaced(self._normal(encodable(text)), after_special=after_special)
        with library(TOKENS):
            ids: list[int] = self._tokenizer.encode_batch_fast([normal], add_special_tokens=False)[0].ids
        return ids

    def _spaced(self, text: str, *, after_special: bool) -> str:
        vocabulary = self.vocabulary
        if vocabulary.prepend_scheme == "words":
            words = filter(None, WHITE_SPACES.split(text))
            return "".join(word if word.startswith(SPACE) else SPACE + word for word in words)
        if vocabulary.prepend_scheme is not None:
            if vocabulary.remove_extra_whitespaces:
                text = re.sub(" {2,}", SPACE, text.rstrip("".join(WHITE_SPACE)))
            return self.spaced(text, after_special=after_special)
        if vocabulary.remove_extra_whitespaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        if vocabulary.add_space_prefix and (behind := text.lstrip(" ")):
            text = text[: len(text) - len(behind)] + " " + behind
        return text.replace(" ", SPACE)

    def _normal(self, text: str) -> str:
        if self._charsmap is None:
            return text
        parts = [text] if self._fixed is None else self._fixed.split(text)
        # Every second part is a user-defined token, which is not normalised.
        return "".join(part if n % 2 else self._replace(part) for n, part in enumerate(parts))

    def _replace(self, text: str) -> str:
        """Replaces the longest key at each position; caches the results of words with the white space after them."""
        done = []
        for word in re.split(r"(?<= )(?=[!-~])", text):
            known = self._replaced.get(word)
            if known is None:
                if len(self._replaced) >= REPLACED:
                    self._replaced.clear()
                known = self._replaced[word] = self._walked(word)
            done.append(known)
        return "".join(done)

    def _walked(self, word: str) -> str:
        assert self._charsmap is not None
        data = word.encode("utf-8")
        out, place = [], 0
        while place < len(data):
            found = self._charsmap.longest(data, place)
            if found is None:
                byte = data[place]
                length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                found = data[place : place + length], length
            out.append(found[0])
            place += found[1]
        return b"".join(out).decode("utf-8", "replace")


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


def _bytes(values: Values) -> bytes:
    value = values.values.get(CHARSMAP)
    if value is None:
        return b""
    if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1 or value.ndim != 1:
        raise values.refused(CHARSMAP, "an array of bytes")
    return value.tobytes()

"""SentencePiece's table of replacements of characters, by which texts are normalised before they are tokenized."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.tokenizers.vocabulary import Attribute, Vocabulary

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


def splitter(parts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that splits texts at given parts, the longest first, so that every second piece is one of them."""
    longest_first = sorted(parts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


class Replacements:
    """Replaces the characters of texts by a table, the longest key at each position.  Raises ModelError.

    ``table``: empty if nothing is replaced.  ``fixed``: parts of texts that stay as they are.
    """

    def __init__(self, table: bytes, fixed: Iterable[str] = ()) -> None:
        self._charsmap = CharsMap(table) if table else None
        self._replaced: dict[str, str] = {}
        self._fixed = splitter(fixed)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Replacements:
        """Those of a vocabulary, whose user-defined and fixed tokens stay as they are.  Raises ModelError."""
        value = vocabulary.values.values.get(CHARSMAP, np.empty(0, np.uint8))
        if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1 or value.ndim != 1:
            raise vocabulary.values.refused(CHARSMAP, "an array of bytes")
        kept = vocabulary.fixed.union(vocabulary.having(Attribute.USER_DEFINED))
        return cls(value.tobytes(), [vocabulary.texts[n] for n in kept])

    def __bool__(self) -> bool:
        return self._charsmap is not None

    def replaced(self, text: str) -> str:
        """The text with the replacements.  Raises ModelError for a table that is damaged."""
        if self._charsmap is None:
            return text
        parts = self._fixed.split(text)
        # Every second part stays as it is.
        return "".join(part if n % 2 else self._words(self._charsmap, part) for n, part in enumerate(parts))

    def _words(self, charsmap: CharsMap, text: str) -> str:
        """Caches the results of words with the white space after them."""
        done = []
        for word in re.split(r"(?<= )(?=[!-~])", text):
            known = self._replaced.get(word)
            if known is None:
                if len(self._replaced) >= REPLACED:
                    self._replaced.clear()
                known = self._replaced[word] = _walked(charsmap, word)
            done.append(known)
        return "".join(done)


def _walked(charsmap: CharsMap, word: str) -> str:
    data = word.encode("utf-8")
    out, place = [], 0
    while place < len(data):
        found = charsmap.longest(data, place)
        if found is None:
            byte = data[place]
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            found = data[place : place + length], length
        out.append(found[0])
        place += found[1]
    return b"".join(out).decode("utf-8", "replace")

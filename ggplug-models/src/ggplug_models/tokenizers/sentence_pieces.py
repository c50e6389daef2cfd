"""SentencePiece's byte pair encoding (Kudo and Richardson 2018): merges characters to the tokens with the best scores.

The library ``tokenizers`` needs a rank for each pair.  Here tokens have scores, and of the pairs that make the same
token, the leftmost in the text is merged first, which ranks cannot express.  So this module merges the pairs itself,
and caches the results of words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from ggplug.errors import ModelError
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.charsmap import Replacements, splitter
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.known_words import KnownWords
from ggplug_models.tokenizers.library import encodable
from ggplug_models.tokenizers.vocabulary import SPACE, TOKENS, Defaults, Vocabulary

Entry = tuple[float, int, int, int]
"""A pair that could be merged: minus its score, the positions of its two symbols, and their total length."""


class SentencePieces(Kind):
    """Merges the pair whose token has the highest score, of equal ones the leftmost, until no pair is a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._costs = dict(zip(vocabulary.texts, (-vocabulary.scores).tolist(), strict=True))
        # The pairs of adjacent characters within tokens; no merge joins the characters of another pair.
        self._adjacent = {text[n : n + 2] for text in vocabulary.texts for n in range(len(text) - 1)}
        self._words = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
        if any(pair[1] == SPACE and pair[0] != SPACE for pair in self._adjacent):
            self._words = re.compile(".+", re.DOTALL)
        self._unknown = vocabulary.special.get("unk")
        self._bytes = self._byte_tokens()
        self._known = KnownWords(self._word)
        self._fixed = splitter(vocabulary.texts[n] for n in vocabulary.fixed)
        self._replacements = Replacements.of(vocabulary)
        shortens = self._replacements or vocabulary.remove_extra_whitespaces or self._bytes is None
        if not shortens:
            self.longest = max(map(len, vocabulary.texts))

    @classmethod
    def of(cls, values: Values) -> SentencePieces:
        """The tokenizer that the metadata describes; see :class:`Vocabulary`.  Raises ModelError."""
        rules = Defaults({"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True)
        return cls(Vocabulary(values, rules))

    def _byte_tokens(self) -> list[int | None] | None:
        """The tokens of bytes; None if there are none, but an unknown token."""
        ids = self.vocabulary.ids
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        if self._unknown is not None and not any(name in ids for name in names):
            return None
        return [ids.get(name, ids.get(chr(byte), self._unknown)) for byte, name in enumerate(names)]

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        parts = self._fixed.split(self.normal(text, after_special=after_special))
        ids = self._known.ids(chain(*([part] if n % 2 else self._words.findall(part) for n, part in enumerate(parts))))
        if self._bytes is not None or self._unknown not in ids:
            return ids
        # Several unknown characters in a row are one token.
        return [token for n, token in enumerate(ids) if not n or token != self._unknown or ids[n - 1] != token]

    def normal(self, text: str, *, after_special: bool) -> str:
        """The text with its replacements, U+2581 for spaces, and the one before it; see :meth:`Kind.normal`."""
        text = self.trimmed(self._replacements.replaced(encodable(text)), after_special=after_special)
        return self.spaced(text, after_special=after_special)

    def _word(self, word: str) -> tuple[int, ...]:
        """The ids of a fixed token, or of a word, within which there is none."""
        if self._fixed.match(word):
            return (self.vocabulary.ids[word],)
        adjacent = self._adjacent
        cuts = [n for n in range(1, len(word)) if word[n - 1 : n + 1] not in adjacent]
        found: list[int] = []
        for begin, end in zip([0, *cuts], [*cuts, len(word)], strict=True):
            symbols = self._merged(word[begin:end]) if end - begin > 1 else [word[begin]]
            for symbol in symbols:
                token = self.vocabulary.ids.get(symbol)
                found += self._spelled(symbol) if token is None else [token]
        return tuple(found)

    def _merged(self, text: str) -> list[str]:
        costs = self._costs
        symbols = list(text)
        lengths = [1] * len(symbols)  # 0: merged into the symbol before it
        previous, following = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
        queue: list[Entry] = []
        for left in range(len(symbols) - 1):
            cost = costs.get(text[left : left + 2])
            if cost is not None:
                queue.append((cost, left, left + 1, 2))
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            if not lengths[left] or not lengths[right] or lengths[left] + lengths[right] != length:
                continue  # one of them was merged with another symbol
            merged = symbols[left] = symbols[left] + symbols[right]
            lengths[left], lengths[right] = length, 0
            behind = following[left] = following[right]
            if behind >= 0:
                previous[behind] = left
                cost = costs.get(merged + symbols[behind])
                if cost is not None:
                    heappush(queue, (cost, left, behind, length + lengths[behind]))
            before = previous[left]
            if before >= 0:
                cost = costs.get(symbols[before] + merged)
                if cost is not None:
                    heappush(queue, (cost, before, left, lengths[before] + length))
        return [symbol for symbol, length in zip(symbols, lengths, strict=True) if length]

    def _spelled(self, symbol: str) -> list[int]:
        if self._bytes is None:
            assert self._unknown is not None
            return [self._unknown]
        found = []
        for byte in symbol.encode("utf-8"):
            token = self._bytes[byte]
            if token is None:
                raise ModelError(
                    f"{TOKENS} has no token for {symbol!r}: neither itself, nor '<0x{byte:02X}>', nor an unknown token",
                    got=symbol,
                )
            found.append(token)
        return found

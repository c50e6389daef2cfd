"""The tokenizer of PLaMo 2 and 3: the most probable way to split a text into tokens, and bytes for what is in none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ggplug.errors import ModelError
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.library import encodable
from ggplug_models.tokenizers.vocabulary import PARSED, TOKENS, Attribute, Defaults, Vocabulary

UNIT = 1e4
"""Scores are rounded to this fraction of one, so that sums do not depend on their order."""

UNKNOWN, MOST = 10**7, 2 * 10**7
"""The cost of a character that is written as bytes, in these units; and that from which on a token is never used."""


class ProbableTokens(Kind):
    """Splits a text into the tokens with the largest sum of scores; of equal sums, with the longest token first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._bytes = {piece[0]: n for n, piece in vocabulary.bytes.items()}
        missing = next((byte for byte in range(256) if byte not in self._bytes), None)
        if missing is not None:
            raise ModelError(f"{TOKENS} has no token <0x{missing:02X}> for a byte", got=missing)
        self._tokens: dict[str, tuple[int, int]] = {}
        """The cost and the id of each token, by its text."""
        lengths: dict[str, set[int]] = {}
        for n, (text, score) in enumerate(zip(vocabulary.texts, vocabulary.scores.tolist(), strict=True)):
            cost = -_rounded(score * UNIT) if math.isfinite(score) else MOST
            if cost < MOST and not vocabulary.attributes[n] & (Attribute.BYTE | PARSED):
                self._tokens[text] = cost, n
                lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(each) for first, each in lengths.items()}

    @classmethod
    def of(cls, values: Values) -> ProbableTokens:
        """The tokenizer that the metadata describes; see :class:`Vocabulary`.  Raises ModelError."""
        return cls(Vocabulary(values, Defaults({"unk": 0, "bos": 1, "eos": 2, "pad": 3})))

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        text = encodable(text).removeprefix("\ufeff")
        # Of the text from each character on: its least cost, and where its first token ends.
        costs, ends = [0] * (len(text) + 1), [0] * len(text)
        for at in range(len(text) - 1, -1, -1):
            costs[at], ends[at] = costs[at + 1] + UNKNOWN, at + 1
            for length in self._lengths.get(text[at], ()):
                end = at + length
                token = self._tokens.get(text[at:end]) if end <= len(text) else None
                if token is not None and costs[end] + token[0] <= costs[at]:
                    costs[at], ends[at] = costs[end] + token[0], end
        found: list[int] = []
        at = 0
        while at < len(text):
            piece = text[at : ends[at]]
            token = self._tokens.get(piece)
            found += [token[1]] if token is not None else [self._bytes[byte] for byte in piece.encode()]
            at = ends[at]
        return found

    def word(self, text: str) -> bytes:
        """The bytes that the text of a normal token stands for: spaces are spaces."""
        return text.encode("utf-8", "replace")


def _rounded(number: float) -> int:
    """The nearest integer; halves away from zero."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))

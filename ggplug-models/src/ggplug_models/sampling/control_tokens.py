"""The control tokens of a vocabulary: those that are not text, such as ``<|im_end|>``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ggplug_models.tokenizers import Tokenizer


class ControlTokens:
    """The control tokens of a vocabulary, by their text.  End tokens are not among them: they end the answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = [token for token in range(tokenizer.n_vocab) if tokenizer.is_control(token)]
        self.ends = frozenset(tokenizer.piece(token).decode("utf-8", "replace") for token in tokenizer.ends)
        texts = {tokenizer.piece(token).decode("utf-8", "replace"): token for token in tokens}
        self.ids: Mapping[str, int] = {text: token for text, token in texts.items() if text not in self.ends}
        every = sorted({*self.ids, *self.ends} - {""}, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(map(re.escape, every)) + ")") if every else None

    def parts(self, text: str) -> list[str | int]:
        """The control tokens, and the texts between them, of which ``text`` consists; end tokens are left out."""
        parts = [text] if self._pattern is None else self._pattern.split(text)
        return [self.ids.get(part, part) for part in parts if part and part not in self.ends]

    def kept(self, marks: Sequence[str]) -> frozenset[int]:
        """The control tokens in ``marks``, whose names a reader of the answer needs."""
        return frozenset(part for mark in marks for part in self.parts(mark) if isinstance(part, int))

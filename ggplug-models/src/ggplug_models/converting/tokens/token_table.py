"""The tokens of a vocabulary that is being converted, by their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug_models.checks.arguments import natural
from ggplug_models.converting.tokens.special import looks_special
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.encoders import CONTROL, WORD_START
from ggplug_models.tokenizers.pre_tokenizers import DEFAULT, PRE
from ggplug_models.tokenizers.vocabulary import MODEL, TOKEN_TYPE, TOKENS

NORMAL, UNKNOWN, USER_DEFINED, UNUSED, BYTE = 1, 2, 4, 5, 6
"""Values of ``tokenizer.ggml.token_type``, in addition to CONTROL."""


class TokenTable:
    """The tokens, scores and types of a vocabulary, by id; ids without a token are unused."""

    def __init__(self, n: int) -> None:
        self.texts = [f"[PAD{i}]" for i in range(n)]
        self.scores = np.full(n, -10000, np.float32)
        self.types = np.full(n, UNUSED, np.int32)

    def put(self, token: int, text: str, kind: int, score: float = 0.0) -> None:
        self.texts[token], self.types[token], self.scores[token] = text, kind, score

    def put_added(self, description: Values, settings: Values, *, replaces: bool = True) -> dict[int, Values]:
        """Adds the tokens that were added to the vocabulary; U+2581 in their texts becomes a space.

        Returns their entries by id; as in transformers, the settings' replace the others.  ``replaces``: whether they
        replace tokens that the table has.  Raises ModelError for one with the text of another token, which files cannot
        have.
        """
        n = len(self.texts)
        entries = [(each.values.get("id"), each) for each in description.objects("added_tokens", [])]
        if "added_tokens_decoder" in settings:
            decoder = settings.inner("added_tokens_decoder")
            entries += [(natural(key), decoder.inner(key)) for key in decoder.values]
        put: dict[int, Values] = {}
        for token, entry in entries:
            if not isinstance(token, int) or token < 0:
                raise entry.refused("id", "an integer of at least 0")
            if token >= n:
                continue  # the weights have no embedding for it
            text = entry.text("content")
            put[token] = entry
            if not replaces and self.types[token] != UNUSED:
                continue
            if entry.boolean("special", False) or looks_special(text):
                self.put(token, text, CONTROL, -1000)
            else:
                self.put(token, text.replace(WORD_START, " "), USER_DEFINED, -1000)
        times = Counter(self.texts)
        for token, entry in put.items():
            if times[self.texts[token]] > 1:
                raise entry.refused("content", "a text that no other token of the vocabulary has")
        return put

    @property
    def normal(self) -> Iterator[str]:
        """The texts of normal tokens."""
        return (text for text, kind in zip(self.texts, self.types, strict=True) if kind == NORMAL)

    def metadata(self, model: str, pre: str = DEFAULT) -> dict[str, Any]:
        return {
            MODEL: model,
            PRE: pre,
            TOKENS: self.texts,
            TOKEN_TYPE: self.types,
        }

"""Drafts: what probably comes next, cheaply guessed, for a language model to read several tokens at once.

The model is asked what it says after each of the drafted tokens, and a token is chosen there as it would have been
without drafts; as long as the choices are the drafted tokens, none of them needs a step of its own (Leviathan et al.
2022, arXiv:2211.17192, for the greedy case).  So the text is the same, and the random numbers of a sampler as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Self

import numpy as np

from ggplug.errors import ModelError, ParameterError
from ggplug.types import Type
from ggplug_models.checks.arguments import LARGEST, check_sequence, number, whole
from ggplug_models.sampling.sampler import Logits
from ggplug_models.state.session import LanguageModel

MOST = 3
"""Tokens that are drafted at once, unless another number is asked for.

With the one before them that is a step of 4.  The CPU device computes products of so few columns by the same dot
products as those of one column, with results that are equal bit by bit, and in little more time, because it reads the
weights once.  More columns may be computed by other kernels, which round otherwise: tokens that are nearly as likely as
each other may then change places.
"""


class Drafts(ABC):
    """Guesses the tokens that follow a text.  ``most``: how many at once.

    ``drafted`` and ``accepted`` count the tokens that were guessed, and those of them that were right.  One generation
    at a time uses it.  Raises ParameterError for a ``most`` that is no positive integer.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = whole("most", most, 1)
        self.drafted = 0
        self.accepted = 0

    def check(self, model: LanguageModel) -> None:
        """Raises ModelError for a model that cannot take tokens back, or that the guesses cannot be for."""
        if model.keeps_states:
            raise ModelError(
                f"{model.architecture} models keep states, which have no way back behind a wrong draft",
                got=model.architecture,
                remedy="generate without a draft",
            )

    def next(self, text: Sequence[int], most: int, n_vocab: int) -> list[int]:
        """Up to ``most`` tokens behind ``text``, up to the first that a vocabulary of ``n_vocab`` does not have.

        Raises ParameterError where :meth:`guess` returned no token ids.
        """
        most = min(most, self.most)
        guessed = self.guess(text, most) if most > 0 else ()
        check_sequence(guessed, "what a draft guesses")
        tokens = [whole("a token that a draft guesses", token, -LARGEST) for token in guessed[:most]]
        return list(takewhile(lambda token: 0 <= token < n_vocab, tokens))

    @abstractmethod
    def guess(self, text: Sequence[int], most: int) -> Sequence[int]:
        """Up to ``most`` tokens that may follow ``text``; none where there is nothing to go by."""

    def free(self) -> None:
        """Gives back what the guesses need."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.free()


class PromptLookup(Drafts):
    """The tokens that followed when the text's last ones occurred before (Saxena 2023, "Prompt lookup decoding").

    ``longest``, ``shortest``: how many of the last tokens have to have occurred; the latest place where the most of
    them did counts.  It costs next to nothing, and helps where answers repeat their prompts: summaries, edits, code.
    """

    def __init__(self, most: int = MOST, *, longest: int = 3, shortest: int = 2) -> None:
        super().__init__(most)
        if not 1 <= shortest <= longest:
            raise ParameterError(
                f"shortest and longest must be 1 <= shortest <= longest, got {shortest} and {longest}",
                got=(shortest, longest),
            )
        self.sizes = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        self._learn(list(text))
        end = len(self._text)
        for size in self.sizes:
            place = self._places.get(tuple(self._text[end - size :])) if size <= end else None
            if place is not None:
                # What would come behind the end of the text is what came before: texts that repeat go on repeating.
                return [self._text[place + i % (end - place)] for i in range(most)]
        return []

    def _learn(self, text: list[int]) -> None:
        """Notes behind which of the text's runs of tokens another token stands, and where."""
        known = len(self._text)
        if text[:known] != self._text:
            known = 0
            self._places.clear()
        for end in range(max(known, 1), len(text)):
            for size in self.sizes:
                if size <= end:
                    self._places[tuple(text[end - size : end])] = end
        self._text = text


class DraftModel(Drafts):
    """What a smaller language model says: its most likely token, again and again.

    ``model``: one with the same vocabulary, without states; the caller frees it.  ``n_ctx``: tokens that it remembers,
    by default as a session does; longer texts get no drafts.  ``least``: a draft ends before a token whose probability
    is smaller.  Owns a session of the model: :meth:`free`, or a ``with`` block.

    Raises ModelError for a model with states; ParameterError, OutOfMemoryError, FreedError.
    """

    def __init__(
        self,
        model: LanguageModel,
        n_ctx: int | None = None,
        *,
        most: int = MOST,
        least: float = 0.5,
        cache_type: str | Type = "f16",
    ) -> None:
        super().__init__(most)
        least = number("least", least, 0, 1)
        super().check(model)
        self.model = model
        self.least = least
        self.session = model.session(n_ctx, cache_type=cache_type)

    def check(self, model: LanguageModel) -> None:
        super().check(model)
        ours, theirs = (each.tokenizer.vocabulary.texts for each in (self.model, model))
        differing = next((token for token, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if differing is not None:
            raise ModelError(
                f"the draft model has another vocabulary: its token {differing} is {ours[differing]!r}, "
                f"the model's {theirs[differing]!r}",
                got=ours[differing],
                wanted=theirs[differing],
                remedy="take a smaller model of the same family",
            )

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        most = min(most, self.session.n_ctx - len(text) + 1)
        if most < 1:
            return []
        new = text[self.session.keep_prefix(text) :]
        if max(new) >= self.model.n_vocab:  # a token that only the larger vocabulary has
            return []
        found: list[int] = []
        while len(found) < most:
            logits = self.session.decode({0: new})[0]
            token = int(logits.argmax())
            if not _probability(logits, token) >= self.least:
                break
            found.append(token)
            new = [token]
        return found

    def free(self) -> None:
        self.session.free()


def _probability(logits: Logits, token: int) -> float:
    """Of the token with the largest logit."""
    return float(1 / np.exp(logits - logits[token]).sum(dtype=np.float64))

"""Speculative decoding: draft tokens are guessed cheaply, and the model checks several of them in one step.

The model computes logits after each draft token, and a token is chosen from each of them as it would be without
drafts.  Draft tokens are accepted up to the first that differs from the chosen one (Leviathan et al. 2022,
arXiv:2211.17192, for the greedy case).  So drafts change neither the text nor the random numbers that a sampler draws.
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
from ggplug_models.state.cells import SOURCE
from ggplug_models.state.memory import KeysValues
from ggplug_models.state.session import LanguageModel

MOST = 3
"""Default number of draft tokens of a step.

With the token before them, the step has 4 tokens, which take little more time than one, because the weights are read
once.  The CPU device, and processors through OpenCL, compute up to :data:`.FEW` tokens with the bits that each has
alone.  More may be computed by other kernels, which round differently; that could change the order of tokens with
nearly equal logits, so a step never has more.
"""


class Drafts(ABC):
    """Guesses the tokens that follow a text.  ``most``: number of draft tokens of a step.

    ``drafted`` counts the draft tokens, ``accepted`` those that the model confirmed.  Only one generation at a time may
    use an object.  Raises ParameterError if ``most`` is not a positive integer.

    Drafts that need values of the model's nodes are a :class:`.Reader`: they list the nodes in ``names``.
    """

    names: tuple[str, ...] = ()

    def __init__(self, most: int = MOST) -> None:
        self.most = whole("most", most, 1)
        self.drafted = 0
        self.accepted = 0

    def check(self, model: LanguageModel) -> None:
        """Raises ModelError if ``model`` cannot use these drafts, for instance because it cannot be rewound."""
        if model.keeps_states:
            raise ModelError(
                f"{model.architecture} models have a recurrent state, which cannot drop wrong draft tokens",
                got=model.architecture,
                remedy="generate without a draft",
            )

    def next(self, text: Sequence[int], most: int, n_vocab: int) -> list[int]:
        """Up to ``most`` draft tokens after ``text``; ends before the first id that is not below ``n_vocab``.

        Raises ParameterError if :meth:`guess` did not return token ids.
        """
        most = min(most, self.most)
        guessed = self.guess(list(text), most) if most > 0 else ()  # a list of its own, which it may change
        check_sequence(guessed, "the result of guess()")
        tokens = [whole("a draft token", token, -LARGEST) for token in guessed[:most]]
        return list(takewhile(lambda token: 0 <= token < n_vocab, tokens))

    @abstractmethod
    def guess(self, text: Sequence[int], most: int) -> Sequence[int]:
        """Up to ``most`` tokens that may follow ``text``; none if there is no good guess."""

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Logits]) -> None:
        """Gets the values of the nodes :attr:`names` with each step of the model; see :class:`.Reader`."""

    def free(self) -> None:
        """Releases the memory that the drafts use."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.free()


class PromptLookup(Drafts):
    """Drafts the tokens that followed the last tokens of the text when they occurred before.

    This is prompt lookup decoding (Saxena 2023).  It looks for the last ``longest`` tokens, then for fewer, down to
    ``shortest``; the latest occurrence counts.  It costs little, and helps where the answer repeats parts of the
    prompt: summaries, edits, code.
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
                # A draft that reaches the end of the text continues with the repetition.
                return [self._text[place + i % (end - place)] for i in range(most)]
        return []

    def _learn(self, text: list[int]) -> None:
        """Notes, for each run of tokens that another token follows, where the latest one ends."""
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
    """Drafts the most probable tokens of a smaller language model.

    ``model``: has the same vocabulary and no recurrent state; the caller frees it.  ``n_ctx``: context length of its
    session; longer texts get no drafts.  ``least``: a draft ends before a token with a smaller probability.
    ``cache_type``: type of its KV cache.  The object owns a session of the model: call :meth:`free`, or use a ``with``
    block.

    Raises ModelError for a model with a recurrent state, or that reads a source text; ParameterError, OutOfMemoryError,
    FreedError.
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
        if any(isinstance(kind, KeysValues) and kind.window == SOURCE for kind in model.kinds):
            raise ModelError(
                f"{model.architecture} models read a source text, which a draft model gets none of",
                got=model.architecture,
                remedy="use a draft model that continues texts, or another kind of draft",
            )
        self.model = model
        self.least = least
        self.session = model.session(n_ctx, cache_type=cache_type)

    def check(self, model: LanguageModel) -> None:
        super().check(model)
        ours, theirs = (each.tokenizer.vocabulary.texts for each in (self.model, model))
        check_same_vocabulary(ours, theirs, "the draft model", "use a smaller model of the same family")

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
            if not probability(logits, token) >= self.least:
                break
            found.append(token)
            new = [token]
        return found

    def free(self) -> None:
        self.session.free()


def check_same_vocabulary(ours: Sequence[str], theirs: Sequence[str], who: str, remedy: str) -> None:
    """Raises ModelError if a token of what drafts, ``who``, is another one in the model; one may have more tokens."""
    differing = next((token for token, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if differing is not None:
        raise ModelError(
            f"{who} has a different vocabulary: its token {differing} is {ours[differing]!r}, "
            f"the model's {theirs[differing]!r}",
            got=ours[differing],
            wanted=theirs[differing],
            remedy=remedy,
        )


def probability(logits: Logits, token: int) -> float:
    """The probability of ``token``, which has the largest logit."""
    return float(1 / np.exp(logits - logits[token]).sum(dtype=np.float64))

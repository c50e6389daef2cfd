"""The log probabilities of chosen tokens, and of the most probable tokens at the same positions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ggplug_models.generation.detokenizer import TokenText
from ggplug_models.sampling import Chooses, Sampler
from ggplug_models.sampling.candidates import Candidates
from ggplug_models.sampling.sampler import Logits, check_largest

LEAST = -9999.0
"""Stands for the logarithm of 0, which JSON cannot represent, as in the OpenAI API."""


class LogProbability(NamedTuple):
    """The log probability of a token; ``others``: the most probable tokens at its position, with theirs."""

    token: int
    value: float
    others: tuple[tuple[int, float], ...]


class Scored(NamedTuple):
    """A token of an answer with its log probability and its part of the text."""

    score: LogProbability
    token_text: TokenText


class LogProbabilities:
    """Calls ``choose``, and records the log probability of each chosen token, from the model's logits before sampling.

    ``most``: number of the most probable tokens that are recorded for each position.  ``sampler``: if given, the
    probabilities after its sampling steps are recorded instead.  ``found``: the records, in the order of the tokens;
    another thread may remove them from the left.
    """

    def __init__(self, choose: Chooses, most: int, sampler: Sampler | None = None) -> None:
        self._choose = choose
        self._most = most
        self._sampler = sampler
        self.found: deque[LogProbability] = deque()

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        token = self._choose(logits, history)
        if self._sampler is None:
            self.found.append(scored(logits, token, self._most))
        else:
            self.found.append(_drawn(self._sampler.drawn, token, self._most))
        return token


class PromptScores:
    """The log probabilities of the tokens of a prompt, each after those before it; the first one has none."""

    def __init__(self, prompt: Sequence[int], most: int) -> None:
        self.found: list[LogProbability] = []
        self._prompt = prompt
        self._most = most

    def add(self, rows: Logits) -> None:
        """Adds the logits after each of the next tokens of the prompt, ``(n, n_vocab)``.  Raises LogitsError."""
        for row in rows:
            check_largest(np.maximum.reduce(row))
            place = len(self.found) + 1
            if place < len(self._prompt):
                self.found.append(scored(row, self._prompt[place], self._most))


def scored(logits: Logits, token: int, most: int) -> LogProbability:
    """The log probability of a token, and of the ``most`` most probable ones, from the logits of the model."""
    largest = logits.max()
    with np.errstate(over="ignore"):  # to -inf
        total = float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    best = np.argpartition(-logits, min(most, len(logits) - 1))[:most]
    best = best[np.lexsort((best, -logits[best]))]
    others = tuple((int(each), _bounded(float(logits[each]) - total)) for each in best)
    return LogProbability(token, _bounded(float(logits[token]) - total), others)


def _drawn(candidates: Candidates | None, token: int, most: int) -> LogProbability:
    """The log probability of a token among those that a sampler could draw; without any, it was certain."""
    if candidates is None:
        return LogProbability(token, 0.0, ((token, 0.0),))
    probabilities = candidates.probabilities
    best = np.argsort(-probabilities, kind="stable")[:most]
    others = tuple(
        (int(candidates.ids[place]), math.log(probabilities[place])) for place in best if probabilities[place] > 0
    )
    own = float(probabilities[candidates.ids == token].sum())
    return LogProbability(token, math.log(own) if own else LEAST, others)


def _bounded(value: float) -> float:
    return max(value, LEAST)

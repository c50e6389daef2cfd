"""The log probabilities of chosen tokens, and of the most probable tokens at the same positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ggplug_models.generation.detokenizer import TokenText
from ggplug_models.sampling import Chooses
from ggplug_models.sampling.sampler import Logits

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

    ``most``: number of the most probable tokens that are recorded for each position.  ``found``: the records, in the
    order of the tokens; another thread may remove them from the left.
    """

    def __init__(self, choose: Chooses, most: int) -> None:
        self._choose = choose
        self._most = most
        self.found: deque[LogProbability] = deque()

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        token = self._choose(logits, history)
        largest = logits.max()
        with np.errstate(over="ignore"):  # to -inf
            total = float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
        best = np.argpartition(-logits, min(self._most, len(logits) - 1))[: self._most]
        best = best[np.lexsort((best, -logits[best]))]
        others = tuple((int(each), _bounded(float(logits[each]) - total)) for each in best)
        self.found.append(LogProbability(token, _bounded(float(logits[token]) - total), others))
        return token


def _bounded(value: float) -> float:
    return max(value, LEAST)

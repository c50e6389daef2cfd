"""How probable the model found the tokens that were chosen, and which others it would have chosen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ggplug_models.generation.detokenizer import TokenText
from ggplug_models.sampling import Chooses
from ggplug_models.sampling.sampler import Logits

LEAST = -9999.0
"""What stands for the logarithm of 0, which JSON does not have, as in the OpenAI API."""


class LogProbability(NamedTuple):
    """Of a token, and of the most probable ones in its place."""

    token: int
    value: float
    others: tuple[tuple[int, float], ...]


class Scored(NamedTuple):
    """A token of an answer: how probable it was, and what part of the text it is."""

    score: LogProbability
    spelled: TokenText


class LogProbabilities:
    """Chooses as another does, and keeps for each token what the model's logits said, before all settings.

    ``most``: how many of the most probable tokens are told.  ``found``: what was kept, in the order of the tokens; it
    may be emptied from the left by another thread.
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

"""Mirostat (Basu et al. 2021): keeps the information of tokens near a target by leaving out improbable ones."""

from __future__ import annotations

import math

import numpy as np

from ggplug_models.sampling.candidates import Candidates

ESTIMATED_FROM = 100
"""Number of the most probable tokens from which version 1 estimates Zipf's exponent."""


class Mirostat:
    """Limits the information of the next token; the limit ``mu`` adapts with each token of a sequence.

    ``version``: 1 estimates the number of tokens within the limit, 2 computes it.  ``tau``: the target in bits.
    ``eta``: the learning rate.
    """

    def __init__(self, version: int, tau: float, eta: float) -> None:
        self.version = version
        self.tau = tau
        self.eta = eta
        self.mu = 2 * tau

    def within(self, candidates: Candidates, n_vocab: int) -> Candidates:
        """The candidates within the limit; at least one."""
        if self.version == 1:
            return candidates.best(self._count(candidates.best(ESTIMATED_FROM), n_vocab, len(candidates.ids)))
        with np.errstate(divide="ignore"):
            kept = np.flatnonzero(-np.log2(candidates.probabilities) <= self.mu)
        return candidates.take(kept, in_order=candidates.sorted) if len(kept) else candidates.best(1)

    def chosen(self, probability: float) -> None:
        """Adapts the limit.  ``probability``: that of the chosen token among the candidates within the limit."""
        self.mu -= self.eta * (-math.log2(probability) - self.tau)

    def _count(self, best: Candidates, n_vocab: int, most: int) -> int:
        """The number of tokens within the limit, if probabilities follow Zipf's law."""
        logits = best.logits[best.logits > -np.inf].astype(np.float64)
        if len(logits) < 2:
            return 1
        steps = np.log(np.arange(2, len(logits) + 1) / np.arange(1, len(logits)))
        exponent = float(np.sum(steps * -np.diff(logits)) / np.sum(steps * steps))
        excess = exponent - 1
        try:
            count = ((excess * 2**self.mu) / (1 - n_vocab**-excess)) ** (1 / exponent)
        except (ArithmeticError, ValueError):  # all alike, or exactly Zipf's exponent of 1
            return most
        if isinstance(count, complex) or not math.isfinite(count):
            return most
        return min(max(int(count), 1), most)

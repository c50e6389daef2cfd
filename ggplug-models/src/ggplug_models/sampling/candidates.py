"""Candidates for the next token, and the sampling steps that leave some of them out or change their probabilities.

A step is a function from candidates to candidates, and pure except for :func:`xtc`, which draws a random number.  Steps
avoid sorting the whole vocabulary, and process all its tokens only until one step has left few candidates.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.integer]

FEW = 256
"""Number of the most probable tokens that are sorted first, because they usually suffice."""


GROUPS = 1024
"""Number of groups that a vocabulary is divided into to find its largest logits."""


_RANGE = {np.dtype(kind): (float(np.finfo(kind).tiny), float(np.finfo(kind).max)) for kind in (np.float32, np.float64)}
"""The smallest normal number and the largest number of a dtype."""


class Candidates(NamedTuple):
    """Token ids and their logits.  ``sorted``: whether they are sorted by descending logit, then by ascending id."""

    ids: Ids
    logits: Floats
    sorted: bool = False

    @property
    def probabilities(self) -> Floats:
        """Softmax of the logits."""
        weights = np.exp(self.below(self.largest))
        found: Floats = weights / np.add.reduce(weights, dtype=np.float64)
        return found

    @property
    def largest(self) -> Any:
        """The largest logit."""
        return self.logits[0] if self.sorted else np.maximum.reduce(self.logits)

    def below(self, largest: Any) -> Floats:
        """The logits minus the largest one; -inf where float32 overflows."""
        found: Floats
        if self.logits.dtype == np.float64:
            found = self.logits - largest
        else:
            with np.errstate(over="ignore"):
                found = self.logits - largest
        return found

    def take(self, which: npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice, *, in_order: bool) -> Candidates:
        """Selects candidates; if there are few, their logits become float64."""
        logits = self.logits[which]
        return Candidates(self.ids[which], logits.astype(np.float64) if logits.size <= FEW else logits, in_order)

    def best(self, count: int) -> Candidates:
        """The ``count`` candidates with the largest logits, sorted."""
        if self.sorted:
            return self if count >= len(self.ids) else self.take(slice(count), in_order=True)
        if count >= len(self.ids):
            return self.take(_smallest_first(-self.logits), in_order=True)
        (above,) = (self.logits >= _reached_by(self.logits, count)).nonzero()
        order = above[_smallest_first(-self.logits[above])]
        return self.take(order[:count], in_order=True)


def _reached_by(values: Floats, count: int) -> Any:
    """A number that at least ``count`` of the values reach, and not many more.

    Only the maxima of groups are partitioned, not all values.
    """
    size = len(values) // GROUPS
    if size > 1 and 4 * count <= GROUPS:
        values = np.maximum.reduce(values[: size * GROUPS].reshape(size, GROUPS))
    else:
        values = values.copy()
    values.partition(-count)
    return values[-count]


def _smallest_first(values: Floats) -> npt.NDArray[np.int64]:
    """The indices that sort the values; of equal values, the first comes first.

    Many values are sorted as integers of value and index, several times as fast as a stable sort; float64 is rounded to
    float32 for that.
    """
    if len(values) <= FEW:
        return values.argsort(kind="stable")
    with np.errstate(over="ignore"):  # to infinity
        single = values.astype(np.float32) + np.float32(0)  # 0 instead of -0
    bits = single.view(np.int32).astype(np.int64)
    ordered = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # floats compare as their bits do, negative ones reversed
    keys = np.sort((ordered << 32) + np.arange(len(values)))
    return keys & 0xFFFFFFFF


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keeps the ``k`` most probable tokens (Fan et al. 2018); 0 keeps all."""
    return candidates.best(k) if k else candidates


def _cumulative(candidates: Candidates) -> Floats:
    """The cumulative probabilities of sorted candidates, relative to the probability of the first."""
    found: Floats = np.exp(candidates.below(candidates.logits[0])).cumsum(dtype=np.float64)
    return found


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the fewest most probable tokens whose probabilities sum up to ``p`` (Holtzman et al. 2020)."""
    if p >= 1:
        return candidates
    best = candidates
    if candidates.sorted:
        cumulative = _cumulative(candidates)
        total = cumulative[-1]
    else:
        count = len(candidates.ids)
        total = np.exp(candidates.below(candidates.logits.max())).sum(dtype=np.float64)
        for many in (FEW, 16 * FEW, count):
            if many < count // 4 or many == count:
                best = candidates.best(many)
                cumulative = _cumulative(best)
                if cumulative[-1] >= p * total:
                    break
    return best.take(slice(int(cumulative.searchsorted(p * total)) + 1), in_order=True)


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the tokens with at least ``p`` times the largest probability (Nguyen et al. 2024)."""
    if not p:
        return candidates
    (kept,) = (candidates.logits >= candidates.largest + math.log(p)).nonzero()
    return candidates.take(kept, in_order=candidates.sorted)


def typical_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the tokens with information nearest to the entropy, of total probability p (Meister et al. 2023)."""
    if p >= 1:
        return candidates
    probabilities = candidates.probabilities
    with np.errstate(divide="ignore"):
        information = -np.log(probabilities)
    there = probabilities > 0
    entropy = np.sum(probabilities[there] * information[there], dtype=np.float64)
    order = _smallest_first(np.abs(information - entropy))
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    count = int(np.searchsorted(cumulative, p, side="right")) + 1
    return candidates.take(order[:count], in_order=False)


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keeps the tokens whose logits are at most n standard deviations below the largest one (Tang et al. 2024)."""
    if not n:
        return candidates
    finite = candidates.logits[candidates.logits > -np.inf]
    limit = finite.max() - n * finite.std(dtype=np.float64)
    return candidates.take(np.flatnonzero(candidates.logits >= limit), in_order=candidates.sorted)


def xtc(candidates: Candidates, probability: float, threshold: float, random: np.random.Generator) -> Candidates:
    """At random, leaves out all but the least probable of the tokens above a threshold (Weidmann 2024, "XTC").

    ``probability``: how probable it is that tokens are left out; if 0, no random number is drawn.  ``threshold``: the
    smallest probability of these tokens.
    """
    if not probability or threshold > 0.5 or len(candidates.ids) < 2 or random.random() > probability:
        return candidates
    candidates = candidates.best(len(candidates.ids))
    probabilities = candidates.probabilities
    above = int(np.count_nonzero((probabilities >= threshold) & (probabilities > 0)))
    return candidates.take(slice(max(above - 1, 0), None), in_order=True)


def temperature(candidates: Candidates, value: float, reach: float = 0.0, exponent: float = 1.0) -> Candidates:
    """Divides the logits by a temperature; 0 keeps the most probable token only.

    ``reach``: the temperature is between ``value - reach`` and ``value + reach``, by the entropy of the tokens relative
    to the largest possible one, to the power of ``exponent`` (llama.cpp's dynamic temperature).
    """
    if reach and len(candidates.ids) > 1:
        probabilities = candidates.probabilities
        there = probabilities[probabilities > 0]
        entropy = -np.sum(there * np.log(there), dtype=np.float64) / np.log(len(candidates.ids))
        least = max(0.0, value - reach)
        value = least + (value + reach - least) * min(float(entropy), 1.0) ** exponent
    if value <= 0:
        return candidates.best(1)
    largest, (tiny, most) = candidates.largest, _RANGE[candidates.logits.dtype]
    if tiny <= value <= most and abs(float(largest)) <= most * min(value, 1.0):
        with np.errstate(over="ignore"):  # to -inf
            return Candidates(candidates.ids, candidates.logits / value, candidates.sorted)
    # Relative to the largest logit, so that overflow gives -inf.
    with np.errstate(over="ignore"):
        return candidates._replace(logits=(candidates.logits.astype(np.float64) - largest) / value)

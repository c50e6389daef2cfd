"""How far the predictions of a model are from those of another one, as ``llama-perplexity --kl-divergence`` says it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.types import Type
from ggplug_models.checks.ids import token_ids
from ggplug_models.perplexity import ROWS, check_finite, perplexity_of, predictions
from ggplug_models.quality.base_logits import BaseLogits
from ggplug_models.state.session import LanguageModel

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_LEAST = -16
"""log p of the base model below which a token does not count: the file has no smaller ones."""


class Estimate(NamedTuple):
    """A mean, or a number computed from means, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """What was measured for each token of some chunks of a text.

    ``surprises``, ``base_surprises``: -log p of the token by the model, and by the base model.  ``kld``: the Kullback-
    Leibler divergence of the model's probabilities from the base model's, of all tokens of the vocabulary.  ``same``:
    whether both find the same token the most probable.  ``chunks``: the number of chunks.
    """

    surprises: Doubles
    base_surprises: Doubles
    kld: Doubles
    same: npt.NDArray[np.bool_]
    chunks: int

    @property
    def tokens(self) -> int:
        """The number of tokens that were predicted."""
        return len(self.kld)

    @property
    def perplexity(self) -> Estimate:
        return _exp(_mean(self.surprises))

    @property
    def base_perplexity(self) -> Estimate:
        return _exp(_mean(self.base_surprises))

    @property
    def log_ratio(self) -> Estimate:
        """The logarithm of the ratio of the perplexities, that of the base model being the denominator."""
        return _mean(self.surprises - self.base_surprises)

    @property
    def ratio(self) -> Estimate:
        """The ratio of the perplexities."""
        return _exp(self.log_ratio)

    @property
    def difference(self) -> Estimate:
        """The difference of the perplexities."""
        value, base = self.perplexity, self.base_perplexity
        if not (math.isfinite(value.value) and math.isfinite(base.value)):
            return Estimate(math.nan, math.nan)
        # The perplexities change with the means of the surprises by themselves.
        spread = value.value * self.surprises - base.value * self.base_surprises
        return Estimate(value.value - base.value, _mean(spread).error)

    @property
    def correlation(self) -> float:
        """The correlation of the surprises; NaN if those of one model are all the same."""
        a, b = self.surprises - self.surprises.mean(), self.base_surprises - self.base_surprises.mean()
        scale = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
        return float((a * b).sum()) / scale if scale else math.nan

    @property
    def mean(self) -> Estimate:
        """The mean divergence."""
        return _mean(self.kld)

    @cached_property
    def changes(self) -> Doubles:
        """For each token, its probability by the model minus that by the base model."""
        return np.exp(-self.surprises) - np.exp(-self.base_surprises)

    @property
    def mean_change(self) -> Estimate:
        return _mean(self.changes)

    @property
    def rms_change(self) -> Estimate:
        """The root of the mean square of the changes."""
        mean = _mean(self.changes**2)
        value = math.sqrt(mean.value)
        return Estimate(value, mean.error / (2 * value) if value else 0.0)

    @property
    def same_top(self) -> Estimate:
        """The fraction of tokens before which both models find the same token the most probable."""
        return _mean(self.same.astype(np.float64))


def _mean(values: Doubles) -> Estimate:
    error = math.sqrt(float(values.var()) / max(len(values) - 1, 1))
    return Estimate(float(values.mean()), error)


def _exp(mean: Estimate) -> Estimate:
    value = perplexity_of(mean.value)
    return Estimate(value, value * mean.error if value < math.inf else math.inf)


def divergences(
    model: LanguageModel, base: BaseLogits, *, chunks: int | None = None, cache_type: str | Type = "f16"
) -> Iterator[Divergence]:
    """Yields how far a model's predictions are from those in a file, after each chunk for all chunks so far.

    ``chunks``: maximum number of chunks.  Raises ParameterError if the file's model has another vocabulary, and for
    fewer chunks than one; ModelError if the file is damaged, or logits are not finite; and what sessions raise.
    """
    if base.n_vocab != model.n_vocab:
        raise ParameterError(
            f"{base.path} is of a model with {base.n_vocab} tokens, and this one has {model.n_vocab}: only models with "
            "the same vocabulary can be compared",
            got=base.n_vocab,
            wanted=model.n_vocab,
        )
    if chunks is not None and chunks < 1:
        raise ParameterError(f"chunks must be at least 1, got {chunks}", got=chunks)
    token_ids(base.chunks.reshape(-1), model.n_vocab, f"the text of {base.path}")
    parts: list[_Columns] = []
    for each in predictions(model, base.chunks[:chunks], cache_type):
        for at in range(0, len(each.logits), ROWS):
            logits, following = each.logits[at : at + ROWS], each.following[at : at + ROWS]
            expected = base.read(each.chunk, each.first + at, len(logits))
            parts.append(_compared(logits, expected, following))
            check_finite(parts[-1].surprises, each)
        if each.ends:
            found = _Columns(*map(np.concatenate, zip(*parts, strict=True)))
            parts = [found]
            yield Divergence(*found, chunks=each.chunk + 1)


class _Columns(NamedTuple):
    """What is measured for each token; see :class:`Divergence`."""

    surprises: Doubles
    base_surprises: Doubles
    kld: Doubles
    same: npt.NDArray[np.bool_]


def _compared(logits: Floats, expected: Floats, following: npt.NDArray[np.int64]) -> _Columns:
    """Rows of logits, rows of log p by the base model, and the tokens that follow: (n, n_vocab), twice, and (n,)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    parts = np.where(expected > _LEAST, np.exp(expected) * (expected - log_p), np.float32(0))
    kld = parts.sum(axis=1, dtype=np.float64)
    chosen = following[:, np.newaxis]
    surprise, base_surprise = (-np.take_along_axis(each, chosen, axis=1)[:, 0] for each in (log_p, expected))
    same = logits.argmax(axis=1) == expected.argmax(axis=1)
    return _Columns(surprise.astype(np.float64), base_surprise.astype(np.float64), kld, same)

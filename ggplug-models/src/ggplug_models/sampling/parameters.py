"""The settings of a sampler, with checks of their ranges."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np

from ggplug.errors import ParameterError
from ggplug_models.checks.arguments import LARGEST, number, whole
from ggplug_models.metadata.values import LARGEST_SINGLE, short_repr

ORDER = ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
"""The default order of the sampling steps, that of llama.cpp."""


class Range(NamedTuple):
    """The smallest and the largest value of a setting."""

    least: float
    most: float


Magnitude: TypeAlias = Annotated[float, Range(0, LARGEST_SINGLE)]
Penalty: TypeAlias = Annotated[float, Range(-1e6, 1e6)]
Probability: TypeAlias = Annotated[float, Range(0, 1)]
Count: TypeAlias = Annotated[int, Range(0, LARGEST)]
Last: TypeAlias = Annotated[int, Range(-1, LARGEST)]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings of a :class:`Sampler`; the defaults are those of llama.cpp.

    ``temperature``: divides the logits; 0 chooses the most probable token.  ``dynamic_range``: the temperature varies
    from ``temperature - dynamic_range`` to ``temperature + dynamic_range``, by the entropy of the tokens to the power
    of ``dynamic_exponent``.  ``top_k``: keep the ``top_k`` most probable tokens; 0: all.  ``top_p``: keep the most
    probable tokens whose probabilities sum up to ``top_p``; 1: all.  ``min_p``: keep tokens with at least ``min_p``
    times the largest probability.  ``typical_p``: as ``top_p``, for the tokens whose information is nearest to the
    entropy.  ``top_n_sigma``: keep tokens whose logits are at most this many standard deviations below the largest one;
    0: all.

    ``repeat_penalty``: divides positive logits, and multiplies others, of the tokens among the last ``penalty_last_n``
    (-1: all).  ``presence_penalty``: is subtracted from these logits once; ``frequency_penalty``: once for each
    occurrence.

    ``mirostat``: 1 or 2 keeps the information of each token near ``mirostat_tau`` bits, with the learning rate
    ``mirostat_eta``, instead of the other steps.  ``xtc_probability``: probability of leaving out all but the least
    probable of the tokens with at least the probability ``xtc_threshold``.

    ``dry_multiplier``: ``dry_multiplier * dry_base ** n`` is subtracted from the logit of a token that continues a
    repetition, where ``n`` is the length of the repetition minus ``dry_allowed_length``.  Repetitions are searched in
    the last ``dry_last_n`` tokens (-1: all), and end at the strings ``dry_breakers``.

    ``logit_bias``: numbers to add to logits, by token id; -inf forbids a token.  ``order``: the sampling steps in their
    order; steps of :data:`ORDER` that are missing are skipped.  ``seed``: of the random numbers; None: a random one.

    Raises ParameterError for values out of range.
    """

    temperature: Magnitude = 0.8
    dynamic_range: Magnitude = 0.0
    dynamic_exponent: Magnitude = 1.0
    top_k: Count = 40
    top_p: Probability = 0.95
    min_p: Probability = 0.05
    typical_p: Probability = 1.0
    top_n_sigma: Magnitude = 0.0
    repeat_penalty: Annotated[float, Range(1e-9, LARGEST_SINGLE)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    penalty_last_n: Last = 64
    mirostat: Annotated[int, Range(0, 2)] = 0
    mirostat_tau: Magnitude = 5.0
    mirostat_eta: Magnitude = 0.1
    xtc_probability: Probability = 0.0
    xtc_threshold: Probability = 0.1
    dry_multiplier: Magnitude = 0.0
    dry_base: Annotated[float, Range(1, LARGEST_SINGLE)] = 1.75
    dry_allowed_length: Count = 2
    dry_last_n: Last = -1
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    order: tuple[str, ...] = ORDER
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (kind, (least, most)) in SETTINGS.items():
            value = getattr(self, name)
            found = whole(name, value, int(least), int(most)) if kind is int else number(name, value, least, most)
            object.__setattr__(self, name, found)
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed, 0, 2**64 - 1))
        self._check_collections()

    def _check_collections(self) -> None:
        for name in ("dry_breakers", "order"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and each for each in value):
                wanted = "a tuple of strings that are not empty"
                raise ParameterError(f"{name} must be {wanted}, got {short_repr(value)}", got=value, wanted=wanted)
        if len(set(self.order)) != len(self.order) or not set(self.order) <= set(ORDER):
            wanted = f"steps of {', '.join(ORDER)}, each once"
            raise ParameterError(f"order must name {wanted}, got {self.order!r}", got=self.order, wanted=wanted)
        if not isinstance(self.logit_bias, Mapping):
            wanted = "a dict of numbers by token"
            got = short_repr(self.logit_bias)
            raise ParameterError(f"logit_bias must be {wanted}, got {got}", got=self.logit_bias, wanted=wanted)
        object.__setattr__(self, "logit_bias", dict(_bias(*each) for each in self.logit_bias.items()))


def _bias(token: Any, bias: Any) -> tuple[int, float]:
    token = whole("logit_bias's token", token)
    if isinstance(bias, (float, np.floating)) and bias == -math.inf:
        return token, -math.inf
    return token, number(f"logit_bias[{token}]", bias, -LARGEST_BIAS, LARGEST_BIAS)


LARGEST_BIAS = sys.float_info.max
"""The largest bias; biases beyond the range of float32 count as its largest number."""

SETTINGS: Mapping[str, tuple[type, Range]] = {
    name: get_args(hint)
    for name, hint in get_type_hints(Sampling, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""The settings that are numbers, with their type (int or float) and range."""

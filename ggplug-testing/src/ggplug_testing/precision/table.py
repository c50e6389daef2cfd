"""The rule of a node, and how far its elements may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug_testing.description import RULES
from ggplug_testing.precision.rule import DEVIATIONS, UNIT, Rule, none


def _largest(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    given = [exact, *(each for each in sources if each is not None and each.dtype.kind == "f")]
    return np.full_like(exact, 32 * max(np.abs(each).max(initial=0, where=np.isfinite(each)) for each in given))


OTHER = Rule("other", "32 max(abs(y), abs(sources))", "whatever the op does in float32", _largest)
"""The rule of an op of another package that brings none."""


def rule_of(node: Tensor) -> Rule:
    """The rule of a node's op."""
    assert node.op is not None
    return RULES.get(node.op.name, OTHER)


def tolerance(node: Tensor, exact: Array, sources: Sequence[Array | None]) -> Array:
    """How far each element of ``node`` may be from ``exact`` before both are rounded to the node's type.

    ``exact``: the reference of ``sources``; all four-dimensional, in NumPy order.  0 where ``exact`` is not finite.
    """
    rule = rule_of(node)
    if rule.tolerance is none:
        return np.zeros_like(exact)
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        roundings = np.broadcast_to(rule.tolerance(node, exact, *sources), exact.shape)
        if (np.isnan(roundings) & finite).any():
            # A number that is not finite has entered elements that it has no part in: sums of a whole row, say.
            tamed = [None if each is None else _tamed(each) for each in sources]
            without = np.broadcast_to(rule.tolerance(node, np.where(finite, exact, 0), *tamed), exact.shape)
            roundings = np.where(np.isnan(roundings), without, roundings)
        return np.where(finite, np.nan_to_num(roundings, nan=0.0, posinf=np.inf) * UNIT, 0.0)


def _tamed(values: Array) -> Array:
    """With 0 in the place of what is not finite."""
    return values if values.dtype.kind != "f" else np.where(np.isfinite(values), values, 0)


def mean_square(count: int) -> float:
    """How often its expectation the mean of ``count`` square errors may be; see the module's docstring."""
    return 2 * (1 + DEVIATIONS * math.sqrt(2 / max(1, count)))

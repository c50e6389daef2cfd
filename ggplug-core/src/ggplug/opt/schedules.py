"""Step sizes that change from step to step: functions of the number of the step, from 0 on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

Schedule: TypeAlias = Callable[[int], float]


def linear(alpha: float, steps: int, *, warmup: int = 0, last: float = 0.0) -> Schedule:
    """From ``alpha`` to ``last`` in ``steps`` steps, after ``warmup`` ones in which it rises from 0."""
    return lambda step: _warm(step, warmup) * (last + (alpha - last) * (1 - _part(step, steps, warmup)))


def cosine(alpha: float, steps: int, *, warmup: int = 0, last: float = 0.0) -> Schedule:
    """As :func:`linear`, along half a cosine (arXiv:1608.03983)."""
    return lambda step: (
        _warm(step, warmup) * (last + (alpha - last) * (1 + math.cos(math.pi * _part(step, steps, warmup))) / 2)
    )


def _warm(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / (warmup + 1))


def _part(step: int, steps: int, warmup: int) -> float:
    """How much of the steps after the warmup is done, from 0 to 1."""
    return min(1.0, max(0, step - warmup) / max(1, steps - warmup))

"""Optimisers: how parameters change by their gradients, as ops, and the tensors that an optimiser keeps of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ggplug import ops
from ggplug.errors import ParameterError
from ggplug.opt.schedules import Schedule
from ggplug.tensor import Tensor

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class AdamW:
    """AdamW (arXiv:1711.05101): moments m and v of each parameter; see :class:`~ggplug.ops.OptStepAdamw`.

    Raises ParameterError for settings that are no finite numbers or negative, and for betas from 1 on.
    """

    alpha: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    wd: float = 0.0

    moments: ClassVar[tuple[str, ...]] = ("m", "v")
    """The names of what is kept of each parameter, in its shape, zero at first."""

    def __post_init__(self) -> None:
        _check(self, below_1=("beta1", "beta2"))

    def settings(self, step: int) -> Array:
        """The source ``params`` of the op in this step, from 0 on."""
        corrections = 1 / (1 - self.beta1 ** (step + 1)), 1 / (1 - self.beta2 ** (step + 1))
        numbers = _at(self.alpha, step), self.beta1, self.beta2, self.eps, self.wd, *corrections
        return np.array(numbers, np.float32)

    def step(self, w: Tensor, grad: Tensor, moments: Sequence[Tensor], settings: Tensor) -> Tensor:
        """The node that changes a parameter and its moments."""
        m, v = moments
        return ops.opt_step_adamw(w, grad, m, v, settings)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent; see :class:`~ggplug.ops.OptStepSgd`.  Raises ParameterError as :class:`AdamW`."""

    alpha: float | Schedule = 1e-2
    wd: float = 0.0

    moments: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check(self)

    def settings(self, step: int) -> Array:
        """The source ``params`` of the op in this step, from 0 on."""
        return np.array([_at(self.alpha, step), self.wd], np.float32)

    def step(self, w: Tensor, grad: Tensor, moments: Sequence[Tensor], settings: Tensor) -> Tensor:
        """The node that changes a parameter."""
        return ops.opt_step_sgd(w, grad, settings)


Optimiser = AdamW | SGD


def _check(optimiser: Optimiser, below_1: Sequence[str] = ()) -> None:
    for field in fields(optimiser):
        value = getattr(optimiser, field.name)
        if not callable(value):
            _checked(field.name, value, 1.0 if field.name in below_1 else math.inf)


def _checked(name: str, value: object, below: float = math.inf) -> float:
    """A setting, from 0 on and less than ``below``."""
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < below:
        return float(value)
    wanted = "a finite number from 0 on" if below == math.inf else f"a number from 0 on and less than {below:g}"
    raise ParameterError(f"{name} must be {wanted}, got {value!r:.100}", got=value, wanted=wanted)


def _at(alpha: float | Schedule, step: int) -> float:
    return _checked(f"alpha of step {step}", alpha(step)) if callable(alpha) else alpha

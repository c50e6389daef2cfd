"""Checks arguments; errors name the parameter, its value, and the values that are allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import LARGEST_SINGLE, short_repr

LARGEST = 2**31 - 1
"""Largest integer, unless another limit is given."""


def whole(name: str, value: Any, at_least: int = 0, at_most: int = LARGEST) -> int:
    """An integer from ``at_least`` to ``at_most``, of Python or NumPy.  Raises ParameterError."""
    if type(value) is int and at_least <= value <= at_most:  # without a call: it is asked for each token
        return value
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not at_least <= value <= at_most:
        wanted = f"an integer {_range(value, at_least, at_most, LARGEST)}"
        raise ParameterError(f"{name} must be {wanted}, got {short_repr(value)}", got=value, wanted=wanted)
    return int(value)


def natural(text: str) -> int | None:
    """The number that a text of up to 18 decimal digits is; None for any other text."""
    return int(text) if len(text) <= 18 and text.isdecimal() else None


def number(name: str, value: Any, at_least: float = -LARGEST_SINGLE, at_most: float = LARGEST_SINGLE) -> float:
    """A finite number from ``at_least`` to ``at_most``, of Python or NumPy.  Raises ParameterError."""
    fits = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not fits or not at_least <= value <= at_most or not math.isfinite(value):
        wanted = f"a number {_range(value, at_least, at_most, LARGEST_SINGLE)}"
        raise ParameterError(f"{name} must be {wanted}, got {short_repr(value)}", got=value, wanted=wanted)
    return float(value)


def check_sequence(values: Any, what: str) -> None:
    """Raises ParameterError for a value that is not a sequence, such as a generator, a string, a dict or a set."""
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, (str, bytes)):
        raise ParameterError(f"{what} must be a sequence, got {type(values).__name__}", got=type(values))


def check_callable(name: str, value: Any, wanted: str) -> None:
    """Raises ParameterError for a value that is not callable.  ``wanted`` describes the callable in the message."""
    if not callable(value) or isinstance(value, type):
        raise ParameterError(f"{name} must be {wanted}, got {short_repr(value)}", got=value, wanted=wanted)


def check_progress(progress: Any) -> None:
    """Raises ParameterError for a ``progress`` that is neither None nor callable."""
    if progress is not None:
        check_callable("progress", progress, "None, or a function that is called with the progress")


def _range(value: Any, least: float, most: float, largest: float) -> str:
    if most == largest and least > -largest and not _is_beyond(value, most):
        return f"of at least {least:g}"
    return f"from {_formatted(least)} to {_formatted(most)}"


def _is_beyond(value: Any, most: float) -> bool:
    """Whether the value is a number above the largest allowed, so that the error names that limit as well."""
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(value > most)


def _formatted(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.8g}"

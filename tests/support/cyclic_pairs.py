"""Pairs of values and places for tests: each value in one place, because all pairs would take too long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def cyclic_pairs(values: Iterable[Any], places: Sequence[Any]) -> list[Any]:
    """All pairs: value n with place n modulo the number of places runs always, the others are marked as long."""
    return [
        pytest.param(value, place, marks=() if n % len(places) == m else pytest.mark.long)
        for n, value in enumerate(values)
        for m, place in enumerate(places)
    ]

"""Values and places in turn: each value in one place, which takes a fraction of the time of all of them in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def taking_turns(values: Iterable[Any], places: Sequence[Any]) -> list[Any]:
    """Pairs of a value and a place: of the first value with the first place, and so on; the other pairs are long."""
    return [
        pytest.param(value, place, marks=() if n % len(places) == m else pytest.mark.long)
        for n, value in enumerate(values)
        for m, place in enumerate(places)
    ]

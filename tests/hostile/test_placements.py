"""Random placements are computed right or refused with a typed error, and leave nothing behind."""

from __future__ import annotations

import pytest

from .placements import trial
from .seeds import outcomes

CHUNK = 1000


def check(first: int, count: int) -> None:
    found = outcomes(trial, range(first, first + count))
    assert found["right"] > count // 4, found
    assert {"OutOfMemoryError", "PlacementError"} <= set(found)


def test_some_random_placements_are_right_or_refused() -> None:
    check(0, 200)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 50_000, CHUNK))
def test_many_random_placements_are_right_or_refused(first: int) -> None:
    check(first, CHUNK)

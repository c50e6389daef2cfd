"""Several devices as one compute what one device computes, or raise a typed error, and leave nothing behind."""

from __future__ import annotations

import pytest

from .members import trial
from .seeds import outcomes

CHUNK = 1000


def check(first: int, count: int) -> None:
    found = outcomes(trial, range(first, first + count))
    assert found["right"] > count // 4, found
    assert set(found) == {"right", "ComputeError", "OutOfMemoryError", "PlacementError"}


def test_some_random_members_compute_right_or_refuse() -> None:
    check(0, 150)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10_000, CHUNK))
def test_many_random_members_compute_right_or_refuse(first: int) -> None:
    check(first, CHUNK)

"""Fuzzers whose cases are made from a seed: counts the outcomes, and repeats cases from the command line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable

Trial = Callable[[int], str]
"""Runs the case of a seed; returns its outcome: ``right``, or the name of the error.  Raises :class:`Fault`."""


class Fault(AssertionError):
    """What must not happen."""


def outcomes(trial: Trial, seeds: Iterable[int]) -> Counter[str]:
    """How often each outcome came; the seed of a fault is in its message."""
    found: Counter[str] = Counter()
    for seed in seeds:
        try:
            found[trial(seed)] += 1
        except Exception as error:
            raise Fault(f"seed {seed}: {type(error).__name__}: {error}") from error
    return found


def main(trial: Trial) -> None:
    """Runs the seeds from the first argument to the last one."""
    print(outcomes(trial, range(int(sys.argv[1]), int(sys.argv[-1]) + 1)))

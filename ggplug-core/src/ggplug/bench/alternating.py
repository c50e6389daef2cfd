"""Functions of a benchmark, measured alternately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

REST = 0.005
"""Seconds for which a function runs before it is timed."""


def timed_alternately(
    functions: Mapping[str, Callable[[], Any]], repeats: int, rest: float = REST
) -> dict[str, list[float]]:
    """Seconds of each run of each function.

    In each round every function runs once, so that a slow minute of the machine slows all of them.  ``rest``: seconds
    for which a function runs before it is timed, at least once.  This wakes its threads, fills the caches with its
    data, and lets the threads of the previous function, which still spin, fall asleep.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for run in functions.values():
        run()
    for _ in range(repeats):
        for name, run in functions.items():
            rested = time.perf_counter() + rest
            run()
            while time.perf_counter() < rested:
                run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def speed_relative(times: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """How many times as fast as function ``base`` function ``name`` ran: the median of the rounds' ratios.

    Both runs of a round met about the same machine, so a slower minute changes their ratio little; the best run of one
    may have met a faster machine than any run of the other.
    """
    return statistics.median(b / a for a, b in zip(times[name], times[base], strict=True))


def best_times(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of the best run of each function."""
    return {name: min(taken) for name, taken in timed_alternately(functions, repeats).items()}

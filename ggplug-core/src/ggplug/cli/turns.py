"""Functions of a benchmark, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

REST = 0.005
"""Seconds for which a function runs before it is timed."""


def take_turns(
    functions: Mapping[str, Callable[[], Any]], repeats: int, rest: float = REST
) -> dict[str, list[float]]:
    """Seconds of each run of each function; they take turns, so that a slower minute is a slower minute for all.

    ``rest``: seconds for which a function runs before it is timed, at least once.  This wakes its threads, takes the
    caches back from the one before, and lets that one's threads, which spin on after their work, fall asleep.
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


def best_times(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of the best run of each function."""
    return {name: min(taken) for name, taken in take_turns(functions, repeats).items()}

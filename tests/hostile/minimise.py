"""Makes a case that found something small: simpler choices, one after the other, while it still finds the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .draw import draw

TRIES = 200
"""How many simpler cases are tried."""


def minimise(name: str, same: Callable[[dict[str, Any]], bool], tries: int = TRIES) -> dict[str, Any]:
    """Choices to give to the case ``name`` so that it is small and ``same(choices)`` is still true."""
    fixed: dict[str, Any] = {}
    progress = True
    while progress and tries > 0:
        progress = False
        made = draw(name, fixed).draw.made
        for what, (value, options) in made.items():
            for simpler in _simpler(value, options):
                if tries <= 0:
                    return _used(name, fixed)
                tries -= 1
                trial = {**fixed, what: simpler}
                try:
                    draw(name, trial)
                except Exception:
                    continue
                if same(trial):
                    fixed, progress = trial, True
                    break
    return _used(name, fixed)


def _used(name: str, fixed: dict[str, Any]) -> dict[str, Any]:
    """Those of the choices that the case still makes."""
    made = draw(name, fixed).draw.made
    return {what: value for what, value in fixed.items() if what in made}


def _simpler(value: Any, options: tuple[Any, ...]) -> list[Any]:
    """The options that are simpler than a value: those before it, the simplest first."""
    if value not in options:
        return []
    before = list(options[: options.index(value)])
    return before if len(before) < 4 else [before[0], before[1], before[len(before) // 2]]

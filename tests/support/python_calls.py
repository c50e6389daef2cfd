"""Counting what an action calls."""

from __future__ import annotations

import sys
from typing import Any


def python_calls(action: Any) -> int:
    """How many Python and C functions are called."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls

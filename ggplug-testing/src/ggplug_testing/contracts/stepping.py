"""Frees a buffer at any step of a call: for work that does not check by core's methods whether the buffer exists.

The call is repeated; each time another thread frees the buffer before the next line of its Python code.  The memory is
not really released, so that a faulty device does not end the process: writes into the buffer after the free are found.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

import numpy as np

from ggplug.backend import Buffer
from ggplug.errors import BufferUseError
from ggplug_testing.contracts.holding import Aside

MOST = 400
"""Steps that are tried at most, evenly spread over a call that has more."""

PATIENCE = 0.25
"""Seconds after which a free that has not returned waits for something else than a claim."""

Seen = Literal["beyond", "waited", "noticed", "done before", "used", "unknown"]
"""What came of a free before a step.

``beyond``: the call has no such step; ``waited``: the free did, until the call was over; ``noticed``: the call raised
BufferUseError; ``done before``: the buffer was not written any more; ``used``: it was, after it was freed; ``unknown``:
the free waited for something else than a claim.
"""


def count_steps(call: Callable[[], object]) -> int:
    """The number of lines of Python code that a call executes."""
    lines = itertools.count()
    traced(call, lambda: next(lines))
    return next(lines)


def chosen_steps(count: int) -> list[int]:
    """The steps to free at, of so many: all, or :data:`MOST` of them."""
    return list(range(count)) if count <= MOST else [round(each) for each in np.linspace(0, count - 1, MOST)]


def freed_at(step: int, buffer: Buffer, call: Callable[[], object]) -> Seen:
    """What comes of freeing ``buffer`` from another thread before a step of ``call``."""
    freeing: list[Aside] = []
    states: list[bool | None] = []
    vars(buffer)["_free"] = lambda: None
    poison = np.full(buffer.size, 0xA5, np.uint8)

    def free() -> None:
        freeing.append(Aside(buffer.free))
        states.append(freeing[0].settled(PATIENCE))
        if states[0]:
            buffer._set(0, poison)

    noticed = False
    try:
        try:
            at_step(step, call, free)
        except BufferUseError:
            if not states:
                raise
            noticed = True
        if not states:
            return "beyond"
        freeing[0].join("freeing a buffer")
        if not states[0]:
            return "unknown" if states[0] is None else "waited"
        now = np.empty(buffer.size, np.uint8)
        buffer._get(0, now)
        if not np.array_equal(now, poison):
            return "used"
        return "noticed" if noticed else "done before"
    finally:
        vars(buffer).pop("_free")
        if freeing:
            buffer._free()


def at_step(step: int, call: Callable[[], object], do: Callable[[], object]) -> None:
    """Makes a call, and calls ``do`` before one of its steps, if it has so many."""
    lines = itertools.count()
    traced(call, lambda: next(lines) == step and do())


def traced(call: Callable[[], object], at: Callable[[], object]) -> None:
    """Makes a call, and calls ``at`` before each line of Python code that it executes in this thread."""

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            at()
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)

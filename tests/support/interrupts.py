"""Ctrl-C at every place where Python delivers it: as functions are entered, and as functions written in C return."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ggplug.sharing import HELD, Held

DROPPED = ("__del__", "_graph_was_freed", "_remove", "<genexpr>")


def interrupted_everywhere(
    action: Callable[[], Any], where: Callable[[FrameType], bool] = lambda frame: True
) -> Iterator[str]:
    """Runs an action again and again, interrupted at the first such place, at the second, and so on.

    Yields the name of the function after each interrupt, while the error and so the frames are still alive; ends when
    the action came to its end.  ``where``: the functions that count, those that are entered or that called into C.
    """
    for number in itertools.count():
        with interrupted_at(number, action, where) as place:
            if place is None:
                return
            yield place


@contextmanager
def interrupted_at(
    number: int, action: Callable[[], Any], where: Callable[[FrameType], bool] = lambda frame: True
) -> Iterator[str | None]:
    """Runs an action once, interrupted at one place; gives its name, or None where the action came to its end."""
    places: list[str] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        # What finalizers, weakrefs and generators that end do is not interrupted: Python prints and drops the error.
        if event in ("call", "c_return") and where(frame) and not dropped(frame):
            place = frame.f_code.co_qualname
            places.append(place if event == "call" else f"{place}, after {called.__qualname__}")
            if len(places) > number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    kept: BaseException | None = None
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    except KeyboardInterrupt as error:
        kept = error
    finally:
        sys.setprofile(before)
    yield places[number] if len(places) > number else None
    del kept


def dropped(frame: FrameType | None) -> bool:
    """Whether Python would drop an error that this frame raises."""
    while frame is not None:
        if frame.f_code.co_name in DROPPED:
            return True
        frame = frame.f_back
    return False


def still_held() -> list[Held]:
    """What threads hold now, without what has ended while an error keeps its frames."""
    return [held for held in [*HELD.values()] if held.lasts]

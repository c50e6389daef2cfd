"""Ctrl-C at every place where Python delivers it: the entry of each function, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ggplug.sharing import HELD
from ggplug.stacks import is_inside

DROPPED = ("__del__", "_let_go", "_remove", "<genexpr>")


def interrupted_everywhere(
    action: Callable[[], Any], where: Callable[[FrameType], bool] = lambda frame: True
) -> Iterator[str]:
    """Runs an action again and again, interrupted at the entry of its first function, its second, and so on.

    Yields the name of the function after each interrupt, while the error and so the frames are still alive; ends when
    the action came to its end.  ``where``: which functions count.
    """
    number = 0
    while True:
        entered: list[str] = []

        def trace(frame: FrameType, event: str, _: Any) -> None:
            # What finalizers, weakrefs and generators that end do is not interrupted: Python tells and drops the error.
            if event == "call" and where(frame) and not dropped(frame):
                entered.append(frame.f_code.co_qualname)  # noqa: B023
                if len(entered) > number:  # noqa: B023
                    sys.settrace(None)
                    raise KeyboardInterrupt

        kept: BaseException | None = None
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
        except KeyboardInterrupt as error:
            kept = error
        finally:
            sys.settrace(before)
        if len(entered) <= number:
            return
        yield entered[number]
        del kept
        number += 1


def dropped(frame: FrameType | None) -> bool:
    """Whether Python would drop an error that this frame raises."""
    while frame is not None:
        if frame.f_code.co_name in DROPPED:
            return True
        frame = frame.f_back
    return False


def still_held() -> list[Any]:
    """What threads hold now, without what an interrupt left behind."""
    return [held[:3] for held in HELD.copy().values() if held[4] is None or is_inside(held[4])]

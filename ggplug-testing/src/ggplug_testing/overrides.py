"""Which methods of the backend's author a clause of the contract exercises.

A clause that finds something wrong without an exception has no traceback that ends at the author's line.  So it is
checked once more, while every method that an author's class overrides notes when it is called, on whatever thread,
until the clause says what is wrong: what is called afterwards cleans up.  Those come first that the clause is about,
which its sentence names ``like this``, and those last that give it what it works with.
"""

from __future__ import annotations

import contextlib
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from ggplug.backend import Backend, Buffer, BufferType, Device, Event, Plan, Registration
from ggplug_testing.reporting.causes import CORE, Line, home_of

ROOTS = (Registration, Device, BufferType, Buffer, Backend, Event, Plan)
"""The classes that authors derive theirs from."""

_STANDARD = str(Path(sysconfig.get_paths()["stdlib"]))
_TESTING = str(Path(__file__).parent)

_BEGINNING = ("buffer_type", "alloc", "_alloc", "alloc_size", "init", "place", "memory", "supports_op", "device")
"""What most clauses call for something to work with."""

_LEADS_TO = {
    "set": ("store",),
    "set_async": ("store",),
    "get": ("fetch",),
    "get_async": ("fetch",),
    "copy_from": ("copy",),
    "copy_async": ("copy",),
    "free": ("dispose", "close"),
}
"""What a device's threads, or core, call because of a method of the interface."""

_COMPUTING = ("compute", "compute_traced", "rebind")
"""Methods because of which plans call ``operand``, when they are bound or on whatever thread they compute."""


class Override(NamedTuple):
    """A method of an author's class; ``by``: the method through which a clause came to it, if that is another one."""

    line: Line
    by: str

    def __str__(self) -> str:
        return f"{self.line}, which {self.by} calls" if self.by else str(self.line)


def exercised(check: Callable[[Device], object], meaning: str, device: Device) -> list[Override]:
    """The author's methods that ``check(device)`` calls; ``meaning`` is the sentence that the check is about.

    Nothing, and it is not checked again, if the device is one of core.
    """
    home = home_of(device)
    if not home:
        return []
    found: dict[Override, None] = {}
    outer = sys.exception()  # what the first check has raised, perhaps
    with contextlib.ExitStack() as ending:
        for owner in dict.fromkeys(owner for root in ROOTS for owner in _overriding(root)):
            for name, method in list(vars(owner).items()):
                if isinstance(method, FunctionType) and not name.startswith("__"):
                    ending.callback(setattr, owner, name, method)
                    setattr(owner, name, _noting(method, found, outer))
        with contextlib.suppress(Exception):
            check(device)
    about = re.findall(r"``[\w.]*?(\w+)``", meaning)
    about = [*(["operand"] if set(about) & set(_COMPUTING) else []), *about]
    after = [name for each in about for name in _LEADS_TO.get(each, ())]

    def order(each: Override) -> tuple[int, bool, int]:
        """Whether the clause is about it, or about what leads to it, and in which order; what all work passes last."""
        names = [each.by, each.line.function.rpartition(".")[2]]
        for rank, known in enumerate((about, after)):
            if places := [known.index(name) for name in names if name in known]:
                return rank, names[1] == "submit", min(places)
        return 3 if (names[0] or names[1]) in _BEGINNING else 2, False, 0

    first: dict[Line, Override] = {}
    near = [each for each in found if each.line.file.startswith(home)]
    for each in sorted(near or found, key=order):
        first.setdefault(each.line, each)
    return list(first.values())


def _overriding(root: type[Any]) -> Iterator[type[Any]]:
    """The classes of authors that derive from one of core's."""
    for each in root.__subclasses__():
        if not (getattr(sys.modules.get(each.__module__), "__file__", None) or "").startswith(CORE):
            yield each
        yield from _overriding(each)


def _noting(method: FunctionType, found: dict[Override, None], outer: BaseException | None) -> Callable[..., Any]:
    """The method, which is noted when another one than authors' calls it, and not because of an exception."""
    code = method.__code__
    line = Line(code.co_filename, code.co_firstlineno, ".".join(code.co_qualname.split(".")[-2:]))

    @wraps(method)
    def noted(*arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        if sys.exception() in (None, outer) and caller.f_code.co_filename.startswith((*CORE, _STANDARD)):
            by = _entered_by(caller)
            found[Override(line, "" if by == code.co_name else by)] = None
        return method(*arguments, **named)

    return noted


def _entered_by(frame: FrameType | None) -> str:
    """The method of the interface that the suite has called to get here; empty in a thread of the device's own."""
    name = ""
    while frame is not None and (frame.f_code.co_name == "noted" or not frame.f_code.co_filename.startswith(_TESTING)):
        called = frame.f_code.co_name
        if not called.startswith("_") and any(hasattr(root, called) for root in ROOTS):
            name = called
        frame = frame.f_back
    return "" if frame is None else name

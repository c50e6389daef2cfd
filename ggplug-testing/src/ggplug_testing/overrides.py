"""Which methods of the backend's author a clause of the contract exercises.

A clause that finds something wrong without an exception has no traceback that ends at the author's line.  So it is
checked once more, while every call of a method is noted that an author's class overrides, until the clause says what
is wrong: what is called afterwards cleans up.  Those come first that the clause is about, to which few other clauses
lead, and those last that give it what it works with.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from ggplug.backend import Backend, Buffer, BufferType, Device, Event, Plan, Registration
from ggplug_testing.reporting.causes import CORE, Line, home_of

ROOTS = (Registration, Device, BufferType, Buffer, Backend, Event, Plan)
"""The classes that authors derive theirs from."""

_STANDARD = str(Path(sysconfig.get_paths()["stdlib"]))
_CONTRACTS = "ggplug_testing.contracts."
_TESTING = str(Path(__file__).parent)


_BEGINNING = ("buffer_type", "alloc", "_alloc", "alloc_size", "init", "place", "memory", "supports_op", "device")
"""What most clauses call for something to work with."""


class Override(NamedTuple):
    """A method of an author's class; ``by``: the method through which a clause came to it, if that is another one."""

    line: Line
    by: str

    def __str__(self) -> str:
        return f"{self.line}, which {self.by} calls" if self.by else str(self.line)


def exercised(
    check: Callable[[Device], object], checks: Collection[Callable[..., Any]], device: Device
) -> list[Override]:
    """The author's methods that ``check(device)`` calls, those first that the fewest of ``checks`` are about.

    Nothing, and it is not checked again, if the device is one of core, or if the process is profiled by somebody else,
    because there is one profiler at a time.
    """
    home = home_of(device)
    if not home or sys.getprofile() is not None:
        return []
    noted = _Calls()
    before = threading.getprofile()
    try:
        threading.setprofile(noted)
        sys.setprofile(noted)
        with contextlib.suppress(Exception):
            check(device)
    finally:
        sys.setprofile(None)
        threading.setprofile(before)
    near = [each for each in noted.found if each.line.file.startswith(home)]
    usual = Counter(name for each in checks for name in _names(each))
    own = _names(check)

    def common(each: Override) -> tuple[bool, float]:
        """Whether this is where a clause begins, and how many clauses use what leads here."""
        name = each.by or each.line.function.rpartition(".")[2]
        return name in _BEGINNING, usual[name] if name in own else 0.4 * len(checks)

    first: dict[Line, Override] = {}
    for each in sorted(near or noted.found, key=common):
        first.setdefault(each.line, each)
    return list(first.values())


def _names(check: Callable[..., Any]) -> set[str]:
    """The names that a clause's function uses, and functions of the contract that it calls."""
    own = set(names_in(check.__code__))
    helpers = [check.__globals__.get(name) for name in own]
    called = [each for each in helpers if isinstance(each, FunctionType) and each.__module__.startswith(_CONTRACTS)]
    return own.union(*(names_in(each.__code__) for each in called))


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function's code uses, also in functions inside of it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)


class _Calls:
    """A profiler's function: notes which methods of authors are called from elsewhere, and by way of what.

    Those that only other methods of authors call are left out.
    """

    def __init__(self) -> None:
        self._found: dict[Override, None] = {}
        self._told = False

    @property
    def found(self) -> list[Override]:
        return list(self._found)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        self._told = self._told or code.co_qualname == "ContractError.__init__"
        if self._told or event != "call" or not _is_authors(code) or code.co_name.startswith("__"):
            return
        own = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        caller = frame.f_back
        if isinstance(own, ROOTS) and not (caller and _is_authors(caller.f_code)):
            name = ".".join(code.co_qualname.split(".")[-2:])
            by = _entered_by(frame)
            line = Line(code.co_filename, code.co_firstlineno, name)
            self._found[Override(line, "" if by == code.co_name else by)] = None


def _is_authors(code: CodeType) -> bool:
    return not code.co_filename.startswith((*CORE, _STANDARD, "<"))


def _entered_by(frame: FrameType) -> str:
    """The method of the interface that the suite has called to get here; empty in a thread of the device's own."""
    name = ""
    current: FrameType | None = frame
    while current is not None and not current.f_code.co_filename.startswith(_TESTING):
        called = current.f_code.co_name
        if not called.startswith("_") and any(hasattr(root, called) for root in ROOTS):
            name = called
        current = current.f_back
    return "" if current is None else name

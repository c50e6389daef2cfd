"""What went wrong, and at which line of the backend's author.

An exception of a device has often come through several hands: a kernel raised, the plan made a typed error of it, a
clause of the contract another one.  What the author needs is the first of them, and the line in their own files.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import ggplug
import ggplug_testing
from ggplug.backend import Decline, Device, Group
from ggplug.errors import GGPlugError, UnsupportedOpError
from ggplug.graph import Graph
from ggplug_testing.reporting.report import Finding, Verdict, without_numbers

_SUITE = tuple(folder + os.sep for folder in ggplug_testing.__path__)

CORE = (*(folder + os.sep for folder in ggplug.__path__), *_SUITE)
"""Where the lines of core and of its suite are, which are nobody's who wrote a backend."""

_LIBRARIES = tuple(
    {path + os.sep for path in map(sysconfig.get_paths().get, ("stdlib", "platstdlib", "purelib", "platlib")) if path}
)

SHOWN = 3
"""How many frames of a traceback are shown."""


class Line(NamedTuple):
    """A line of a file, and the function that it is in."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{_shortened(self.file)}:{self.number} in {self.function}"

    @property
    def code(self) -> str:
        return linecache.getline(self.file, self.number).strip()


class Failure(NamedTuple):
    """What becomes of a case that went wrong: the fields of a :class:`Finding` that describe it."""

    verdict: Verdict
    reason: str
    where: str = ""
    trace: tuple[str, ...] = ()
    cause: str = ""
    in_core: bool = False
    """Whether ``where`` is a line of core, because no line of anybody else raised."""

    def finding(self, subject: str, case: str, types: str = "") -> Finding:
        return Finding(
            subject, case, self.verdict, self.reason, float("inf"), types, self.where, self.trace, self.cause
        )


def of_exception(error: BaseException, device: Device) -> Failure:
    """What an exception that came out of a device says: the first error of its chain, and its lines outside of core.

    The verdict is ``claimed but failed`` for an UnsupportedOpError, which the device raised although it had accepted
    the node; otherwise ``raised``.
    """
    chain = list(_chain(error))
    lines: list[Line] = []
    first = error
    for each in reversed(chain):
        outside = [line for line in _lines(each.__traceback__) if not line.file.startswith(CORE)]
        if outside:
            first, lines = each, outside
            break
    reason = f"{type(first).__name__}: {first}" if first is not error else f"{type(error).__name__}: {error}"
    verdict: Verdict = "claimed but failed" if isinstance(error, UnsupportedOpError) else "raised"
    if not lines:
        inside = list(_lines(error.__traceback__))
        where = str(inside[-1]) if inside else ""
        return Failure(verdict, reason, where, (), f"{type(error).__name__} {without_numbers(str(error))}", True)
    at = _authors(lines, device)
    line = lines[at]
    shown = [str(each) for each in lines[max(0, at + 1 - SHOWN) : at]]
    trace = (*(f"from {each}" for each in reversed(shown)), *(f"into {each}" for each in lines[-1:] if each != line))
    # Typed errors name what they are about: those of different nodes need not have one cause.
    about = f" {first.op}" if isinstance(first, GGPlugError) and first.tensor is not None else ""
    return Failure(verdict, reason, _quoted(line), trace, f"{type(first).__name__} {line}{about}")


def of_kernel(device: Device, group: Group) -> str:
    """Where the kernel that a device has for a group is written, or an empty string."""
    try:
        kernel = device.chosen(group)
    except Exception:
        return ""
    code = None if isinstance(kernel, Decline) else _code(kernel)
    if code is None or code.co_filename.startswith(CORE) or not Path(code.co_filename).is_file():
        return ""
    return f"kernel {Line(code.co_filename, code.co_firstlineno, code.co_name)}"


def names_of_ops(graph: Graph, besides: str = "") -> tuple[str, ...]:
    """The ops of a graph, ``besides`` this one."""
    return tuple(dict.fromkeys(node.op.name for node in graph.nodes if node.op is not None and node.op.name != besides))


def of_dump(dump: str) -> str:
    """The line at which a process was, from what ``faulthandler`` wrote; or an empty string.

    It is the innermost line of an author's code that the suite called; if no thread has one, the innermost line of the
    suite.  The current thread is searched first.
    """
    threads = re.split(r"^(?=Current thread |Thread )", dump, flags=re.MULTILINE)[1:]
    threads.sort(key=lambda thread: not thread.startswith("Current"))
    authors, suites = [], []
    for thread in threads:
        found = re.findall(r'File "([^"]+)", line (\d+) in (.+)', thread)
        lines = [Line(file, int(number), function) for file, number, function in found]
        at = next((i for i, line in enumerate(lines) if line.file.startswith(_SUITE)), len(lines))
        suites += lines[at : at + 1]
        authors += [line for line in lines[:at] if not line.file.startswith((*CORE, *_LIBRARIES, "<"))]
    return next((_quoted(line) for line in (*authors, *suites)), "")


def _code(kernel: Any) -> CodeType | None:
    for _ in range(8):
        kernel = getattr(kernel, "__wrapped__", None) or getattr(kernel, "func", kernel)
        code = getattr(kernel, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it came from, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _lines(traceback: TracebackType | None) -> Iterator[Line]:
    for frame, number in walk_tb(traceback):
        yield Line(frame.f_code.co_filename, number, frame.f_code.co_name)


def _authors(lines: list[Line], device: Device) -> int:
    """Which line is the author's: the innermost of the device's package, else of no library, else the innermost."""
    home = home_of(device)
    preferred = [i for i, line in enumerate(lines) if home and line.file.startswith(home)]
    own = [i for i, line in enumerate(lines) if not line.file.startswith(_LIBRARIES)]
    return (preferred or own or range(len(lines)))[-1]


def home_of(device: Device) -> str:
    """Where the files of the package are that a device's class comes from; empty if that is core itself."""
    module = type(device).__module__
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    if file is None or module.partition(".")[0] in ("ggplug", "ggplug_testing"):
        return ""
    return str(Path(file).parent) + os.sep if hasattr(top, "__path__") else file


def _quoted(line: Line) -> str:
    return f"{line}: {line.code}" if line.code else str(line)


def _shortened(file: str) -> str:
    """A file's path as it is shorter: from the current folder, or whole."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):  # another drive; the current folder is gone
        return file
    return relative if len(relative) < len(file) else file

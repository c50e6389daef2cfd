"""Whether a thread is still inside of a ``with`` block, as the block's frame tells.

Python handles signals when a function is entered, so Ctrl-C can keep the ``__exit__`` of a context manager that is
written in Python from doing anything.  What such a manager published would then stay published.  Whoever finds it in
the way asks here whether its block is still being executed.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from gc import get_referents
from opcode import opmap
from types import CodeType, FrameType
from typing import TypeAlias

_PUSH_EXC_INFO = opmap.get("PUSH_EXC_INFO", -1)
_WITH_EXCEPT_START = opmap.get("WITH_EXCEPT_START", -1)
_CACHE = 0
_SUSPENDS = 0x20 | 0x80 | 0x100 | 0x200
"""``inspect.CO_GENERATOR``, ``CO_COROUTINE``, ``CO_ITERABLE_COROUTINE`` and ``CO_ASYNC_GENERATOR``."""


Entered: TypeAlias = tuple[FrameType, int]
"""Where a ``with`` block was entered: the frame, and the instruction's offset in its code."""


def is_inside(entered: Entered) -> bool:
    """Whether the thread that entered this block has not left it.

    True where that cannot be known: in generators and coroutines, and where ``__enter__`` was called by something else
    than a ``with`` statement.
    """
    frame, at = entered
    body = _body(frame.f_code, at)
    if body is None:
        return True
    if frame.f_code in get_referents(frame):  # as is_running, without a call
        return False
    now = frame.f_lasti
    if now == at:
        return True
    for start, end in body:  # noqa: SIM110 - any() would be a call for each
        if start <= now < end:
            return True
    return False


def is_running(thread: int, frame: FrameType) -> bool:
    """Whether a thread, by :func:`threading.get_ident`, executes a frame of its own: not after a fork, say.

    A frame that runs keeps its code and variables on that stack, where the garbage collector does not look for them;
    when the function ends they become the frame's own.  To look for a frame among those of another thread is no way:
    that thread may go on between two steps of ``f_back``, which ends CPython 3.11 with a segmentation fault.
    """
    return frame.f_code not in get_referents(frame) and thread in sys._current_frames()


@lru_cache(4096)
def _body(code: CodeType, at: int) -> tuple[tuple[int, int], ...] | None:
    """The ranges of instructions of the block that is entered ``at``; None if no ``with`` statement enters there.

    The block is what its own handler protects, directly or behind the handlers within it; CPython's table of handlers
    says so (Objects/exception_handling_notes.txt).
    """
    if code.co_flags & _SUSPENDS:
        return None
    table, words = _handlers(code), code.co_code
    behind = at + 2
    while behind < len(words) and words[behind] == _CACHE:
        behind += 2

    def handler_of(offset: int) -> int | None:
        return next((target for start, end, target in table if start <= offset < end), None)

    handler = handler_of(behind)
    if handler is None or words[handler : handler + 3 : 2] != bytes((_PUSH_EXC_INFO, _WITH_EXCEPT_START)):
        return None

    def is_protected(target: int | None) -> bool:
        seen: set[int] = set()
        while target is not None and target != handler and target not in seen:
            seen.add(target)
            target = handler_of(target)
        return target == handler

    return tuple((start, end) for start, end, target in table if is_protected(target))


def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """``(start, end, handler)`` of protected instructions, as offsets of bytes into the code."""
    entries = []
    data = iter(code.co_exceptiontable)

    def number() -> int | None:
        byte = next(data, None)
        if byte is None:
            return None
        value = byte & 63
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    while (start := number()) is not None:
        length, target, _ = number(), number(), number()
        assert length is not None
        assert target is not None
        entries.append((2 * start, 2 * (start + length), 2 * target))
    return entries

"""The tiny language: its texts, and what runs them.

A text has a line for each binding, which says whether the program stores there, one for each member of the argument
struct, and lines that each work-item goes through::

    binding x read
    member n
    when <condition>              the item ends here unless it holds
    let i = <expression>
    store x <byte> <- <expression>                       a word; <byte> is a multiple of 4
    if <condition> then store x <byte> <- <expression>

Expressions are Python's, on numbers: ``word(x, byte)`` loads a word, ``real`` and ``bits`` convert words to floats and
back.  ``group`` counts the work-groups of a grid row by row, ``lane`` the items of a group.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


class DoesNotCompile(Exception):
    """A line that is none of the language."""


class Range(NamedTuple):
    """What a binding shows: words of a buffer, and whether they may be stored to."""

    words: Words
    stored: bool


class Outside(Exception):
    """A program reached beyond a binding, or stored where it only reads."""


class Text:
    """A compiled text."""

    def __init__(self, text: str) -> None:
        self.bindings: dict[str, bool] = {}
        self.members: list[str] = []
        self.lines: list[_Line] = []
        for line in text.splitlines():
            match line.split(maxsplit=2):
                case ["binding", name, ("read" | "read_write") as access]:
                    self.bindings[name] = access == "read_write"
                case ["member", name]:
                    self.members.append(name)
                case ["when", *_]:
                    self.lines.append(_Line("when", "", _code(line.split(maxsplit=1)[1])))
                case ["let", name, value]:
                    self.lines.append(_Line("let", name, _code(value.removeprefix("= "))))
                case ["store", name, rest]:
                    self.lines.append(_store(name, rest, "True"))
                case ["if", *_]:
                    condition, _, store = line.removeprefix("if ").partition(" then store ")
                    self.lines.append(_store(*store.split(maxsplit=1), condition))
                case _:
                    raise DoesNotCompile(line)

    def run(self, grid: tuple[int, int], lanes: int, bound: Mapping[str, Range], members: Words) -> None:
        """Runs all items of a grid, which may have more groups than the launch."""
        names = dict(zip(self.members, members.tolist(), strict=False))

        def word(name: str, byte: int) -> int:
            return int(bound[name].words[_index(bound[name], byte)])

        functions = {"word": word, "real": _real, "bits": _bits, "half": _half, "signed": _signed, "len": len}
        functions |= {name: name for name in self.bindings} | {"math": math, "__builtins__": {}}
        for group in range(grid[0] * grid[1]):
            for lane in range(lanes):
                self._item({**functions, **names, "group": group, "lane": lane}, bound)

    def _item(self, scope: dict[str, Any], bound: Mapping[str, Range]) -> None:
        for line in self.lines:
            value = eval(line.code, scope)
            if line.kind == "when":
                if not value:
                    return
            elif line.kind == "let":
                scope[line.name] = value
            elif value:
                assert line.place is not None
                assert line.value is not None
                to = bound[line.name]
                if not to.stored:
                    raise Outside(f"{line.name} is read only")
                to.words[_index(to, eval(line.place, scope))] = eval(line.value, scope) & 0xFFFFFFFF


class _Line(NamedTuple):
    """``code``: a condition, or a value; ``place``, ``value``: of a store."""

    kind: str
    name: str
    code: CodeType
    place: CodeType | None = None
    value: CodeType | None = None


def _store(name: str, rest: str, condition: str) -> _Line:
    place, _, value = rest.partition(" <- ")
    return _Line("store", name, _code(condition), _code(place), _code(value))


def _code(text: str) -> CodeType:
    try:
        return compile(text, "<tiny>", "eval")
    except SyntaxError as error:
        raise DoesNotCompile(text) from error


def _index(bound: Range, byte: int) -> int:
    if byte % 4 or not 0 <= byte < 4 * len(bound.words):
        raise Outside(f"byte {byte} of {4 * len(bound.words)}")
    return byte // 4


def _real(word: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


def _bits(value: float) -> int:
    with np.errstate(all="ignore"):
        return int(np.float32(value).view(np.uint32))


def _half(value: float) -> int:
    with np.errstate(all="ignore"):
        half = int(np.float32(value).astype(np.float16).view(np.uint16))
    return half if value == value else half & 0x8000 | 0x7E00  # as ggml stores NaN


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word

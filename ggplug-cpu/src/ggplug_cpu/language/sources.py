"""The source of functions as syntax trees, and what is wrong in them."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Refusal(Exception):
    """Something is outside of the language: why, what to write instead, and where it is as soon as that is known."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy
        self.where = ""

    def at(self, source: Source, node: ast.stmt | ast.expr) -> None:
        """Says where it is; the innermost place, which is the first, stays."""
        self.where = self.where or source.place(node.lineno)

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" if self.where else self.why


@dataclass(frozen=True)
class Source:
    """One function as it was written."""

    name: str
    file: str
    lines: list[str] = field(repr=False)
    tree: ast.FunctionDef

    @property
    def parameters(self) -> list[str]:
        return [parameter.arg for parameter in self.tree.args.args]

    def place(self, line: int) -> str:
        """File, line and the text of the line."""
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return f"{self.file}, line {line} in {self.name}, `{text}`"


def source_of(function: Callable[..., Any]) -> Source:
    """The source of a function.  Raises Refusal where it cannot be read."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # a module that was edited and imported anew has other lines
    lines = linecache.getlines(code.co_filename, function.__globals__)
    tree = _functions("".join(lines)).get((code.co_name, code.co_firstlineno))
    if tree is None:
        why = f"the source of {function.__qualname__} cannot be found in {code.co_filename}"
        raise Refusal(why, "define kernels by def in a file, not by lambda or at a prompt")
    return Source(function.__qualname__.rpartition(".")[2], code.co_filename, lines, tree)


@functools.lru_cache(maxsize=256)
def _functions(text: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions in a file, by name and first line."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name, first] = node
    return found

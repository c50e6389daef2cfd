"""The source of functions as syntax trees, and what is wrong in them."""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

#: The flags of code that its file's imports from __future__ set.
_FUTURE = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


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
    is_lambda = code.co_name == "<lambda>"
    tree = None if is_lambda else _function("".join(lines), code)
    # At a prompt there may be lines of another text: Python 3.13 keeps those of the last one.
    if tree is None and (is_lambda or not lines or code.co_filename.startswith("<")):
        why = f"the source of {function.__qualname__} cannot be found in {code.co_filename}"
        raise Refusal(why, "define kernels by def in a file, not by lambda or at a prompt")
    if tree is None:
        why = f"{function.__qualname__} in {code.co_filename} was edited since it was imported"
        raise Refusal(why, "import the file anew, or start the program again")
    return Source(function.__qualname__.rpartition(".")[2], code.co_filename, lines, tree)


def _function(text: str, code: CodeType) -> ast.FunctionDef | None:
    """The function in a file that gives ``code``: it may stand on another line than when it was imported."""
    try:
        trees, compiled = _functions(text), _compiled(text, code.co_flags & _FUTURE)
    except SyntaxError:  # the file is being edited
        return None
    wanted = _code_parts(code)
    alike = [each for each in compiled.get(code.co_name, ()) if _code_parts(each) == wanted]
    lines = sorted((each.co_firstlineno for each in alike), key=lambda line: abs(line - code.co_firstlineno))
    if lines:
        return trees.get((code.co_name, lines[0]))
    # pytest writes other code for assert, which kernels do not have: what compiles them says so
    tree = trees.get((code.co_name, code.co_firstlineno))
    return tree if tree and any(isinstance(node, ast.Assert) for node in ast.walk(tree)) else None


@functools.lru_cache(maxsize=256)
def _functions(text: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions in a file, by name and first line."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name, first] = node
    return found


@functools.lru_cache(maxsize=256)
def _compiled(text: str, future: int) -> dict[str, list[CodeType]]:
    """The code of the functions in a file, by name."""
    found: dict[str, list[CodeType]] = {}
    for each in _codes(compile(text, "<source>", "exec", future, dont_inherit=True)):
        found.setdefault(each.co_name, []).append(each)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _code_parts(code: CodeType) -> tuple[Any, ...]:
    """What code consists of, without the lines where it stands."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    parts = (code.co_name, code.co_code, _exact(code.co_consts), names, counts)
    return *parts, getattr(code, "co_exceptiontable", b"")


def _exact(constant: Any) -> Any:
    """A constant as something that is equal only to the same: 1, 1.0 and True are equal, and so are 0.0 and -0.0."""
    if isinstance(constant, CodeType):
        return _code_parts(constant)
    if isinstance(constant, tuple):
        return tuple(map(_exact, constant))
    if isinstance(constant, frozenset):
        return frozenset(map(_exact, constant))
    return type(constant), repr(constant)

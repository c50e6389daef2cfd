"""Faults as changes of one function's source, for as long as a block lasts.

The changed function is compiled from its module's source and takes the place of the original's code, so classes, tables
and whatever holds the function stay the same.  What cannot be found in the source raises SeedError: a seed that no
longer fits seeds nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.mutation.operators import Mechanical, changed, functions

SUBJECT = "tests.mutation.subject"


class SeedError(LookupError):
    """The source has no place that a seed describes."""


class Edit(NamedTuple):
    """A change that somebody made by hand: ``old`` stands once in the function's source."""

    module: str
    function: str
    old: str
    new: str


Seed = Mechanical | Edit


def source(seed: Seed) -> ast.Module:
    """The module with a change of one function.  Raises SeedError for one that does not fit."""
    text = inspect.getsource(importlib.import_module(seed.module))
    tree = ast.parse(text)
    function = functions(tree).get(seed.function)
    if function is None:
        raise SeedError(f"{seed.module} has no function {seed.function}")
    if isinstance(seed, Mechanical):
        try:
            function.body = changed(function, seed.operator, seed.number).body
        except LookupError as error:
            raise SeedError(f"{seed.module}: {error}") from error
        return tree
    lines = text.splitlines(keepends=True)
    start, end = function.lineno - 1, function.end_lineno
    body = "".join(lines[start:end])
    if body.count(seed.old) != 1:
        raise SeedError(f"{seed.module}.{seed.function} has {body.count(seed.old)} times {seed.old!r}, not once")
    return ast.parse("".join([*lines[:start], body.replace(seed.old, seed.new), *lines[end:]]))


@contextmanager
def seeded(*seeds: Seed) -> Iterator[None]:
    """Functions with these changes, until the block ends.  Raises SeedError for those that do not fit the source."""
    originals: list[tuple[FunctionType, CodeType]] = []
    try:
        for seed in seeds:
            function = target(seed.module, seed.function)
            code = _code(compile(source(seed), inspect.getfile(function), "exec"), seed.function)
            originals.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in reversed(originals):
            function.__code__ = code


def target(module: str, function: str) -> FunctionType:
    """A function or method by qualified name, out of what wraps it.  Raises SeedError."""
    found: Any = importlib.import_module(module)
    for name in function.split("."):
        found = inspect.getattr_static(found, name, None)
    found = getattr(found, "fget", getattr(found, "__func__", found))
    found = inspect.unwrap(found) if found is not None else None
    if not isinstance(found, FunctionType):
        raise SeedError(f"{module} has no function {function}")
    return found


def _code(module: CodeType, name: str) -> CodeType:
    """The code of a function in that of its module."""
    waiting = [module]
    while (code := waiting.pop()).co_qualname != name:
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    return code


def users(function: FunctionType) -> frozenset[type[Any] | Any]:
    """The ops, and the patterns, of the subject whose kernels call a function."""
    from tests.mutation.subject import SubjectDevice

    return frozenset(key for key, kernel in SubjectDevice.kernels.items() if function in _reached(kernel))


@cache
def _reached(kernel: Callable[..., Any]) -> frozenset[FunctionType]:
    """The subject's functions that a kernel may call, itself included."""
    found: set[FunctionType] = set()
    waiting: list[Any] = [kernel]
    while waiting:
        each = waiting.pop()
        if isinstance(each, partial):
            waiting += [each.func, *each.args]
        elif isinstance(each, FunctionType) and each not in found and each.__module__.startswith(SUBJECT):
            found.add(each)
            waiting += [each.__globals__[name] for name in names_in(each.__code__) if name in each.__globals__]
    return frozenset(found)


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function's code uses, also in functions inside of it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)

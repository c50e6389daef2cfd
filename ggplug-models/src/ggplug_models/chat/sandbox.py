"""Jinja as chat templates use it, in a sandbox: they read what they are given, make text of it, and no more.

Jinja's own sandbox keeps a template from Python's inner parts.  This one bounds what it makes, too: each operation is
looked at beforehand, and its result is taken off the :class:`Allowance` of the rendering.  Filters and methods of
builtin types are those of the tables below; others are unknown here, until somebody says how much they make.
"""

# ruff: noqa: N802  (Jinja names the methods of its compiler after classes)

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ggplug_models.chat.allowance import (
    STEP,
    Allowance,
    Estimate,
    formatted,
    joined,
    linear,
    measured,
    operation,
    percented,
    replaced,
    searched,
    short,
    summed,
    translated,
    widened,
    written,
)


def _all(names: str, estimate: Estimate) -> dict[str, Estimate]:
    return dict.fromkeys(names.split(), estimate)


FILTERS: dict[str, Estimate] = {
    **_all(
        """abs attr capitalize count d default dictsort e escape filesizeformat first float forceescape groupby int
        items last length list lower map max min random reject rejectattr reverse safe select selectattr sort string
        title truncate unique upper urlencode wordcount xmlattr""",
        linear,
    ),
    **_all("batch center indent round slice tojson", widened),
    **_all("pprint striptags urlize wordwrap", short),
    "format": percented,
    "join": linear,
    "replace": replaced,
    "sum": summed,
    "trim": searched,
}

METHODS: dict[type, dict[str, Estimate]] = {
    str: {
        **_all(
            """capitalize casefold count encode endswith escape find index isalnum isalpha isascii isdecimal isdigit
            isidentifier islower isnumeric isprintable isspace istitle isupper lower maketrans partition removeprefix
            removesuffix split splitlines startswith swapcase title unescape upper""",
            linear,
        ),
        **_all("center expandtabs ljust rjust zfill", widened),
        **_all("lstrip rfind rindex rpartition rsplit rstrip strip", searched),
        "format": written,
        "format_map": written,
        "join": joined,
        "replace": replaced,
        "striptags": short,
        "translate": translated,
    },
    bytes: {"decode": linear},
    int: _all("as_integer_ratio bit_count bit_length conjugate is_integer", linear),
    float: _all("as_integer_ratio conjugate hex is_integer", linear),
}
"""Of other types, all that Jinja's sandbox lets through: what they give is no larger than they are."""

_CODECS = {"utf-8", "utf8", "UTF-8", "ascii", "latin-1"}
"""Others take time that is quadratic in the text."""

_allowance: ContextVar[Allowance] = ContextVar("_allowance")


@contextmanager
def allowed(allowance: Allowance) -> Iterator[Allowance]:
    """While it lasts, this thread's templates take what they make off the allowance."""
    token = _allowance.set(allowance)
    try:
        yield allowance
    finally:
        _allowance.reset(token)


class RefusedError(Exception):
    """What ``raise_exception`` raises."""


class _Generation(Extension):
    """``{% generation %}`` marks what the model itself said, for training; here it makes no difference."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """Its contents can hold one another, so that its text could be of any length."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Code(CodeGenerator):
    """Python's operations on values go through the environment, and so do loops and their steps."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        items = nodes.EnvironmentAttribute("items")
        node.iter = nodes.Call(items, [node.iter], [], None, None, lineno=node.lineno).set_environment(self.environment)
        step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno).set_environment(self.environment))
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated(context, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._made(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _made(self, visit: Callable[..., None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    """Chat templates' Jinja: ``raise_exception``, ``strftime_now``, ``tojson`` without HTML, ``{% generation %}``."""

    code_generator_class = _Code
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, now: Callable[[], datetime.datetime]) -> None:
        # nothing is evaluated while a template is compiled: there is no allowance for it
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[loopcontrols, _Generation],
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: self._guarded(name, self.filters[name]) for name in FILTERS if name in self.filters}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "cycler", "joiner")}
        self.globals |= {"namespace": _Namespace, "raise_exception": _refuse, "strftime_now": _Clock(now)}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _allowance.get().check(operation(operator, left, right), operator)
        return self.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        kind = next((each for each in METHODS if isinstance(owner, each)), None)
        if kind is not None:
            args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
            __self._estimated(METHODS[kind], __obj.__name__, owner, [*args, *kwargs.values()])
        elif not isinstance(__obj, Macro) or __obj.catch_varargs or __obj.catch_kwargs:
            __self.made((args, kwargs))  # they become a list or dict there
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def _estimated(self, table: Mapping[str, Estimate], name: str, subject: Any, arguments: list[Any]) -> None:
        if name not in table:
            raise SecurityError(f"templates cannot call {name} of {type(subject).__name__}")
        if name in ("encode", "decode") and not {*map(str, arguments)} <= _CODECS:
            raise SecurityError(f"templates know the encodings {', '.join(sorted(_CODECS))}")
        _allowance.get().check(table[name](subject, arguments), name)

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is looked at beforehand, and whose result is measured."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja's own argument

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            before, subject, arguments = args[:first], args[first], [*args[first + 1 :], *kwargs.values()]
            if name == "join":
                return self.made(function(*before, *self._parts(subject, *args[first + 1 :], **kwargs)))
            self._estimated(FILTERS, name, subject, arguments)
            return self.made(function(*args, **kwargs))

        return guarded

    def _parts(
        self, items: Iterable[Any], separator: str = "", attribute: str | int | None = None
    ) -> tuple[list[Any], str]:
        """The arguments of ``join``: its items, which are taken off one by one, and the separator."""
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        allowance, found = _allowance.get(), []
        for item in items:
            allowance.spend(measured(item)[0] + len(str(separator)), "join")
            found.append(item)
        return found, separator

    # -- what compiled templates call --------------------------------------------------------------

    def made(self, value: Any) -> Any:
        """The value, which was taken off the allowance."""
        _allowance.get().spend(STEP + measured(value)[0], "the template")
        return value

    def items(self, value: Any) -> Any:
        """What a loop goes through: ``tools`` may be none, which not every template looks at before."""
        return () if value is None else value

    def step(self) -> None:
        """A loop goes on."""

    def concatenated(self, context: Context, parts: tuple[Any, ...]) -> str:
        """``a ~ b``."""
        self.made(parts)
        return markup_join(parts) if context.eval_ctx.autoescape else str_join(parts)

    def concat(self, parts: Iterable[str]) -> str:
        """What was written into a macro or a block."""
        written = list(parts)
        _allowance.get().spend(sum(map(len, written)), "the template")
        return "".join(written)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """What is written out; as it depends on a context, Jinja does not call it while it compiles."""
    _allowance.get().spend(measured(value)[0], "the template")
    return value


class _Clock:
    """``strftime_now(form)``."""

    def __init__(self, now: Callable[[], datetime.datetime]) -> None:
        self._now = now

    def __call__(self, form: str) -> str:
        _allowance.get().check(formatted(form, ()), "strftime_now")
        return self._now().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is: Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise RefusedError(message)

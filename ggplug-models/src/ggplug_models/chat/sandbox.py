"""The Jinja sandbox of chat templates.

Jinja's sandbox protects Python's internals from a template.  This one also limits memory and time: each operation is
checked beforehand, and the size of its result is subtracted from the :class:`Allowance` of the rendering.  Templates
can use only the filters, and methods of builtin types, that the tables below list with an estimate of their result's
size.
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
    appended,
    formatted,
    joined,
    linear,
    measured,
    operation,
    percented,
    replaced,
    searched,
    short,
    str_formatted,
    summed,
    translated,
    widened,
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


class _List(list[Any]):
    """A list that a template has made, which it may change."""


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
        "format": str_formatted,
        "format_map": str_formatted,
        "join": joined,
        "replace": replaced,
        "striptags": short,
        "translate": translated,
    },
    bytes: {"decode": linear},
    int: _all("as_integer_ratio bit_count bit_length conjugate is_integer", linear),
    float: _all("as_integer_ratio conjugate hex is_integer", linear),
    _List: {**_all("copy count index pop", linear), "append": appended},
}
"""Of other types, all methods that Jinja's sandbox allows: their results are not larger than the object."""

_CODECS = {"utf-8", "utf8", "UTF-8", "ascii", "latin-1"}
"""The encodings that templates may use; others take quadratic time."""

_allowance: ContextVar[Allowance] = ContextVar("_allowance")


@contextmanager
def allowed(allowance: Allowance) -> Iterator[Allowance]:
    """A ``with`` block in which templates of this thread use ``allowance``."""
    token = _allowance.set(allowance)
    try:
        yield allowance
    finally:
        _allowance.reset(token)


class RefusedError(Exception):
    """The template called ``raise_exception``: it refuses the messages."""


class _Generation(Extension):
    """``{% generation %}``, which marks the model's answers for training, and has no effect here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """A namespace that is printed without its contents, which may refer to one another."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Code(CodeGenerator):
    """Compiles templates so that operations, loops and iterations call the :class:`Sandbox`."""

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
        self.write("environment.made_list(")
        super().visit_List(node, frame)
        self.write(")")

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
    """The environment of chat templates; adds ``raise_exception``, ``strftime_now`` and ``{% generation %}``."""

    code_generator_class = _Code
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, now: Callable[[], datetime.datetime]) -> None:
        # optimized=False: nothing is evaluated while a template is compiled, when there is no allowance
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
            __self.made((args, kwargs))  # the call makes a list or dict of them
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def _estimated(self, table: Mapping[str, Estimate], name: str, subject: Any, arguments: list[Any]) -> None:
        if name not in table:
            raise SecurityError(f"templates cannot call {type(subject).__name__}.{name}")
        if name in ("encode", "decode") and not {*map(str, arguments)} <= _CODECS:
            raise SecurityError(f"templates can use only the encodings {', '.join(sorted(_CODECS))}")
        _allowance.get().check(table[name](subject, arguments), name)

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a filter: its size is estimated before the call, and its result is measured."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja's own argument

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            before, subject, arguments = args[:first], args[first], [*args[first + 1 :], *kwargs.values()]
            if name == "tojson" and isinstance(subject, Iterator):  # such as the result of ``map``
                subject = self._parts(subject)[0]
                args = (*before, subject, *args[first + 1 :])
            if name == "join":
                return self.made(function(*before, *self._parts(subject, *args[first + 1 :], **kwargs)))
            self._estimated(FILTERS, name, subject, arguments)
            return self.made(function(*args, **kwargs))

        return guarded

    def _parts(
        self, items: Iterable[Any], separator: str = "", attribute: str | int | None = None
    ) -> tuple[list[Any], str]:
        """The arguments of ``join``: its items, each of which is subtracted from the allowance, and the separator."""
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        allowance, found = _allowance.get(), []
        for item in items:
            allowance.spend(measured(item)[0] + len(str(separator)), "join")
            found.append(item)
        return found, separator

    # -- what compiled templates call --------------------------------------------------------------

    def made(self, value: Any) -> Any:
        """Subtracts the size of a value from the allowance, and returns the value."""
        _allowance.get().spend(STEP + measured(value)[0], "the template")
        return value

    def made_list(self, value: list[Any]) -> list[Any]:
        """A list of the template."""
        return _List(self.made(value))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute: as Jinja's, and ``append`` and ``pop`` of its own lists."""
        return (type(obj) is _List and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def items(self, value: Any) -> Any:
        """The items of a loop; None has no items, because some templates loop over missing ``tools``."""
        return () if value is None else value

    def step(self) -> None:
        """Called in each iteration of a loop; :meth:`call` subtracts its cost."""

    def concatenated(self, context: Context, parts: tuple[Any, ...]) -> str:
        """The operator ``a ~ b``."""
        self.made(parts)
        return markup_join(parts) if context.eval_ctx.autoescape else str_join(parts)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins the output of a macro or a block."""
        output = list(parts)
        _allowance.get().spend(sum(map(len, output)), "the template")
        return "".join(output)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Measures each value that is printed; as it has a context argument, Jinja does not call it at compile time."""
    _allowance.get().spend(measured(value)[0], "the template")
    return value


class _Clock:
    """The function ``strftime_now(form)``."""

    def __init__(self, now: Callable[[], datetime.datetime]) -> None:
        self._now = now

    def __call__(self, form: str) -> str:
        _allowance.get().check(formatted(form, ()), "strftime_now")
        return self._now().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter ``tojson``, without the escapes for HTML of Jinja's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise RefusedError(message)

"""Makes two texts from the declarations of ops: a page of documentation and a type stub.

Builders are made at run time, so type checkers need the stub ``ops/__init__.pyi`` for their signatures.
``python -m ggplug.ops.listing stub`` prints the stub; ``ggplug ops --markdown`` prints the page, followed by the ops
that devices compute.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import json
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import OPS, Op
from ggplug.types import TypeName

_WIDTH = 120

_PAGE = """# Ops

Every op is one class and one builder: `gg.rms_norm(x, eps=1e-6)` makes a tensor whose `op` is
`ops.RmsNorm(eps=1e-6)`, and `ops.RmsNorm` is the key in a backend's table of kernels. This page is generated from the
declarations, and from the answers of devices, by `ggplug ops --markdown --device CPU --device OpenCL0`. Extents are in
`ne` order, innermost first; NumPy's last axis is dimension 0. The docstrings (`help(gg.rope)`) give shapes, types and
errors in full. Each table is followed by the formulas: `reference` of each class, in float64, and the functions that
it calls, each printed where it is first used; an op without a formula has that of its family. Where a formula makes
values beyond `_LARGEST` infinite, these overflow in float32: a kernel that computes in float32 need not check for
them, nor for sums and squares that overflow within sums and norms. [Precision](precision.md) says how accurate a
result must be, and where float32 is not enough.

Sources in brackets are optional. "In place" names sources whose bytes the allocator may use for the result. An op
that "writes" changes the bytes of that source, and its result is a view of it. A view op computes nothing: its result
has other extents and strides over its source's bytes.

Operators work on tensors too: `a + b`, `a - b`, `a * b`, `a / b` and `abs(a)` with tensors, which broadcast as in
NumPy, and with numbers. `a == b` compares identity, so that tensors can be keys of a dictionary. There is no `@`:
ggml's product `gg.mul_mat(w, x)` takes the weights first and reads them by rows.
"""


def markdown(names: Iterable[str] | None = None) -> str:
    """Tables of ops in Markdown, one per module; by default all ops that ggplug itself declares."""
    chosen = [n for n, cls in OPS.items() if cls.__module__.startswith("ggplug.ops.")] if names is None else list(names)
    modules: dict[str, list[type[Op]]] = {}
    for name in chosen:
        modules.setdefault(OPS[name].__module__, []).append(OPS[name])
    text, seen = [_PAGE.rstrip()], set[object]()
    for module, classes in sorted(modules.items()):
        summary = " ".join((sys.modules[module].__doc__ or "").partition("\n\n")[0].split())
        text.append(f"## {module.rpartition('.')[2]}\n\n{summary}")
        rows = ["| op | class | what it computes | sources | parameters | notes |", f"|{' --- |' * 6}"]
        rows += [_row(cls) for cls in classes]
        text.append("\n".join(rows))
        formulas = _formulas(classes, seen)
        if formulas:
            text.append(f"```python\n{formulas}\n```")
    return "\n\n".join(text) + "\n"


def _row(cls: type[Op]) -> str:
    formula = (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "`")
    formula = formula.replace("|", "\\|").replace("*", "\\*").replace("  ", " ")
    formula = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", formula)
    sources = ", ".join(f"[{s}]" if s in cls.optional else s for s in cls.sources)
    parameters = ", ".join(_field(f) for f in dataclasses.fields(cls))
    notes = []
    if cls.is_view:
        notes.append("view")
    if cls.writes:
        notes.append(f"writes {', '.join(cls.sources[i] for i in cls.writes)}")
    if cls.inplace:
        notes.append(f"in place: {', '.join(cls.sources[i] for i in cls.inplace)}")
    return f"| `{cls.name}` | `{cls.__name__}` | {formula} | {sources} | {parameters} | {'; '.join(notes)} |"


def _formulas(classes: Iterable[type[Op]], seen: set[object]) -> str:
    """The source code of the ops' references, and of the functions and constants of this package that they use, once.

    ``seen``: what is on the page already; this function adds to it.
    """
    texts: list[str] = []
    for cls in classes:
        wanted: list[Any] = ["reference"]
        visited: set[object] = {None}
        while wanted:
            each = wanted.pop()
            owner: Any = None
            if isinstance(each, str):
                each, owner = _method(cls, each)
            if each in visited:
                continue
            visited.add(each)
            text = _definition(*each) if isinstance(each, tuple) else textwrap.dedent(inspect.getsource(each)).rstrip()
            if each not in seen:
                seen.add(each)
                texts.append(text if owner is None else f"# {getattr(owner, 'name', '') or owner.__name__}\n{text}")
            if inspect.isfunction(each):
                wanted += re.findall(r"\bself\.(\w+)", text) if owner is not None else ()
                wanted += _used(each)
    return "\n\n".join(filter(None, texts))


def _method(cls: type[Op], name: str) -> tuple[Any, Any]:
    """A method or property of an op, as a function, and its class; None for fields, and for members of :class:`Op`."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), Op)
    found = inspect.getattr_static(owner, name, None)
    function = getattr(found, "fget", None) or getattr(found, "__func__", None) or getattr(found, "func", None) or found
    return (None, None) if owner is Op or not inspect.isfunction(function) else (function, owner)


def _used(function: Any) -> Iterable[object]:
    """The functions, classes and constants of this package that a function uses; constants with their modules."""
    codes = [function.__code__]
    for code in codes:
        codes += (each for each in code.co_consts if inspect.iscode(each))
    loaded = (each.argval for code in codes for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for name in dict.fromkeys(loaded):
        value = function.__globals__.get(name)
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Op)):
            if value.__module__.startswith("ggplug.ops."):
                yield value
        elif isinstance(value, (int, float, np.ndarray)) and name.isupper():
            yield name, function.__module__


def _definition(name: str, module: str) -> str:
    """The line of code that defines a constant, in the module that uses it or another one; empty if there is none."""
    homes = [module, *(each for each in sorted(sys.modules) if each.startswith("ggplug.ops."))]
    found = (re.search(rf"^{name}(?:: [^=\n]+)? = .*$", inspect.getsource(sys.modules[home]), re.M) for home in homes)
    return next((each[0] for each in found if each), "")


def _field(field: dataclasses.Field[Any]) -> str:
    return field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"


def stub() -> str:
    """The type stub of :mod:`ggplug.ops`: signatures of builders, and imports of everything else."""
    imported: dict[str, list[str]] = {}
    functions = []
    for name in ops.__all__:
        value = getattr(ops, name)
        op = getattr(value, "op", None)
        if inspect.isfunction(value) and op is not None:
            functions.append(_signature(name, value, op))
        else:
            imported.setdefault(_home(name), []).append(name)
    lines = ['"""Made from the declarations by ``python -m ggplug.ops.listing stub``; a test compares."""', ""]
    imported |= {"ggplug.tensor": ["Tensor"], "ggplug.types": ["Type"]}
    for module, names in sorted(imported.items()):
        ordered = sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
        line = f"from {module} import {', '.join(ordered)}"
        lines.append(line if len(line) <= _WIDTH else _exploded(f"from {module} import (", ordered, ")"))
    lines += ["", _exploded("__all__ = [", [f'"{name}"' for name in ops.__all__], "]"), "", *functions]
    return "\n".join(lines) + "\n"


def _home(name: str) -> str:
    """The module below ``ggplug.ops`` that defines a name."""
    for module in sorted(sys.modules):
        if module.startswith("ggplug.ops.") and module != __name__ and name in vars(sys.modules[module]):
            value = vars(sys.modules[module])[name]
            if getattr(value, "__module__", module) == module or not hasattr(value, "__module__"):
                return module
    return "ggplug.ops.base"


def _signature(name: str, function: Callable[..., Any], op: type[Op]) -> str:
    hints = typing.get_type_hints(op, include_extras=True)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in op.sources:
            kind = "Tensor | None" if parameter.name in op.optional else "Tensor"
        else:
            kind = _spell(hints[parameter.name]) if parameter.name in op.parameters else "str"
        if parameter.kind is parameter.KEYWORD_ONLY:
            parameters.append("*")
        value = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
        default = "" if parameter.default is parameter.empty else f" = {value}"
        parameters.append(f"{parameter.name}: {kind}{default}")
    line = f"def {name}({', '.join(parameters)}) -> Tensor: ..."
    return line if len(line) <= _WIDTH else _exploded(f"def {name}(", parameters, ") -> Tensor: ...")


def _exploded(head: str, items: Iterable[str], tail: str) -> str:
    """A list that is too long for one line, formatted as ruff does."""
    return "\n".join([head, *(f"    {item}," for item in items), tail])


def _spell(kind: Any) -> str:
    if kind == TypeName:
        return "Type | str"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def main(arguments: list[str] | None = None) -> int:
    """Prints the stub."""
    options = sys.argv[1:] if arguments is None else arguments
    if options != ["stub"]:
        print("usage: python -m ggplug.ops.listing stub (the page: ggplug ops --markdown)", file=sys.stderr)
        return 2
    print(stub(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

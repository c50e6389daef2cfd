"""What others import, as lines: the public names of ggplug's interface with their signatures, and the list of them.

``python tests/support/public_interface.py`` shows how the names differ from ``tests/data/public_interface.txt``;
``--record`` writes the list again where ``docs/compatibility.md`` allows it: within a version of the interface names
may be added, and functions and hooks may get further parameters that nobody has to give.  For anything else
``API_VERSION`` of ``ggplug.backend`` is raised first.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from paths import DATA

from ggplug import hookspecs
from ggplug.backend import API_VERSION

MODULES = ("ggplug.backend", "ggplug.discrete", "ggplug.hookspecs", "ggplug.testing")
LIST = DATA / "public_interface.txt"


def public_names() -> list[str]:
    """A line for each name, class member and hook; the first one has the version of the interface.

    What a class has unchanged from a base that is public too is listed there.
    """
    modules = list(map(importlib.import_module, MODULES))
    found = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in names_in(module)}
    classes = [each for each in found.values() if inspect.isclass(each)]
    lines = sorted(line for path in found for line in of_object(path, found[path], classes))
    return [f"api_version {API_VERSION}", *lines]


def names_in(module: ModuleType) -> list[str]:
    return getattr(module, "__all__", None) or defined_in(module)


def defined_in(module: ModuleType) -> list[str]:
    """The public names that a module without ``__all__`` defines itself."""
    names = []
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names.append(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_") and name != "log"]


def of_object(path: str, found: Any, classes: list[type]) -> Iterator[str]:
    if inspect.isclass(found):
        bases = [each for each in found.__mro__[1:] if each in classes]
        abstract = ", abstract" if inspect.isabstract(found) else ""
        yield f"{path}: class{signature(found)}{''.join(f', a {each.__name__}' for each in bases)}{abstract}"
        for name in members(found):
            written = inspect.getattr_static(found, name, None)
            if not any(name in members(each) and inspect.getattr_static(each, name, None) is written for each in bases):
                yield of_member(f"{path}.{name}", found, name)
    elif inspect.isfunction(found):
        kind = "hook" if found in hookspecs.SPECS else "function"
        yield f"{path}: {kind}{signature(found)}"
    else:
        yield f"{path}: value"


def members(cls: type) -> list[str]:
    """The public members that a class has from ggplug: of itself, of its bases, and what ``__init__`` sets."""
    names: set[str] = set()
    for each in cls.__mro__:
        if each.__module__.split(".")[0] in ("ggplug", "ggplug_testing"):
            names |= {*vars(each), *inspect.get_annotations(each), *set_by_init(each)}
    names |= set(getattr(cls, "_fields", ()))
    return sorted(name for name in names if not name.startswith("_"))


def set_by_init(cls: type) -> Iterator[str]:
    written = vars(cls).get("__init__")
    if not inspect.isfunction(written) or written.__code__.co_filename.startswith("<"):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(written)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def of_member(path: str, cls: type, name: str) -> str:
    found = inspect.getattr_static(cls, name, None)
    abstract = ", abstract" if getattr(found, "__isabstractmethod__", False) else ""
    if isinstance(found, (staticmethod, classmethod)):
        return f"{path}: {type(found).__name__}{signature(found.__func__)}{abstract}"
    if inspect.isfunction(found):
        return f"{path}: method{signature(found)}{abstract}"
    return f"{path}: attribute{abstract}"


def signature(found: Any) -> str:
    """Parameters with their kinds and defaults, without annotations."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # exceptions and the like, whose class takes what its base takes
        return "(...)"
    bare = [
        each.replace(annotation=each.empty, default=each.empty if each.default is each.empty else Default(each.default))
        for each in parameters
    ]
    return str(inspect.Signature(bare))


class Default:
    """A parameter's default as it is shown; objects other than plain values by their class."""

    def __init__(self, value: Any) -> None:
        plain = value is None or isinstance(value, (str, bytes, int, float, tuple, frozenset))
        self.shown = repr(value) if plain else f"<{type(value).__name__}>"
        if isinstance(value, enum.Enum):
            self.shown = str(value)

    def __repr__(self) -> str:
        return self.shown


# -- what may change -------------------------------------------------------------------------------


def breaks(recorded: list[str], now: list[str]) -> list[str]:
    """The differences that need a new version of the interface, in words; none if the version was raised."""
    if recorded[:1] != now[:1]:
        return []
    old, new = table(recorded), table(now)
    found = []
    for path, line in old.items():
        if path not in new:
            found.append(f"{path} is gone")
        elif new[path] != line and not extends(line, new[path]):
            found.append(f"{path} was {line}, and is {new[path]}")
    for path in new.keys() - old.keys():
        if path.rpartition(".")[0] in old and new[path].endswith(", abstract"):
            found.append(f"{path} is new and has to be written by everybody")
    return sorted(found)


def extends(old: str, new: str) -> bool:
    """Whether callers of a function, makers of an object, or writers of a hook, need not know what it takes now."""
    kind = old.partition("(")[0]
    if kind not in ("function", "hook", "class") or new.partition("(")[0] != kind:
        return False
    if old.rpartition(")")[2] != new.rpartition(")")[2]:  # the bases of a class
        return False
    (placed, named), (placed_now, named_now) = parameters(old), parameters(new)
    added = [*placed_now[len(placed) :], *named_now[len(named) :]]
    kept = placed_now[: len(placed)] == placed and named_now[: len(named)] == named
    return kept and (kind == "hook" or all(default is not None for _, default in added))


def parameters(line: str) -> tuple[list[tuple[str, str | None]], list[tuple[str, str | None]]]:
    """Those that are given by their place, and those by name alone: each with its default."""
    takes = line[line.index("(") : line.rindex(")") + 1]
    (written,) = ast.parse(re.sub(r"<\w+>", "None", f"def each{takes}: ...")).body
    assert isinstance(written, ast.FunctionDef)
    given = written.args
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + [ast.unparse(each) for each in given.defaults]
    named = [None if each is None else ast.unparse(each) for each in given.kw_defaults]
    rest = [(f"*{each.arg}", "") for each in (given.vararg, given.kwarg) if each is not None]
    return (
        list(zip((each.arg for each in places), defaults, strict=True)),
        [*rest, *zip((each.arg for each in given.kwonlyargs), named, strict=True)],
    )


def table(lines: list[str]) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in lines[1:])


def main(arguments: list[str]) -> int:
    recorded = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    now = public_names()
    for line in sorted(set(recorded) ^ set(now)):
        print("-" if line in recorded else "+", line)
    broken = breaks(recorded, now)
    for each in broken:
        print(f"needs a new API_VERSION (docs/compatibility.md): {each}", file=sys.stderr)
    if arguments == ["--record"] and not broken:
        LIST.write_text("\n".join(now) + "\n", encoding="utf-8")
        return 0
    return int(bool(broken) or recorded != now)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

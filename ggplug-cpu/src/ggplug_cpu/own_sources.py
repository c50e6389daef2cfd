"""The source of this package's modules, as far as the code of kernels depends on it.

Kernels take the layouts and tables of block types from core: of its modules these data count and not the source.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug.types import Type

PACKAGE = "ggplug_cpu"
#: Modules of this package that kernels import without their code depending on them.
_NOT_DRAWN_IN = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        *("cache_key", "compiler", "detect", "features", "instruction_sets", "loader", "own_sources"),
        *("recorded", "team"),
    )
)
#: Modules that translate Python to machine code; they count for every kernel.
LANGUAGE = "ggplug_cpu.language"
#: Modules of core count by their data: see :func:`_data`.
_CORE = "ggplug."

_IMPORT = re.compile(
    r"""^[ \t]*(?: from [ \t]+ (?P<base>[.\w]+) [ \t]+ import [ \t]+ (?P<names> \( [^)]* \) | [^\n\#;]+ )
              | import [ \t]+ (?P<plain> [^\n\#;]+ ) )""",
    re.MULTILINE | re.VERBOSE,
)


#: Nanoseconds since 1970: a file that changed later may differ from the module in memory.
_STARTED = time.time_ns()


class ChangedError(Exception):
    """A source file of this package changed while the process ran."""


def is_of_package(function: Callable[..., Any]) -> bool:
    """Whether a module of this package defines a function, or a function in one."""
    names = getattr(function, "__globals__", {})
    module = str(names.get("__name__"))
    return module.partition(".")[0] == PACKAGE and getattr(sys.modules.get(module), "__dict__", None) is names


def is_own(function: Callable[..., Any]) -> bool:
    """Whether a module of this package defines a function, and no other function does."""
    return is_of_package(function) and not function.__closure__ and "<locals>" not in function.__qualname__


@functools.cache
def sources(module: str) -> str:
    """A digest of the source of a module and of its :func:`source_modules`.  Raises ChangedError."""
    digest = hashlib.sha256()
    for name in sorted(source_modules(module)):
        content = _data(name) if name.startswith(_CORE) else _read(name)
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


def _data(module: str) -> bytes:
    """The layouts of types and the tables that a module of core declares; one that is not loaded has none."""
    found: list[bytes] = []
    for name, value in sorted(getattr(sys.modules.get(module), "__dict__", {}).items()):
        if isinstance(value, Type):
            found.append(f"{name} {value.id} {value.name} {value.block_size} {value.dtype.descr}".encode())
        elif isinstance(value, np.ndarray) and not name.startswith("_"):
            found.append(f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes())
    return b"\n".join(found)


def source_modules(module: str) -> frozenset[str]:
    """Names of the modules whose source the code of kernels in ``module`` depends on, itself included.

    Imports are followed within this package; a sub-package counts whole.  Modules of core count where they are
    imported directly.
    """
    found = set(_whole(LANGUAGE))
    pending = [module]
    while pending:
        name = pending.pop()
        if name in found or name in _NOT_DRAWN_IN:
            continue
        found.add(name)
        if name.partition(".")[0] == PACKAGE:
            pending.extend(_imports(name))
    return frozenset(found)


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules of ggplug distributions that the source of ``module`` imports."""
    is_package = os.path.basename(_files(PACKAGE).get(module, "")) == "__init__.py"
    found: set[str] = set()
    for match in _IMPORT.finditer(_read(module).decode("utf-8", "replace")):
        if match["plain"]:
            wanted = [(part.split(" as ")[0].strip(), "") for part in match["plain"].split(",")]
        else:
            base = _absolute(match["base"], module, is_package)
            wanted = [(base, part.split(" as ")[0].strip()) for part in match["names"].strip("()").split(",")]
        for base, name in wanted:
            top = base.partition(".")[0]
            if top.startswith("ggplug"):
                found.add(f"{base}.{name}" if f"{base}.{name}" in _files(top) else base)
    return tuple(each for name in found for each in _whole(name))


def _absolute(base: str, module: str, is_package: bool) -> str:
    """``..types`` in ``a.b.c`` -> ``a.types``."""
    relative = base.lstrip(".")
    dots = len(base) - len(relative)
    if not dots:
        return base
    parts = module.split(".")
    parts = parts[: len(parts) - dots + is_package]
    return ".".join([*parts, relative] if relative else parts)


def _whole(name: str) -> Iterator[str]:
    """``name``, and the modules in it if it is a sub-package; a distribution's own ``__init__`` is left out."""
    if "." in name:
        yield name
        yield from (each for each in _files(name.partition(".")[0]) if each.startswith(name + "."))


@functools.cache
def _files(top: str) -> dict[str, str]:
    """Module name -> source file, for a package that is loaded."""
    found: dict[str, str] = {}
    for root in getattr(sys.modules.get(top), "__path__", ()):
        for directory, _, files in os.walk(root):
            below = [part for part in os.path.relpath(directory, root).split(os.sep) if part != "."]
            prefix = ".".join([top, *below])
            for file in files:
                if file == "__init__.py":
                    found[prefix] = os.path.join(directory, file)
                elif file.endswith(".py"):
                    found[f"{prefix}.{file[:-3]}"] = os.path.join(directory, file)
    return found


@functools.cache
def _read(module: str) -> bytes:
    path = _files(PACKAGE).get(module)
    if path is None:
        return b""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            # the time of the last change is not the file's own to choose, except on Windows, where it is the creation's
            changed = status.st_mtime_ns if sys.platform == "win32" else status.st_ctime_ns
            if changed > _STARTED:
                raise ChangedError(path)
            return file.read()
    except OSError as error:
        raise ChangedError(path) from error

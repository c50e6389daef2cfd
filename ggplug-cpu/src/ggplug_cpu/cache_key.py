"""The key under which :mod:`ggplug.cache` keeps a compiled kernel: a hash of everything that its code is made from.

The key covers the kernel's arguments, the target, the versions of the compilers, and the source of every module that
the kernel's module imports, directly or not.  Kernels take the layouts and tables of block types from core: of its
modules the key covers these data and not the source.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from ggplug.types import Type
from ggplug_cpu import features

#: Modules of this package that kernels import without their code depending on them.
_NOT_DRAWN_IN = frozenset(
    f"ggplug_cpu.{name}"
    for name in ("cache_key", "compiler", "detect", "features", "instruction_sets", "loader", "recorded", "team")
)
#: Modules that translate Python to machine code; they count for every kernel.
_LANGUAGE = "ggplug_cpu.language"
#: Modules of core count by their data: see :func:`_data`.
_CORE = "ggplug."

_IMPORT = re.compile(
    r"""^[ \t]*(?: from [ \t]+ (?P<base>[.\w]+) [ \t]+ import [ \t]+ (?P<names> \( [^)]* \) | [^\n\#;]+ )
              | import [ \t]+ (?P<plain> [^\n\#;]+ ) )""",
    re.MULTILINE | re.VERBOSE,
)


def cache_key(function: Callable[..., Any], arguments: tuple[Any, ...], target: features.Target) -> str:
    """The key of a kernel: sixty-four hex digits."""
    text = "\0".join(
        (
            function.__module__,
            function.__qualname__,
            repr(arguments),
            target.key,
            _versions(),
            _sources(function.__module__, function.__code__),
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _versions() -> str:
    """Versions of what turns source into code."""
    import llvmlite

    return f"{sys.version}|{llvmlite.__version__}"


@functools.cache
def _sources(module: str, code: CodeType) -> str:
    """A digest of the source of the module and of its :func:`source_modules`."""
    digest = hashlib.sha256()
    for name in sorted(source_modules(module)):
        path = _source_path(name)
        content = _data(name) if name.startswith(_CORE) else _read(path) if path else b""
        digest.update(name.encode() + b"\0" + content)
    if _source_path(module) is None:  # typed at a prompt: its file if it names one, else its byte code
        digest.update(_read(code.co_filename) or _code_bytes(code))
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

    Imports are followed within this package and the kernel's own; a sub-package counts whole.  Modules of other ggplug
    distributions count where they are imported directly.
    """
    own = {module.partition(".")[0], "ggplug_cpu"}
    found = set(_whole(_LANGUAGE))
    pending = [module]
    while pending:
        name = pending.pop()
        if name in found or name in _NOT_DRAWN_IN:
            continue
        found.add(name)
        if name.partition(".")[0] in own:
            pending.extend(_imports(name))
    return frozenset(found)


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules of ggplug distributions, and of ``module``'s own package, that its source imports."""
    path = _source_path(module)
    if path is None:
        return ()
    own = module.partition(".")[0]
    is_package = os.path.basename(path) == "__init__.py"
    found: set[str] = set()
    for match in _IMPORT.finditer(_read(path).decode("utf-8", "replace")):
        if match["plain"]:
            wanted = [(part.split(" as ")[0].strip(), "") for part in match["plain"].split(",")]
        else:
            base = _absolute(match["base"], module, is_package)
            wanted = [(base, part.split(" as ")[0].strip()) for part in match["names"].strip("()").split(",")]
        for base, name in wanted:
            top = base.partition(".")[0]
            if top == own or top.startswith("ggplug"):
                modules = _package_files(top)
                found.add(f"{base}.{name}" if f"{base}.{name}" in modules else base)
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
        yield from (each for each in _package_files(name.partition(".")[0]) if each.startswith(name + "."))


def _source_path(module: str) -> str | None:
    """The source file of a module of a ggplug distribution, or of any module that is loaded."""
    found = _package_files(module.partition(".")[0]).get(module)
    return found or getattr(sys.modules.get(module), "__file__", None)


@functools.cache
def _package_files(top: str) -> dict[str, str]:
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
def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _code_bytes(code: CodeType) -> bytes:
    """Byte code, names and constants of a function and of those defined in it."""
    nested = b"".join(_code_bytes(each) for each in code.co_consts if isinstance(each, CodeType))
    constants = repr([each for each in code.co_consts if not isinstance(each, CodeType)])
    return code.co_code + repr((code.co_names, code.co_varnames, constants)).encode() + nested

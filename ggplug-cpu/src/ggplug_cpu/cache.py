"""Compiled kernels on disk: one verified file a kernel, found by everything its code was made from.

The folder is ``$GGPLUG_CACHE_DIR/cpu``, else ``ggplug/cpu`` in the platform's cache folder (``~/.cache`` or
``$XDG_CACHE_HOME`` on Linux, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows).  A file that is damaged,
or that belongs to another user, is as good as none; a folder that cannot be written costs compiling again in the next
process.  Each is logged once as a warning, never an error.

Files are written under another name and renamed, so any number of processes may share the folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from ggplug_cpu import features

ENVIRONMENT_VARIABLE = "GGPLUG_CACHE_DIR"

log = logging.getLogger("ggplug")

_SUFFIX = ".kernel"
_MAGIC = b"ggplugK1"
#: magic, length of the JSON header, length of the code, SHA-256 of both.
_PREFIX = struct.Struct("<8sIQ32s")
#: A kernel whose source changed leaves its old file behind; it goes when the kernel is stored anew and this old.
_STALE_SECONDS = 30 * 24 * 3600.0

#: Parts of this package that run no differently for other code they produce; kernels import some of them.
_NOT_DRAWN_IN = frozenset(f"ggplug_cpu.{name}" for name in ("cache", "compiler", "features", "loader", "team"))
#: These make code from Python, whatever the kernel imports.
_ALWAYS_DRAWN_IN = ("ggplug_cpu.frontend", "ggplug_cpu.vectors")

_IMPORT = re.compile(
    r"""^[ \t]*(?: from [ \t]+ (?P<base>[.\w]+) [ \t]+ import [ \t]+ (?P<names> \( [^)]* \) | [^\n\#;]+ )
              | import [ \t]+ (?P<plain> [^\n\#;]+ ) )""",
    re.MULTILINE | re.VERBOSE,
)


@dataclass(frozen=True)
class CacheEntry:
    """One compiled kernel on disk: its name, its target, and the file's size in bytes and time of writing."""

    name: str
    target: str
    bytes: int
    modified: float
    path: Path


# -- the folder -------------------------------------------------------------------------------------


def folder() -> Path:
    """Where compiled kernels are kept; it need not exist yet."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen) / "cpu"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join("~", "AppData", "Local")
    elif sys.platform == "darwin":
        base = os.path.join("~", "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    expanded = os.path.expanduser(base)
    if expanded.startswith("~"):  # no home folder: a user in a container
        expanded = tempfile.gettempdir()
    return Path(expanded) / "ggplug" / "cpu"


def entries() -> list[CacheEntry]:
    """What is in the folder, by name; damaged files are listed under their file name."""
    return sorted((_describe(item) for item in _files()), key=lambda entry: (entry.name, entry.target))


def size() -> int:
    """Bytes of all files in the folder."""
    total = 0
    for item in _files():
        with contextlib.suppress(OSError):
            total += item.stat().st_size
    return total


def clear() -> int:
    """Delete every compiled kernel; returns how many there were.  Kernels in use stay in memory."""
    count = 0
    for item in _files():
        with contextlib.suppress(OSError):
            os.unlink(item.path)
            count += 1
    return count


def _files() -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder()) as items:
            yield from [item for item in items if item.name.endswith(_SUFFIX)]
    except OSError:
        return


def _describe(item: os.DirEntry[str]) -> CacheEntry:
    header: dict[str, Any] = {}
    modified, length = 0.0, 0
    with contextlib.suppress(OSError, ValueError, struct.error):
        status = item.stat()
        modified, length = status.st_mtime, status.st_size
        with open(item.path, "rb") as file:
            _, header_length, _, _ = _PREFIX.unpack(file.read(_PREFIX.size))
            header = json.loads(file.read(min(header_length, 4096)))
    return CacheEntry(
        str(header.get("name", item.name)), str(header.get("target", "?")), length, modified, Path(item.path)
    )


# -- one kernel -------------------------------------------------------------------------------------


def load(name: str, key: str) -> bytes | None:
    """The code that was stored for ``key``, or None."""
    path = _path(name, key)
    try:
        with open(path, "rb") as file:
            if not _trusted(os.fstat(file.fileno())):
                _warn_once(f"ignoring compiled kernels of another user in {path.parent}")
                return None
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(f"compiled kernels in {path.parent} cannot be read ({error})")
        return None
    code = _verified(content, key)
    if code is None:
        _warn_once(f"the compiled kernel {path} is damaged; compiling it again")
    return code


def store(name: str, key: str, code: bytes) -> None:
    """Keep ``code`` for ``key``.  A folder that cannot be written is a warning, once."""
    path = _path(name, key)
    header = json.dumps({"name": name, "key": key, "target": str(features.target())}).encode()
    content = _PREFIX.pack(_MAGIC, len(header), len(code), hashlib.sha256(header + code).digest()) + header + code
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _warn_once(f"compiled kernels cannot be kept in {path.parent} ({error}); set {ENVIRONMENT_VARIABLE}")
        return
    _remove_stale(path)


def _path(name: str, key: str) -> Path:
    return folder() / f"{_slug(name)}-{features.target().key[:8]}-{key[:32]}{_SUFFIX}"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", ".", name).strip(".")[:80]


def _verified(content: bytes, key: str) -> bytes | None:
    try:
        magic, header_length, code_length, digest = _PREFIX.unpack_from(content)
        body = content[_PREFIX.size :]
        if magic != _MAGIC or len(body) != header_length + code_length or hashlib.sha256(body).digest() != digest:
            return None
        return body[header_length:] if json.loads(body[:header_length])["key"] == key else None
    except (struct.error, ValueError, KeyError, TypeError):
        return None


def _trusted(status: os.stat_result) -> bool:
    """Code is run as it is found: only this user's own and the administrator's will do."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


def _remove_stale(path: Path) -> None:
    """Delete old files of the same kernel and target that other versions of the source left."""
    family, oldest = path.name.rsplit("-", 1)[0] + "-", time.time() - _STALE_SECONDS
    for item in _files():
        if item.name.startswith(family) and item.name != path.name:
            with contextlib.suppress(OSError):
                if item.stat().st_mtime < oldest:
                    os.unlink(item.path)


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


# -- the key ----------------------------------------------------------------------------------------


def key(function: Callable[..., Any], arguments: tuple[Any, ...], target: features.Target) -> str:
    """Sixty-four hex digits that stand for everything a kernel's code is made from."""
    text = "\0".join(
        (
            _MAGIC.decode(),
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
    """Of what turns source into code.  Numba is not imported for it: what its version file says will do."""
    import llvmlite

    numba = importlib.util.find_spec("numba")
    version = _read(os.path.join(os.path.dirname(numba.origin), "_version.py")) if numba and numba.origin else b""
    return f"{sys.version}|{llvmlite.__version__}|{hashlib.sha256(version).hexdigest()}"


@functools.cache
def _sources(module: str, code: CodeType) -> str:
    """A digest of the module's source and of what it draws in."""
    digest = hashlib.sha256()
    for name in sorted(drawn_in(module)):
        path = _source_path(name)
        digest.update(name.encode() + b"\0" + (_read(path) if path else b""))
    if _source_path(module) is None:  # typed at a prompt: its file if it names one, else its byte code
        digest.update(_read(code.co_filename) or _code_bytes(code))
    return digest.hexdigest()


def drawn_in(module: str) -> frozenset[str]:
    """Names of the modules whose source decides about the kernels of ``module``, itself included.

    Imports are followed within this package and the kernel's own; a sub-package counts whole.  Modules of other ggplug
    distributions count where they are imported directly.
    """
    own = {module.partition(".")[0], "ggplug_cpu"}
    found: set[str] = set(_ALWAYS_DRAWN_IN)
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
    """``name``, and if it is a sub-package all that is in it; a distribution's own ``__init__`` decides nothing."""
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

"""Files for the next process: the cache folder, and the kernels in it that backends compiled at run time.

The folder is ``$GGPLUG_CACHE_DIR``, else ``ggplug`` in the platform's cache folder (``~/.cache`` or ``$XDG_CACHE_HOME``
on Linux, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows).  Each backend has a folder of its own there.

A kernel's file is found by everything its code was made from.  One that is damaged, or that belongs to another user, is
as good as none; a folder that cannot be written costs compiling again in the next process.  Each is logged once as a
warning, never an error.  Files are written under another name and renamed, so any number of processes may share
the folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT_VARIABLE = "GGPLUG_CACHE_DIR"

log = logging.getLogger("ggplug")

_SUFFIX = ".kernel"
_MAGIC = b"ggplugK2"
_PREFIX = struct.Struct("<8sIQ32s")
"""Magic, length of the JSON header, length of the code, SHA-256 of both."""
_DAY = 24 * 3600.0
_UNUSED = 30 * _DAY
"""A kernel that nobody used for so long (its source, its driver or the processor is another now) goes in the end."""


def folder(part: str) -> Path:
    """Where files of one kind are kept; it need not exist yet."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen) / part
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join("~", "AppData", "Local")
    elif sys.platform == "darwin":
        base = os.path.join("~", "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    expanded = os.path.expanduser(base)
    if expanded.startswith("~"):  # no home folder: a user in a container
        expanded = tempfile.gettempdir()
    return Path(expanded) / "ggplug" / part


@dataclass(frozen=True)
class KernelFile:
    """One compiled kernel on disk.

    ``name`` and ``target``: what was compiled, and for which device.  ``bytes``: of the file.  ``used``: when a process
    last took it into use, in seconds since 1970, to the day.
    """

    name: str
    target: str
    bytes: int
    used: float
    path: Path


class KernelFiles:
    """The compiled kernels of one kind of backend: code in bytes, by a key that stands for all it was made from."""

    def __init__(self, part: str) -> None:
        self.part = part

    @property
    def folder(self) -> Path:
        """Where they are kept; it need not exist yet."""
        return folder(self.part)

    def entries(self) -> list[KernelFile]:
        """What is there, by name; damaged files are listed under their file name."""
        return sorted((_describe(item) for item in self._files()), key=lambda entry: (entry.name, entry.target))

    def clear(self) -> int:
        """Deletes all; returns how many there were.  Kernels in use stay in memory."""
        return sum(_delete(item.path) for item in self._files())

    def load(self, name: str, key: str) -> bytes | None:
        """The code that was stored under ``name`` and ``key``, or None."""
        path = self._path(name, key)
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if not _trusted(status):
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
        elif status.st_mtime < time.time() - _DAY:
            with contextlib.suppress(OSError):
                os.utime(path)
        return code

    def store(self, name: str, key: str, target: str, code: bytes) -> None:
        """Keeps ``code``.  Files that were not used for a month go; a folder that cannot be written is a warning."""
        path = self._path(name, key)
        header = json.dumps({"name": name, "key": key, "target": target}).encode()
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
        self._remove_unused()

    def _path(self, name: str, key: str) -> Path:
        slug = re.sub(r"[^A-Za-z0-9_]+", ".", name).strip(".")[:80]
        return self.folder / f"{slug}-{key[:40]}{_SUFFIX}"

    def _files(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as items:
                yield from [item for item in items if item.name.endswith(_SUFFIX)]
        except OSError:
            return

    def _remove_unused(self) -> None:
        oldest = time.time() - _UNUSED
        for item in self._files():
            with contextlib.suppress(OSError):
                if item.stat().st_mtime < oldest:
                    _delete(item.path)


def _describe(item: os.DirEntry[str]) -> KernelFile:
    header: dict[str, Any] = {}
    used, length = 0.0, 0
    with contextlib.suppress(OSError, ValueError, struct.error):
        status = item.stat()
        used, length = status.st_mtime, status.st_size
        with open(item.path, "rb") as file:
            _, header_length, _, _ = _PREFIX.unpack(file.read(_PREFIX.size))
            header = json.loads(file.read(min(header_length, 4096)))
    return KernelFile(str(header.get("name", item.name)), str(header.get("target", "?")), length, used, Path(item.path))


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


def _delete(path: str) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(path)
        return True
    return False


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)

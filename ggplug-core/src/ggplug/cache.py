"""The cache folder: kernels that backends compiled at run time, kept for later processes.

The folder is ``$GGPLUG_CACHE_DIR``, else ``ggplug`` in the platform's cache folder (``~/.cache`` or ``$XDG_CACHE_HOME``
on Linux, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows).  Each backend has a folder of its own there.

The key of a kernel's file covers everything that its code was made from.  A file that is damaged, or no regular file,
is ignored; if the folder cannot be written, the next process compiles again.  Each is logged once as a warning and
never raises.  Files are written under another name and renamed, so any number of processes may share the folder.

*The code in these files is executed*, so only files of the user and of the administrator are loaded: neither the folder
nor a file in it may belong to another user or be writable by others, and no symbolic link is followed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import stat
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ggplug.errors import FileKindError
from ggplug.system.files import is_unfinished, kind_of, open_regular, replacing

ENVIRONMENT_VARIABLE = "GGPLUG_CACHE_DIR"

log = logging.getLogger("ggplug")

_SUFFIX = ".kernel"
_MAGIC = b"ggplugK2"
_PREFIX = struct.Struct("<8sIQ32s")
"""Magic, length of the JSON header, length of the code, SHA-256 of both."""
_DAY = 24 * 3600.0
_UNUSED = 30 * _DAY
"""Kernels that were not used for this time are deleted: their source, driver or processor has changed."""
_LARGEST_HEADER, _LARGEST_CODE = 1 << 16, 1 << 28
"""Bytes; a header takes some hundreds, and a kernel's code at most some millions."""


def folder(part: str) -> Path:
    """The folder for files of one kind; it may not exist yet."""
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
    if os.path.isabs(expanded) and os.environ.get("HOME") != "":
        return Path(expanded) / "ggplug" / part
    # No home folder: a user in a container.
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    return Path(tempfile.gettempdir()) / f"ggplug-{user}" / part


@dataclass(frozen=True)
class KernelFile:
    """One compiled kernel on disk.

    ``name`` and ``target``: what was compiled, and for which device.  ``bytes``: size of the file.  ``used``: when a
    process last loaded it, in seconds since 1970, accurate to a day.  ``problem``: why it cannot be used, or empty;
    with a problem, ``name`` is that of the file.
    """

    name: str
    target: str
    bytes: int
    used: float
    path: Path
    problem: str | None = None


class KernelFiles:
    """The compiled kernels of one backend: machine code by a key that covers all that it was made from."""

    def __init__(self, part: str) -> None:
        self.part = part

    @property
    def folder(self) -> Path:
        """The folder of these files; it may not exist yet."""
        return folder(self.part)

    def entries(self) -> list[KernelFile]:
        """All kernels in the folder, sorted by name; those that cannot be used have a ``problem``."""
        found = [_describe(Path(item.path)) for item in self._items() if item.name.endswith(_SUFFIX)]
        return sorted(filter(None, found), key=lambda entry: (entry.name, entry.target))

    def clear(self) -> int:
        """Deletes all files and returns their number.  Folders, and kernels loaded into memory, stay."""
        count = sum(_delete(item) for item in self._items() if item.name.endswith(_SUFFIX))
        self._remove_unused()
        return count

    def load(self, name: str, key: str) -> bytes | None:
        """The code that was stored under ``name`` and ``key``, or None."""
        path = self._path(name, key)
        if not self._is_trusted():
            return None
        try:
            with open_regular(path, follow=False) as file:
                status = os.fstat(file.fileno())
                problem = distrust(status)
                if problem is not None:
                    _warn_once(f"ignoring the compiled kernel {path}: {problem}")
                    return None
                code = _verified(file, status.st_size, key)
                if code is not None and status.st_mtime < time.time() - _DAY:
                    with contextlib.suppress(OSError):
                        os.utime(file.fileno() if os.utime in os.supports_fd else path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # where there can be no folder, keeping them says so
        except FileKindError as error:
            _warn_once(f"ignoring a compiled kernel: {error}")
            return None
        except OSError as error:
            _warn_once(f"compiled kernels in {path.parent} cannot be read ({error.strerror or error})")
            return None
        if code is None:
            _warn_once(f"the compiled kernel {path} is damaged; compiling it again")
        return code

    def store(self, name: str, key: str, target: str, code: bytes) -> None:
        """Writes ``code`` to a file, and deletes files that were not used for a month.

        A folder that cannot be written is logged as a warning.
        """
        path = self._path(name, key)
        header = json.dumps({"name": name, "key": key, "target": target}).encode()
        content = _PREFIX.pack(_MAGIC, len(header), len(code), hashlib.sha256(header + code).digest()) + header + code
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_trusted():
                return
            with replacing(path, 0o600, follow=False) as file:
                file.write(content)
        except OSError as error:
            reason = error.strerror or error  # not the name of this kernel: it is the same for all of them
            _warn_once(f"compiled kernels cannot be kept in {path.parent} ({reason}); set {ENVIRONMENT_VARIABLE}")
            return
        self._remove_unused()

    def _path(self, name: str, key: str) -> Path:
        slug = re.sub(r"[^A-Za-z0-9_]+", ".", name).strip(".")[:80]
        return self.folder / f"{slug}-{key[:40]}{_SUFFIX}"

    def _is_trusted(self) -> bool:
        """Whether the folder belongs to the user, or does not exist yet."""
        try:
            status = os.lstat(self.folder)
        except OSError:
            return True  # reading and writing say what is wrong
        problem = kind_of(status) if not stat.S_ISDIR(status.st_mode) else distrust(status)
        if problem is not None:
            _warn_once(f"no compiled kernels are kept in {self.folder}: it is {problem}; set {ENVIRONMENT_VARIABLE}")
        return problem is None

    def _items(self) -> list[os.DirEntry[str]]:
        """The files in the folder, symbolic links left out."""
        try:
            if stat.S_ISLNK(os.lstat(self.folder).st_mode):
                self._is_trusted()
                return []
            with os.scandir(self.folder) as items:
                return list(items)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            _warn_once(f"compiled kernels in {self.folder} cannot be listed ({error.strerror or error})")
            return []

    def _remove_unused(self) -> None:
        """Deletes kernels that were not used for a month, and files that a process left unfinished a day ago."""
        now = time.time()
        for item in self._items():
            limit = _DAY if is_unfinished(item.name) else _UNUSED if item.name.endswith(_SUFFIX) else None
            with contextlib.suppress(OSError):
                if limit is not None and item.stat(follow_symlinks=False).st_mtime < now - limit:
                    _delete(item)


def distrust(status: os.stat_result) -> str | None:
    """Why code in a file or folder must not be run: another user could have written it.  None if it may be run."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return "owned by another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "writable by others (chmod go-w mends that)"
    return None


def _describe(path: Path) -> KernelFile | None:
    """What is known of a file in the cache folder; None if it was deleted meanwhile."""
    name, target, problem = path.name, "?", None
    length, used = 0, 0.0
    try:
        status = os.lstat(path)
        length, used = status.st_size, status.st_mtime
        with open_regular(path, follow=False) as file:
            header = _header(file)
            if header is None:
                problem = "damaged, or of another version"
            else:
                name, target = header["name"], header["target"]
                problem = distrust(os.fstat(file.fileno()))
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = getattr(error, "kind", None) or error.strerror or str(error)
    return KernelFile(name, target, length, used, path, problem)


def _header(file: IO[bytes]) -> dict[str, str] | None:
    """The header of a file; None if it is malformed."""
    try:
        magic, length, _, _ = _PREFIX.unpack(file.read(_PREFIX.size))
        if magic != _MAGIC or length > _LARGEST_HEADER:
            return None
        return _decoded(file.read(length))
    except struct.error:
        return None


def _decoded(header: bytes) -> dict[str, str] | None:
    try:
        facts = json.loads(header)
    except (ValueError, RecursionError):
        return None
    wanted = ("name", "key", "target")
    if not isinstance(facts, dict) or not all(isinstance(facts.get(each), str) for each in wanted):
        return None
    return facts


def _verified(file: IO[bytes], size: int, key: str) -> bytes | None:
    """The code in a file; None unless the file is complete, undamaged and of that key."""
    try:
        magic, header_length, code_length, digest = _PREFIX.unpack(file.read(_PREFIX.size))
    except struct.error:
        return None
    if magic != _MAGIC or header_length > _LARGEST_HEADER or code_length > _LARGEST_CODE:
        return None
    if size != _PREFIX.size + header_length + code_length:
        return None
    body = file.read(header_length + code_length)
    if hashlib.sha256(body).digest() != digest:
        return None
    facts = _decoded(body[:header_length])
    return body[header_length:] if facts is not None and facts["key"] == key else None


def _delete(item: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(item.path)
        return True
    return False


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)

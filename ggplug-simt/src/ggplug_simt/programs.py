"""Compiled programs: compiled when first asked for, kept in memory, and on disk for the next process.

The folder is ``$GGPLUG_CACHE_DIR/<dialect>``, else ``ggplug/<dialect>`` in the platform's cache folder.  A file is
found by what its program was made from: the whole text, the device and its driver.  A file that is damaged or that the
driver refuses is as good as none.  Files are written under another name and renamed, so processes may share the folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggplug_simt.driver import Program
from ggplug_simt.source import Source

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice

ENVIRONMENT_VARIABLE = "GGPLUG_CACHE_DIR"

log = logging.getLogger("ggplug")

_MAGIC = b"ggplugS1"
_SUFFIX = ".program"
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class ProgramFile:
    """One compiled program on disk: its kernel, its device, the file's bytes and its time of writing in seconds."""

    name: str
    target: str
    bytes: int
    modified: float
    path: Path


def folder(dialect: str) -> Path:
    """Where compiled programs of a dialect are kept; it need not exist yet."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen) / dialect
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join("~", "AppData", "Local")
    elif sys.platform == "darwin":
        base = os.path.join("~", "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    expanded = os.path.expanduser(base)
    if expanded.startswith("~"):  # no home folder: a user in a container
        expanded = tempfile.gettempdir()
    return Path(expanded) / "ggplug" / dialect


class Programs:
    """The programs of one device.  Safe to use from several threads."""

    def __init__(self, device: SimtDevice) -> None:
        self._device = device
        self._programs: dict[Source, Program] = {}
        self._lock = threading.RLock()
        self.compiled = 0
        """How many programs were compiled."""
        self.seconds = 0.0
        """How long compiling took."""
        self.found = 0
        """How many programs were found on disk."""

    def get(self, source: Source, op: object = None) -> Program:
        """The program for a source; ``op`` is named in the error.  Raises KernelCompileError."""
        program = self._programs.get(source)
        if program is None:
            with self._lock:
                program = self._programs.get(source)
                if program is None:
                    program = self._programs[source] = self._make(source, op)
        return program

    def _make(self, source: Source, op: object) -> Program:
        driver = self._device.driver
        text = source.text(driver.dialect)
        path = folder(driver.dialect) / f"{_key(text, driver.dialect, driver.identity)}{_SUFFIX}"
        binary = _read(path)
        if binary is not None:
            try:
                with driver.current():
                    program = driver.load(binary)
            except Exception as error:
                log.debug("%s: the stored %s is of no use: %s", self._device.name, source, error)
            else:
                self.found += 1
                return program
        start = time.perf_counter()
        with self._device.guarded("compiling", op=op, kernel=str(source)):
            made = driver.compile(text)
        seconds = time.perf_counter() - start
        self.compiled += 1
        self.seconds += seconds
        log.info("%s: compiled %s in %.2f s", self._device.name, source, seconds)
        if made.binary:
            _write(path, str(source), self._device.description, made.binary)
        return made.program


# -- files -----------------------------------------------------------------------------------------


def entries(dialect: str) -> list[ProgramFile]:
    """The compiled programs of a dialect, by name; damaged files are listed under their file name."""
    return sorted(map(_describe, folder(dialect).glob(f"*{_SUFFIX}")), key=lambda entry: (entry.name, entry.target))


def clear(dialect: str) -> int:
    """Deletes every compiled program of a dialect; returns how many there were.  Those in use stay in memory."""
    count = 0
    for path in folder(dialect).glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()
            count += 1
    return count


def _describe(path: Path) -> ProgramFile:
    header: dict[str, str] = {}
    size, modified = 0, 0.0
    with contextlib.suppress(OSError, ValueError):
        stat = path.stat()
        size, modified = stat.st_size, stat.st_mtime
        raw = path.read_bytes()
        header = json.loads(raw[len(_MAGIC) + _DIGEST :].partition(b"\n")[0])
    return ProgramFile(header.get("name", path.name), header.get("target", ""), size, modified, path)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _read(path: Path) -> bytes | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    digest, content = raw[len(_MAGIC) : len(_MAGIC) + _DIGEST], raw[len(_MAGIC) + _DIGEST :]
    if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(content).digest() != digest:
        log.warning("the compiled program %s is damaged; it is compiled again", path)
        return None
    return content.partition(b"\n")[2]


def _write(path: Path, name: str, target: str, binary: bytes) -> None:
    content = json.dumps({"name": name, "target": target}).encode() + b"\n" + binary
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".new")
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(content).digest() + content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        _cannot_keep(path.parent, error.strerror or str(error))


@functools.cache
def _cannot_keep(folder: Path, reason: str) -> None:
    """Said once, not for each program."""
    log.warning("compiled programs cannot be kept in %s: %s", folder, reason)

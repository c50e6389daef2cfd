"""Compiled programs: compiled when first asked for, kept in memory, and on disk for the next process.

The folder is ``$GGPLUG_CACHE_DIR/simt``, else ``ggplug/simt`` in the platform's cache folder.  A file is found by what
its program was made from: the whole text, the device and its driver.  A file that is damaged or that the driver refuses
is as good as none.  Files are written under another name and renamed, so processes may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
import threading
import time
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


def folder() -> Path:
    """Where compiled programs are kept; it need not exist yet."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen) / "simt"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join("~", "AppData", "Local")
    elif sys.platform == "darwin":
        base = os.path.join("~", "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    expanded = os.path.expanduser(base)
    if expanded.startswith("~"):  # no home folder: a user in a container
        expanded = tempfile.gettempdir()
    return Path(expanded) / "ggplug" / "simt"


def clear() -> int:
    """Deletes every compiled program; returns how many there were.  Programs in use stay in memory."""
    count = 0
    for path in folder().glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()
            count += 1
    return count


class Programs:
    """The programs of one device.  Safe to use from several threads."""

    def __init__(self, device: SimtDevice) -> None:
        self._device = device
        self._programs: dict[Source, Program] = {}
        self._lock = threading.RLock()
        self.compiled = 0
        """How many programs were compiled, and not found on disk."""
        self.found = 0
        """How many programs were found on disk."""

    def get(self, source: Source, op: object) -> Program:
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
        path = folder() / f"{_key(text, driver.dialect, driver.identity)}{_SUFFIX}"
        binary = _read(path)
        if binary is not None:
            try:
                program = driver.load(binary)
            except Exception as error:
                log.debug("%s: the stored %s is of no use: %s", self._device.name, source, error)
            else:
                self.found += 1
                return program
        start = time.perf_counter()
        with self._device.guarded("compiling", op=op, kernel=str(source)):
            made = driver.compile(text)
        self.compiled += 1
        log.info("%s: compiled %s in %.2f s", self._device.name, source, time.perf_counter() - start)
        if made.binary:
            _write(path, made.binary)
        return made.program


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _read(path: Path) -> bytes | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + 32
    binary = raw[head:]
    if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(binary).digest() != raw[len(_MAGIC) : head]:
        log.warning("the compiled program %s is damaged; it is compiled again", path)
        return None
    return binary


def _write(path: Path, binary: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(binary).digest() + binary)
        os.replace(name, path)
    except OSError as error:
        log.warning("compiled programs cannot be kept in %s: %s", path.parent, error)

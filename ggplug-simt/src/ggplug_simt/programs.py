"""Compiled programs: compiled when first asked for, kept in memory, and on disk for the next process.

A file (:mod:`ggplug.cache`) is found by what its program was made from: the whole text, the device and its driver.  One
that the driver refuses is as good as none.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from ggplug.cache import KernelFiles
from ggplug.sharing import present
from ggplug_simt.driver import Program
from ggplug_simt.source import Source

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice

log = logging.getLogger("ggplug")


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
        files = KernelFiles(driver.dialect)
        key = hashlib.sha256(f"{driver.identity}\0{text}".encode()).hexdigest()
        binary = files.load(str(source), key)
        if binary is not None:
            try:
                with present(), driver.current():
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
            files.store(str(source), key, self._device.description, made.binary)
        return made.program

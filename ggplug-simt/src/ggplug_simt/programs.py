"""Compiled programs: compiled at first use, kept in memory, and on disk for the next process.

The key of a file (:mod:`ggplug.cache`) is the whole text of its program, the device and its driver.  If the driver
refuses the file, the program is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time

from ggplug.cache import KernelFiles
from ggplug.hookspecs import HOOKS
from ggplug.sharing import present
from ggplug.system.recent import Recent
from ggplug_simt.driver import Compilation
from ggplug_simt.guard import Guard
from ggplug_simt.library import Program, VendorProgram

log = logging.getLogger("ggplug")

KEPT = 512
"""Most programs kept for future plans; drivers use megabytes for each.

The least recently used one is dropped.  Plans keep their own programs alive, and the disk has the others.
"""


class Programs:
    """The programs of one device.  Safe to use from several threads."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._programs: Recent[Program, Compilation] = Recent(KEPT)
        self._lock = threading.RLock()
        self.compiled = 0
        """The number of programs that were compiled."""
        self.seconds = 0.0
        """Seconds spent compiling."""
        self.found = 0
        """The number of programs that were loaded from disk."""

    def get(self, program: Program | VendorProgram, op: object = None) -> Compilation:
        """The compiled program, or the vendor's program itself.  Raises KernelCompileError, which names ``op``."""
        if isinstance(program, VendorProgram):
            return program
        with self._lock:
            return self._programs.of(program, lambda: self._make(program, op))

    def _make(self, program: Program, op: object) -> Compilation:
        driver, name = self._guard.driver, str(program)
        text = driver.library.text(program)
        files = KernelFiles(driver.library.language)
        key = hashlib.sha256(f"{driver.identity}\0{text}".encode()).hexdigest()
        binary = files.load(name, key)
        if binary is not None:
            try:
                with present(), driver.current():
                    compiled = driver.load(binary)
            except Exception as error:
                log.debug("%s: the stored %s is of no use: %s", self._guard.device.name, name, error)
            else:
                self.found += 1
                return compiled
        start = time.perf_counter_ns()
        with self._guard.guarded("compiling", op=op, kernel=name):
            made = driver.compile(text)
        end = time.perf_counter_ns()
        seconds = (end - start) / 1e9
        HOOKS.notify("ggplug_kernels_compiled", device=self._guard.device.name, names=[name], start=start, end=end)
        self.compiled += 1
        self.seconds += seconds
        log.info("%s: compiled %s in %.2f s", self._guard.device.name, name, seconds)
        if made.binary:
            files.store(name, key, self._guard.device.description, made.binary)
        return made.program

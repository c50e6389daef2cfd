"""Compiled programs: compiled when first asked for, kept in memory, and on disk for the next process.

A file (:mod:`ggplug.cache`) is found by what its program was made from: the whole text, the device and its driver.  One
that the driver refuses is as good as none.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict

from ggplug.cache import KernelFiles
from ggplug.sharing import present
from ggplug_simt.driver import Compilation
from ggplug_simt.guard import Guard
from ggplug_simt.library import Program, VendorProgram

log = logging.getLogger("ggplug")

KEPT = 512
"""Programs that are kept for plans to come; drivers take megabytes for each.

The one that was asked for longest ago goes first.  Plans hold what they run themselves, and the disk has the rest.
"""


class Programs:
    """The programs of one device.  Safe to use from several threads."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._programs: OrderedDict[Program, Compilation] = OrderedDict()
        self._lock = threading.RLock()
        self.compiled = 0
        """How many programs were compiled."""
        self.seconds = 0.0
        """How long compiling took."""
        self.found = 0
        """How many programs were found on disk."""

    def get(self, program: Program | VendorProgram, op: object = None) -> Compilation:
        """The compiled program, or a vendor's own as it is.  Raises KernelCompileError, which names ``op``."""
        if isinstance(program, VendorProgram):
            return program
        with self._lock:
            compiled = self._programs.get(program)
            if compiled is None:
                compiled = self._programs[program] = self._make(program, op)
                if len(self._programs) > KEPT:
                    self._programs.popitem(last=False)
            else:
                self._programs.move_to_end(program)
        return compiled

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
        start = time.perf_counter()
        with self._guard.guarded("compiling", op=op, kernel=name):
            made = driver.compile(text)
        seconds = time.perf_counter() - start
        self.compiled += 1
        self.seconds += seconds
        log.info("%s: compiled %s in %.2f s", self._guard.device.name, name, seconds)
        if made.binary:
            files.store(name, key, self._guard.device.description, made.binary)
        return made.program

"""Makes kernels ready to run: loads them from disk, or compiles them, several at a time where several are missing."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ggplug.cache import KernelFiles
from ggplug.errors import KernelCompileError
from ggplug.hookspecs import HOOKS
from ggplug_cpu.cache_key import key_of_code
from ggplug_cpu.compiling import pool
from ggplug_cpu.compiling.job import FromCode, FromSource, Job, Reference
from ggplug_cpu.features import Target
from ggplug_cpu.recorded import Compilable

log = logging.getLogger("ggplug")

#: Compiled kernels on disk.
FILES = KernelFiles("cpu")

#: Called with how many kernels are ready, how many there are, and the name of the one that is next.
Progress = Callable[[int, int, str], None]


class Wanted(Compilable, Protocol):
    """The attributes of a kernel that make it ready: of :class:`~ggplug_cpu.compiler.Kernel`."""

    addresses: dict[str, int]
    """By the key of the target."""

    @property
    def reference(self) -> Reference | None:
        """Where another process finds it; None where it does not."""

    def source_key(self) -> str:
        """What its code is kept by on disk; empty for one that is kept by its LLVM code."""


# -- listeners --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompileEvent:
    """The argument of :func:`on_compile`'s callbacks.

    ``phase`` is ``start``, ``done`` or ``failed``; ``seconds`` is how long it took, 0 at the start.
    """

    name: str
    phase: str
    seconds: float = 0.0


_listeners: list[Callable[[CompileEvent], None]] = []


def on_compile(callback: Callable[[CompileEvent], None]) -> Callable[[], None]:
    """Call ``callback`` when a kernel begins to be compiled and when that ends; returns a function that stops this.

    Kernels that are found on disk are not announced.  What another process compiled is announced when it arrives.
    """
    _listeners.append(callback)
    return lambda: _listeners.remove(callback) if callback in _listeners else None


def _announce(event: CompileEvent) -> None:
    for listener in tuple(_listeners):
        listener(event)


@contextlib.contextmanager
def _announced(name: str) -> Iterator[None]:
    log.info("compiling %s", name)
    _announce(CompileEvent(name, "start"))
    started = time.perf_counter()
    try:
        yield
    except BaseException:
        _announce(CompileEvent(name, "failed", time.perf_counter() - started))
        raise
    _announce(CompileEvent(name, "done", time.perf_counter() - started))


# -- loading and compiling --------------------------------------------------------------------------

# The front end is not re-entrant, and two threads should not compile one kernel twice.
_lock = threading.RLock()


def obtain(kernels: Iterable[Wanted], target: Target, progress: Progress | None = None) -> int:
    """Makes every one of ``kernels`` ready to run; returns how many had to be compiled.

    Raises :class:`~ggplug.errors.KernelCompileError` for the first that cannot be made ready.
    """
    wanted = [each for each in dict.fromkeys(kernels) if target.key not in each.addresses]
    if not wanted:
        return 0
    if not target.runs_here:
        raise KernelCompileError(
            f"kernel {wanted[0].name} would be code for {target.triple}, which cannot run here",
            op=wanted[0].name,
            remedy="assembly() returns that code as text",
        )
    with _lock:
        batch = _Batch(wanted, target, progress)
        batch.find()
        return batch.compile()


class _Batch:
    """Kernels that are made ready together."""

    def __init__(self, wanted: list[Wanted], target: Target, progress: Progress | None) -> None:
        self._wanted = wanted
        self._target = target
        self._progress = progress
        self._done = 0
        self._missing: list[Wanted] = []
        self._keys: dict[Wanted, str] = {}
        self._codes: dict[Wanted, str] = {}
        """The LLVM code of kernels that are kept by it."""

    def find(self) -> None:
        """Loads what is on disk."""
        for each in self._wanted:
            if self._target.key in each.addresses:  # another thread was faster
                self._done += 1
                continue
            address = self._kept(each)
            if address is None:
                self._missing.append(each)
            else:
                each.addresses[self._target.key] = address
                self._report(each)
                self._done += 1

    def compile(self) -> int:
        """Compiles what is missing; returns how many that were."""
        jobs = {each: job for each in self._missing if (job := self._job(each)) is not None}
        own = deque(each for each in self._missing if each not in jobs)
        started = time.perf_counter_ns()
        with pool.started(jobs) as others:
            while (kernel := own.popleft() if own else others.take()) is not None:
                for finished in others.finished():
                    self._accept(*finished)
                self._compile_here(kernel)
            for finished in others.outstanding():
                self._accept(*finished)
        if self._missing:
            names, end = [each.name for each in self._missing], time.perf_counter_ns()
            HOOKS.notify("ggplug_kernels_compiled", device="CPU", names=names, start=started, end=end)
        return len(self._missing)

    def _job(self, kernel: Wanted) -> Job | None:
        """What another process can compile; None where it cannot find the kernel, or there is an error in it."""
        if kernel in self._codes:
            return FromCode(kernel.name, self._codes[kernel], self._target)
        if not self._keys[kernel] or (reference := kernel.reference) is None:
            return None
        return FromSource(reference, self._target, self._keys[kernel])

    def _compile_here(self, kernel: Wanted) -> None:
        from ggplug_cpu.language import machine_code

        self._report(kernel)
        with _announced(kernel.name):
            code = self._codes.get(kernel)
            if code is None:
                found = machine_code.compile_kernel(kernel, self._target)
            else:
                found = machine_code.object_file(kernel.name, code, self._target)
        self._keep(kernel, found)

    def _accept(self, kernel: Wanted, answer: pool.Answer) -> None:
        """Takes over the answer of another process; a kernel that it did not compile is compiled here."""
        if isinstance(answer, str):
            log.warning("kernel %s is compiled in this process: %s", kernel.name, answer)
            self._compile_here(kernel)
            return
        self._report(kernel)
        with _announced(kernel.name):
            if isinstance(answer, KernelCompileError):
                raise answer
        self._keep(kernel, answer)

    def _keep(self, kernel: Wanted, code: bytes) -> None:
        from ggplug_cpu import loader

        address = loader.load(kernel.name, code)  # a missing symbol must not reach the disk
        if self._keys[kernel]:
            FILES.store(kernel.name, self._keys[kernel], str(self._target), code)
        kernel.addresses[self._target.key] = address
        self._done += 1

    def _kept(self, wanted: Wanted) -> int | None:
        """The address of the code on disk; None if there is none, or none that can be loaded."""
        from ggplug_cpu import loader

        key = self._keys[wanted] = wanted.source_key() or self._key_of_code(wanted)
        code = FILES.load(wanted.name, key) if key else None
        if code is None:
            return None
        try:
            return loader.load(wanted.name, code)
        except KernelCompileError as error:
            log.warning("ignoring what is on disk: %s; compiling it again", error)
            return None

    def _key_of_code(self, wanted: Wanted) -> str:
        from ggplug_cpu.language import machine_code

        try:
            code = self._codes[wanted] = machine_code.llvm_code(wanted, self._target)
        except Exception:  # it is raised, and announced, when the kernel is compiled
            return ""
        return key_of_code(code, self._target)

    def _report(self, kernel: Wanted) -> None:
        if self._progress is not None:
            self._progress(self._done, len(self._wanted), kernel.name)


def translated(wanted: Wanted, target: Target) -> str:
    """The LLVM code of a kernel, before it is optimised."""
    from ggplug_cpu.language import machine_code

    with _lock:
        return machine_code.llvm_code(wanted, target)


def inspected(wanted: Wanted, target: Target, what: str) -> str:
    """The code of a kernel as text, compiled anew: ``what`` is ``assembly`` or ``llvm``."""
    from ggplug_cpu.language import machine_code

    with _lock:
        return machine_code.inspect_kernel(wanted, target, what)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

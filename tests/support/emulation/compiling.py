"""Kernels of a guest, compiled by the host.

Under emulation the compiler takes twenty times as long as on the host, and most of a session would be spent in it.  The
compiler can compile for other processors (:func:`ggplug_cpu.features.cross_target`), so inside of :func:`on_host` the
guest sends the place of a kernel's factory, the factory's arguments and the target that the guest found, and gets back
object code (or text), which it loads and runs as its own.  ``guest_site`` is the guest's side; ggplug is unchanged.

What such tests show: the code that the compiler makes for that processor gives right results, and uses no instruction
that the processor lacks.  What they cannot show: that LLVM, as a wheel for that processor, makes this code there.  For
that some kernels are left to the guest: those of the thread team, which every computation needs, so that a compiler
that does not work stops every session; those whose factory is defined in a function, so that no name leads to it, as
some tests have; and those that the host fails to compile (inline assembly of another processor is beyond it).
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ggplug_cpu.features import Target

_SUPPORT = Path(__file__).resolve().parent.parent


class Job(NamedTuple):
    """A kernel that is wanted, sent as a plain tuple.

    ``what``: ``object``, ``code`` (LLVM's, not optimised), ``assembly`` or ``llvm``.  ``module`` and ``name``: where
    its factory is.  Of ``object_file`` they are the kernel's name and its LLVM code.
    """

    what: str
    module: str
    name: str
    arguments: tuple[str | int | bool | None, ...]
    target: Target

    @property
    def key(self) -> tuple[object, ...]:
        return (*self[:3], repr(self.arguments), self.target)  # True == 1, yet they make different kernels


@contextmanager
def on_host(python: str, processes: int, cache: Path) -> Iterator[dict[str, str]]:
    """Compile for guests inside a ``with`` block; yields what a guest's environment needs for that.

    ``python``: the host's Python that has this repository's distributions, and what their tests import.  ``processes``:
    how many kernels are compiled at a time.  ``cache``: where guests keep these kernels, apart from those that they
    compiled themselves.
    """
    with tempfile.TemporaryDirectory(prefix="ggplug-") as folder:
        address = os.path.join(folder, "compiler")
        command = [python, "-m", "emulation.compiling", address, str(processes)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=_SUPPORT, stdin=pipe, stdout=pipe, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                if server.stdout.readline() != "listening\n":
                    raise RuntimeError(f"{' '.join(command)} ended with {server.wait()}")
                site = str(_SUPPORT / "emulation" / "guest_site")
                yield {
                    "PYTHONPATH": site,
                    "GGPLUG_COMPILER": address,
                    "GGPLUG_COMPILERS": "1",  # the host has as many as it wants
                    "GGPLUG_CACHE_DIR": str(cache),
                }
            finally:
                server.stdin.close()  # this ends it
                print(server.stdout.read(), end="", flush=True)


# -- the server ---------------------------------------------------------------------------------------


class _Server:
    """Compiles every kernel once, however many processes of guests ask for it."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool = self._new_pool()
        self._lock = threading.Lock()
        self._results: dict[tuple[object, ...], Future[bytes | str]] = {}
        self._declined: dict[tuple[object, ...], str] = {}

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._processes, mp_context=get_context("spawn"))

    def serve(self, address: str) -> None:
        """Answer until the standard input is closed; then say what was done."""
        with Listener(address, "AF_UNIX", backlog=64) as listener:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            print("listening", flush=True)
            sys.stdin.read()
        self._pool.shutdown(wait=False, cancel_futures=True)
        compiled = sum(key[0] in ("object", "object_file") for key in self._results.keys() - self._declined.keys())
        print(f"The host compiled {compiled} kernels for the guest.")
        for key, why in self._declined.items():
            print(f"The host left {key[1]}.{key[2]}{key[3]} to the guest: {why}")

    def _accept(self, listener: Listener) -> None:
        while True:
            connection = listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            connection.send(self._result(Job(*connection.recv())))

    def _result(self, job: Job) -> bytes | str | None:
        """The code, or None where the guest is to compile it."""
        with self._lock:
            if job.key not in self._results:
                self._results[job.key] = self._pool.submit(_compile, job)
            future, pool = self._results[job.key], self._pool
        try:
            return future.result()
        except BrokenProcessPool:  # LLVM ends a process in some cases
            self._declined[job.key] = "a process that compiled ended"
            with self._lock:
                if self._pool is pool:
                    self._pool = self._new_pool()
        except Exception as error:
            self._declined[job.key] = f"{type(error).__name__}: {error}"
        return None


def _compile(job: Job) -> bytes | str:
    from ggplug_cpu import features
    from ggplug_cpu.compiler import KernelFactory
    from ggplug_cpu.language import machine_code

    if job.what == "object_file":
        return machine_code.object_file(job.module, job.name, job.target)
    factory = getattr(importlib.import_module(job.module), job.name)
    if not isinstance(factory, KernelFactory):
        raise TypeError(f"{job.module}.{job.name} is no factory of kernels")
    with features.forced(job.target) as target:
        kernel = factory(*job.arguments)
        if job.what == "object":
            return machine_code.compile_kernel(kernel, target)
        if job.what == "code":
            return machine_code.llvm_code(kernel, target)
        return machine_code.inspect_kernel(kernel, target, job.what)


if __name__ == "__main__":
    _Server(int(sys.argv[2])).serve(sys.argv[1])

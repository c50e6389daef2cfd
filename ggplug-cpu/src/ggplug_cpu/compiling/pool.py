"""Starts processes that compile kernels, and ends them when no kernel is missing any more.

One thread of a process at a time can use LLVM, so threads would gain nothing.  The processes run ``worker.py`` and
nothing of the program that this one runs.  ``GGPLUG_COMPILERS`` limits how many compile at a time, this one included;
without it there are as many as the CPU device has threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from ggplug.errors import KernelCompileError, ParameterError
from ggplug_cpu import topology
from ggplug_cpu.compiling.job import Job

ENVIRONMENT_VARIABLE = "GGPLUG_COMPILERS"

#: An object file, the error that it gives, or why a process made nothing of a job.
Answer = bytes | KernelCompileError | str
K = TypeVar("K")

log = logging.getLogger("ggplug")

_WORKER = Path(__file__).with_name("worker.py")
#: Where ggplug_cpu is, which no module path has if GGPLUG_BACKEND_PATH names it.
_PACKAGES = str(Path(__file__).parents[2])
#: Starting a process takes as long as compiling this many kernels.
_KERNELS_FOR_A_PROCESS = 2
_MOST = 16
#: Seconds after which Ctrl-C ends a wait on Windows; on other systems it does at once.
_LISTENS_EVERY = 1.0


def processes() -> int:
    """How many processes compile at a time, this one included."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if not chosen:
        return min(topology.default_threads(), _MOST)
    if not chosen.isdecimal() or len(chosen) > 9 or int(chosen) < 1:
        raise ParameterError(
            f"{ENVIRONMENT_VARIABLE}={chosen!r} is no number of processes",
            got=chosen,
            remedy="give a number from 1 on, or unset it for one process a core",
        )
    return int(chosen)


@contextlib.contextmanager
def started(jobs: Mapping[K, Job]) -> Iterator[Pool[K]]:
    """Starts as many processes as these jobs need; when the block ends, however it does, they have ended."""
    count = min(processes() - 1, (len(jobs) - 1) // _KERNELS_FOR_A_PROCESS)
    if not sys.executable or getattr(sys, "frozen", False):  # started again, it would not be a Python
        count = 0
    pool = Pool(jobs)
    try:
        pool.start(count)
        yield pool
    finally:
        pool.end()


class Pool(Generic[K]):
    """Jobs, which this process takes from the front and other processes from the back."""

    def __init__(self, jobs: Mapping[K, Job]) -> None:
        self._jobs = jobs
        self._waiting = deque(jobs)
        self._answers: queue.SimpleQueue[tuple[K, Answer] | None] = queue.SimpleQueue()
        self._busy = 0
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Starts ``count`` processes, or as many as the system lets it."""
        try:
            for _ in range(count):
                worker = _Worker()
                self._workers.append(worker)
                thread = threading.Thread(target=self._feed, args=(worker,), name="ggplug compiling", daemon=True)
                thread.start()
                self._threads.append(thread)
                self._busy += 1
        except (OSError, RuntimeError) as error:
            log.info("%d processes compile and no more: %s", 1 + len(self._threads), error)

    def take(self) -> K | None:
        """The next job for this process; None where there is none left."""
        with contextlib.suppress(IndexError):
            return self._waiting.popleft()
        return None

    def finished(self) -> Iterator[tuple[K, Answer]]:
        """What other processes have answered by now."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield from self._received(self._answers.get_nowait())

    def outstanding(self) -> Iterator[tuple[K, Answer]]:
        """What they have not answered yet, as it comes; no job is waiting."""
        while self._busy:
            with contextlib.suppress(queue.Empty):
                yield from self._received(self._answers.get(timeout=_LISTENS_EVERY))

    def end(self) -> None:
        """Ends the processes, also those that are compiling."""
        self._waiting.clear()
        for worker in self._workers:
            worker.end()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def _received(self, answer: tuple[K, Answer] | None) -> Iterator[tuple[K, Answer]]:
        if answer is None:
            self._busy -= 1
        else:
            yield answer

    def _feed(self, worker: _Worker) -> None:
        """Gives one process job after job; the last answer is None."""
        while worker.lives:
            try:
                key = self._waiting.pop()
            except IndexError:
                break
            self._answers.put((key, worker.answer(self._jobs[key])))
        self._answers.put(None)


class _Worker:
    """One other process."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=pipe,
            stdout=pipe,
            env={**os.environ, ENVIRONMENT_VARIABLE: "1"},  # it starts none itself
            start_new_session=True,  # Ctrl-C reaches this process only, which ends the other one
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self.lives = True
        self._first = True

    def answer(self, job: Job) -> Answer:
        """What the process makes of a job."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            if self._first:
                pickle.dump([*sys.path, _PACKAGES], stdin)
                self._first = False
            pickle.dump(job, stdin)
            stdin.flush()
            answer: Answer = pickle.load(stdout)
        except Exception as error:  # mostly EOFError: it has ended
            self.lives = False
            self.end()
            return f"the process that was to compile it ended with {self._process.returncode} ({type(error).__name__})"
        return answer

    def end(self) -> None:
        """Ends the process and waits for its end, so that no zombie is left."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Closes the pipes of a process that has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # of what was still to be written
                pipe.close()

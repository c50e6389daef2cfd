"""What a process runs that compiles kernels for another one: :mod:`ggplug_cpu.compiling.pool` starts it as a program.

It reads the other process's module path and then jobs, each answered by an object file, an error, or why it made
nothing, until there are no more.  What modules print on their standard output goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import IO


def serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    """Answers until the jobs end."""
    sys.path[:] = pickle.load(jobs)

    from ggplug.errors import KernelCompileError

    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer = job.compiled()
        except KernelCompileError as error:
            answer = error
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        try:
            serve(sys.stdin.buffer, answers)
        except (EOFError, BrokenPipeError):  # nobody asks any more
            os._exit(0)

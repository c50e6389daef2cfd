"""A program that compiles kernels for another process: :mod:`ggplug_cpu.compiling.pool` starts it.

It reads that process's module path and then jobs, until there are no more, and answers each with an object file, an
error, or the reason why it compiled nothing.  What modules print goes to standard error.
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

"""A command that survives a plugin that crashes the process: it runs in a child process, and again if that is lost."""

from __future__ import annotations

import os
import select
import signal
import sys
import warnings
from collections.abc import Callable

from ggplug.cli.app import exit_code_of
from ggplug.cli.streams import ended_by_signals, stdout
from ggplug.registry import REGISTRY
from ggplug.registry.doctor import ENDED_BY_OTHERS


def tried_twice(command: Callable[[], object]) -> int:
    """The exit code of a command, which runs once more if a plugin crashes it: then each is tried in a child first.

    Only on Linux, where a process that has loaded no plugin may be forked.  On other systems the next command
    knows of the crash.
    """
    if sys.platform != "linux" or stdout() is sys.stdout:  # that of a program that calls the command
        return exit_code_of(command)
    limit = REGISTRY.settings.timeout
    # Longer than all plugins may take to load, to list their devices, and to say what these are.
    patience = 2 * limit * (len(REGISTRY.catalog.plugins()) + 1) + 15 if limit else None
    stdout().flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it was ignored, the child's exit code would be lost
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy's threads, which rest
        child = os.fork()
    if not child:
        os.close(reader)
        try:
            return exit_code_of(command)
        finally:  # unless a plugin has ended the process
            os.write(writer, b".")
    os.close(writer)
    os.set_blocking(reader, False)
    ending = _ending(child)
    ready: list[int] = []
    finished = False
    try:
        with ended_by_signals():
            ready, _, _ = select.select([reader, *ending], [], [], patience)
            finished = bool(ready and _finished(reader))
    finally:
        if not ready:  # it hangs, or this process is to end
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for descriptor in (reader, *ending):
            os.close(descriptor)
    if finished or (ready and code in ENDED_BY_OTHERS):
        return code if code >= 0 else 128 - code
    REGISTRY.lifecycle.wary = True
    return exit_code_of(command)


def _ending(child: int) -> list[int]:
    """A descriptor that can be read once a process has ended, though others may hold its pipes; none on old systems."""
    try:
        return [os.pidfd_open(child)]
    except OSError:
        return []


def _finished(reader: int) -> bool:
    """Whether a child process has written that its command ended."""
    try:
        return bool(os.read(reader, 1))
    except BlockingIOError:  # something that it started may still write
        return False

"""Cores that the operating system grants, and affinity and priority of threads."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ggplug.errors import ParameterError

ENVIRONMENT_VARIABLE = "GGPLUG_THREADS"

#: From the lowest to the highest; ggml's ``ggml_sched_priority``.
PRIORITIES = ("low", "normal", "medium", "high", "realtime")

log = logging.getLogger("ggplug")


def default_threads() -> int:
    """``GGPLUG_THREADS``, else the physical cores that this process may use.

    Two hyper-threads of a core share its vector units, so a second one only slows the first.  Affinity and the CPU
    quota of a Linux control group (a container's ``--cpus``) are respected.
    """
    chosen = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if chosen:
        if not chosen.isdecimal() or len(chosen) > 9 or int(chosen) < 1:
            raise ParameterError(
                f"{ENVIRONMENT_VARIABLE}={chosen!r} is no number of threads",
                got=chosen,
                remedy="give a number from 1 on, or unset it for one thread a core",
            )
        return int(chosen)
    return max(1, min(_cores(), _quota()))


def allowed_processors() -> tuple[int, ...]:
    """The logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _cores() -> int:
    siblings = {_siblings(processor) for processor in allowed_processors()}
    return len(siblings)


def _siblings(processor: int) -> str:
    """A text that is equal for the hyper-threads of one core."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/{name}").read_text().strip()
        except OSError:
            continue
    return str(processor)


def _quota() -> int:
    """Number of processors whose time a control group grants; a large number without a limit."""
    unlimited = 1 << 20
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return unlimited if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return unlimited


def processors_for(index: int, affinity: Sequence[int] | None, *, strict: bool) -> tuple[int, ...] | None:
    """The processors on which thread ``index`` of a team may run: one each if ``strict``, else all of ``affinity``."""
    if affinity is None:
        return None
    return (affinity[index % len(affinity)],) if strict else tuple(affinity)


def place_this_thread(processors: Sequence[int] | None, priority: str) -> None:
    """Restrict the calling thread to ``processors`` and set its priority; a refusal of the system is logged."""
    if processors is not None:
        _attempt(f"affinity {tuple(processors)}", lambda: _set_affinity(processors))
    if priority != "normal":
        _attempt(f"priority {priority}", lambda: _set_priority(priority))


def _set_affinity(processors: Sequence[int]) -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("this system has no thread affinity")
    os.sched_setaffinity(threading.get_native_id(), processors)


def _set_priority(priority: str) -> None:
    if sys.platform != "linux":
        raise OSError("thread priorities are implemented for Linux")
    thread = threading.get_native_id()
    if priority == "low":
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    else:
        # the levels of ggml's thread pool
        level = {"medium": 40, "high": 80, "realtime": 90}[priority]
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(level))


def _attempt(what: str, action: Callable[[], None]) -> None:
    try:
        action()
    except (OSError, ValueError) as error:
        log.warning("a thread of the CPU device keeps its defaults: %s refused (%s)", what, error)

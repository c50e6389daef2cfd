"""Trying plugins in processes of their own, so that even a crash is only a finding."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from ggplug.registry.records import Plugin, PluginStatus, Stage

CHILDREN = 4
"""How many plugins are tried at once: most of the time goes into importing, or into waiting for one that hangs."""

ENDED_BY_OTHERS = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGKILL} if os.name == "posix" else set()
"""Exit codes of a process that a user or the system ended, such as for lack of memory: no plugin crashed it."""
_FAILED_ITSELF = 70
"""The child's exit code when ggplug's own code failed in it (``EX_SOFTWARE`` of sysexits.h)."""

# The child gets this process's sys.path, and nothing of the current directory before that.
_CHILD = f"""
import json, os, sys, traceback
job = json.load(sys.stdin)
sys.path[:] = job["path"]
try:
    from ggplug.registry.probe import main
    main(job)
except Exception:
    traceback.print_exc()
    os._exit({_FAILED_ITSELF})
"""


class Trial(NamedTuple):
    """What became of a plugin in a child process.

    ``status``: what the child said of it last.  ``doing``: what failed, or else what was tried last; empty if nothing
    was.  ``crash``: how the child ended, if the plugin ended it, with what it printed in ``details``.  ``slow``: what
    took longer than the limit.
    """

    status: PluginStatus
    doing: str = ""
    crash: str | None = None
    details: str = ""
    slow: str | None = None


def try_all(plugins: Sequence[Plugin], limit: float, until: Stage = Stage.COMPUTED) -> list[Trial]:
    """Takes each plugin through the stages, up to one, in a child process; ``limit``: seconds for each stage."""
    with ThreadPoolExecutor(CHILDREN, thread_name_prefix="ggplug-doctor") as pool:
        return list(pool.map(lambda plugin: _try(plugin, limit, until), plugins))


def _try(plugin: Plugin, limit: float, until: Stage) -> Trial:
    known = plugin.status()
    if plugin.find is None or plugin.disabled is not None:
        return Trial(known)
    job = {
        "path": sys.path,
        "distribution": plugin.distribution,
        "entry_point": plugin.name,
        "file": plugin.source if plugin.file_name else None,
        "timeout": limit,
        "until": until.value,
    }
    try:
        found, crash = _run(job, limit)
    except OSError as error:
        reason, remedy = f"no child process could try it: {error}", "free memory or processes, and try again"
        return Trial(dataclasses.replace(known, ok=False, error=reason, remedy=remedy))
    taken = {name: found[name] for name in _TAKEN if name in found}
    taken["devices"] = tuple(found.get("devices", ()))
    if taken.get("error") is None and plugin.duplicate is not None:  # a name that others have too
        taken["error"], taken["remedy"] = plugin.duplicate.message, plugin.duplicate.remedy
    status = dataclasses.replace(known, **taken, ok=taken.get("error") is None)
    if crash is None:
        return Trial(status, found["doing"], slow=found["slow"])
    summary, _, details = crash.partition("\n")
    if not found:
        reason = f"the process to try it in {summary} before it began"
        return Trial(dataclasses.replace(known, ok=False, error=reason, traceback=details))
    return Trial(status, found["doing"], f"it {summary}", details)


_TAKEN = ("stage", "version", "error", "remedy", "traceback", "no_device", "milliseconds", "stages")


def _run(job: dict[str, Any], limit: float) -> tuple[dict[str, Any], str | None]:
    """What the child said last, and how the plugin ended it, or None.

    Raises OSError where there was no child, or where something else than the plugin ended it.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("this program has Python built in")
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", _CHILD]
    patience = (len(Stage) - 1) * limit + 15
    # Files, not pipes: a grandchild that a plugin leaves behind would keep a pipe open for ever.
    with tempfile.TemporaryFile() as job_file, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        job_file.write(json.dumps(job).encode())
        job_file.seek(0)
        process = subprocess.Popen(command, stdin=job_file, stdout=output, stderr=errors)
        try:
            # Each stage has its own limit; beyond that the child cannot even run its timers.
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            return _last_line(output), f"hangs and holds the interpreter: killed after {patience:g} seconds"
        finally:
            process.kill()
            process.wait()
        found = _last_line(output)
        if not found.get("finished") and (code in ENDED_BY_OTHERS or code == _FAILED_ITSELF):
            by_others = f"it was ended by {signal.Signals(-code).name}" if code in ENDED_BY_OTHERS else ""
            raise ChildProcessError(by_others or _tail(errors).rpartition("\n")[2])
        return found, None if found.get("finished") else f"{_exit(code)}\n{_tail(errors)}"


def _last_line(output: IO[bytes]) -> dict[str, Any]:
    output.seek(0)
    for line in reversed(output.read().splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def _tail(errors: IO[bytes]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4000))  # it may have printed until its time was over
    return errors.read().decode(errors="replace").strip()


def _exit(code: int) -> str:
    if code >= 0:
        return f"ended the process with exit code {code}"
    known = -code in set(signal.Signals)
    return f"crashed the process with {signal.Signals(-code).name if known else f'signal {-code}'}"

"""Trying every plugin in a process of its own, so that even a crash is only a finding."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from ggplug.registry.records import Plugin, PluginStatus, Stage

CHILDREN = 4
"""How many plugins are tried at once: most of the time goes into importing, or into waiting for one that hangs."""

# The child gets this process's sys.path, and nothing of the current directory before that.
_CHILD = """
import json, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from ggplug.registry.probe import main
main(job)
"""


def examine_all(plugins: Sequence[Plugin], limit: float) -> list[PluginStatus]:
    """Takes each plugin through all stages in a child process; ``limit``: seconds for each stage."""
    with ThreadPoolExecutor(CHILDREN, thread_name_prefix="ggplug-doctor") as pool:
        return list(pool.map(lambda plugin: examine(plugin, limit), plugins))


def examine(plugin: Plugin, limit: float) -> PluginStatus:
    """One plugin's finding; ``limit``: seconds for each stage."""
    known = plugin.status()
    if plugin.find is None or plugin.disabled is not None:
        return known
    job = {
        "path": sys.path,
        "distribution": plugin.distribution,
        "entry_point": plugin.name,
        "file": plugin.source if plugin.file_name else None,
        "timeout": limit,
    }
    try:
        found, ending = _run(job, limit)
    except OSError as error:
        return dataclasses.replace(
            known, ok=False, error=f"cannot start a process to try it in: {error}", remedy="free memory or processes"
        )
    return _conclude(plugin, known, found, ending)


def _run(job: dict[str, Any], limit: float) -> tuple[dict[str, Any], str | None]:
    """What the child said last, and how it ended if that was not by itself."""
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", _CHILD]
    patience = (len(Stage) - 1) * limit + 15
    # Files, not pipes: a grandchild that a plugin leaves behind would keep a pipe open for ever.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=errors)
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(job).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it died before it could listen; its exit code tells
            # Each stage has its own limit; beyond that the child cannot even run its timers.
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            return _last_line(output), f"hangs and holds the interpreter: killed after {patience:g} seconds"
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        found = _last_line(output)
        if found.get("finished"):
            return found, None
        return found, f"{_exit(code)}{_tail(errors)}"


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
    text = errors.read().decode(errors="replace").strip()
    return f"\n{text}" if text else ""


def _exit(code: int) -> str:
    if code >= 0:
        return f"ended the process with exit code {code}"
    import signal

    try:
        return f"crashed the process with {signal.Signals(-code).name}"
    except ValueError:
        return f"crashed the process with signal {-code}"


def _conclude(plugin: Plugin, known: PluginStatus, found: dict[str, Any], ending: str | None) -> PluginStatus:
    taken = ("stage", "version", "error", "remedy", "traceback", "no_device", "milliseconds", "stages")
    fields: dict[str, Any] = {name: found[name] for name in taken if name in found}
    fields["devices"] = tuple(found.get("devices", ()))
    if ending is not None:
        summary, _, details = ending.partition("\n")
        reached = [stage.value for stage in Stage].index(fields.get("stage", Stage.INSTALLED.value))
        action = list(Stage)[min(reached + 1, len(Stage) - 1)].action
        fields["error"] = f"{action}: it {summary}"
        fields["traceback"] = details or None
        fields["remedy"] = f"a fault of the plugin or its driver; GGPLUG_DISABLE={plugin.qualified} leaves it out"
    if fields.get("error") is None and known.error is not None:  # a name that others have too
        fields["error"], fields["remedy"] = known.error, known.remedy
    fields["ok"] = fields.get("error") is None
    return dataclasses.replace(known, **fields)

"""A report is made part by part, each in a process of its own, within a budget of time.

The process of a part notes each step in a journal, and the one that started it takes that over into the report's file
at once.  A step that raises costs itself.  One that crashes, hangs or loses the device costs its process too: another
one goes on with the step behind it.  What was not reached when a part's time was over is listed as not run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ggplug.system.files import replacing
from ggplug_simt.device import SimtDevice
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.gpu_report.figures import figures
from ggplug_testing.gpu_report.folder import Folder
from ggplug_testing.gpu_report.proofs import environment, facts, model, recorded, suite
from ggplug_testing.gpu_report.step import Door, Step, Subject


class Part(NamedTuple):
    """``weight``: the part's fraction of the time, times the sum of all; what earlier parts left over is added."""

    weight: float
    steps: Callable[[Subject], Iterable[Step]]


# What says most for its time comes first; the suite is longest and takes what is left.
PARTS = {
    "facts": Part(20, facts),
    "model": Part(100, model),
    "recorded": Part(60, recorded),
    "figures": Part(100, figures),
    "suite": Part(200, suite),
}

GRACE = 15.0
"""Seconds that a step may go on beyond its part's time before its process is ended."""

PATIENCE = 120.0
"""Seconds without a word after which a step counts as hanging."""


class Report:
    """A report in the making; ``content`` is what its file holds, at any time."""

    def __init__(
        self, door: Door, folder: Path, out: Path, seconds: float, parts: Sequence[str] = tuple(PARTS)
    ) -> None:
        self.door = door
        self.folder = folder
        self.out = out
        self.seconds = max(0.0, seconds - GRACE)
        self.parts = tuple(parts)
        self.content: dict[str, Any] = {
            "program": door.program,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "budget_seconds": seconds,
            "seconds": 0.0,
            "environment": environment(),
            "devices": {},
        }
        self._start = time.monotonic()

    def make(self, devices: Sequence[SimtDevice]) -> None:
        """Runs all parts for each device; devices share the time equally."""
        described = self.content["devices"]
        for device in devices:
            described[device.name] = {"description": device.description, "parts": {p: _blank() for p in self.parts}}
        whole = sum(PARTS[part].weight for part in self.parts)
        until = self._start
        with tempfile.TemporaryDirectory(prefix="ggplug-report-") as scratch:
            for device in devices:
                for name, record in described[device.name]["parts"].items():
                    until += self.seconds * PARTS[name].weight / whole / len(devices)
                    self._part(device.name, name, record, until, Path(scratch))
        self.save()

    def save(self) -> None:
        """Writes the file, all of it or nothing."""
        self.content["seconds"] = round(time.monotonic() - self._start, 1)
        with replacing(self.out) as file:
            file.write((json.dumps(self.content, indent=1) + "\n").encode())

    @property
    def complete(self) -> bool:
        """Whether everything was run, and nothing failed."""
        records = [record for device in self.content["devices"].values() for record in device["parts"].values()]
        return not any(record["errors"] or record["not_run"] for record in records) and not any(
            answer.get("failed") for record in records for answer in record["results"].values()
        )

    # -- one part ----------------------------------------------------------------------------------

    def _part(self, device: str, name: str, record: dict[str, Any], until: float, scratch: Path) -> None:
        begin = time.monotonic()
        self.save()
        while (left := until - time.monotonic()) > 0:
            before = _reached(record)
            journal = scratch / "journal"
            journal.write_bytes(b"")
            job = {"part": name, "data": self.folder, "device": device, "journal": journal, "skip": before}
            options = [(f"--{option}", str(value)) for option, value in {**job, "seconds": left}.items()]
            command = [sys.executable, "-X", "faulthandler", "-m", self.door.program, *itertools.chain(*options)]
            with open(scratch / "errors", "w+b") as errors:
                process = subprocess.Popen(command, stdout=errors, stderr=errors)
                try:
                    ended = self._follow(process, journal, record, until)
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
                errors.seek(0)
                output = errors.read().decode(errors="replace")[-4000:]
            if ended or record["begun"]:
                record["errors"].append({"step": record["begun"], "error": ended or "it ended", "traceback": output})
                record["begun"] = ""
            if _reached(record) in (before, len(record["steps"])):
                break
        record["not_run"] = record["steps"][_reached(record) :] if record["steps"] else ["everything"]
        record["seconds"] = round(time.monotonic() - begin, 1)
        self.save()

    def _follow(self, process: subprocess.Popen[bytes], journal: Path, record: dict[str, Any], until: float) -> str:
        """Takes over what a process writes until it ends or has to be ended; says what was wrong with its end."""
        heard = time.monotonic()
        with open(journal, "rb") as lines:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.25)
                fresh = _take(lines, record)
                now = time.monotonic()
                if fresh:
                    heard = now
                    self.save()
                if process.returncode is not None:
                    return _ending(process.returncode)
                if now > until + GRACE:
                    return "it was ended: the time of its part was over"
                if now > heard + PATIENCE:
                    return f"it was ended: nothing happened for {PATIENCE:.0f} seconds"


def planned(door: Door, folder: Path, parts: Sequence[str] = tuple(PARTS)) -> dict[str, list[str]]:
    """The names of each part's steps.  None is run, so no device is needed.  Raises what reading ``folder`` does."""
    absent = cast("SimtDevice", ReferenceDevice("the device"))  # only its name is asked for
    subject = Subject(absent, Folder(folder, folder), door)
    return {name: [step.name for step in PARTS[name].steps(subject)] for name in parts}


def _blank() -> dict[str, Any]:
    return {
        "seconds": 0.0,
        "steps": [],
        "begun": "",
        "results": {},
        "errors": [],
        "not_run": ["everything"],
        "programs": {"compiled": 0, "found": 0, "seconds": 0.0},
    }


def _reached(record: dict[str, Any]) -> int:
    """How many steps are done with, well or not."""
    return len(record["results"]) + sum(error["step"] in record["steps"] for error in record["errors"])


def _take(lines: Any, record: dict[str, Any]) -> bool:
    """Takes over the whole lines that are new in a journal; whether there were any."""
    fresh = False
    while True:
        position = lines.tell()
        line = lines.readline()
        if not line.endswith(b"\n"):
            lines.seek(position)
            return fresh
        fresh = True
        note = json.loads(line)
        if "steps" in note:
            record["steps"] = note["steps"]
        elif "begin" in note:
            record["begun"] = note["begin"]
        else:
            record["begun"] = ""
            if "answer" in note:
                record["results"][note["step"]] = {**note["answer"], "seconds": note["seconds"]}
            else:
                record["errors"].append({key: note[key] for key in ("step", "error", "traceback")})
            for key, value in note.get("programs", {}).items():
                record["programs"][key] = round(record["programs"][key] + value, 3)


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with code {code}" if code else ""
    with contextlib.suppress(ValueError):
        return f"the process crashed: {signal.Signals(-code).name}"
    return f"the process crashed: signal {-code}"


# -- in the process of a part ----------------------------------------------------------------------


def work(door: Door, name: str, device: str, folder: Path, journal: Path, skip: int, seconds: float) -> None:
    """Runs a part's steps behind the first ``skip`` ones, as far as the time allows and the device lives."""
    until = time.monotonic() + seconds
    with open(journal, "a", encoding="utf-8", buffering=1) as file:

        def note(**fields: Any) -> None:
            file.write(json.dumps(fields, allow_nan=False, default=float) + "\n")

        try:
            found = door.devices(device)[0]
            steps = list(PARTS[name].steps(Subject(found, Folder(folder, journal.parent), door)))
        except Exception as error:
            note(step="", **_described(error))
            return
        note(steps=[step.name for step in steps])
        for step in steps[skip:]:
            if time.monotonic() > until:
                return
            note(begin=step.name)
            before = _counted(found)
            start = time.monotonic()
            outcome: dict[str, Any]
            try:
                outcome = {"answer": dict(step.run())}
                good = not outcome["answer"].get("failed")
            except Exception as error:
                outcome, good = _described(error), False
            spent = {what: count - before[what] for what, count in _counted(found).items()}
            note(step=step.name, **outcome, seconds=round(time.monotonic() - start, 3), programs=spent)
            if not good and not alive(found):
                return


def _counted(device: SimtDevice) -> dict[str, float]:
    """How many programs a device has compiled and found, and how long that took."""
    return {what: getattr(device.programs, what) for what in ("compiled", "found", "seconds")}


def alive(device: SimtDevice) -> bool:
    """Whether memory of the device still holds what is written to it."""
    wanted = np.arange(64, dtype=np.uint8)
    got = np.zeros_like(wanted)
    try:
        buffer = device.buffer_type.alloc(wanted.size)
        buffer.set(0, wanted)
        buffer.get(0, got)
        buffer.free()
    except Exception:
        return False
    return bool((got == wanted).all())


def _described(error: Exception) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-4000:]}

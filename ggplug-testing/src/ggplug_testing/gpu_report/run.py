"""A report is made part by part, each in a process of its own, within a budget of time.

What becomes of each step is taken over into the report's file at once.  A step that raises costs itself.  One that
crashes, hangs or loses the device costs its process too: another one goes on with the step behind it.  What was not
reached when a part's time was over is listed as not run.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
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
from ggplug_testing.reporting.watching import Watch
from ggplug_testing.running.isolation import Channel, Worker


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

MOST_PATIENCE, LEAST_PATIENCE = 120.0, 20.0
"""Limits of the seconds after which a step counts as hanging, which are a quarter of its part's time."""


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
        output = scratch / "output"
        following = _Following(record, self.save)
        while (left := until - time.monotonic()) > 0:
            before = _done(record)
            serving = partial(serve, self.door, name, device, self.folder, output, time.time() + left)
            with Worker(serving, max(LEAST_PATIENCE, min(MOST_PATIENCE, left / 4))) as worker:
                worker.run(name, name, again=False, watch=following, done=before, until=until + GRACE)
            for error in record["errors"]:
                error.setdefault("traceback", output.read_text(errors="replace")[-4000:] if output.exists() else "")
            if len(_done(record)) in (len(before), len(record["steps"])):
                break
        done = _done(record)
        record["not_run"] = [s for s in record["steps"] if s not in done] if record["steps"] else ["everything"]
        record["seconds"] = round(time.monotonic() - begin, 1)
        self.save()


class _Following(Watch):
    """Takes over what becomes of the steps of a part into its record."""

    def __init__(self, record: dict[str, Any], save: Callable[[], object]) -> None:
        self._record, self._save = record, save

    def begins(self, subject: str, case: str) -> None:
        self._record["begun"] = case
        self._save()

    def ended(self, finding: Any) -> None:
        """Of a step a :class:`Taken`, of a process that has ended before its time a finding."""
        record = self._record
        record["begun"] = ""
        if not isinstance(finding, Taken):
            record["errors"].append({"step": finding.case, "error": finding.reason})
        elif isinstance(finding.found, list):
            record["steps"] = finding.found
        else:
            if "error" in finding.found:
                record["errors"].append({"step": finding.case, **finding.found})
            else:
                record["results"][finding.case] = {**finding.found, "seconds": finding.seconds}
            for key, value in finding.programs.items():
                record["programs"][key] = round(record["programs"][key] + value, 3)
        self._save()


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


def _done(record: dict[str, Any]) -> list[str]:
    """The steps that are done with, well or not."""
    tried = {*record["results"], *(error["step"] for error in record["errors"])}
    return [step for step in record["steps"] if step in tried]


# -- in the process of a part ----------------------------------------------------------------------


class Taken(NamedTuple):
    """What a step has found, or its error; with an empty ``case`` the names of all steps."""

    case: str
    found: Any
    seconds: float = 0.0
    programs: Mapping[str, float] = {}


def serve(door: Door, part: str, device: str, folder: Path, output: Path, until: float, channel: Channel) -> None:
    """Runs the steps of a part, as far as the time allows and the device lives; what is printed goes to a file."""
    with open(output, "wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    channel.serve(lambda unit, watch: (device, work(door, part, device, Folder(folder, output.parent), until, watch)))


def work(door: Door, name: str, device: str, folder: Folder, until: float, watch: Watch) -> list[Any]:
    """Runs the steps that ``watch`` wants until a time of ``time.time``; what they find goes to ``watch``."""
    take: Callable[[Any], None] = watch.ended
    try:
        found = door.devices(device)[0]
        steps = list(PARTS[name].steps(Subject(found, folder, door)))
    except Exception as error:
        take(Taken("", _described(error)))
        return []
    take(Taken("", [step.name for step in steps]))
    for step in steps:
        if time.time() > until:
            break
        if not watch.wants(name, step.name):
            continue
        watch.begins(name, step.name)
        before, start = _counted(found), time.monotonic()
        try:
            # as JSON has it: numbers of NumPy are none that a process without the device's libraries can read
            answer = json.loads(json.dumps(dict(step.run()), allow_nan=False, default=float))
        except Exception as error:
            answer = _described(error)
        spent = {what: count - before[what] for what, count in _counted(found).items()}
        take(Taken(step.name, answer, round(time.monotonic() - start, 3), spent))
        if ("error" in answer or answer.get("failed")) and not alive(found):
            break
    return []


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

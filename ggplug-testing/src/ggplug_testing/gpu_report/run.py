"""A report is made part by part, in processes of its own, within a budget of time.

What becomes of each step is taken over into the report's file at once.  After a step that fails, crashes, hangs or
loses the device, another process goes on with the steps that are left.  What was not reached when a part's time was
over is listed as not run.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from ggplug.system.files import replacing
from ggplug_simt.device import SimtDevice
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.gpu_report.figures import figures
from ggplug_testing.gpu_report.folder import Folder
from ggplug_testing.gpu_report.proofs import environment, facts, model, recorded, suite
from ggplug_testing.gpu_report.step import Answer, Door, Step, Subject
from ggplug_testing.reporting.watching import Watch
from ggplug_testing.running.isolation import Channel, Worker


class Part(NamedTuple):
    """``weight``: the part's fraction of the time, times the sum of all; what earlier parts left over is added.

    ``side_by_side``: whether several processes may take its steps, because none of them measures time.
    """

    weight: float
    steps: Callable[[Subject], Iterable[Step]]
    side_by_side: bool = False


# What says most for its time comes first; the suite is longest and takes what is left.
PARTS = {
    "facts": Part(20, facts),
    "model": Part(100, model),
    "recorded": Part(60, recorded, side_by_side=True),
    "figures": Part(100, figures),
    "suite": Part(200, suite, side_by_side=True),
}

NAMES = ""
"""The step that every part begins with: it names the others."""

GRACE = 15.0
"""Seconds that a step may go on beyond its part's time before its process is ended."""

MOST_PATIENCE, LEAST_PATIENCE = 120.0, 60.0
"""Limits of the seconds after which a step counts as hanging, which are a quarter of its part's time."""


class Report:
    """A report in the making; ``content`` is what its file holds, at any time."""

    def __init__(
        self,
        door: Door,
        folder: Path,
        out: Path,
        seconds: float,
        parts: Sequence[str] = tuple(PARTS),
        processes: int = 1,
    ) -> None:
        self.door = door
        self.folder = folder
        self.out = out
        self.seconds = max(0.0, seconds - GRACE)
        self.parts = tuple(parts)
        self.processes = processes
        # Whoever changes it has the lock.
        self.content: dict[str, Any] = {
            "program": door.program,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "budget_seconds": seconds,
            "seconds": 0.0,
            "environment": environment(),
            "devices": {},
        }
        self._start = time.monotonic()
        self.lock = threading.RLock()

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
        with self.lock:
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
        others = self.processes - 1 if PARTS[name].side_by_side else 0
        left = deque([NAMES])
        taken: list[Future[None]] = []

        def named() -> None:
            left.extend(record["steps"])
            taken.extend(pool.submit(take, number) for number in range(1, 1 + others))

        def take(number: int) -> None:
            """Takes steps until none is left or the time is over; a process that a step fails in takes no other."""
            output = scratch / f"output {number}"
            following = _Following(self, record, named, output)
            serving = partial(serve, self.door, name, device, self.folder, output)
            while left and (seconds := until - time.monotonic()) > 0:
                following.failed = False
                with Worker(serving, max(LEAST_PATIENCE, min(MOST_PATIENCE, seconds / 4))) as worker:
                    while not following.failed and time.monotonic() < until:
                        try:
                            step = left.popleft()
                        except IndexError:
                            break
                        worker.run(step, step, again=False, watch=following, until=until + GRACE)

        with ThreadPoolExecutor(max(1, others)) as pool:
            try:
                self.save()
                take(0)
            finally:
                left.clear()  # after an interrupt the others end their step only
        for each in taken:
            each.result()
        done = {*record["results"], *(error["step"] for error in record["errors"])}
        record["not_run"] = [s for s in record["steps"] if s not in done] if record["steps"] else ["everything"]
        record["seconds"] = round(time.monotonic() - begin, 1)
        self.save()


class _Following(Watch):
    """Takes over what becomes of the steps of a part in one process into its record.

    ``named`` is called when the names of all steps are known; ``output`` has what the process prints.
    """

    def __init__(self, report: Report, record: dict[str, Any], named: Callable[[], object], output: Path) -> None:
        self._report, self._record, self._named, self._output = report, record, named, output
        self.failed = False

    def begins(self, subject: str, case: str) -> None:
        with self._report.lock:
            self._record["begun"] = case
            self._report.save()

    def ended(self, finding: Any) -> None:
        """Of a step a :class:`Taken`, of a process that has ended before its time a finding."""
        if not isinstance(finding, Taken):
            where = f", at {finding.where}" if finding.where else ""
            finding = Taken(finding.case, {"error": f"{finding.reason}{where}"})
        found, record = finding.found, self._record
        with self._report.lock:
            if isinstance(found, list):
                record["steps"] = found
            elif "error" in found:
                printed = self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""
                record["errors"].append({"step": finding.case, "traceback": printed, **found})
            else:
                record["results"][finding.case] = {**found, "seconds": finding.seconds}
            for key, value in finding.programs.items():
                record["programs"][key] = round(record["programs"][key] + value, 3)
            self._report.save()
        if isinstance(found, list):
            self._named()
        else:
            self.failed = "error" in found or bool(found.get("failed"))


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


# -- in the process of a part ----------------------------------------------------------------------


class Taken(NamedTuple):
    """What a step has found, or its error; of :data:`NAMES` the names of all steps."""

    case: str
    found: Any
    seconds: float = 0.0
    programs: Mapping[str, float] = {}


def serve(door: Door, part: str, device: str, folder: Path, output: Path, channel: Channel) -> None:
    """Runs the steps of a part that are asked for; what is printed goes to a file."""
    with open(output, "wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)

    @cache
    def steps() -> tuple[SimtDevice, Mapping[str, Callable[[], Answer]]]:
        found = door.devices(device)[0]
        return found, dict(PARTS[part].steps(Subject(found, Folder(folder, output.parent), door)))

    channel.serve(lambda unit, watch: (device, work(steps, unit, watch)))


def work(
    steps: Callable[[], tuple[SimtDevice, Mapping[str, Callable[[], Answer]]]], step: str, watch: Watch
) -> list[Any]:
    """Runs one of the device's steps, or lists their names; what is found goes to ``watch``."""
    take: Callable[[Any], None] = watch.ended
    try:
        device, named = steps()
        if step == NAMES:
            take(Taken(NAMES, list(named)))
            return []
        watch.begins(step, step)
        before, start = _counted(device), time.monotonic()
        # as JSON has it: numbers of NumPy are none that a process without the device's libraries can read
        answer = json.loads(json.dumps(dict(named[step]()), allow_nan=False, default=float))
        spent = {what: count - before[what] for what, count in _counted(device).items()}
        take(Taken(step, answer, round(time.monotonic() - start, 3), spent))
    except Exception as error:
        take(Taken(step, _described(error)))
    return []


def _counted(device: SimtDevice) -> dict[str, float]:
    """How many programs a device has compiled and found, and how long that took."""
    return {what: getattr(device.programs, what) for what in ("compiled", "found", "seconds")}


def _described(error: Exception) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-4000:]}

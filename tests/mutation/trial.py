"""One fault against the conformance suite: what may concern it first, up to the first case that finds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

from ggplug.ops.base import OPS
from ggplug.patterns import Pattern
from ggplug_testing.cases.chains import SUBJECT as GROUPS
from ggplug_testing.cases.graphs import SUBJECT as GRAPH
from ggplug_testing.causes import of_exception
from ggplug_testing.conformance import Unit, units
from ggplug_testing.contracts import (
    CLAUSES,
    again,
    binding,
    buffers,
    devices,
    far,
    freeing,
    layouts,
    pending,
    plans,
    sharing,
    streams,
    synchronous,
)
from ggplug_testing.fake import FakeDevice
from ggplug_testing.report import Finding
from ggplug_testing.watching import Watch
from tests.mutation import FAULTS
from tests.mutation.byhand import BY_HAND
from tests.mutation.fault import Fault
from tests.mutation.mechanical import Recorded, recorded
from tests.mutation.seeding import SUBJECT, Seed, target, users
from tests.mutation.subject import SubjectDevice

Part = Literal["kernels", "memory", "streams", "plans", "answers", "groups", "packing"]
PARTS: tuple[Part, ...] = ("kernels", "memory", "streams", "plans", "answers", "groups", "packing")
"""Of a backend, in the order in which they are shown."""

CONFORMING = Fault("the device without a fault", SubjectDevice, ())
"""What faults are seeded into.  The suite has to find nothing."""

_PART_OF: dict[str, Part] = {
    f"{SUBJECT}.values": "kernels",
    f"{SUBJECT}.formulas": "kernels",
    f"{SUBJECT}.kernels": "kernels",
    f"{SUBJECT}.together": "groups",
    f"{SUBJECT}.panels": "packing",
    f"{SUBJECT}.memory": "memory",
    f"{SUBJECT}.device": "answers",
    f"{SUBJECT}.device SubjectStream": "streams",
    f"{SUBJECT}.device SubjectDevice.take": "memory",
    f"{SUBJECT}.device SubjectDevice.operand": "plans",
    f"{SUBJECT}.device SubjectDevice.array": "plans",
    "ggplug.discrete.queue": "streams",
    "ggplug.discrete.memory": "memory",
    "ggplug.discrete.plan": "plans",
    "ggplug.discrete.device": "streams",
}
_CHAPTERS = {
    "kernels": (again, sharing, far),
    "memory": (buffers, freeing, devices, layouts, streams, pending, sharing, far),
    "streams": (pending, freeing, streams, plans, buffers, sharing, synchronous, far),
    "plans": (again, plans, binding, freeing, pending, streams, far),
    "answers": (devices, layouts, plans, buffers, far),
    "groups": (),
    "packing": (layouts, freeing, buffers),
}
_SUBJECTS = {"plans": ("get_rows", "set_rows", GRAPH), "groups": (GROUPS, GRAPH)}


def every_fault() -> list[Fault]:
    """All faults: devices written with one, changes made by hand, mechanical changes.  Names differ."""
    return [*FAULTS, *BY_HAND, *map(_mechanical, (each for each in recorded() if not each.equivalent))]


def _mechanical(each: Recorded) -> Fault:
    # The subject's queue has threads, which wait; the fake device's is asked, and asks which jobs need not wait.
    site = each.seed.function, each.seed.operator
    asks = site[0] == "Job.ready" or site == ("QueuedBackend.wait_for", "statement left out")
    make = partial(FakeDevice, "faulty", execution="late") if asks else SubjectDevice
    return Fault(each.seed.name, make, (), (each.seed,), each.missed)


def part_of(fault: Fault) -> Part:
    """Which part of a backend a fault is in."""
    if fault.seeds:
        return _part_of(fault.seeds[0])
    if fault is CONFORMING:
        return "kernels"
    module = type(fault.make()).__module__.rpartition(".")[2]
    return "packing" if module == "layouts" else next(part for part in PARTS if part == module)


def _part_of(seed: Seed) -> Part:
    owner = seed.function.partition(".")[0]
    for place in (f"{seed.module} {seed.function}", f"{seed.module} {owner}", seed.module):
        if place in _PART_OF:
            return _PART_OF[place]
    raise LookupError(f"no part is said to have the faults of {seed.module}")


def trial(fault: Fault, watch: Watch, *, quick: bool = False) -> list[Finding]:
    """What finds the fault: nothing, or the first finding that is bad.  ``watch`` is told of every case that begins.

    ``quick``: only what concerns the fault, and not the rest of the suite.
    """
    stopping = _Stopping(watch)
    with fault.device() as device:
        for unit in ordered(fault, quick=quick):
            try:
                findings = unit.run(device, stopping)
            except Exception as error:
                findings = [of_exception(error, device).finding(unit.subject, unit.name)]
            for finding in findings:
                if finding.bad:
                    return [finding]
    return []


def ordered(fault: Fault, *, quick: bool = False) -> list[Unit]:
    """What is said to find a fault, what its part of a backend is tested by, and the rest of the suite if not quick."""
    there = {unit.subject if unit.clause is None else unit.clause.name: unit for unit in units()}
    first = [*fault.found_by, *_concerned(fault), *(() if quick else there)]
    return [there[name] for name in dict.fromkeys(first)]


_ASKED_BY_MATCH = {"cannot": "rope", "cannot_together": GROUPS}
"""What functions decide about that no kernel calls."""


def _concerned(fault: Fault) -> Iterator[str]:
    for seed in fault.seeds:
        if seed.function in _ASKED_BY_MATCH:
            yield _ASKED_BY_MATCH[seed.function]
        for user in _sorted(users(target(seed.module, seed.function))):
            yield GROUPS if isinstance(user, Pattern) else user.name
    part = part_of(fault)
    yield from _SUBJECTS.get(part, ())
    for chapter in _CHAPTERS[part]:
        yield from (clause.name for clause in CLAUSES if clause.check.__module__ == chapter.__name__)


def _sorted(found: Iterable[Any]) -> list[Any]:
    """Ops in their order, patterns last."""
    chosen = set(found)
    return [*(op for op in OPS.values() if op in chosen), *(each for each in chosen if isinstance(each, Pattern))]


class _Stopping(Watch):
    """Passes on what begins, with its subject; enough is what was found to be bad."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._enough = False

    def begins(self, subject: str, case: str) -> None:
        self._watch.begins(subject, f"{subject}: {case}")

    def ended(self, finding: Finding) -> None:
        self._enough = self._enough or finding.bad

    def enough(self) -> bool:
        return self._enough

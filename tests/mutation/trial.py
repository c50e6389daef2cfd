"""One fault against the conformance suite: what may concern it first, up to the first case that finds it."""

from __future__ import annotations

from collections.abc import Iterator

from ggplug.ops.base import OPS
from ggplug.patterns import Pattern
from ggplug_testing.cases.chains import SUBJECT as GROUPS
from ggplug_testing.cases.graphs import SUBJECT as GRAPH
from ggplug_testing.conformance import Unit, units
from ggplug_testing.contracts import CLAUSES
from ggplug_testing.reporting.causes import of_exception
from ggplug_testing.reporting.report import Finding
from ggplug_testing.reporting.watching import Watch
from tests.mutation import FAULTS
from tests.mutation.fault import Fault
from tests.mutation.lists import DEVICES, Recorded, recorded
from tests.mutation.seeding import target, users

CONFORMING = Fault("the device without a fault", DEVICES["subject"])
"""What faults are seeded into.  The suite has to find nothing."""

_CONCERNED: dict[str, str] = {
    "kernels": "again sharing far",
    "memory": "buffers freeing devices layouts streams pending sharing far",
    "streams": "pending limits freeing streams plans buffers sharing synchronous far",
    "plans": f"get_rows set_rows {GRAPH} again plans binding freeing pending limits streams far",
    "answers": "devices layouts plans buffers far",
    "groups": f"{GROUPS} {GRAPH}",
    "packing": "layouts freeing buffers",
}
"""The subjects, and the chapters of the contract, that are about a part."""

_ASKED_BY_MATCH = {"cannot": "rope", "cannot_together": GROUPS}
"""What functions decide about that no kernel calls."""


def every_fault() -> list[Fault]:
    """All faults: those that were made by hand, and mechanical changes.  Names differ."""
    return [*FAULTS, *(_mechanical(each) for each in recorded() if not each.equivalent)]


def _mechanical(each: Recorded) -> Fault:
    # The subject's queue has threads, which wait; the fake device's asks which jobs need not wait.
    asks = (each.seed.function, each.seed.operator) == ("QueuedBackend.wait_for", "statement left out")
    device = "late" if asks or each.seed.function == "Job.ready" else "subject"
    return Fault(each.seed.name, DEVICES[device], seeds=(each.seed,), missed=each.missed)


def trial(fault: Fault, watch: Watch, *, quick: bool = False) -> list[Finding]:
    """What finds the fault: nothing, or the first finding that is bad.  ``watch`` is called for every case that begins.

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


def _concerned(fault: Fault) -> Iterator[str]:
    for seed in fault.seeds:
        if seed.function in _ASKED_BY_MATCH:
            yield _ASKED_BY_MATCH[seed.function]
        found = users(target(seed.module, seed.function))
        yield from (op.name for op in OPS.values() if op in found)
        if any(isinstance(each, Pattern) for each in found):
            yield GROUPS
    for each in _CONCERNED[fault.part].split():
        if each in (*OPS, GRAPH, GROUPS):
            yield each
        yield from (clause.name for clause in CLAUSES if clause.check.__module__.endswith(f".{each}"))


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

"""Clauses about time limits: applicable where something can be held, and proven where nothing else was too slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ggplug.backend import Device, Group
from ggplug_testing.contracts import CLAUSES, Given, run_clause
from ggplug_testing.contracts.holding import MOMENT
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice
from tests.mutation.streams import SynchronousDevice
from tests.mutation.subject import SubjectDevice

ABORTED = "a computation is aborted between two kernels when its time is over"
WAITING = "waiting for a kernel that does not return ends when its time is over"
BEGINS = "the time of a computation begins when the device begins it"
CLAUSE = {clause.name: clause for clause in CLAUSES}


def within() -> FakeDevice:
    """A device whose kernels run inside of another device's plan."""
    return FakeDevice(execution="late", inner=ReferenceDevice())


@pytest.mark.parametrize(
    ("name", "device", "verdict", "reason"),
    [
        (ABORTED, SubjectDevice, "passed", ""),
        (ABORTED, ReferenceDevice, "passed", ""),
        (ABORTED, within, "not applicable", "are neither WalkPlan nor QueuedPlan"),
        (WAITING, SubjectDevice, "passed", ""),
        (WAITING, SynchronousDevice, "passed", ""),
        (WAITING, FakeDevice, "not applicable", "computes on the thread that waits"),
        (WAITING, lambda: FakeDevice(execution="thread"), "not applicable", "computes on the thread that waits"),
        (WAITING, within, "not applicable", "are neither WalkPlan nor QueuedPlan"),
        (BEGINS, SubjectDevice, "passed", ""),
        (BEGINS, SynchronousDevice, "not applicable", "synchronous"),
    ],
)
def test_they_apply_to_what_can_be_held(name: str, device: Callable[[], Device], verdict: str, reason: str) -> None:
    finding = run_clause(device(), CLAUSE[name])
    assert finding.verdict == verdict, finding.reason
    assert reason in finding.reason


class SlowDevice(SubjectDevice):
    """Each kernel takes longer than the clause waits."""

    def match(self, group: Group) -> Any:
        found = super().match(group)

        def slow(*arguments: Any) -> None:
            time.sleep(2 * MOMENT)
            found(*arguments)

        return slow if callable(found) else found


def test_a_computation_that_is_too_slow_by_itself_proves_nothing_about_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Given, "moment", lambda given, stream: MOMENT)
    finding = run_clause(SlowDevice(), CLAUSE[BEGINS])
    assert (finding.verdict, finding.bad) == ("not proven", False)
    assert "for a small computation" in finding.reason

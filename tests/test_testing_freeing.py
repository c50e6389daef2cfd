"""Clauses about freeing: they find work that claims nothing, and say so where a device asks core for nothing."""

from __future__ import annotations

import threading

import pytest

from ggplug.sharing import accessing, waits
from ggplug.testing.contracts import CLAUSES, Clause, freeing, run_clause
from ggplug.testing.fake import FakeDevice
from ggplug.testing.faulty.seeding import SUBJECT, Edit, seeded
from ggplug.testing.faulty.subject import SubjectDevice
from ggplug.testing.packing import PackingDevice

CALLED = {clause.name: clause for clause in CLAUSES if clause.check.__module__ == freeing.__name__}
ACCESSED, EXTRA, GIVEN, COMPUTED = CALLED
QUEUE, MEMORY, PLAN = (f"ggplug.discrete.{name}" for name in ("queue", "memory", "plan"))


@pytest.mark.parametrize("clause", CALLED.values(), ids=list(CALLED))
def test_they_pass_on_devices_that_claim(clause: Clause) -> None:
    for device in (PackingDevice(), FakeDevice(), FakeDevice(execution="late"), SubjectDevice()):
        finding = run_clause(device, clause)
        assert finding.verdict in ("passed", "declined"), (device, finding.reason)


@pytest.mark.parametrize(
    ("name", "edit", "work"),
    [
        (ACCESSED, Edit(MEMORY, "DiscreteBuffer.copy_from", "accessing(self, source)", "accessing(self)"), "out of it"),
        (ACCESSED, Edit(MEMORY, "DiscreteBuffer.copy_from", "accessing(self, source)", "accessing()"), "into it"),
        (EXTRA, Edit(f"{SUBJECT}.panels", "PanelBuffer.set_tensor", "accessing(self)", "accessing()"), "set_tensor"),
        (EXTRA, Edit(f"{SUBJECT}.panels", "PanelBuffer.get_tensor", "accessing(self)", "accessing()"), "get_tensor"),
        (GIVEN, Edit(QUEUE, "QueuedBackend.set_async", "using((own,))", "using(())"), "set_async"),
        (GIVEN, Edit(QUEUE, "QueuedBackend.get_async", "using((own,))", "using(())"), "get_async"),
        (GIVEN, Edit(QUEUE, "QueuedBackend.copy_async", "using((own, source))", "using((source,))"), "into it"),
        (GIVEN, Edit(QUEUE, "QueuedBackend.copy_async", "using((own, source))", "using((own,))"), "out of it"),
        (COMPUTED, Edit(PLAN, "QueuedPlan.compute", "using(buffers)", "using(())"), "compute"),
    ],
    ids=lambda given: given.new if isinstance(given, Edit) else None,
)
def test_a_claim_that_is_left_out_is_found(name: str, edit: Edit, work: str) -> None:
    with seeded(edit):
        finding = run_clause(SubjectDevice(), CALLED[name])
    assert finding.verdict == "failed"
    assert work in finding.reason
    assert "another thread frees the buffer under it" in finding.reason


def test_what_never_asks_for_its_buffer_is_not_proven() -> None:
    with seeded(Edit(PLAN, "QueuedPlan.compute", "buffer.check_there()", "pass")):
        finding = run_clause(SubjectDevice(), CALLED[COMPUTED])
    assert (finding.verdict, finding.bad) == ("not proven", False)
    assert finding.reason.endswith("compute, compute_traced")


def test_a_thread_that_waits_for_a_claim_is_known() -> None:
    buffer = object()

    def claim() -> None:
        with accessing(buffer):
            pass

    thread = threading.Thread(target=claim)
    with accessing(buffer):
        thread.start()
        assert thread.ident is not None
        while not waits(thread.ident):
            thread.join(0.001)
        assert not waits(threading.get_ident())
    thread.join()
    assert not waits(thread.ident)

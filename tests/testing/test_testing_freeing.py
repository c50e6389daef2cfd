"""Clauses about freeing: they find work that claims nothing, and say so where a device asks core for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import ggplug as gg
from ggplug.errors import BufferUseError
from ggplug.host import HOST
from ggplug.sharing import accessing, using, waits
from ggplug.values.buffers import Buffer
from ggplug_testing.contracts import CLAUSES, Clause, freeing, run_clause, stepping
from ggplug_testing.devices.packing import PackingDevice
from ggplug_testing.fake import FakeDevice
from tests.mutation.seeding import SUBJECT, Edit, seeded
from tests.mutation.subject import SubjectDevice

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


def seen_at_every_step(call: Callable[[Buffer], None]) -> set[str]:
    """What comes of a free at each line of a call that works with the buffer."""
    spare = HOST.alloc(64)
    found = set()
    for step in range(stepping.count_steps(partial(call, spare)) + 1):
        buffer = HOST.alloc(64)
        found.add(stepping.freed_at(step, buffer, partial(call, buffer)))
        assert buffer.freed or step == stepping.count_steps(partial(call, spare))
        buffer.free()
    spare.free()
    return found


def test_work_that_claims_and_looks_is_seen_to_hold_at_every_step() -> None:
    def held(buffer: Buffer) -> None:
        with using(frozenset((buffer,))):
            if buffer.freed:
                raise BufferUseError("it was freed")
            buffer._set(0, np.ones(64, np.uint8))
        buffer.size  # noqa: B018

    assert seen_at_every_step(held) == {"noticed", "waited", "done before", "beyond"}


@pytest.mark.parametrize("claims", [False, True])
def test_work_that_goes_on_in_what_was_freed_is_seen(claims: bool) -> None:
    def careless(buffer: Buffer) -> None:
        if not claims and buffer.freed:
            raise BufferUseError("it was freed")
        with using(frozenset((buffer,) if claims else ())):
            buffer._set(0, np.ones(64, np.uint8))

    assert "used" in seen_at_every_step(careless)


def test_the_cpu_device_lets_a_free_wait_at_every_step_of_native_code() -> None:
    pytest.importorskip("ggplug_cpu")
    device = gg.device("CPU")
    assert run_clause(device, CALLED[COMPUTED]).verdict == "passed"
    with seeded(
        Edit("ggplug_cpu.team", "Team.run", "HELD[claim] = claim", "HELD[claim], claim.shared = claim, NOTHING")
    ):
        finding = run_clause(device, CALLED[COMPUTED])
    assert finding.verdict == "failed", finding.reason
    assert "compute: another thread frees the buffer under it, and it goes on in what was freed" in finding.reason


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

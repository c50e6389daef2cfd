"""Clauses about pending work: by whatever holds a stream; not applicable to synchronous devices, else not proven."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import ggplug as gg
from ggplug.backend import Backend, Capabilities
from ggplug.ops import add, relu
from ggplug.ops.base import OPS, Op
from ggplug.ops.custom import PythonCall
from ggplug_testing.cases import cases_of
from ggplug_testing.contracts import CLAUSES, Clause, holding, loading, racing, run_clause
from ggplug_testing.contracts.clause import ATTEMPTS
from ggplug_testing.contracts.loading import Computation, Load, Unit
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeBackend, FakeDevice, FakeRegistration
from tests.mutation import FAULTS, Fault
from tests.mutation.lists import DEVICES
from tests.mutation.seeding import Edit, seeded

HELD = [clause for clause in CLAUSES if clause.check.__module__.endswith((".pending", ".racing"))]
NAMES = [clause.name for clause in HELD]
CALLED = {clause.name: clause for clause in HELD}


@pytest.mark.parametrize("clause", HELD, ids=NAMES)
def test_they_are_not_applicable_to_a_synchronous_device(clause: Clause) -> None:
    finding = run_clause(ReferenceDevice(), clause)
    assert (finding.verdict, finding.bad) == ("not applicable", False)
    assert "synchronous" in finding.reason


class Unheld(ReferenceDevice):
    """Says that its streams run on by themselves, and gives nothing to hold them by."""

    capabilities = Capabilities(asynchronous=True)


def test_without_a_way_to_hold_a_stream_they_are_not_proven() -> None:
    # one of a kind: whether a stream can be held is found out in one place
    named = (name for name in NAMES if "failure" not in name and "every op" not in name)
    found = {name: run_clause(Unheld(), CALLED[name]) for name in named}
    assert {finding.verdict for finding in found.values()} == {"not proven"}
    assert {finding.reason for finding in found.values()} == {
        "reference computes while work is submitted, so the suite cannot keep it busy"
    }


def test_without_a_node_that_fails_a_failure_is_not_proven() -> None:
    device = FakeDevice(execution="late", declines=lambda node: "no ids" if node.op.indexes is not None else "")
    (finding,) = (run_clause(device, clause) for clause in HELD if "only once" in clause.name)
    assert finding.verdict == "not proven"
    assert "failing_node" in finding.reason


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.indexes is not None], ids=lambda op: op.name)
def test_an_id_out_of_range_of_any_op_proves_what_becomes_of_failures(op: type[Op]) -> None:
    def declines(node: gg.Tensor) -> str:
        assert node.op is not None
        return "no ids" if node.op.indexes is not None and not isinstance(node.op, op) else ""

    for clause in HELD:
        if "failure" in clause.name:
            assert run_clause(FakeDevice(execution="late", declines=declines), clause).verdict == "passed"


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.indexes is not None], ids=lambda op: op.name)
def test_every_op_with_ids_is_asked_whether_it_looks_at_them(op: type[Op]) -> None:
    forgets = f"if found is not None and node.op.name != {op.name!r}:"
    (clause,) = (each for each in CLAUSES if each.name == "ids are looked at in each computation")
    with seeded(Edit("ggplug.interface.walking", "call_kernel", "if found is not None:", forgets)):
        finding = run_clause(ReferenceDevice(), clause)
    assert finding.verdict == "failed"
    assert f"= {op.name}" in finding.reason
    assert run_clause(ReferenceDevice(), clause).verdict == "passed"


class WithHook(FakeRegistration):
    """Gives a hook of its own to hold streams by, and counts."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self.calls: list[str] = []

    def get(self, name: str) -> Any:
        return self._stall if name == "stall" else None

    def _stall(self, stream: Backend) -> Callable[[], None]:
        assert isinstance(stream, FakeBackend)
        self.calls.append("held")
        gate = threading.Event()

        def wait() -> None:
            gate.wait(60)

        stream.give(wait)

        def release() -> None:
            self.calls.append("let go")
            gate.set()

        return release


@pytest.mark.parametrize("clause", HELD, ids=NAMES)
def test_the_hook_of_a_registration_holds_a_stream_and_is_let_go_once(clause: Clause) -> None:
    device = FakeDevice(execution="late")
    registration = WithHook(device)
    assert run_clause(device, clause).verdict == "passed"
    times = len(registration.calls) // 2
    assert registration.calls == ["held", "let go"] * times
    assert times == 0 if "failure" in clause.name else times > 0


# -- without a way to hold a stream: a load ---------------------------------------------------------


@pytest.fixture
def unholdable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device gives a way to hold its streams."""
    monkeypatch.setattr(holding, "by_gate", lambda stream: None)
    monkeypatch.setattr(holding, "hook", lambda device, name: None)


@pytest.fixture
def long_loads(unholdable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads that last until nobody needs them: on fake devices, whose computations take as long as the host does."""
    give, free, gates = Computation.give, Computation.free, []
    monkeypatch.setattr(loading, "_measured", lambda device: Unit(add, 64, giving=0.0, seconds=1.0))

    def give_behind_a_gate(work: Computation, count: int) -> None:
        gates.append(threading.Event())
        work.stream.give(partial(gates[-1].wait, 60))  # type: ignore[attr-defined]
        give(work, count)

    def let_go(work: Computation) -> None:
        gates[-1].set()
        free(work)

    monkeypatch.setattr(Computation, "give", give_behind_a_gate)
    monkeypatch.setattr(Computation, "free", let_go)


@pytest.mark.parametrize("clause", HELD, ids=NAMES)
def test_behind_a_load_a_device_that_is_right_passes(clause: Clause, long_loads: None) -> None:
    finding = run_clause(FakeDevice(execution="late"), clause)
    assert finding.verdict == "passed", finding.reason


RACES = [(fault, by) for fault in FAULTS for by in fault.found_by if by in NAMES]
RIGHT = Fault("nothing is wrong", DEVICES["late"])
(IMPATIENT,) = (fault for fault in FAULTS if fault.name == "reads do not wait")


@pytest.mark.parametrize("race", RACES, ids=lambda race: f"{race[0].name}-{race[1]}")
def test_behind_a_load_each_fault_is_found_that_is_found_in_held_streams(
    race: tuple[Fault, str], long_loads: None
) -> None:
    fault, by = race
    with fault.device() as device:
        finding = run_clause(device, CALLED[by])
    assert finding.bad, finding


@pytest.mark.parametrize(("fault", "verdict"), [(RIGHT, "passed"), (IMPATIENT, "failed")])
def test_a_load_that_is_long_enough_is_found_by_measuring_or_nothing_is_proven(
    fault: Fault, verdict: str, unholdable: None
) -> None:
    with fault.device() as device:
        finding = run_clause(device, CALLED["a read waits for held streams"])
    assert finding.verdict in (verdict, "not proven"), finding.reason


@pytest.mark.parametrize("fault", [RIGHT, IMPATIENT])
def test_what_was_not_behind_a_load_is_neither_passed_nor_failed_and_tried_with_longer_ones(
    fault: Fault, long_loads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False] * ATTEMPTS)  # when it was given; when the block ends
    monkeypatch.setattr(Load, "is_pending", property(lambda load: next(answers)))
    with fault.device() as device:
        loading.unit_of(device)
        before = loading.unit_of(device).seconds
        finding = run_clause(device, CALLED["a read waits for held streams"])
    assert (finding.verdict, finding.bad) == ("not proven", False)
    assert "busy ended before the check did" in finding.reason
    assert next(answers, None) is None
    assert loading.unit_of(device).seconds == pytest.approx(before / 2**ATTEMPTS)


def test_an_attempt_that_proves_it_counts(long_loads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True, True])
    monkeypatch.setattr(Load, "is_pending", property(lambda load: next(answers)))
    assert run_clause(FakeDevice(execution="late"), CALLED["a read waits for held streams"]).verdict == "passed"


def test_a_device_without_an_op_for_a_load_and_one_that_is_too_fast_are_not_proven(
    unholdable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clause = HELD[0]
    nothing = FakeDevice(execution="late", declines=lambda node: "nothing")
    assert "none of the ops that the suite uses to keep a stream busy" in run_clause(nothing, clause).reason
    monkeypatch.setattr(loading, "_measured", lambda device: Unit(relu, 64, giving=0.0, seconds=1e-9))
    fast = run_clause(FakeDevice(execution="late"), clause)
    assert fast.verdict == "not proven"
    assert "is too fast" in fast.reason


def test_a_load_is_made_of_an_op_that_is_not_computed_while_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def measured(stream: Backend, step: Any) -> Unit:
        tried.append(step)
        return Unit(step, 64, giving=0.1 if len(tried) == 1 else 0.0, seconds=0.1)

    monkeypatch.setattr(loading, "_measured_step", measured)
    device = FakeDevice(execution="late")
    assert loading.unit_of(device).step is tried[1]
    assert loading.unit_of(device).step is tried[1]
    assert len(tried) == 2


def test_every_op_that_the_device_claims_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    raced = []
    monkeypatch.setattr(racing.Race, "found", lambda race: raced.append(race.case.op) or racing.Comparison(True, 0, ""))
    (clause,) = (each for each in HELD if each.name.startswith("every op"))
    assert run_clause(FakeDevice(execution="late"), clause).verdict == "passed"
    computing = {name for name, op in OPS.items() if not op.is_view and cases_of(op)}
    python = {name for name, op in OPS.items() if issubclass(op, PythonCall)}  # a discrete device calls none
    assert computing - set(raced) - python == {"arange", "fill"}  # they read nothing that changes meanwhile

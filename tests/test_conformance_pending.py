"""Clauses about pending work: by whatever holds a stream; not applicable to synchronous devices, else not proven."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ggplug.backend import Backend, Capabilities
from ggplug.testing.contracts import CLAUSES, Clause, run_clause
from ggplug.testing.fake import FakeBackend, FakeDevice, FakeRegistration
from ggplug.testing.reference import ReferenceDevice

HELD = [clause for clause in CLAUSES if clause.check.__module__.endswith(".pending")]
NAMES = [clause.name for clause in HELD]


@pytest.mark.parametrize("clause", HELD, ids=NAMES)
def test_they_are_not_applicable_to_a_synchronous_device(clause: Clause) -> None:
    finding = run_clause(ReferenceDevice(), clause)
    assert (finding.verdict, finding.bad) == ("not applicable", False)
    assert "synchronous" in finding.reason


class Unheld(ReferenceDevice):
    """Says that its streams run on by themselves, and gives nothing to hold them by."""

    capabilities = Capabilities(asynchronous=True)


def test_without_a_way_to_hold_a_stream_they_are_not_proven() -> None:
    found = {clause.name: run_clause(Unheld(), clause) for clause in HELD if "failure" not in clause.name}
    assert {finding.verdict for finding in found.values()} == {"not proven"}
    assert all("gives no hook 'stall'" in finding.reason for finding in found.values())


def test_without_a_node_that_fails_a_failure_is_not_proven() -> None:
    device = FakeDevice(execution="late", declines=lambda node: "no ids" if node.op.name == "get_rows" else "")
    (finding,) = (run_clause(device, clause) for clause in HELD if "only once" in clause.name)
    assert finding.verdict == "not proven"
    assert "failing_node" in finding.reason


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



"""The fake device keeps the contract however it delays and reorders, and computes in memory of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ggplug_testing.conformance import check
from ggplug_testing.contracts import CLAUSES, Clause, run_clause
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice
from ggplug_testing.reporting.rendering import text

WAYS: dict[str, Callable[[], FakeDevice]] = {
    "now": lambda: FakeDevice(host_buffer=True),
    "late": lambda: FakeDevice(execution="late"),
    "shuffled": lambda: FakeDevice(execution="late", order="shuffled", seed=11),
    "thread": lambda: FakeDevice(execution="thread", order="shuffled", seed=5),
    "inner": lambda: FakeDevice(execution="late", inner=ReferenceDevice(), alignment=64),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("clause", CLAUSES, ids=[clause.name for clause in CLAUSES])
def test_it_keeps_the_contract(way: str, clause: Clause) -> None:
    device = WAYS[way]()
    finding = run_clause(device, clause)
    assert not finding.bad, str(finding)
    assert device.used == 0, f"{device.used} bytes that the clause has taken are not freed"


@pytest.mark.parametrize("way", ["shuffled", "inner"])
def test_it_computes_ops_in_its_own_memory(way: str) -> None:
    ops = ["add", "get_rows", "set_rows", "soft_max", "sum", "view"]
    report = check(WAYS[way](), ops=ops, clauses=[], graphs=False)
    assert report.ok, text(report)
    assert report.counts()["passed"] > 300

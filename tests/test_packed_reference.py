"""Memory with a layout of its own: what core does about it, shown with the reference device that turns bytes."""

from __future__ import annotations

import pytest

from ggplug.testing.contracts import CLAUSES, Clause, layouts, run_clause
from ggplug.testing.packing import PackingDevice

OF_LAYOUTS = [clause for clause in CLAUSES if clause.check.__module__ == layouts.__name__]


@pytest.mark.parametrize("clause", OF_LAYOUTS, ids=lambda clause: clause.name)
def test_a_device_with_packed_memory_conforms(clause: Clause) -> None:
    finding = run_clause(PackingDevice(), clause)
    assert finding.verdict == "passed", finding.reason

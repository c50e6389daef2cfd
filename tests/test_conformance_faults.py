"""Each fault that a device can have is found by each op or clause that is said to find it."""

from __future__ import annotations

import pytest

from ggplug.errors import ParameterError
from ggplug.ops.base import OPS
from ggplug.testing import ReferenceDevice, cases_of, check
from ggplug.testing.cases import graph_cases
from ggplug.testing.cases.chains import group_cases
from ggplug.testing.contracts import CLAUSES, run_clause
from ggplug.testing.faulty import FAULTS, Fault
from ggplug.testing.groups import run_group_case
from ggplug.testing.report import Finding
from ggplug.testing.runner import run_case

CLAUSE = {clause.name: clause for clause in CLAUSES}


def first_bad(fault: Fault, found_by: str) -> Finding | None:
    """What an op's cases or a clause find, as soon as they do."""
    device = fault.make()
    if found_by in CLAUSE:
        finding = run_clause(device, CLAUSE[found_by])
        return finding if finding.bad else None
    stream = device.init()
    if found_by == "groups":
        found = (run_group_case(device, stream, case) for case in group_cases())
        return next((finding for finding in found if finding.bad), None)
    cases = graph_cases() if found_by == "graph" else cases_of(OPS[found_by])
    findings = (run_case(device, stream, case) for case in cases)
    return next((finding for finding in findings if finding.bad), None)


@pytest.mark.parametrize("found_by", [(fault, by) for fault in FAULTS for by in fault.found_by],
                         ids=lambda pair: f"{pair[0].name}-{pair[1]}")  # fmt: skip
def test_the_fault_is_found(found_by: tuple[Fault, str]) -> None:
    fault, by = found_by
    assert first_bad(fault, by) is not None, f"{by} does not find that a device {fault.name}"


def test_a_result_that_was_not_written_is_called_so() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "leaves the tail of rows")
    finding = first_bad(fault, "silu")
    assert finding is not None
    assert finding.verdict == "failed"
    assert "were not written" in finding.reason


def test_a_claim_that_is_not_kept_is_called_so() -> None:
    for name, verdict in (("claims but raises", "raised"), ("claims but declines", "claimed but failed")):
        fault = next(fault for fault in FAULTS if fault.name == name)
        finding = first_bad(fault, fault.found_by[0])
        assert finding is not None
        assert finding.verdict == verdict


def test_names_of_ops_and_clauses_are_checked() -> None:
    with pytest.raises(ParameterError, match="no op 'nonsense'"):
        check(ReferenceDevice(), ops=["nonsense"], clauses=[], graphs=False)
    with pytest.raises(ParameterError, match="no clause 'nonsense'"):
        check(ReferenceDevice(), ops=[], clauses=["nonsense"], graphs=False)

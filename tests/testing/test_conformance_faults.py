"""Each fault that a device can have is found by each op or clause that is said to find it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ggplug.backend import Device, Operand
from ggplug.errors import ParameterError
from ggplug.ops.base import OPS, Op
from ggplug.types import F32
from ggplug_testing import ReferenceDevice, cases_of, check
from ggplug_testing.cases import Case, graph_cases, node
from ggplug_testing.cases.chains import group_cases
from ggplug_testing.contracts import CLAUSES, run_clause
from ggplug_testing.devices.reference import interpret
from ggplug_testing.reporting.report import Finding
from ggplug_testing.running.groups import run_group_case
from ggplug_testing.running.runner import run_case
from tests.mutation import FAULTS, Fault
from tests.mutation.kernels import FaultyKernels, cuts_as_the_processor_does

CLAUSE = {clause.name: clause for clause in CLAUSES}


def first_bad(fault: Fault, found_by: str) -> Finding | None:
    """What an op's cases or a clause find, as soon as they do."""
    with fault.device() as device:
        return next((finding for finding in findings(device, found_by) if finding.bad), None)


def findings(device: Device, found_by: str) -> Iterator[Finding]:
    if found_by in CLAUSE:
        yield run_clause(device, CLAUSE[found_by])
        return
    stream = device.init()
    if found_by == "groups":
        yield from (run_group_case(device, stream, case) for case in group_cases())
    else:
        cases = graph_cases() if found_by == "graph" else cases_of(OPS[found_by])
        yield from (run_case(device, stream, case) for case in cases)


@pytest.mark.parametrize(
    "found_by", [(fault, by) for fault in FAULTS for by in fault.found_by], ids=lambda pair: f"{pair[0].name}-{pair[1]}"
)
def test_the_fault_is_found(found_by: tuple[Fault, str]) -> None:
    fault, by = found_by
    assert first_bad(fault, by) is not None, f"{by} does not find that a device {fault.name}"


def test_a_result_that_was_not_written_is_called_so() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "leaves the tail of rows")
    finding = first_bad(fault, "silu")
    assert finding is not None
    assert finding.verdict == "failed"
    assert finding.reason == "silu: 1 of 1 elements were not written, the first at [0, 0, 0, 0] (ne order)"


def test_what_was_not_written_comes_before_what_else_is_wrong() -> None:
    def half(op: Op, dst: Operand, *src: Operand | None) -> None:
        before = dst.array().copy()
        interpret(op, dst, *src)
        dst.array()[..., :4] *= 3
        dst.array()[..., 5:] = before[..., 5:]

    device = FaultyKernels(half)
    stream = device.init()
    case = Case("relu", "a row", lambda leafs: node(OPS["relu"], leafs.tensor(F32, 8, low=1, high=2)))
    reason = run_case(device, stream, case).reason
    assert reason.startswith("relu: 3 of 8 elements were not written, the first at [5, 0, 0, 0] (ne order); and ")
    assert "and 4 of 8 elements are wrong: got " in reason


@pytest.mark.parametrize("op", ["cpy", "dup", "add", "set_rows", "mul_mat"])
def test_no_bits_that_a_kernel_writes_are_called_unwritten(op: str) -> None:
    def writes_ones(op: Op, dst: Operand, *src: Operand | None) -> None:
        interpret(op, dst, *src)
        dst.array().view(np.uint8)[...] = 0xFF

    def leaves(op: Op, dst: Operand, *src: Operand | None) -> None:
        before = dst.array().copy()
        interpret(op, dst, *src)
        dst.array()[...] = before

    for kernel, called in ((writes_ones, False), (leaves, op not in ("cpy", "set_rows"))):
        device = FaultyKernels(kernel)
        findings = [run_case(device, device.init(), case) for case in cases_of(OPS[op])[:60]]
        reasons = [finding.reason for finding in findings if finding.verdict == "failed"]
        assert reasons
        assert any("not written" in reason for reason in reasons) == called, reasons


def test_what_a_write_leaves_is_not_called_unwritten() -> None:
    device = FaultyKernels(cuts_as_the_processor_does)
    stream = device.init()
    reasons = [run_case(device, stream, case).reason for case in cases_of(OPS["set_rows"]) if "into i32" in case.label]
    assert any("elements are wrong" in reason for reason in reasons)
    assert not any("not written" in reason for reason in reasons)


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

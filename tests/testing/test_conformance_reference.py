"""The plain reference interpreter conforms: what the suite asks for can be had."""

from __future__ import annotations

import pytest
from simt_devices import PartOfTheSuite

from ggplug.ops.base import OPS
from ggplug_testing import BackendSuite, ReferenceDevice, cases_of


class TestReference(PartOfTheSuite):
    """The next class has all cases."""

    device = ReferenceDevice()
    part = 3
    test_groups = None


@pytest.mark.long
class TestAllOfReference(BackendSuite):
    device = ReferenceDevice()
    test_contract = test_graphs = None


def test_every_op_has_cases_with_names_of_their_own() -> None:
    for op in OPS.values():
        labels = [case.label for case in cases_of(op)]
        assert labels, f"no case for {op.name}"
        assert len(set(labels)) == len(labels)


def test_cases_are_the_same_each_time() -> None:
    for name in ("add", "mul_mat", "set_rows"):
        first, second = cases_of(OPS[name]), cases_of(OPS[name])
        assert [(case.label, case.seed) for case in first] == [(case.label, case.seed) for case in second]

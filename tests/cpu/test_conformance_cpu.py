"""The CPU device conforms: every op that it claims, and the contract."""

from __future__ import annotations

import pytest

from ggplug_testing import BackendSuite

pytest.importorskip("ggplug_cpu")


class TestCpu(BackendSuite):
    device_name = "CPU"


@pytest.mark.long
class TestEveryCaseOfEveryTypeOnCpu(BackendSuite):
    device_name = "CPU"
    thorough = True
    test_contract = test_graphs = test_groups = None

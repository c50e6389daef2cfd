"""The CPU device conforms: every op that it claims, and the contract."""

from __future__ import annotations

import pytest

from ggplug.testing import BackendSuite

pytest.importorskip("ggplug_cpu")


class TestCpu(BackendSuite):
    device_name = "CPU"

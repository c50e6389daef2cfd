"""The CPU device of a node conforms, as a local device with memory of its own does."""

from __future__ import annotations

import pytest

from ggplug.backend import Device
from ggplug_testing import BackendSuite

pytest.importorskip("ray")


@pytest.mark.long
class TestRay(BackendSuite):
    @pytest.fixture
    def device(self, devices: dict[str, Device]) -> Device:
        return devices["Ray/a/CPU"]

"""The OpenCL devices conform: every op that they claim, and the contract, cut as for a CPU and as for a GPU."""

from __future__ import annotations

import pytest
from simt_devices import opencl_as_gpu

from ggplug.backend import Device
from ggplug.testing import BackendSuite

pytest.importorskip("ggplug_opencl")


class TestOpenCL(BackendSuite):
    device_name = "OpenCL0"


class TestOpenCLAsGpu(BackendSuite):
    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()

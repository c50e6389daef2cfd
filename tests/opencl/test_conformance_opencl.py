"""The OpenCL devices conform: every op that they claim, and the contract, cut as for a CPU and as for a GPU."""

from __future__ import annotations

import pytest
from simt_devices import PartOfTheSuite, opencl_as_gpu

from ggplug.backend import Device
from ggplug_testing import BackendSuite

pytest.importorskip("ggplug_opencl")


class TestOpenCL(PartOfTheSuite):
    """The next class has all cases, as has the last one of devices cut as GPUs."""

    device_name = "OpenCL0"
    step = 12


@pytest.mark.long
class TestAllOfOpenCL(BackendSuite):
    device_name = "OpenCL0"
    test_contract = test_graphs = None


class TestOpenCLAsGpu(PartOfTheSuite):
    """What depends on the cut is the kernels; the contract is kept by the same code as before."""

    part = 16
    step = 24
    test_contract = None

    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()


@pytest.mark.long
class TestAllOfOpenCLAsGpu(BackendSuite):
    thorough = True

    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()

"""The OpenCL devices conform: every op that they claim, and the contract, cut as for a CPU and as for a GPU."""

from __future__ import annotations

import pytest
from simt_devices import PartOfTheSuite, a_part_of_the_groups, opencl_as_gpu

from ggplug.backend import Device
from ggplug.testing import BackendSuite

pytest.importorskip("ggplug_opencl")


class TestOpenCL(BackendSuite):
    device_name = "OpenCL0"

    @pytest.mark.long
    def test_groups(self, device: Device, request: pytest.FixtureRequest) -> None:
        super().test_groups(device, request)

    def test_a_part_of_the_groups(self, device: Device) -> None:
        a_part_of_the_groups(device, 4)


class TestOpenCLAsGpu(PartOfTheSuite):
    """The next class has all cases."""

    step = 12

    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()


@pytest.mark.long
class TestAllOfOpenCLAsGpu(BackendSuite):
    thorough = True

    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()

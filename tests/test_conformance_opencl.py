"""The OpenCL devices conform: every op that they claim, and the contract, cut as for a CPU and as for a GPU."""

from __future__ import annotations

import pytest
from simt_devices import a_part_of_the_groups, a_part_of_the_ops, opencl_as_gpu

from ggplug.backend import Device
from ggplug.testing import BackendSuite
from ggplug.testing.cases import Case

pytest.importorskip("ggplug_opencl")


class TestOpenCL(BackendSuite):
    device_name = "OpenCL0"

    @pytest.mark.long
    def test_groups(self, device: Device, request: pytest.FixtureRequest) -> None:
        super().test_groups(device, request)

    def test_a_part_of_the_groups(self, device: Device) -> None:
        a_part_of_the_groups(device, 4)


class TestOpenCLAsGpu(BackendSuite):
    """A part of the cases, because each kernel takes long to compile; the next class has all of them."""

    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()

    def cases(self, op: str) -> list[Case]:
        return a_part_of_the_ops(op)

    def test_groups(self, device: Device, request: pytest.FixtureRequest) -> None:
        a_part_of_the_groups(device, 12)


@pytest.mark.long
class TestAllOfOpenCLAsGpu(BackendSuite):
    thorough = True

    @pytest.fixture
    def device(self) -> Device:
        return opencl_as_gpu()

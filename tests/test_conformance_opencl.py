"""The OpenCL devices conform: every op that they claim, and the contract, cut as for a CPU and as for a GPU."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import pytest

from ggplug import registry
from ggplug.backend import Device, Registration
from ggplug.testing import BackendSuite

pytest.importorskip("ggplug_opencl")

from ggplug_opencl.devices import OpenCLDevice
from ggplug_opencl.driver import OpenCLDriver


class AsGpu(OpenCLDevice):
    """The device of any kind, with kernels cut as for a GPU: many narrow lanes, tiles in local memory."""

    def open_driver(self) -> OpenCLDriver:
        driver = super().open_driver()
        driver.properties = dataclasses.replace(
            driver.properties, processor=False, local_bytes=min(driver.properties.local_bytes, 32768)
        )
        return driver


class AsGpuRegistration(Registration):
    """The first OpenCL device once more."""

    name = "OpenCLAsGpu"
    api_version = 1

    def __init__(self) -> None:
        found = registry.device("OpenCL0")
        assert isinstance(found, OpenCLDevice)
        self._devices = [AsGpu("OpenCLAsGpu0", found.handle, self)]

    def devices(self) -> Sequence[Device]:
        return self._devices


@functools.cache
def as_gpu() -> Device:
    """One device for all tests, so that each program is compiled once."""
    return AsGpuRegistration().devices()[0]


class TestOpenCL(BackendSuite):
    device_name = "OpenCL0"


class TestOpenCLAsGpu(BackendSuite):
    @pytest.fixture
    def device(self) -> Device:
        return as_gpu()

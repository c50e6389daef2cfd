"""Where kernels of ggplug_simt are run: on OpenCL, cut as for a CPU and as for a GPU, and as CUDA on the processor."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from cyclic_pairs import cyclic_pairs

from ggplug import registry
from ggplug.backend import API_VERSION, Device, Registration
from ggplug.ops.base import OPS
from ggplug_testing import BackendSuite
from ggplug_testing.cases import Case, graph_cases
from ggplug_testing.cases.chains import group_cases
from ggplug_testing.cases.sketched import LARGE
from ggplug_testing.running.groups import run_groups
from ggplug_testing.running.runner import cases_of


@functools.cache
def opencl() -> Device:
    """The first OpenCL device."""
    pytest.importorskip("ggplug_opencl")
    return registry.device("OpenCL0")


@functools.cache
def opencl_as_gpu() -> Device:
    """The same device of any kind, with kernels cut as for a GPU: many narrow lanes, tiles in local memory."""
    pytest.importorskip("ggplug_opencl")
    from ggplug_opencl.devices import OpenCLDevice
    from ggplug_opencl.driver import OpenCLDriver
    from ggplug_simt.c import CLibrary

    class AsGpu(OpenCLDevice):
        def open_driver(self) -> OpenCLDriver:
            driver = super().open_driver()
            driver.properties = dataclasses.replace(
                driver.properties, processor=False, local_bytes=min(driver.properties.local_bytes, 32768)
            )
            driver.library = CLibrary("opencl", driver.properties)
            return driver

    class AsGpuRegistration(Registration):
        name = "OpenCLAsGpu"
        api_version = API_VERSION

        def __init__(self) -> None:
            found = opencl()
            assert isinstance(found, OpenCLDevice)
            self._devices = [AsGpu("OpenCLAsGpu0", found.handle, self)]

        def devices(self) -> Sequence[Device]:
            return self._devices

    return AsGpuRegistration().devices()[0]


@functools.cache
def cuda_on_host() -> Device:
    """CUDA programs as the processor runs them."""
    pytest.importorskip("ziglang")
    from cuda_on_host import HostDevice

    return HostDevice()


EVERYWHERE = [opencl, opencl_as_gpu, cuda_on_host]

IN_VECTORS = [opencl, opencl_as_gpu]
"""Where the language has vectors, which a compiler may get wrong."""

everywhere = pytest.mark.parametrize("device", EVERYWHERE, indirect=True)
"""Runs a test, which needs the fixture ``device`` of this module, on each of them."""


def over_devices(name: str, values: Iterable[Any], devices: Sequence[Callable[[], Device]]) -> pytest.MarkDecorator:
    """Runs it with each value on one of the devices, alternately; with all on all it is long."""
    return pytest.mark.parametrize((name, "device"), cyclic_pairs(values, devices), indirect=["device"])


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """The device that a test is run on."""
    made: Device = request.param()
    return made


def a_part_of_the_groups(device: Device, step: int) -> None:
    """Chains of ops in the groups that the device forms, but only each so many-th."""
    findings = run_groups(device, cases=[*group_cases(), *graph_cases()][::step])
    assert [str(finding) for finding in findings if finding.bad] == []
    assert sum(finding.verdict == "passed" for finding in findings) > 10


class PartOfTheSuite(BackendSuite):
    """Every ``part``-th case of an op, from another one on for each op, at least one, and every ``step``-th chain.

    For devices whose compiler takes long for a kernel.
    """

    part = 8
    step: int

    def cases(self, op: str) -> list[Case]:
        # Tens of thousands of rows are as many groups of threads, which take minutes where a processor emulates them.
        cases = [case for case in cases_of(OPS[op]) if f" = {LARGE}" not in case.label]
        return cases[len(op) % min(self.part, max(len(cases), 1)) :: self.part]

    def test_groups(self, device: Device, request: pytest.FixtureRequest) -> None:
        a_part_of_the_groups(device, self.step)

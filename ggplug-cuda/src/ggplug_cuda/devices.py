"""Lists the CUDA devices with their properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug.backend import Device
from ggplug.errors import DeviceNotFoundError, GGPlugError, PluginError
from ggplug.types import DeviceKind
from ggplug_cuda.driver import CudaDriver
from ggplug_simt import SimtDevice, SimtRegistration

_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
_NO_DEVICE = 100  # cudaErrorNoDevice


class CudaDevice(SimtDevice):
    """One GPU; ``number`` is CUDA's, ``facts`` the result of ``cudaGetDeviceProperties``."""

    def __init__(self, number: int, facts: Mapping[str, Any], registration: SimtRegistration, cuda: Any) -> None:
        self.cuda = cuda
        self.number = number
        self.facts = facts
        super().__init__(
            f"{registration.name}{number}",
            description=f"{facts['name'].decode()} ({architecture(facts, self.cuda.runtime.is_hip)})",
            kind=DeviceKind.IGPU if facts["integrated"] else DeviceKind.GPU,
            total_memory=facts["totalGlobalMem"],
            device_id=f"{facts['pciDomainID']:04x}:{facts['pciBusID']:02x}:{facts['pciDeviceID']:02x}.0",
            pinned=True,
            registration=registration,
        )

    def open_driver(self) -> CudaDriver:
        driver = CudaDriver(self.cuda, self.number, self.facts)
        self.total_memory = driver.total_memory
        return driver


def architecture(facts: Mapping[str, Any], is_hip: bool) -> str:
    """The architecture that kernels are compiled for: ``sm_90``, ``gfx942``."""
    if is_hip:
        return str(facts["gcnArchName"].decode().partition(":")[0])
    return f"sm_{facts['major']}{facts['minor']}"


def list_devices(registration: SimtRegistration, cuda: Any) -> list[Device]:
    """All GPUs that CUDA shows, from attributes that need no context; ``cuda`` is :mod:`ggplug_cuda.cupy_calls`.

    Raises DeviceNotFoundError if there are none, PluginError if CUDA does not work.
    """
    runtime = cuda.runtime
    try:
        count = runtime.getDeviceCount()
        return [CudaDevice(n, runtime.getDeviceProperties(n), registration, cuda) for n in range(count)]
    except runtime.CUDARuntimeError as error:
        raise _nothing(runtime, error) from error


def _nothing(runtime: Any, error: Any) -> GGPlugError:
    """The error for a machine without CUDA devices, in words that need no knowledge of CUDA."""
    installed, wanted = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if error.status == _INSUFFICIENT_DRIVER and installed == 0:
        return DeviceNotFoundError("no driver of a GPU is installed", remedy="install the GPU vendor's driver")
    if error.status == _INSUFFICIENT_DRIVER:
        return PluginError(
            f"the driver is for CUDA {_version(installed)}, CuPy was built for CUDA {_version(wanted)}",
            remedy=f'update the driver, or pip install "ggplug-core[cuda{installed // 1000}]" in place of this CuPy',
        )
    if error.status == _NO_DEVICE:
        return DeviceNotFoundError("the driver finds no GPU", remedy="see nvidia-smi, and CUDA_VISIBLE_DEVICES")
    return PluginError(f"CUDA does not start: {error}", remedy="see whether nvidia-smi works; restart the machine")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"

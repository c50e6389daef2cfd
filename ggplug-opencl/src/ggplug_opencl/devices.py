"""Lists the OpenCL devices with their properties."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError
from ggplug.types import DeviceKind
from ggplug_opencl.caches import writable_caches
from ggplug_opencl.driver import OpenCLDriver
from ggplug_opencl.pocl import name_processor
from ggplug_simt import SimtDevice

log = logging.getLogger("ggplug")


class OpenCLDevice(SimtDevice):
    """One device of one platform; ``handle`` is pyopencl's."""

    def __init__(self, name: str, handle: Any, registration: Registration) -> None:
        self.handle = handle
        kind = device_kind(handle)
        super().__init__(
            name,
            description=f"{handle.name.strip()} ({handle.platform.name.strip()})",
            kind=kind,
            total_memory=handle.global_mem_size,
            device_id=device_id(handle),
            # If device memory is host memory, pinning gains nothing.
            pinned=kind is DeviceKind.GPU,
            registration=registration,
        )

    def open_driver(self) -> OpenCLDriver:
        name_processor(self.handle)
        return OpenCLDriver(self.handle)


def list_devices(registration: Registration) -> list[Device]:
    """All devices of all platforms, in the loader's order.  A platform that fails is logged and skipped.

    Raises DeviceNotFoundError if there is none.
    """
    found: list[Device] = []
    with writable_caches():
        platforms = _platforms()
        for platform in platforms:
            try:
                handles = platform.get_devices()
            except cl.Error as error:
                log.warning("OpenCL: platform %s lists no devices: %s", platform.name, error)
                continue
            for handle in handles:
                if handle.available and handle.compiler_available:
                    found.append(OpenCLDevice(f"{registration.name}{len(found)}", handle, registration))
    if not found:
        names = ", ".join(platform.name.strip() for platform in platforms)
        cache = os.environ.get("POCL_CACHE_DIR")
        raise DeviceNotFoundError(
            f"no device that can be used is shown by the OpenCL drivers that are installed: {names}",
            remedy="see whether clinfo shows one, and whether this user may open it (often the group render)"
            + (f"; PoCL has to write in POCL_CACHE_DIR={cache}" if cache else ""),
        )
    return found


def _platforms() -> list[Any]:
    try:
        return cl.get_platforms()
    except cl.Error as error:
        if error.code != cl.status_code.PLATFORM_NOT_FOUND_KHR:
            raise
        raise DeviceNotFoundError(
            "no OpenCL driver is installed",
            remedy='install the driver of the GPU\'s vendor, or pip install "ggplug-core[pocl]" to use the CPU',
        ) from error


def device_kind(handle: Any) -> DeviceKind:
    """CPU, GPU, integrated GPU or accelerator."""
    if handle.type & cl.device_type.CPU:
        return DeviceKind.CPU
    if handle.type & cl.device_type.GPU:
        return DeviceKind.IGPU if handle.host_unified_memory else DeviceKind.GPU
    return DeviceKind.ACCEL


def device_id(handle: Any) -> str | None:
    """The PCI address if the driver reports it, else the UUID, else None."""
    for ask in (_pci_khr, _pci_nvidia, _pci_amd, _uuid):
        found = _reported(ask, handle)
        if found:
            return found
    return None


def _reported(ask: Callable[[Any], str], handle: Any) -> str:
    try:
        return ask(handle)
    except (cl.Error, AttributeError, TypeError, ValueError):
        return ""


def _pci_khr(handle: Any) -> str:
    info = handle.pci_bus_info_khr
    return f"{info.pci_domain:04x}:{info.pci_bus:02x}:{info.pci_device:02x}.{info.pci_function}"


def _pci_nvidia(handle: Any) -> str:
    slot = handle.pci_slot_id_nv
    return f"{handle.pci_domain_id_nv:04x}:{handle.pci_bus_id_nv:02x}:{slot >> 3:02x}.{slot & 7}"


def _pci_amd(handle: Any) -> str:
    topology = handle.topology_amd
    return f"0000:{topology.bus & 0xFF:02x}:{topology.device:02x}.{topology.function}"


def _uuid(handle: Any) -> str:
    if "cl_khr_device_uuid" not in handle.extensions.split():
        return ""
    return str(uuid.UUID(bytes=bytes(handle.uuid_khr)))

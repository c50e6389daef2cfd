"""ggplug's OpenCL devices: every device of every installed platform, through pyopencl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggplug.backend import Device, Registration
from ggplug.hookspecs import hookimpl


class OpenCLRegistration(Registration):
    """The OpenCL backend; devices are listed without making a context."""

    name = "OpenCL"
    version = "0.1.0"
    api_version = 1

    def __init__(self) -> None:
        self._devices: list[Device] | None = None

    def devices(self) -> Sequence[Device]:
        if self._devices is None:
            from ggplug_opencl.devices import list_devices

            self._devices = list_devices(self)
        return self._devices

    def get(self, name: str) -> Any:
        if name != "cache":
            return None
        from ggplug_simt.cache import ProgramCache

        return ProgramCache("opencl", self.devices)


@hookimpl
def ggplug_backend_registration() -> Registration:
    """The registration, for ggplug's registry."""
    return OpenCLRegistration()

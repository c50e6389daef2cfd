"""ggplug's OpenCL devices: every device of every installed platform, through pyopencl."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug.backend import Device, Registration
from ggplug.hookspecs import hookimpl
from ggplug_simt import SimtRegistration


class OpenCLRegistration(SimtRegistration):
    """The OpenCL backend; it lists devices without making a context."""

    name = "OpenCL"
    version = "0.1.0"
    api_version = 2
    language = "opencl"

    def list_devices(self) -> Sequence[Device]:
        from ggplug_opencl.devices import list_devices

        return list_devices(self)


@hookimpl
def ggplug_backend_registration() -> Registration:
    """The registration, for ggplug's registry."""
    return OpenCLRegistration()

"""ggplug's CPU device: kernels written in Python, compiled for the CPU that they run on.

Importing this package does not import llvmlite; the first computation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ggplug.backend import Registration
from ggplug.hookspecs import hookimpl

if TYPE_CHECKING:
    from ggplug_cpu.device import CpuDevice

__version__ = "0.1.0"


class CpuRegistration(Registration):
    """The backend "CPU" with its one device."""

    name = "CPU"
    version = __version__
    api_version = 2

    def __init__(self) -> None:
        self._device: CpuDevice | None = None

    def devices(self) -> Sequence[CpuDevice]:
        if self._device is None:
            from ggplug_cpu.device import CpuDevice

            self._device = CpuDevice()
            self._device.registration = self
        return (self._device,)

    def get(self, name: str) -> Any:
        """A function or class that the backend offers beyond the interface; :mod:`ggplug_cpu.extras` lists them."""
        from ggplug_cpu import extras

        return extras.find(name)


@hookimpl
def ggplug_backend_registration() -> Registration:
    """Hands the backend over to ggplug."""
    return CpuRegistration()


__all__ = ["CpuRegistration", "ggplug_backend_registration"]

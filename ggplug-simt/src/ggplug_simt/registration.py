"""The base of vendors' registrations: devices that are listed once, and a cache of programs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ggplug.backend import Backend, Device, Registration
from ggplug_simt.cache import ProgramCache
from ggplug_simt.stream import SimtBackend


class SimtRegistration(Registration):
    """A vendor's backend.  ``language``: that of its devices' libraries."""

    language: str

    def __init__(self) -> None:
        self._devices: Sequence[Device] | None = None

    @abstractmethod
    def list_devices(self) -> Sequence[Device]:
        """Lists the devices, without making a context.

        Raises DeviceNotFoundError where there are none, with the reason and the remedy.
        """

    def devices(self) -> Sequence[Device]:
        if self._devices is None:
            self._devices = self.list_devices()
        return self._devices

    def get(self, name: str) -> Any:
        if name == "stall":
            return stall
        return ProgramCache(self.language, self.devices) if name == "cache" else None


def stall(stream: Backend) -> Callable[[], None] | None:
    """Holds back a stream, until the function that it returns is called; None if its queue cannot do that."""
    assert isinstance(stream, SimtBackend)
    return stream.queue.stall()

"""The file of a named model; of several quantisations the best that the devices can hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from ggplug.backend import Device
from ggplug.errors import OutOfMemoryError
from ggplug_models.by_name import lookup
from ggplug_models.by_name.store import Found
from ggplug_models.deciding import chosen_devices


def path_of(model: str | os.PathLike[str], devices: Sequence[Device | str] | None = None) -> Path:
    """The path of a model's file; see :func:`.lookup.path_of`.

    ``devices``: those that shall hold the model, as for :func:`.load`; a name that leaves the quantisation open then
    means the best one that fits, by :func:`.fit`.
    """
    return lookup.path_of(model, _Capacity(devices))


def find(name: str, devices: Sequence[Device | str] | None = None) -> Found:
    """The file of a named model, and the reason why it was chosen; as :func:`path_of`."""
    return lookup.find(name, _Capacity(devices))


class _Capacity:
    """What devices can hold: a :class:`.Judge`."""

    def __init__(self, devices: Sequence[Device | str] | None) -> None:
        self._given = devices

    @cached_property
    def _devices(self) -> list[Device]:
        return chosen_devices(self._given)

    @property
    def names(self) -> str:
        return " and ".join(device.name for device in self._devices)

    def holds(self, nbytes: int, path: Callable[[], Path]) -> bool:
        from ggplug_models.fitting import fit

        free = [device.memory().free for device in self._devices]
        if None not in free and nbytes > sum(filter(None, free)):
            return False
        try:
            fit(path(), self._devices)
        except OutOfMemoryError:
            return False
        return True

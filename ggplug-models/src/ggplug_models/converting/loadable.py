"""Checks that a file will load, before its weights are converted: its model is made over tensors without memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ggplug_models.architectures  # noqa: F401  (declares the families)
from ggplug import host
from ggplug.backend import BufferType, Device, Memory
from ggplug.errors import ModelError
from ggplug.host import HostBufferType
from ggplug.tensor import Context
from ggplug.types import DeviceKind, Type
from ggplug_models.networks.model import ARCHITECTURES


class _Nothing(Device):
    """A device that computes nothing, for models that are only made: converting needs no other."""

    name = "nothing"
    kind = DeviceKind.CPU

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return HostBufferType(self.name, self)


def check(metadata: Mapping[str, Any], tensors: Iterable[tuple[str, Type, tuple[int, ...]]], folder: object) -> None:
    """Raises ModelError if the file that a folder becomes would not load.

    ``metadata``: that of the file.  ``tensors``: their names, types and extents ``ne``.
    """
    with Context("weights") as unplaced:
        for name, type, ne in tensors:
            unplaced.new_tensor(type, ne, name)
        try:
            with ARCHITECTURES[metadata["general.architecture"]](unplaced, metadata, [_Nothing()]):
                pass
        except ModelError as error:
            what = f"{folder}: the file that it becomes would not load: {error.message}"
            raise ModelError(what, got=error.got, wanted=error.wanted, remedy=error.remedy) from error

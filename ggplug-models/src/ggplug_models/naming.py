"""The file of a named model; of several quantisations the best that the devices can hold."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ggplug.backend import Device
from ggplug_models.by_name import lookup
from ggplug_models.by_name.store import Found, Judge


def path_of(model: str | os.PathLike[str], devices: Sequence[Device | str] | None = None) -> Path:
    """The path of a model's file; see :func:`.lookup.path_of`.

    ``devices``: those that shall hold the model, as for :func:`.load`; a name that leaves the quantisation open then
    means the best one that fits, by :func:`.fit`.
    """
    if not isinstance(model, str) or not lookup.is_name(model):
        return Path(model)
    return lookup.path_of(model, _judge(devices))


def find(name: str, devices: Sequence[Device | str] | None = None) -> Found:
    """The file of a named model, and the reason why it was chosen; as :func:`path_of`."""
    return lookup.find(name, _judge(devices))


def _judge(devices: Sequence[Device | str] | None) -> Judge:
    from ggplug_models.fitting import Capacity  # only names need it

    return Capacity(devices)

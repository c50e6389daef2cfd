"""How a model uses its devices: the layers and weights that each holds, and the nodes that it computes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ggplug.scheduler import Explanation
from ggplug_models.networks.model import Model

_LAYER = re.compile(r"blk\.(\d+)\.")


class DeviceUse(NamedTuple):
    """A device with its layers, bytes of weights, bytes of packed weights, computed nodes, and bytes copied to it."""

    device: str
    layers: tuple[int, ...]
    nbytes: int
    packed: int
    nodes: int
    copied: int


def device_uses(model: Model, explanation: Explanation) -> list[DeviceUse]:
    """The devices that hold weights of ``model`` or compute nodes of the explained graph, in the model's order."""
    nbytes, packed, nodes, copied = (Counter[str]() for _ in range(4))
    layers: dict[str, set[int]] = {}
    for weight in model.weights:
        device = weight.buffer_type and weight.buffer_type.device
        if device is None or weight.buffer_type is None:
            continue
        name = device.name
        nbytes[name] += weight.nbytes
        packed[name] += weight.nbytes if weight.buffer_type.has_own_layout else 0
        if found := _LAYER.match(weight.name):
            layers.setdefault(name, set()).add(int(found[1]))
    for row in explanation.rows:
        nodes[row.device] += row.split >= 0  # views compute nothing
    for copy in explanation.copies:
        copied[copy.target] += copy.nbytes
    return [
        DeviceUse(name, tuple(sorted(layers.get(name, ()))), nbytes[name], packed[name], nodes[name], copied[name])
        for name in (device.name for device in model.devices)
        if nbytes[name] or nodes[name]
    ]


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges: ``0-2, 5``; ``none`` if there are none."""
    held = list(numbers)
    parts = np.split(held, np.flatnonzero(np.diff(held) > 1) + 1) if held else []
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"

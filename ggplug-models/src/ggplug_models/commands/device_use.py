"""How a model uses its devices: the layers and weights that each holds, and the nodes that it computes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ggplug.scheduler import Explanation
from ggplug_models.networks.model import Model
from ggplug_models.weights.placement import ranges as ranges
from ggplug_models.weights.rules import layer_of


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
        layer = layer_of(weight.name)
        if layer is not None:
            layers.setdefault(name, set()).add(layer)
    for row in explanation.rows:
        nodes[row.device] += row.split >= 0  # views compute nothing
    for copy in explanation.copies:
        copied[copy.target] += copy.nbytes
    return [
        DeviceUse(name, tuple(sorted(layers.get(name, ()))), nbytes[name], packed[name], nodes[name], copied[name])
        for name in (device.name for device in model.devices)
        if nbytes[name] or nodes[name]
    ]

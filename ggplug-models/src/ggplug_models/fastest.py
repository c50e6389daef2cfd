"""The placement of a model's layers that is predicted to take the least time and fits into the devices' memory.

The graphs of the model's largest steps are scheduled with all layers on each of the devices in turn.  The cost model
says how long each kernel takes there, and the kernels' names to which layer they belong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ggplug.backend import Device
from ggplug.graph import Graph
from ggplug.scheduler import Scheduler
from ggplug_models.weights.placement import Placement, ranges
from ggplug_models.weights.rules import LayersOn, LayerSplit, Place, layer_of

if TYPE_CHECKING:
    from ggplug.costs.model import CostModel

OUTSIDE = r"^(?!blk\.|cache\.)"
"""The pattern of a rule for weights that belong to no layer."""


class Times(NamedTuple):
    """The predicted seconds of a model's steps: in all, and of each layer.

    ``passed``: for each step, the bytes that a layer passes to the next one, and how often the step is computed.
    """

    total: float
    layers: Sequence[float]
    passed: Sequence[tuple[int, int]]


def times_of(scheduler: Scheduler, steps: Sequence[tuple[Graph, int]], n_layer: int, costs: CostModel) -> Times:
    """The predicted times of steps, each computed a number of times, as they are scheduled now.

    What precedes the layers counts for the first one, what follows them for the last.
    """
    total, layers, passed = 0.0, np.zeros(n_layer), []
    for graph, count in steps:
        seconds, kernels = scheduler.predicted(graph, costs)
        total += count * seconds
        layer = last = result = 0
        for nodes, taken in kernels:
            found = layer_of(nodes[-1].name)
            if found is None and layer:
                found = n_layer - 1
            if found and not layer:
                result = last
            layer = max(layer, found or 0)
            layers[layer] += count * taken
            last = nodes[-1].nbytes
        passed.append((result, count))
    return Times(total, layers.tolist(), passed)


def moves(scheduler: Scheduler, passed: Sequence[tuple[int, int]], costs: CostModel) -> list[list[float]]:
    """By the devices of two adjacent layers, the seconds that the second one takes more than without the change."""
    streams, memories = scheduler.backends, scheduler.buffer_types

    def move(before: int, after: int) -> float:
        if memories[before] is memories[after]:
            return 0.0
        stream = streams[after]
        return sum(n * (costs.copy(stream, memories[before], size) + costs.split(stream)) for size, n in passed)

    numbers = range(len(streams))
    return [[move(before, after) for after in numbers] for before in numbers]


def on(devices: Sequence[Device], placed: Sequence[int]) -> Placement:
    """The placement of layers: the number of the device of each."""
    if list(placed) == sorted(placed):
        counts = [placed.count(number) for number in range(len(devices))]
        return Placement(LayerSplit(counts)) if any(counts[1:]) else Placement()
    rules = (LayersOn(devices[number].name, _layers(placed, number)) for number in dict.fromkeys(placed))
    return Placement(*rules, Place(OUTSIDE, devices[placed[0]].name))


def _layers(placed: Sequence[int], number: int) -> str:
    layers = (layer for layer, each in enumerate(placed) if each == number)
    return ",".join(part if "-" in part else f"{part}-{part}" for part in ranges(layers).split(", "))

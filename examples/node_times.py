"""Measures how long the nodes of a graph take on each device, and chooses their devices, with two hooks.

``python -m examples.node_times`` computes a small graph on the available devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import ggplug as gg
from ggplug.backend import Device, Groups, NodeTime
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.tensor import Tensor


class Times:
    """A hook that adds up the times of nodes, by device and op."""

    def __init__(self) -> None:
        self.nanoseconds: dict[tuple[str, str], int] = {}

    @gg.hookimpl
    def ggplug_nodes_timed(self, graph: Graph, device: Device, times: Sequence[NodeTime], groups: Groups) -> None:
        """Called once for each computed split of a graph.  The nodes of a group have one entry together."""
        members = {group[-1]: group for group in groups.members}
        for node, start, end in times:  # node is -1 for the whole split, if a device cannot time nodes
            nodes = [graph.tensors[each] for each in members.get(node, (node,))] if node >= 0 else graph.nodes
            ops = " + ".join(each.op.name for each in nodes if each.op is not None and not each.is_view)
            self.nanoseconds[device.name, ops] = self.nanoseconds.get((device.name, ops), 0) + end - start


class ProductsOn:
    """A hook that places matrix products on one device, if that device can compute them."""

    def __init__(self, device: str) -> None:
        self.device = device

    @gg.hookimpl
    def ggplug_placement(self, graph: Graph, node: Tensor, devices: Sequence[Device]) -> Device | None:
        if node.op is None or node.op.name != "mul_mat":
            return None
        return next((each for each in devices if each.name == self.device), None)


def computed(devices: Sequence[Device]) -> Times:
    """The times of a small graph on these devices, with products on the last of them."""
    w, x, b = (gg.new_tensor("f32", ne) for ne in ((64, 48), (64, 16), (48,)))
    graph = Graph(gg.relu(gg.add(gg.mul_mat(w, x), b)).set_output())
    times, policy = Times(), ProductsOn(devices[-1].name)
    with gg.Context("sources") as sources, gg.Scheduler(devices) as scheduler:
        for tensor in (w, x, b):
            sources.add(tensor)
        gg.allocate(sources, devices[-1])
        random = np.random.default_rng(0)
        for tensor in (w, x, b):
            tensor.set(random.standard_normal(tensor.shape))
        HOOKS.register(times)
        HOOKS.register(policy)
        try:
            scheduler.compute(graph)
        finally:
            HOOKS.unregister(times)
            HOOKS.unregister(policy)
    return times


if __name__ == "__main__":
    for (name, ops), spent in computed(gg.devices()).nanoseconds.items():
        print(f"{name:8} {ops:24} {spent / 1000:8.1f} us")

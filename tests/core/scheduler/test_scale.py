"""What a schedule costs grows with the number of nodes, and not with the number of devices or inputs beside it.

Calls of Python functions are counted, not times.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.tensor import Context
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice


class Counted:
    """The calls in a block."""

    calls = 0


@contextmanager
def counting() -> Iterator[Counted]:
    found = Counted()

    def count(frame: FrameType, event: str, argument: object) -> None:
        found.calls += event == "call"

    sys.setprofile(count)
    try:
        yield found
    finally:
        sys.setprofile(None)


def weights_on(devices: list[Device]) -> list[Context]:
    found = []
    for device in devices:
        weights = Context("weights")
        weights.new_tensor("f32", (8, 8), "w")
        gg.allocate(weights, device, BufferUsage.WEIGHTS, zeroed=True)
        found.append(weights)
    return found


def chain(weights: list[Context], nodes: int) -> gg.Graph:
    """Products and sums, of which each device computes an equal part."""
    h = gg.new_tensor("f32", (8, 4), "x").set_input()
    for context in weights:
        for _ in range(nodes // len(weights) // 2):
            h = gg.add(gg.mul_mat(context["w"], h), h)
    return gg.Graph(h)


def fan_in(weights: list[Context], inputs: int) -> gg.Graph:
    """Products on the first device, all of which the second one adds: its split has as many inputs."""
    found = [gg.mul_mat(weights[0]["w"], gg.new_tensor("f32", (8, 4)).set_input()) for _ in range(inputs)]
    h = gg.mul_mat(weights[1]["w"], found[0])
    for each in found[1:]:
        h = gg.add(h, each)
    return gg.Graph(h)


def calls(make: object, count: int, n_devices: int) -> int:
    """Python functions that are called to schedule a graph."""
    devices: list[Device] = [FakeDevice(f"fake{number}") for number in range(n_devices)]
    weights = weights_on(devices)
    graph = make(weights, count)  # type: ignore[operator]
    with gg.Scheduler(devices) as scheduler, counting() as counted:
        scheduler.reserve_size(graph)
    for context in weights:
        context.free()
    return counted.calls


@pytest.mark.parametrize(("make", "n_devices"), [(chain, 64), (chain, 2), (fan_in, 2)])
def test_twice_the_nodes_take_twice_the_calls(make: object, n_devices: int) -> None:
    small, large = calls(make, 1024, n_devices), calls(make, 2048, n_devices)
    assert large <= 2.1 * small


def test_more_devices_take_calls_for_each_of_them_and_not_for_each_node() -> None:
    few, many = (calls(chain, 2048, n) - calls(chain, 1024, n) for n in (2, 64))
    assert many <= 1.25 * few


def test_memory_grows_with_the_nodes() -> None:
    taken = []
    for nodes in (2048, 4096):
        devices: list[Device] = [FakeDevice(f"fake{number}") for number in range(8)]
        weights = weights_on(devices)
        graph = chain(weights, nodes)
        with gg.Scheduler(devices) as scheduler:
            tracemalloc.start()
            scheduler.reserve_size(graph)
            taken.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        for context in weights:
            context.free()
    assert taken[1] <= 2.2 * taken[0]

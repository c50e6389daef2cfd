"""A process or a machine that is gone gives a typed error within ten seconds, and everything else goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import DeviceLostError

pytestmark = pytest.mark.long

WITHIN = 10.0
"""Seconds until a call raises."""


@pytest.fixture
def device(devices: dict[str, Device]) -> Any:
    return devices["Ray/b/CPU"]


@pytest.fixture
def process(device: Any) -> Iterator[int]:
    """The process of the device; it is let go on at the end."""
    found: int = device.link().process
    yield found
    for signum in (signal.SIGCONT, signal.SIGKILL):
        try:
            os.kill(found, signum)
        except ProcessLookupError:
            return


NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


class Doubler:
    """A graph on a device, to compute again and again."""

    def __init__(self, device: Device) -> None:
        self.scheduler = gg.Scheduler([device])
        self.x = gg.new_tensor("f32", (8,), "x").set_input()
        self.y = gg.scale(self.x, 2.0).set_output()
        self.graph = gg.Graph(self.y)

    def __call__(self) -> list[float]:
        self.scheduler.allocate(self.graph)
        self.x.set(np.ones(8, np.float32))
        self.scheduler.compute(self.graph)
        result: list[float] = self.y.numpy().tolist()
        return result


def until_lost(call: Doubler) -> None:
    end = time.monotonic() + 2 * WITHIN
    while time.monotonic() < end:
        call()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_process_is_a_typed_error_and_the_device_starts_again(
    fault: int, device: Any, process: int, devices: dict[str, Device]
) -> None:
    lost, other = Doubler(device), Doubler(devices["Ray/a/CPU"])
    assert lost() == other() == [2.0] * 8
    buffer = device.buffer_type.alloc(64)
    os.kill(process, fault)
    start = time.monotonic()
    with pytest.raises(DeviceLostError, match="node b was lost: ") as caught:
        until_lost(lost)
    assert time.monotonic() - start < WITHIN
    assert (caught.value.node, caught.value.device) == ("b", device)
    assert caught.value.reason in str(caught.value)
    with pytest.raises(DeviceLostError):
        buffer.set(0, np.zeros(64, np.uint8))
    buffer.free()
    assert other() == [2.0] * 8
    assert Doubler(device)() == [2.0] * 8, "a new scheduler starts the device again"


def test_calls_of_all_threads_end_when_the_process_stops(device: Any, process: int) -> None:
    buffer = device.buffer_type.alloc(1 << 20)
    ended: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                buffer.get(0, np.empty(1 << 20, np.uint8))
        except DeviceLostError as error:
            ended.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for each in threads:
        each.start()
    os.kill(process, signal.SIGSTOP)
    for each in threads:
        each.join(2 * WITHIN)
    assert len(ended) == 4


def test_a_copy_from_a_stopped_process_is_the_error_of_that_device(
    device: Any, process: int, devices: dict[str, Device]
) -> None:
    source, written, found = device.buffer_type.alloc(1 << 20), np.full(64, 7, np.uint8), np.zeros(64, np.uint8)
    with devices["Ray/a/CPU"].buffer_type.alloc(1 << 20) as target:
        os.kill(process, signal.SIGSTOP)
        target.set(0, written)  # goes with the message that Ray cannot deliver
        with pytest.raises(DeviceLostError, match=r"^Ray/b/CPU: "):
            target.copy_from(source, 0, 0, 1 << 20)
        target.get(0, found)
        np.testing.assert_array_equal(found, written)
        target.clear(1)


EXIT = """
import os, signal, threading, time
import numpy as np
import ggplug_ray
device = {each.name: each for each in ggplug_ray.connect(os.environ["ADDRESS"])}["Ray/b/CPU"]
buffer = device.buffer_type.alloc(1 << 20)
stream = device.init()
out = np.empty(1 << 20, np.uint8)
process = device.link().process
os.kill(process, signal.SIGSTOP)
stream.get_async(buffer, 0, out)
threading.Thread(target=lambda: buffer.get(0, out), daemon=True).start()
time.sleep(0.5)
print(process, flush=True)
"""


def test_the_interpreter_exits_while_calls_wait_for_a_stopped_process(cluster: Any) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EXIT],
        env=os.environ | {"ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        process = int(child.stdout.readline())
        start = time.monotonic()
        try:
            assert child.wait(WITHIN) == 0, child.stderr.read() if child.stderr else ""
        finally:
            child.kill()
            os.kill(process, signal.SIGKILL)
        assert time.monotonic() - start < WITHIN


def test_a_node_that_leaves_the_cluster_is_lost_for_good(cluster: Any, devices: dict[str, Device]) -> None:
    from ggplug_ray import RayRegistration
    from ggplug_ray.cluster import Cluster

    node = cluster.add_node(**NODE, node_name="d")
    found = {each.name: each for each in Cluster(cluster.address).devices(RayRegistration(), 120)}
    device = found["Ray/d/CPU"]
    doubler = Doubler(device)
    assert doubler() == [2.0] * 8
    cluster.remove_node(node)
    with pytest.raises(DeviceLostError, match="node d was lost"):
        doubler()
    with pytest.raises(DeviceLostError, match="node d was lost: the node has left the cluster"):
        device.init()

"""The fake discrete device does what the contract allows, fails on request, and counts everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Decline
from ggplug.discrete import Job
from ggplug.errors import (
    BufferUseError,
    ComputeError,
    DeviceLostError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from ggplug.host import HOST
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import POISON, FakeDevice, FakeRegistration
from ggplug_testing.running.placement import Placement

X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Chain:
    """x + x, then its square, on a device."""

    def __init__(self, device: FakeDevice) -> None:
        self.x = gg.new_tensor("f32", (4, 3), name="x")
        self.y = gg.sqr(gg.add(self.x, self.x))
        self.graph = gg.Graph(self.y)
        self.placement = Placement(self.graph, device.buffer_type)
        self.placement.write(self.x, X)
        self.want = (X * 2) ** 2

    def values(self) -> np.ndarray:
        return self.placement.read(self.y).reshape(3, 4)


def test_its_memory_is_out_of_the_hosts_reach() -> None:
    buffer = FakeDevice().buffer_type.alloc(64)
    assert buffer.address is None
    with pytest.raises(BufferUseError):
        buffer.bytes(0, 1)


def test_new_memory_is_poisoned() -> None:
    buffer = FakeDevice().buffer_type.alloc(64)
    out = np.empty(64, np.uint8)
    buffer.get(0, out)
    assert (out == POISON).all()


def test_late_work_waits_until_somebody_waits_for_it() -> None:
    device = FakeDevice(execution="late")
    chain, stream = Chain(device), device.init()
    device.forget()
    stream.compute(chain.graph, chain.placement.allocation)
    assert device.computed() == []
    stream.synchronize()
    assert device.computed() == ["add", "sqr"]
    np.testing.assert_array_equal(chain.values(), chain.want)


def test_late_work_can_be_done_piece_by_piece() -> None:
    device = FakeDevice(execution="late")
    chain, stream = Chain(device), device.init()
    stream.compute(chain.graph, chain.placement.allocation)
    assert device.queue.pending == 3
    assert device.step() == 1
    assert device.computed() == []
    assert device.step() == 1
    assert device.computed() == ["add"]
    assert device.step(5) == 1
    assert device.queue.pending == 0


def test_a_thread_of_its_own_gives_the_same_results() -> None:
    device = FakeDevice(execution="thread")
    chain, stream = Chain(device), device.init()
    stream.compute(chain.graph, chain.placement.allocation)
    assert device.computed() == []
    stream.synchronize()
    np.testing.assert_array_equal(chain.values(), chain.want)


def test_immediate_work_is_done_when_it_was_given() -> None:
    device = FakeDevice()
    chain, stream = Chain(device), device.init()
    stream.compute(chain.graph, chain.placement.allocation)
    assert device.queue.pending == 0
    assert device.computed() == ["add", "sqr"]


def order_of_two_streams(seed: int) -> list[str]:
    device = FakeDevice(execution="late", order="shuffled", seed=seed)
    buffers = [device.buffer_type.alloc(64) for _ in range(2)]
    streams = [device.init() for _ in range(2)]
    data = np.zeros(8, np.uint8)
    for i in range(6):
        for stream, buffer in zip(streams, buffers, strict=True):
            stream.set_async(buffer, i, data)
    device.queue.drain()
    return [each.stream for each in device.log if each.kind == "set"]


def test_streams_are_reordered_by_seed_and_only_as_allowed() -> None:
    orders = {tuple(order_of_two_streams(seed)) for seed in range(5)}
    assert len(orders) > 1
    assert order_of_two_streams(3) == order_of_two_streams(3)
    assert all(sorted(order) == ["fake0/1"] * 6 + ["fake0/2"] * 6 for order in orders)


@pytest.mark.parametrize("seed", range(4))
def test_events_hold_in_any_order(seed: int) -> None:
    device = FakeDevice(execution="late", order="shuffled", seed=seed)
    buffer, target = device.buffer_type.alloc(64), device.buffer_type.alloc(64)
    first, second = device.init(), device.init()
    event = device.event()
    for i in range(4):
        data = np.full(64, i, np.uint8)
        out = np.empty(64, np.uint8)
        first.set_async(buffer, 0, data)
        event.record(first)
        event.wait(second)
        second.copy_async(buffer, 0, target, 0, 64)
        second.get_async(target, 0, out)
        second.synchronize()
        assert (out == i).all()


def test_streams_that_wait_for_each_other_are_an_error() -> None:
    device = FakeDevice(execution="late")
    stream = device.init()
    stream.give(lambda: None, after=Job(stream, lambda: None, None, None))  # one that no queue has
    with pytest.raises(ComputeError, match="wait for events"):
        stream.synchronize()


def test_a_pending_fetch_cannot_be_read_yet() -> None:
    device = FakeDevice(execution="late")
    buffer, stream = device.buffer_type.alloc(64), device.init()
    buffer.clear(7)
    out = np.zeros(64, np.uint8)
    stream.get_async(buffer, 0, out)
    assert (out == POISON).all()
    stream.synchronize()
    assert (out == 7).all()


def test_changing_the_source_of_a_pending_store_is_noticed() -> None:
    device = FakeDevice(execution="late")
    buffer, stream = device.buffer_type.alloc(64), device.init()
    data = np.zeros(8, np.uint8)
    stream.set_async(buffer, 0, data)
    data[3] = 1
    with pytest.raises(ComputeError, match="changed before"):
        stream.synchronize()


def test_everything_is_counted() -> None:
    device = FakeDevice()
    first, second = device.buffer_type.alloc(100), device.buffer_type.alloc(50)
    host = HOST.alloc(40)
    first.set(0, np.zeros(30, np.uint8))
    first.get(5, np.empty(20, np.uint8))
    second.copy_from(first, 0, 0, 11)
    second.copy_from(host, 0, 0, 40)
    host.copy_from(first, 0, 0, 7)
    first.memset(0, 9, 1)
    assert device.total("alloc") == (2, 150)
    assert device.total("set") == (1, 30)
    assert device.total("get") == (2, 27)
    assert device.total("copy") == (1, 11)
    assert device.total("receive") == (1, 40)
    assert device.total("memset") == (1, 9)
    assert device.memory() == ((1 << 32) - 150, 1 << 32)
    second.free()
    assert device.total("free") == (1, 50)
    device.forget()
    assert device.log == []


def test_a_copy_between_devices_is_a_fetch_there_and_a_receipt_here() -> None:
    here, there = FakeDevice("here", execution="late"), FakeDevice("there", execution="late")
    source, target = there.buffer_type.alloc(64), here.buffer_type.alloc(64)
    stream, other = here.init(), there.init()
    data = np.arange(64, dtype=np.uint8)
    other.set_async(source, 0, data)
    stream.copy_async(source, 16, target, 0, 32, other)
    stream.synchronize()
    out = np.empty(32, np.uint8)
    target.get(0, out)
    np.testing.assert_array_equal(out, data[16:48])
    assert there.total("get") == (1, 32)
    assert here.total("receive") == (1, 32)


def test_the_nth_call_fails_and_the_next_one_works() -> None:
    device = FakeDevice()
    buffer = device.buffer_type.alloc(8)
    device.fail("set", 2)
    buffer.set(0, np.zeros(1, np.uint8))
    with pytest.raises(ComputeError, match="set"):
        buffer.set(0, np.zeros(1, np.uint8))
    buffer.set(0, np.zeros(1, np.uint8))


def test_a_failing_kernel_is_reported_when_the_stream_is_synchronized() -> None:
    device = FakeDevice(execution="late")
    chain, stream = Chain(device), device.init()
    device.fail("kernel", 2)
    stream.compute(chain.graph, chain.placement.allocation)
    with pytest.raises(ComputeError, match="kernel sqr"):
        stream.synchronize()
    stream.compute(chain.graph, chain.placement.allocation)
    stream.synchronize()
    np.testing.assert_array_equal(chain.values(), chain.want)


def test_after_a_failure_the_rest_of_the_computation_is_dropped() -> None:
    device = FakeDevice(execution="late")
    chain, stream = Chain(device), device.init()
    device.fail("kernel", 1)
    stream.compute(chain.graph, chain.placement.allocation)
    with pytest.raises(ComputeError):
        stream.synchronize()
    assert device.computed() == ["add"]


def test_memory_runs_out_at_the_budget() -> None:
    device = FakeDevice(memory=1000)
    held = device.buffer_type.alloc(900)
    with pytest.raises(OutOfMemoryError) as caught:
        device.buffer_type.alloc(101)
    assert (caught.value.requested, caught.value.free) == (101, 100)
    held.free()
    device.buffer_type.alloc(1000).free()


def test_the_nth_allocation_can_fail_too() -> None:
    device = FakeDevice()
    device.fail("alloc", 1)
    with pytest.raises(OutOfMemoryError):
        device.buffer_type.alloc(8)
    assert device.used == 0
    device.buffer_type.alloc(8).free()


def test_a_lost_device_says_so() -> None:
    device = FakeDevice()
    buffer = device.buffer_type.alloc(8)
    device.lose()
    with pytest.raises(DeviceLostError):
        buffer.get(0, np.empty(8, np.uint8))


def test_it_declines_what_its_author_says() -> None:
    device = FakeDevice(declines=lambda node: "no squares today" if node.op and node.op.name == "sqr" else "")
    chain = Chain(device)
    answer = device.supports_op(chain.y)
    assert isinstance(answer, Decline)
    assert answer.reason == "no squares today"
    with pytest.raises(UnsupportedOpError, match="no squares today"):
        device.init().plan(chain.graph)


def test_kernels_cannot_reach_memory_of_others() -> None:
    device = FakeDevice()
    chain = Chain(device)
    with pytest.raises(BufferUseError, match="copy it over"), Placement(chain.graph, HOST) as other:
        device.init().compute(chain.graph, other.allocation)


@pytest.mark.parametrize("execution", ["now", "late", "thread"])
def test_the_plans_of_a_host_device_compute_in_its_memory(execution: Any) -> None:
    device = FakeDevice(execution=execution, inner=ReferenceDevice())
    chain, stream = Chain(device), device.init()
    stream.compute(chain.graph, chain.placement.allocation)
    stream.synchronize()
    np.testing.assert_array_equal(chain.values(), chain.want)
    assert device.computed() == ["add", "sqr"]
    stream.free()


def test_a_registration_lists_the_devices() -> None:
    first, second = FakeDevice("fake0"), FakeDevice("fake1")
    registration = FakeRegistration(first, second)
    assert list(registration.devices()) == [first, second]
    assert first.registration is registration

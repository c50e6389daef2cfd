"""A computation beyond the time limit of its stream ends with an error that names device, node and kernel."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug import trace
from ggplug.backend import Device
from ggplug.errors import ComputeAborted, ParameterError, TensorStateError, TimeLimitError
from ggplug.scheduler import Feed, Scheduler
from ggplug_testing import ReferenceDevice
from tests.mutation.subject.device import SubjectDevice


def doubled(device: Device, scheduler: Scheduler) -> bool:
    """Whether the scheduler still computes."""
    x = gg.tensor(np.arange(8, dtype=np.float32))
    y = (x + x).set_output()
    scheduler.compute(gg.Graph(y))
    return bool((y.numpy() == 2 * np.arange(8)).all())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_cpu_aborts_within_a_graph_and_names_the_kernel(threads: int) -> None:
    device = device_or_skip("CPU")
    stream = device.init(n_threads=threads)
    scheduler = Scheduler([stream])
    x = gg.tensor(np.zeros((512, 512), np.float32))
    y = x
    for number in range(4000):
        y = gg.mul_mat(x, y, name=f"product {number}")
    graph = gg.Graph(y.set_output())
    scheduler.set_time_limit(0.2)
    with pytest.raises(
        TimeLimitError, match=r"CPU: .* longer than its time limit of 0.2 s; the kernel mul_mat.* of"
    ) as caught:
        scheduler.compute(graph)
    error = caught.value
    assert isinstance(error, ComputeAborted)
    assert error.device is device
    assert error.wanted == 0.2
    assert error.kernel is not None
    assert error.kernel.startswith("mul_mat")
    assert error.tensor in graph.index
    assert error.tensor.name.startswith("product ")
    assert error.tensor.name != "product 3999"
    with pytest.raises(TensorStateError, match="time limit"):
        y.numpy()
    assert doubled(device, scheduler)
    scheduler.set_time_limit(None)
    assert doubled(device, scheduler)
    stream.set_abort_callback(lambda: True)
    with pytest.raises(ComputeAborted) as aborted:
        scheduler.compute(graph)
    assert not isinstance(aborted.value, TimeLimitError)
    stream.set_abort_callback(None)
    scheduler.free()
    stream.free()


def test_the_cpu_counts_the_time_of_python_functions() -> None:
    device = device_or_skip("CPU")
    x = gg.tensor(np.ones(4, np.float32))

    def slow(dst: Any, a: Any, *_: Any) -> None:
        time.sleep(0.2)
        dst[...] = a

    y = gg.map_custom1(x, slow, name="slow one").set_output()
    scheduler = Scheduler([device])
    scheduler.set_time_limit(0.05)
    with pytest.raises(TimeLimitError, match=r"map_custom1 of .*slow one"):
        scheduler.compute(gg.Graph(y))
    scheduler.set_time_limit(10)
    scheduler.compute(gg.Graph(y))
    assert (y.numpy() == 1).all()


class HeldDevice(SubjectDevice):
    """A queue with a thread; its kernels wait until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def match(self, group: Any) -> Any:
        found = super().match(group)
        if not callable(found):
            return found

        def held(*arguments: Any) -> None:
            self.entered.set()
            assert self.go_on.wait(20)
            found(*arguments)

        return held


def test_waiting_for_a_queue_whose_kernel_does_not_return_ends() -> None:
    device = HeldDevice()
    scheduler = Scheduler([device])
    x = gg.new_tensor("f32", 4, "x").set_input()
    y = gg.neg(gg.neg(x, name="first"), name="second").set_output()
    graph = gg.Graph(y)
    scheduler.set_time_limit(0.1)
    scheduler.allocate(graph)
    x.set(np.ones(4, np.float32))
    with pytest.raises(TimeLimitError, match=r".* the kernel held of .*'second'.* goes on, and the stream waits"):
        scheduler.compute(graph)
    assert device.entered.is_set()
    device.go_on.set()
    scheduler.set_time_limit(None)
    with pytest.raises(TimeLimitError, match="was aborted"):  # the error of the work, which the stream kept
        scheduler.synchronize()
    scheduler.allocate(graph)
    x.set(np.ones(4, np.float32))
    scheduler.compute(graph)
    assert (y.numpy() == 1).all()
    scheduler.free()


def test_a_device_with_kernels_in_python_stops_between_two_of_them() -> None:
    stream = ReferenceDevice("reference").init()
    with Scheduler([stream]) as scheduler:
        x = gg.tensor(np.ones((400, 400), np.float32))
        y = x
        for number in range(400):
            y = gg.mul_mat(x, y, name=f"product {number}")
        scheduler.set_time_limit(0.1)
        with pytest.raises(TimeLimitError, match=r"reference: .* of .*'product \d+'.* was aborted") as caught:
            scheduler.compute(gg.Graph(y.set_output()))
        assert caught.value.tensor.name != "product 399"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", True, 10**400])
def test_a_limit_is_a_positive_number(seconds: Any) -> None:
    with device_or_skip("CPU").init() as stream:
        with pytest.raises(ParameterError, match="time limit must be a positive number"):
            stream.set_time_limit(seconds)
        assert stream.time_limit is None


def test_a_computation_runs_under_the_limit_that_it_began_with() -> None:
    stream = device_or_skip("CPU").init()
    with Scheduler([stream]) as scheduler:
        x = gg.tensor(np.ones(4, np.float32))

        def change(dst: Any, a: Any, *_: Any) -> None:
            time.sleep(0.1)
            stream.set_time_limit(None)
            dst[...] = a

        y = gg.map_custom1(x, change).set_output()
        scheduler.set_time_limit(np.float32(0.05))
        with pytest.raises(TimeLimitError, match=r"time limit of 0\.05"):
            scheduler.compute(gg.Graph(y))
        scheduler.compute(gg.Graph(y))


# -- what was not aborted ----------------------------------------------------------------------------


def check_late(scheduler: Scheduler, device: Device) -> None:
    """Asserts that the scheduler reports a computation that took too long, and that its result is there."""
    x = gg.tensor(np.arange(8, dtype=np.float32))
    y = gg.neg(gg.abs(x)).set_output()
    graph = gg.Graph(y)
    scheduler.set_time_limit(1e-9)
    for compute in (scheduler.compute, scheduler.compute_async, scheduler.compute):
        with pytest.raises(
            TimeLimitError, match=rf"{device.name}: .* limit of 1e-09 s; .* its results are there"
        ) as late:
            compute(graph)
        assert (late.value.device, late.value.wanted, late.value.tensor) == (device, 1e-9, None)
        assert late.value.got > 1e-9
        assert (y.numpy() == -np.arange(8)).all()
    scheduler.set_time_limit(100)
    scheduler.compute(graph)
    scheduler.set_time_limit(None)
    scheduler.compute(graph)


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
def test_a_limit_that_no_device_looked_at_is_reported(name: str) -> None:
    device = device_or_skip(name)
    with Scheduler([device]) as scheduler:
        check_late(scheduler, device)
        with trace.recording():
            check_late(scheduler, device)
        scheduler.set_eval_callback(lambda tensor, ask: True)
        check_late(scheduler, device)


def test_what_a_split_waits_for_is_not_counted() -> None:
    device = HeldDevice()
    x = gg.new_tensor("f32", 4, "x").set_input()
    slow = gg.neg(x)
    y = gg.neg(slow).set_output()
    with device.init() as first, SubjectDevice().init() as second, Scheduler([first, second]) as scheduler:
        for node, stream in ((slow, first), (y, second)):
            scheduler.pin(node, stream)
        graph = gg.Graph(y)
        scheduler.allocate(graph)
        x.set(np.ones(4, np.float32))
        second.set_time_limit(0.2)
        threading.Timer(0.4, device.go_on.set).start()
        scheduler.compute(graph)
        assert (y.numpy() == 1).all()


def test_a_feed_reports_a_limit_that_was_exceeded() -> None:
    x = gg.new_tensor("f32", (8,), "x").set_input()
    y = gg.neg(x).set_output()
    with Scheduler([device_or_skip("CPU")]) as scheduler:
        feed = Feed(scheduler, gg.Graph(y), [x], [y])
        for limit in (None, 1e-9, 1e-9, None):
            scheduler.set_time_limit(limit)
            if limit is None:
                feed([np.ones(8, np.float32)])
            else:
                with pytest.raises(TimeLimitError, match="its results are there"):
                    feed([np.ones(8, np.float32)])
            assert (y.numpy() == -1).all()
            assert feed.ready is not None or limit is not None

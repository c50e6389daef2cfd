"""Each computation leaves one record: where its results lie, how far it got, what is pending, what failed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Backend, Device
from ggplug.errors import ComputeError, TensorStateError
from ggplug.memory import Arena, GraphAllocator, Run, allocate_graph
from ggplug.registry import REGISTRY
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice

N = 8


@pytest.fixture(params=["reference", "CPU", "fake", "late fake"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "reference":
        return ReferenceDevice()
    if request.param == "CPU":
        found = [device for device in REGISTRY.devices() if device.name == "CPU"]
        return found[0] if found else pytest.skip("the CPU device is not installed")
    return FakeDevice(execution="now" if request.param == "fake" else "late")


class Lookup:
    """Rows of a table by ids that can be wrong, in memory of the device."""

    def __init__(self, device: Device) -> None:
        self.context = gg.Context("table")
        self.table = self.context.new_tensor("f32", (N, 4), "table")
        self.ids = self.context.new_tensor("i32", (2,), "ids")
        gg.allocate(self.context, device)
        self.table.set(np.arange(4 * N).reshape(4, N))
        self.ids.set([1, 2])
        self.x = gg.new_tensor("f32", (N, 2), "x").set_input()
        self.rows = gg.get_rows(self.table, self.ids)
        self.y = gg.add(self.rows, self.x).set_output()
        self.graph = gg.Graph(self.y)

    def expected(self) -> Any:
        return np.arange(4 * N).reshape(4, N)[[1, 2]] + 1.0


@pytest.fixture
def lookup(device: Device) -> Iterator[Lookup]:
    made = Lookup(device)
    yield made
    made.context.free()


def test_reading_the_result_of_a_computation_that_failed_says_so_and_why(device: Device, lookup: Lookup) -> None:
    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(lookup.graph)
        lookup.x.set(1)
        scheduler.compute(lookup.graph)
        assert (lookup.y.numpy() == lookup.expected()).all()
        lookup.ids.set([1, 7])
        with pytest.raises(ComputeError, match="id 7"):
            scheduler.compute(lookup.graph)
        for tensor in (lookup.y, lookup.rows):
            with pytest.raises(TensorStateError, match=r"its computation failed: ComputeError.*id 7.*its graph"):
                tensor.numpy()
        assert lookup.graph.run is not None
        assert "id 7" in lookup.graph.run.failure
        # Inputs that lie in the scheduler's memory are as they were.
        assert (lookup.x.numpy() == 1).all()
        lookup.ids.set([1, 2])
        scheduler.compute(lookup.graph)
        assert (lookup.y.numpy() == lookup.expected()).all()


def test_the_same_for_a_stream_of_ones_own(device: Device, lookup: Lookup) -> None:
    with device.init() as stream, GraphAllocator(device.buffer_type) as memory:
        allocation = memory.allocate(lookup.graph)
        lookup.x.set(1)
        lookup.ids.set([-1, 1])
        if device.capabilities.asynchronous:
            stream.compute(lookup.graph, allocation)
            with pytest.raises(ComputeError, match="id -1"):
                lookup.y.numpy()
        else:
            with pytest.raises(ComputeError, match="id -1"):
                stream.compute(lookup.graph, allocation)
        with pytest.raises(TensorStateError, match="its computation failed: ComputeError"):
            lookup.y.numpy()
        lookup.ids.set([1, 2])
        stream.compute(lookup.graph, allocation)
        assert (lookup.y.numpy() == lookup.expected()).all()


def test_a_failure_that_is_found_by_reading_is_told_again_by_the_next_reading() -> None:
    device = FakeDevice(execution="late")
    lookup = Lookup(device)
    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(lookup.graph)
        lookup.x.set(1)
        scheduler.compute_async(lookup.graph)
        device.fail("kernel")
        with pytest.raises(ComputeError):
            lookup.y.numpy()
        with pytest.raises(TensorStateError, match="its computation failed"):
            lookup.y.numpy()


def test_what_a_callback_raised_is_why_there_is_no_result(device: Device, lookup: Lookup) -> None:
    def callback(tensor: gg.Tensor, ask: bool) -> bool:
        if not ask:
            raise ZeroDivisionError("in the callback")
        return tensor is lookup.rows

    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(lookup.graph)
        lookup.x.set(1)
        scheduler.set_eval_callback(callback)
        with pytest.raises(ZeroDivisionError):
            scheduler.compute(lookup.graph)
        with pytest.raises(TensorStateError, match="its computation failed: ZeroDivisionError: in the callback"):
            lookup.rows.numpy()


def test_the_record_of_a_failure_keeps_nothing_alive(device: Device, lookup: Lookup) -> None:
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)

    def callback(tensor: gg.Tensor, ask: bool, held: Any = held) -> bool:
        error = RuntimeError("why")
        error.held = held  # type: ignore[attr-defined]
        raise error

    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(lookup.graph)
        lookup.x.set(1)
        scheduler.set_eval_callback(callback)
        with pytest.raises(RuntimeError):
            scheduler.compute(lookup.graph)
        scheduler.set_eval_callback(None)
        del callback, held
        gc.collect()
        assert gone() is None


def test_a_run_records_how_far_it_got(device: Device, lookup: Lookup) -> None:
    def callback(tensor: gg.Tensor, ask: bool) -> bool:
        return ask and tensor is lookup.rows  # looks at the rows, and then stops

    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(lookup.graph)
        lookup.x.set(1)
        prepared = lookup.graph.run
        assert isinstance(prepared, Run)
        assert prepared.progress == 0
        with pytest.raises(TensorStateError, match="not computed yet"):
            lookup.y.numpy()
        scheduler.set_eval_callback(callback)
        scheduler.compute(lookup.graph)
        run = lookup.graph.run
        assert isinstance(run, Run)
        assert (run.progress, run.current, prepared.current, run.serial > prepared.serial) == (1, True, False, True)
        assert (lookup.rows.numpy() == lookup.expected() - 1).all()
        with pytest.raises(TensorStateError, match="not computed yet"):
            lookup.y.numpy()
        scheduler.set_eval_callback(None)
        scheduler.compute(lookup.graph)
        assert lookup.graph.run is not None
        assert lookup.graph.run.progress == 2


class Waiting:
    """A stream or event that is only waited for."""

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Anywhere:
    """An allocation for records alone."""

    def __init__(self) -> None:
        self.arena = Arena()


def test_what_is_pending_is_waited_for_once() -> None:
    place: Any = Anywhere()
    stream, event = Waiting(), Waiting()
    run = Run(place)
    run.end(stream, progress=1, readers=(event,))
    run.wait_for_readers()
    run.wait_for_readers()
    assert (event.waits, stream.waits) == (1, 0)
    run.synchronize()
    run.synchronize()
    place.arena.synchronize()
    assert (event.waits, stream.waits) == (1, 1)


def test_readers_need_no_second_wait_after_the_whole_run_was_waited_for() -> None:
    place: Any = Anywhere()
    stream, event = Waiting(), Waiting()
    run = Run(place)
    run.end(stream, progress=1, readers=(event,))
    run.synchronize()
    run.wait_for_readers()
    assert (event.waits, stream.waits) == (0, 1)


def test_memory_that_is_taken_over_is_waited_for_by_the_next_run() -> None:
    place: Any = Anywhere()
    stream = Waiting()
    Run(place).end(stream, progress=1)
    Run(place)  # prepared: nothing was given to a stream for it
    place.arena.synchronize()
    assert stream.waits == 1


@pytest.mark.parametrize("read", [True, False])
def test_memory_goes_with_the_last_who_needs_it_and_needs_no_collector(device: Device, read: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        x = gg.tensor(np.ones(N, np.float32))
        with device.init() as stream:
            if not device.supports_buffer_type(x.buffer.type):  # type: ignore[union-attr]
                x = gg.new_tensor("f32", (N,))
                x.place(device.buffer_type.alloc(4 * N))
                x.set(1)
            graph = gg.Graph(gg.neg(gg.neg(x)).set_output())
            allocation = allocate_graph(graph, device.buffer_type)
            stream.compute(graph, allocation)
            if read:
                graph.outputs[0].numpy()
            memory = [weakref.ref(buffer) for buffer in allocation.buffers]
            stream.synchronize()
        del graph, allocation, stream
        assert all(buffer() is None for buffer in memory)
    finally:
        gc.enable()


def test_each_stream_of_a_scheduler_is_synchronized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakeDevice("a", execution="late"), FakeDevice("b", execution="late")
    own = second.init()
    waited: list[Backend] = []
    plain = type(own).synchronize

    def noted(stream: Backend) -> None:
        waited.append(stream)
        plain(stream)  # type: ignore[arg-type]

    for copies in (1, 2):
        # A device gets a stream that the scheduler owns, and each device one more that copies for the next computation.
        with gg.Scheduler([first, own], n_copies=copies) as scheduler:
            monkeypatch.setattr(type(own), "synchronize", noted)
            waited.clear()
            scheduler.synchronize()
            assert len(waited) == len(set(waited)) == 2 * copies
            monkeypatch.undo()


def test_a_result_that_the_scheduler_waited_for_is_read_without_waiting_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(execution="late")
    lookup = Lookup(device)
    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(lookup.graph)
        lookup.x.set(1)
        scheduler.compute(lookup.graph)
        waited: list[Backend] = []
        monkeypatch.setattr(type(scheduler.backends[0]), "synchronize", waited.append)
        assert lookup.graph.run is not None
        lookup.graph.locate(lookup.y)
        assert waited == []
        monkeypatch.undo()

"""Ids out of range on devices that compute by themselves: when the error comes, what it says, and what goes on."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from ggplug import ops, registry, types
from ggplug.backend import Backend, Device
from ggplug.errors import ComputeError, DeviceLostError, TensorStateError
from ggplug.graph import Graph
from ggplug.memory import Allocation, allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor, new_tensor

pytest.importorskip("ggplug_simt")

from simt_stand_in import Refused, StandInDevice, StandInQueue

from ggplug_simt import Failure
from ggplug_simt.c.launch import RECORD

GOOD, BAD = [2, 0, 1], [2, 7, -1]
TABLE = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def device() -> Device:
    pytest.importorskip("ggplug_opencl")
    return registry.device("OpenCL0")


@pytest.fixture
def stream(device: Device) -> Iterator[Backend]:
    with device.init() as made:
        yield made


class Picked(NamedTuple):
    """``rows`` of a table by ``ids``, and what is computed from them."""

    graph: Graph
    allocation: Allocation
    table: Tensor
    ids: Tensor
    rows: Tensor

    def set(self, ids: list[int]) -> None:
        self.allocation.prepare(self.graph)
        self.allocation.buffers[0].clear(0x7F)  # an earlier graph's data
        self.table.set(TABLE)
        self.ids.set(np.array(ids))


def picked(device: Device, ids: list[int], name: str = "rows") -> Picked:
    table, of = new_tensor(types.F32, (4, 3), "table").set_input(), new_tensor(types.I32, (3,), "ids").set_input()
    rows = ops.get_rows(table, of).set_output()
    rows.name = name
    graph = Graph(rows)
    made = Picked(graph, allocate_graph(graph, device.buffer_type), table, of, rows)
    if not isinstance(device, StandInDevice):
        made.set(ids)
    return made


def raw(each: Picked) -> Any:
    """What lies in the result's place, whether or not its computation failed."""
    buffer, offset = each.allocation.place(each.graph, each.graph.index[each.rows])
    out = np.empty(each.rows.nbytes, np.uint8)
    buffer.get(offset, out)
    return out.view(np.float32).reshape(3, 4)


def test_the_error_comes_with_the_next_waiting_and_once(device: Device, stream: Backend) -> None:
    each = picked(device, BAD)
    stream.compute(each.graph, each.allocation)
    with pytest.raises(ComputeError, match=r"got the id 7 at \[.*\] of 'ids'.*less than 3, ne1 of 'table'") as caught:
        stream.synchronize()
    error = caught.value
    assert (error.tensor, error.op, error.device, error.got, error.wanted) == (each.rows, each.rows.op, device, 7, 3)
    np.testing.assert_array_equal(raw(each), [TABLE[2], np.zeros(4), np.zeros(4)])
    stream.synchronize()
    each.set(GOOD)
    stream.compute(each.graph, each.allocation)
    np.testing.assert_array_equal(each.rows.numpy(), TABLE[GOOD])


def test_reading_a_result_waits_and_so_raises(device: Device, stream: Backend) -> None:
    each = picked(device, BAD)
    stream.compute(each.graph, each.allocation)
    with pytest.raises(ComputeError, match="id 7"):
        each.rows.numpy()
    with pytest.raises(TensorStateError, match="its computation failed: ComputeError"):
        each.rows.numpy()
    stream.synchronize()


def test_setting_an_input_waits_and_so_raises_and_the_results_are_gone(device: Device, stream: Backend) -> None:
    each = picked(device, BAD)
    stream.compute(each.graph, each.allocation)
    with pytest.raises(ComputeError, match="id 7"):
        each.ids.set(np.array(GOOD))
    with pytest.raises(TensorStateError, match="its computation failed: ComputeError"):
        each.rows.numpy()


def test_of_several_pending_plans_the_first_fault_is_reported(device: Device, stream: Backend) -> None:
    nodes = [picked(device, ids, name) for ids, name in ((GOOD, "a"), (BAD, "b"), ([0, 0, 9], "c"), (GOOD, "d"))]
    for each in nodes:
        plan = stream.plan(each.graph)
        plan.rebind(each.graph, each.allocation)
        plan.compute()
    with pytest.raises(ComputeError) as caught:
        stream.synchronize()
    assert (caught.value.tensor, caught.value.got) == (nodes[1].rows, 7)
    stream.synchronize()
    np.testing.assert_array_equal(raw(nodes[3]), TABLE[GOOD])


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_nodes_the_first_in_the_graph_is_reported_with_its_first_id(
    first: int, device: Device, stream: Backend
) -> None:
    n = 3000  # ids for many work-groups
    table, kind = new_tensor(types.F32, (4, 3)).set_input(), types.I32
    ids = [new_tensor(kind, (n,)).set_input() for _ in range(2)]
    nodes = [ops.get_rows(table, each) for each in ids]
    y = ops.add(*nodes).set_output()
    graph = Graph(y)
    allocation = allocate_graph(graph, device.buffer_type)
    for _ in range(3):
        allocation.prepare(graph)
        table.set(TABLE)
        values = np.random.default_rng(1).integers(0, 3, (2, n))
        values[1, 5:] = 1000 + np.arange(n - 5)
        if first == 0:
            values[0, 1500:] = -1 - np.arange(1500)
        for leaf, each in zip(ids, values, strict=True):
            leaf.set(each)
        stream.compute(graph, allocation)
        with pytest.raises(ComputeError) as caught:
            stream.synchronize()
        assert (caught.value.tensor, caught.value.got) == (nodes[first], (-1, 1000)[first])


def test_the_error_waits_for_its_own_stream(device: Device, stream: Backend) -> None:
    each = picked(device, BAD)
    event = device.event()
    with device.init() as other:
        stream.compute(each.graph, each.allocation)
        event.record(stream)
        event.wait(other)
        other.synchronize()
        event.synchronize()
        raw(each)  # waits for all streams of the device
        fetched = np.empty(16, np.uint8)
        other.get_async(each.allocation.buffers[0], 0, fetched)
        other.synchronize()
    with pytest.raises(ComputeError, match="id 7"):
        stream.synchronize()


def test_another_thread_that_reads_the_devices_memory_takes_no_error_away(device: Device, stream: Backend) -> None:
    each = picked(device, GOOD)
    plan = stream.plan(each.graph)
    plan.rebind(each.graph, each.allocation)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            raw(each)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(100):
            each.set(BAD if number % 2 else GOOD)
            plan.compute()
            if number % 2:
                with pytest.raises(ComputeError, match="id 7"):
                    stream.synchronize()
            else:
                stream.synchronize()
    finally:
        stop.set()
        reader.join()


def test_a_graph_that_the_caller_dropped_is_named_and_then_released(device: Device, stream: Backend) -> None:
    each = picked(device, BAD, "the rows")
    plan = stream.plan(each.graph)
    plan.rebind(each.graph, each.allocation)
    plan.compute()
    gone = weakref.ref(each.graph)
    del each
    with pytest.raises(ComputeError, match="the rows") as caught:
        stream.synchronize()
    del caught
    gc.collect()
    assert gone() is None
    with pytest.raises(TensorStateError, match="does not exist any more"):
        plan.compute()


def test_a_stream_that_is_freed_reports_the_fault_and_releases_its_memory(device: Device) -> None:
    before = device.memory().free
    each = picked(device, BAD)
    with pytest.raises(ComputeError, match="id 7"), device.init() as stream:
        stream.compute(each.graph, each.allocation)
    each.allocation.buffers[0].free()
    assert device.memory().free == before


def test_a_traced_computation_reports_faults_too(device: Device, stream: Backend) -> None:
    each = picked(device, BAD)
    plan = stream.plan(each.graph)
    plan.rebind(each.graph, each.allocation)
    assert plan.compute_traced()
    with pytest.raises(ComputeError, match="id 7"):
        stream.synchronize()


def test_a_traced_computation_that_fails_keeps_the_times_until_then() -> None:
    device = StandInDevice()
    stream = device.init()
    x = new_tensor(types.F32, (8, 4)).set_input()
    graph = Graph(ops.silu(ops.norm(x)).set_output())
    places = allocate_graph(graph, device.buffer_type)
    plan = stream.plan(graph)
    plan.rebind(graph, places)
    assert len(plan.compute_traced()) == 2
    assert plan.times_before_error == ()
    act, acts = StandInQueue.act, []
    queue = stream.queue  # type: ignore[attr-defined]

    def act_once(what: str, *rest: Any) -> None:
        acts.append(what)
        if acts.count("launch") == 2:
            raise Refused(Failure.OTHER, "an illegal address")
        act(queue, what, *rest)

    queue.act = act_once
    with pytest.raises(ComputeError, match="an illegal address"):
        plan.compute_traced()
    assert [time.node for time in plan.times_before_error] == [graph.index[node] for node in graph.nodes]


# -- what it costs -------------------------------------------------------------------------------------


def test_the_record_is_read_by_the_same_waiting_and_only_where_there_are_ids() -> None:
    device = StandInDevice()
    notes = device.stand_in
    stream = device.init()
    ids, plain = picked(device, GOOD), Graph(ops.norm(new_tensor(types.F32, (8, 4)).set_input()).set_output())
    places = allocate_graph(plain, device.buffer_type)
    stream.compute(plain, places)
    stream.synchronize()
    assert not notes.did("read", "fill")
    stream.compute(ids.graph, ids.allocation)
    assert notes.did("fill") == [("fill", RECORD.itemsize)]  # once: the record begins empty
    for count in (1, 5):
        notes.log.clear()
        for _ in range(count):
            stream.compute(ids.graph, ids.allocation)
            stream.compute(plain, places)
        assert {kind for kind, *_ in notes.log} == {"launch"}
        notes.log.clear()
        stream.synchronize()
        assert notes.log == [("read", RECORD.itemsize), ("fill", RECORD.itemsize), ("finish",)]
        notes.log.clear()
        stream.synchronize()
        assert notes.log == [("finish",)]
    stream.free()
    assert notes.did("free")[-1] == ("free", RECORD.itemsize)


def record_of(device: StandInDevice) -> Any:
    (memory,) = (memory for bound in device.stand_in.bound for memory in bound.buffers.values() if memory.size < 64)
    return memory.view(RECORD)


def test_nobody_empties_the_record_between_the_launches_of_a_plan_or_before_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = StandInDevice()
    stream = device.init()
    each = picked(device, GOOD)
    stream.compute(each.graph, each.allocation)
    act, free = StandInQueue.act, []

    def watched(queue: StandInQueue, what: str, *rest: Any) -> None:
        def ask() -> None:
            if stream.workspace.faults.lock.acquire(blocking=False):
                stream.workspace.faults.lock.release()
                free.append(what)

        other = threading.Thread(target=ask)
        other.start()
        other.join()
        act(queue, what, *rest)

    monkeypatch.setattr(StandInQueue, "act", watched)
    stream.compute(each.graph, each.allocation)
    stream.synchronize()
    assert free == ["finish"]
    assert {"launch", "read", "fill"} <= {kind for kind, *_ in device.stand_in.log}


def test_an_error_of_the_device_comes_before_and_leaves_no_fault_behind() -> None:
    device = StandInDevice()
    stream = device.init()
    each = picked(device, GOOD)
    stream.compute(each.graph, each.allocation)
    record = record_of(device)
    record[0] = (1, each.graph.index[each.rows], 7, 0)
    device.stand_in.errors["finish"] = Refused(Failure.OTHER, "an illegal address")
    with pytest.raises(ComputeError, match="an illegal address"):
        stream.synchronize()
    assert record[0].item() == (0, 0, 0, 0)
    stream.synchronize()
    for name in ("read", "finish"):
        stream.compute(each.graph, each.allocation)
        device.stand_in.errors[name] = Refused(Failure.LOST, "fallen off the bus")
        with pytest.raises(DeviceLostError, match="fallen off the bus"):
            stream.synchronize()
        device.runtime.guard.lost = ""


# -- captured graphs -----------------------------------------------------------------------------------


def test_a_captured_graph_notes_ids_out_of_range_each_time_it_is_launched() -> None:
    pytest.importorskip("ggplug_cuda")
    pytest.importorskip("ziglang")
    from cupy_stand_in import Gpu, StandIn
    from cupy_stand_in.registration import devices

    cuda = StandIn(Gpu())
    device = devices(cuda)[0]
    ids = new_tensor(types.I32, (3,), "ids").set_input()
    table = new_tensor(types.F32, (4, 3), "table").set_input()
    rows = ops.get_rows(table, ids)
    y = ops.add(rows, rows).set_output()
    graph = Graph(y)
    allocation = allocate_graph(graph, device.buffer_type)
    with device.init() as stream:
        for number, values in enumerate((GOOD, GOOD, BAD, GOOD, BAD, GOOD)):
            allocation.prepare(graph)
            table.set(TABLE)
            ids.set(np.array(values))
            cuda.forget()
            stream.compute(graph, allocation)
            done = [call.name for call in cuda.calls()]
            if number == 1:
                assert [name for name in done if name != "getDevice"][:4] == [
                    "begin_capture",
                    "launchKernel",
                    "launchKernel",
                    "end_capture",
                ]
            elif number > 1:
                assert done == ["launch"]
            if values is BAD:
                with pytest.raises(ComputeError) as caught:
                    stream.synchronize()
                assert (caught.value.tensor, caught.value.got) == (rows, 7)
            else:
                np.testing.assert_array_equal(y.numpy(), 2 * TABLE[GOOD])
    cuda.verify()


# -- the scheduler -------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("first", "second"), [(BAD, GOOD), (GOOD, BAD), (BAD, BAD)])
def test_a_scheduler_raises_the_first_fault_of_all_its_devices_and_goes_on(
    first: list[int], second: list[int], swapped: bool, device: Device
) -> None:
    pytest.importorskip("ggplug_cpu")
    streams = [device.init(), registry.device("CPU").init()]
    table = new_tensor(types.F32, (4, 3)).set_input()
    ids = [new_tensor(types.I32, (3,)).set_input() for _ in range(2)]
    x = ops.get_rows(table, ids[0])
    y = ops.get_rows(x, ids[1]).set_output()
    graph = Graph(y)
    with Scheduler(streams) as scheduler:
        for node, where in zip((x, y), streams[::-1] if swapped else streams, strict=True):
            scheduler.pin(node, where)
        for values in ((first, second), (GOOD, GOOD)):
            scheduler.allocate(graph)
            for leaf, value in zip((table, *ids), (TABLE, *values), strict=True):
                leaf.set(np.array(value))
            if BAD in values:
                with pytest.raises(ComputeError, match="id 7") as caught:
                    scheduler.compute(graph)
                assert caught.value.tensor in (x, y)
                with pytest.raises(TensorStateError):
                    y.numpy()
            else:
                scheduler.compute(graph)
                np.testing.assert_array_equal(y.numpy(), TABLE[GOOD][GOOD])
    for stream in streams:
        stream.free()


def test_faults_of_two_streams_are_one_error_and_none_is_left_for_the_next_computation(device: Device) -> None:
    streams = [device.init(), device.init()]
    table, ids = new_tensor(types.F32, (4, 3)).set_input(), new_tensor(types.I32, (3,)).set_input()
    nodes = [ops.get_rows(table, ids), ops.get_rows(table, ids)]
    y = ops.add(*nodes).set_output()
    graph = Graph(y)
    with Scheduler(streams) as scheduler:
        for node, stream in zip(nodes, streams, strict=True):
            scheduler.pin(node, stream)
        assert len(scheduler.split(graph)) > 1
        for values in (BAD, GOOD):
            scheduler.allocate(graph)
            table.set(TABLE)
            ids.set(np.array(values))
            scheduler.compute_async(graph)
            if values is BAD:
                with pytest.raises(ComputeError, match="id 7"):
                    y.numpy()
            else:
                np.testing.assert_array_equal(y.numpy(), 2 * TABLE[GOOD])
    for stream in streams:
        stream.free()


def test_a_schedule_that_is_replaced_by_another_loses_no_error(device: Device) -> None:
    with device.init() as stream, Scheduler([stream]) as scheduler:
        scheduler.cache_size = 1
        each = picked(device, BAD)
        scheduler.allocate(each.graph)
        each.table.set(TABLE)
        each.ids.set(np.array(BAD))
        scheduler.compute_async(each.graph)
        x = new_tensor(types.F32, (4,)).set_input()
        with pytest.raises(ComputeError, match="id 7"):
            scheduler.allocate(Graph(ops.neg(x).set_output()))

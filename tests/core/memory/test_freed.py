"""What was freed says so, by the same error on every device; streams refuse parameters that they do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ComputeAborted, FreedError, ParameterError
from ggplug.memory import GraphAllocator


@pytest.fixture(params=["CPU", "OpenCL0"])
def device(request: pytest.FixtureRequest) -> Device:
    try:
        return gg.device(request.param)
    except gg.DeviceNotFoundError:
        pytest.skip(f"there is no {request.param} here")


def chain(length: int = 1) -> gg.Graph:
    y = gg.new_tensor("f32", 8, "x").set_input()
    for _ in range(length):
        y = gg.scale(y, 1.0)
    return gg.Graph(y.set_output())


def test_a_freed_scheduler_stream_or_allocator_computes_nothing(device: Device) -> None:
    graph = chain()
    scheduler, stream, allocator = gg.Scheduler([device]), device.init(), GraphAllocator(device.buffer_type)
    scheduler.allocate(graph)
    graph.tensors[0].set(1)
    scheduler.compute(graph)
    allocation = allocator.allocate(graph)
    graph.tensors[0].set(1)
    stream.compute(graph, allocation)
    for thing in (scheduler, stream, allocator):
        thing.free()
        thing.free()
    for use in (
        lambda: scheduler.compute(graph),
        lambda: scheduler.allocate(graph),
        lambda: scheduler.reserve(chain(2)),
        lambda: scheduler.explain(graph),
        lambda: stream.compute(graph, allocation),
        lambda: allocator.allocate(graph),
    ):
        with pytest.raises(FreedError, match="freed"):
            use()


@pytest.mark.parametrize("name", ["nonsense", "queue"])
def test_streams_refuse_parameters_that_they_do_not_have(device: Device, name: str) -> None:
    with pytest.raises(ParameterError, match=f"no parameter '{name}'") as seen:
        device.init(**{name: 1})
    assert seen.value.device is device


def test_an_abort_callback_stops_its_own_stream_alone() -> None:
    cpu = gg.device("CPU")
    calls: list[int] = []

    def stop() -> bool:
        calls.append(1)
        return True

    context = gg.Context()
    w = context.new_tensor("f32", (160, 160), "w")
    gg.allocate(context, cpu)
    w.set(np.eye(160))
    y: Any = w
    for _ in range(6000):  # longer than the 50 ms after which the callback is called, however fast the processor is
        y = gg.mul_mat(w, y)
    graph = gg.Graph(y.set_output())
    with context, cpu.init(abort_callback=stop) as stopped, cpu.init() as free:
        with gg.Scheduler([stopped]) as scheduler, pytest.raises(ComputeAborted):
            scheduler.compute(graph)
        assert calls
        calls.clear()
        with gg.Scheduler([free]) as scheduler:
            scheduler.compute(graph)
        assert not calls
        stopped.set_abort_callback(None)
        with gg.Scheduler([stopped]) as scheduler:
            scheduler.compute(graph)
    assert not calls


def test_a_weight_whose_context_was_freed_is_said_to_have_no_place_any_more() -> None:
    context = gg.Context()
    w, x = context.new_tensor("f32", 8, "w"), gg.new_tensor("f32", 8).set_input()
    gg.allocate(context, gg.device("CPU"))
    w.set(1)
    graph = gg.Graph(gg.add(w, x).set_output())
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(graph)
        x.set(1)
        scheduler.compute(graph)
        context.free()
        with pytest.raises(gg.TensorStateError, match=r"'w'.* has no place any more: its context was freed"):
            scheduler.compute(graph)

"""Weights are placed where they fit, and devices then hold what was predicted, without allocating anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import BufferUseError, OutOfMemoryError, ParameterError
from ggplug.graph import Graph
from ggplug.memory import PlannedBuffer, allocate
from ggplug.scheduler import Scheduler
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice

N = 64
WEIGHT = 4 * N * N


def devices() -> list[Device]:
    cpu = gg.device("CPU")
    return [FakeDevice("near", inner=cpu), FakeDevice("far", inner=cpu), cpu]


def chain(count: int) -> tuple[Graph, list[Tensor]]:
    """An input, multiplied by one matrix after the other."""
    x = gg.new_tensor(gg.F32, (N, 3), "x").set_input()
    weights = [gg.new_tensor(gg.F32, (N, N), f"w{number}") for number in range(count)]
    for weight in weights:
        x = gg.mul_mat(weight, x)
    return Graph(x.set_output()), weights


def test_all_weights_lie_on_the_first_device_if_they_fit() -> None:
    graph, weights = chain(4)
    near, far, cpu = chosen = devices()
    fit = gg.fit_placement(graph, chosen)
    assert fit.places == dict.fromkeys(weights, near)
    assert [each.device for each in fit.holdings] == [near, far, cpu]
    assert [each.weights for each in fit.holdings] == [4 * WEIGHT, 0, 0]
    assert all(weight.buffer is None for weight in weights)
    assert (near.used, far.used) == (0, 0)  # type: ignore[attr-defined]


def test_weights_may_have_equal_names() -> None:
    graph, weights = chain(2)
    for weight in weights:
        weight.name = "w"
    near, *_ = chosen = devices()
    assert gg.fit_placement(graph, chosen).places == dict.fromkeys(weights, near)


def test_weights_that_do_not_fit_lie_on_the_next_devices_and_each_holds_what_was_predicted() -> None:
    graph, weights = chain(6)
    near, far, cpu = chosen = devices()
    budgets = {"near": 2 * WEIGHT + 9000, "far": 3 * WEIGHT + 9000}
    fit = gg.fit_placement(graph, chosen, budgets)
    assert list(fit.places.values()) == [near] * 2 + [far] * 3 + [cpu]
    for device in chosen:
        context = Context()
        for weight in weights:
            if fit.places[weight] is device:
                context.add(weight)
        allocate(context, device, BufferUsage.WEIGHTS)
        for weight in context:
            weight.set(np.eye(N, dtype=np.float32))
    with Scheduler(chosen, op_offload=False) as scheduler:
        scheduler.allocate(graph)
        given = np.arange(3 * N, dtype=np.float32).reshape(3, N)
        graph.leafs[[leaf.name for leaf in graph.leafs].index("x")].set(given)
        scheduler.compute(graph)
        np.testing.assert_array_equal(graph.outputs[0].numpy(), given)
        for each, stream in zip(fit.holdings, scheduler.backends, strict=True):
            assert each.compute == scheduler.buffer_size(stream)
        assert [each.total for each in fit.holdings[:2]] == [near.used, far.used]  # type: ignore[attr-defined]
    for weight in weights:
        assert weight.buffer is not None
        weight.buffer.free()


def test_a_leaf_that_a_node_writes_into_counts_as_cache() -> None:
    cache = gg.new_tensor(gg.F32, (N, 8), "cache")
    rows = gg.new_tensor(gg.F32, (N, 2), "rows").set_input()
    where = gg.new_tensor(gg.I32, (2,), "where").set_input()
    graph = Graph(gg.set_rows(cache, rows, where).set_output())
    (held,) = gg.fit_placement(graph, [gg.device("CPU")]).holdings
    assert (held.weights, held.cache) == (0, 4 * N * 8)


def test_what_does_not_fit_says_which_device_misses_how_many_bytes_and_no_tensor_keeps_a_place() -> None:
    graph, weights = chain(4)
    near, _, cpu = devices()
    with pytest.raises(OutOfMemoryError, match=r"nothing fits: CPU would hold \d+ bytes, .* the 100 ") as refused:
        gg.fit_placement(graph, [near, cpu], [2 * WEIGHT + 9000, 100])
    error = refused.value
    held = error.fields["holdings"][1]
    assert (error.device, error.requested, error.free) == (cpu, held.total, 100)
    assert error.fields["missing"] == held.missing == held.total - 100
    assert all(weight.buffer is None for weight in weights)


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ([1], r"3 devices need as many budgets, got 1"),
        ({"GPU": 1}, r"'GPU' has a budget but is none of the devices: near, far, CPU"),
        ({"near": -1}, r"a budget is a number of bytes or None, got -1"),
        ({"near": 1.5}, r"a budget is a number of bytes or None, got 1\.5"),
    ],
)
def test_budgets_that_are_not_valid_are_refused(budgets: object, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        gg.fit_placement(chain(1)[0], devices(), budgets)  # type: ignore[arg-type]


WRONG: list[Any] = [[], None, "CPU", ["CPU"], [None], 3, ["x" * 100_000]]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:10])
def test_only_lists_of_devices_are_taken(wrong: Any) -> None:
    graph, weights = chain(1)
    with pytest.raises(ParameterError, match=r"must be a list of devices|is no device") as refused:
        gg.fit_placement(graph, wrong)
    assert len(str(refused.value)) < 200
    with pytest.raises(ParameterError, match="budgets must be a list"):
        gg.fit_placement(graph, devices(), 3)  # type: ignore[arg-type]
    assert all(weight.buffer is None for weight in weights)


def test_what_the_scheduler_needs_for_several_graphs_is_what_its_buffers_hold_after_them() -> None:
    graphs = [chain(1)[0], chain(3)[0], chain(2)[0]]
    cpu = gg.device("CPU")
    with Scheduler([cpu]) as scheduler:
        needed = scheduler.needed(graphs)[cpu]
        assert scheduler.buffer_size(scheduler.backends[0]) == 0
        for graph in graphs:
            scheduler.reserve(graph)
        assert needed.compute == scheduler.buffer_size(scheduler.backends[0]) > 0


def test_a_planned_buffer_has_places_but_no_bytes() -> None:
    cpu = gg.device("CPU")
    context = Context()
    tensor = context.new_tensor(gg.F32, (N, N), "w")
    (buffer,) = allocate(context, cpu, planned=True)
    assert isinstance(buffer, PlannedBuffer)
    assert (buffer.size, buffer.address, tensor.buffer) == (WEIGHT, None, buffer)
    for access in (lambda: tensor.set(np.zeros((N, N), np.float32)), lambda: buffer.clear(), lambda: tensor.numpy()):
        with pytest.raises((BufferUseError, gg.TensorStateError)):
            access()
    context.free()


def test_a_graph_over_planned_buffers_is_not_computed() -> None:
    graph, weights = chain(1)
    cpu = gg.device("CPU")
    weights[0].place(PlannedBuffer(cpu.buffer_type, WEIGHT))
    with Scheduler([cpu]) as scheduler:
        scheduler.allocate(graph)
        graph.leafs[[leaf.name for leaf in graph.leafs].index("x")].set(np.zeros((3, N), np.float32))
        with pytest.raises(BufferUseError, match="not host memory"):
            scheduler.compute(graph)

"""Feeds: a graph that is computed again with other inputs, in one call, gives what the single calls give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from installed import device_or_skip
from interrupts import interrupted_everywhere

import ggplug as gg
from ggplug.backend import Device, NodeTime
from ggplug.errors import (
    BufferUseError,
    BusyError,
    ComputeError,
    FreedError,
    ParameterError,
    ShapeError,
    TensorStateError,
    TypeMismatchError,
)
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.scheduler import Feed, Scheduler
from ggplug_testing import FakeDevice

W = np.arange(32, dtype=np.float32).reshape(4, 8)


def computing_device(name: str) -> Device:
    return FakeDevice(name) if name == "fake" else device_or_skip(name)


class Rows:
    """``logits``: the rows of ``W`` that ``ids`` name, plus ``x``."""

    def __init__(self, device: Device) -> None:
        self.weights = gg.Context()
        table = self.weights.new_tensor("f32", (8, 4), "table")
        gg.allocate(self.weights, device)
        table.set(W)
        self.ids = gg.new_tensor("i32", 2, "ids").set_input()
        self.x = gg.new_tensor("f32", (8, 2), "x").set_input()
        self.logits = (gg.get_rows(table, self.ids) + self.x).set_output()
        self.twice = gg.scale(self.logits, 2.0).set_output()
        self.graph = gg.Graph(self.twice)
        self.scheduler = Scheduler([device])
        self.feed = Feed(self.scheduler, self.graph, [self.ids, self.x], [self.twice, self.logits])

    def check(self, *ids: int, x: float = 0.0) -> None:
        twice, logits = self.feed([np.array(ids, np.int32), np.full((2, 8), x, np.float32)])
        wanted = W[list(ids)] + np.float32(x)
        assert (logits == wanted).all()
        assert (twice == 2 * wanted).all()
        assert (self.logits.numpy() == wanted).all()


@pytest.fixture(params=["CPU", "fake", "OpenCL0"])
def rows(request: pytest.FixtureRequest) -> Any:
    made = Rows(computing_device(request.param))
    yield made
    made.scheduler.free()
    made.weights.free()


def test_each_call_takes_its_inputs_and_gives_arrays_of_its_own(rows: Rows) -> None:
    rows.check(0, 3)
    first = rows.feed([np.array([1, 2], np.int32), np.zeros((2, 8), np.float32)])
    rows.check(3, 3, x=0.5)
    assert (first[1] == W[[1, 2]]).all()


def test_other_graphs_and_settings_may_come_between_two_calls(rows: Rows) -> None:
    rows.check(0, 1)
    other = gg.scale(rows.x, 3.0).set_output()
    graph = gg.Graph(other)
    rows.scheduler.allocate(graph)
    rows.x.set(np.full((2, 8), 2.0, np.float32))
    rows.scheduler.compute(graph)
    assert (other.numpy() == 6).all()
    rows.check(2, 1, x=1.0)
    rows.scheduler.poison = "nodes"
    rows.check(2, 2)
    rows.scheduler.poison = None
    seen: list[str] = []
    rows.scheduler.set_eval_callback(lambda node, ask: seen.append(node.name) is None)
    rows.check(3, 0)
    rows.scheduler.set_eval_callback(None)
    assert seen
    rows.check(0, 2)


def test_weights_that_move_are_read_where_they_are(rows: Rows) -> None:
    rows.check(0, 1)
    (table,) = rows.weights
    buffer = table.buffer
    assert buffer is not None
    moved = buffer.type.alloc(buffer.size)
    table.place(moved)
    table.set(W)
    buffer.clear(0xFF)
    rows.check(2, 3)
    table.place(buffer)
    table.set(W)
    rows.check(3, 1)
    moved.free()


def test_values_of_another_shape_or_type_are_refused_and_leave_nothing_behind(rows: Rows) -> None:
    ids, x = np.array([0, 1], np.int32), np.zeros((2, 8), np.float32)
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"'ids'.*\(2,\).*got \(3,\)"):
            rows.feed([np.zeros(3, np.int32), x])
        with pytest.raises(TypeMismatchError, match=r"'x'.*float32.*got float64"):
            rows.feed([ids, x.astype(np.float64)])
        with pytest.raises(ValueError, match="zip"):
            rows.feed([ids])
        rows.check(1, 0)


def test_a_computation_that_fails_leaves_no_result_and_the_next_one_is_right(rows: Rows) -> None:
    for _ in range(2):
        with pytest.raises(ComputeError, match="'ids'"):
            rows.feed([np.array([0, 4], np.int32), np.zeros((2, 8), np.float32)])
        with pytest.raises(TensorStateError, match="failed"):
            rows.logits.numpy()
        rows.check(0, 3)


def test_only_plain_leafs_of_the_graph_are_inputs(rows: Rows) -> None:
    stranger = gg.new_tensor("f32", 4, "stranger")
    with pytest.raises(ParameterError, match=r"'stranger'.*not in"):
        Feed(rows.scheduler, rows.graph, [stranger])
    with pytest.raises(ParameterError, match="not a leaf"):
        Feed(rows.scheduler, rows.graph, [rows.logits])
    blocks = gg.new_tensor("q8_0", 32, "blocks").set_input()
    with pytest.raises(TypeMismatchError, match="plain type"):
        Feed(rows.scheduler, gg.Graph(gg.cast(blocks, gg.F32)), [blocks])


def test_hooks_are_told_of_every_computation(rows: Rows) -> None:
    told: list[tuple[str, int]] = []

    class Listener:
        @hookimpl
        def ggplug_graph_computed(self, graph: gg.Graph, start: int, end: int) -> None:
            assert graph is rows.graph
            told.append(("graph", end - start))

        @hookimpl
        def ggplug_split_computed(self, graph: gg.Graph, start: int, end: int) -> None:
            told.append(("split", end - start))

    rows.check(0, 1)
    listener = Listener()
    HOOKS.register(listener)
    try:
        for _ in range(3):
            rows.check(1, 2)
    finally:
        HOOKS.unregister(listener)
    assert [what for what, _ in told] == ["split", "graph"] * 3
    assert all(split[1] <= whole[1] for split, whole in zip(told[::2], told[1::2], strict=True))
    rows.check(2, 1)


def test_observed_nodes_are_computed_in_one_call_as_well() -> None:
    rows = Rows(computing_device("CPU"))
    seen: list[set[str]] = []

    class Listener:
        @hookimpl
        def ggplug_nodes_timed(self, graph: gg.Graph, times: list[NodeTime]) -> None:
            assert all(time.start <= time.end for time in times)
            seen.append({graph.tensors[time.node].op.name for time in times})  # type: ignore[union-attr]

    listener = Listener()
    HOOKS.register(listener)
    try:
        for number in range(3):
            rows.check(number, 2, x=number)
            assert rows.feed.ready is not None
    finally:
        HOOKS.unregister(listener)
    assert seen == [{"get_rows", "add", "scale"}] * 3


def test_a_call_from_within_a_call_is_refused() -> None:
    rows = Rows(device_or_skip("CPU"))
    rows.check(0, 1)
    refused: list[BusyError] = []

    class Again:
        @hookimpl
        def ggplug_split_computed(self) -> None:
            try:
                rows.feed([np.array([0, 1], np.int32), np.zeros((2, 8), np.float32)])
            except BusyError as error:
                refused.append(error)

    again = Again()
    HOOKS.register(again)
    try:
        rows.check(1, 1)
        rows.check(2, 1)
    finally:
        HOOKS.unregister(again)
    assert len(refused) == 2
    rows.check(3, 1)


def test_a_freed_scheduler_and_exported_results() -> None:
    rows = Rows(device_or_skip("CPU"))
    rows.check(0, 1)
    shared = gg.asarray(rows.logits)
    with pytest.raises(BufferUseError):
        rows.scheduler.free()
    rows.check(1, 2)
    assert (shared == W[[1, 2]]).all()
    del shared
    rows.scheduler.free()
    with pytest.raises(FreedError):
        rows.feed([np.array([0, 1], np.int32), np.zeros((2, 8), np.float32)])


def test_wherever_a_call_is_interrupted_the_next_one_is_right() -> None:
    rows = Rows(device_or_skip("CPU"))
    rows.check(0, 1)
    ids, x = np.array([2, 1], np.int32), np.ones((2, 8), np.float32)
    places = []
    for place in interrupted_everywhere(
        lambda: rows.feed([ids, x]), lambda frame: "ggplug" in frame.f_code.co_filename
    ):
        places.append(place)
        rows.check(0, 3)
    assert {"_computed", "_computed_in_one", "Team.run"} <= set(places)


def test_functions_in_python_are_called_each_time() -> None:
    device = device_or_skip("CPU")
    called: list[float] = []

    def twice_and_one(dst: Any, a: Any, *_: Any) -> None:
        called.append(float(a.flat[0]))
        dst[...] = 2 * a + 1

    x = gg.new_tensor("f32", 4, "x").set_input()
    y = gg.scale(gg.map_custom1(gg.scale(x, 3.0), twice_and_one), 10.0).set_output()
    with Scheduler([device]) as scheduler:
        feed = Feed(scheduler, gg.Graph(y), [x], [y])
        for value in (0.0, 1.0, 2.0, 3.0):
            (found,) = feed([np.full(4, value, np.float32)])
            assert (found == 10 * (2 * 3 * value + 1)).all()
    assert called == [0.0, 3.0, 6.0, 9.0]

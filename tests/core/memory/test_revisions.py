"""Bindings go stale by the tensors and buffers that they use, and by nothing else."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Thread, get_ident
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import UNGROUPED, Backend, Buffer, Device, Groups, Plan, WalkPlan
from ggplug.host import HOST
from ggplug.memory import Allocation, allocate_graph
from ggplug.registry import REGISTRY
from ggplug.types import BufferUsage
from ggplug.values.revisions import Revision, Watchers
from ggplug_testing.devices.reference import ReferenceDevice

N = 8


def vector(name: str = "") -> gg.Tensor:
    return gg.new_tensor("f32", (N,), name)


def placed(value: float, name: str = "") -> gg.Tensor:
    tensor = vector(name)
    tensor.place(HOST.alloc(tensor.nbytes))
    return tensor.set(value)


# -- how often plans are bound -----------------------------------------------------------------------


class _Counted(WalkPlan):
    def __init__(self, stream: Backend, graph: gg.Graph, groups: Groups) -> None:
        super().__init__(stream, graph, groups)
        self.bound: list[int] = stream.device.bound  # type: ignore[attr-defined]

    def rebind(self, graph: gg.Graph, allocation: Any) -> None:
        self.bound.append(get_ident())
        super().rebind(graph, allocation)


class _Stream(Backend):
    def plan(self, graph: gg.Graph, groups: Groups = UNGROUPED) -> Plan:
        return _Counted(self, graph, groups)


class CountingDevice(ReferenceDevice):
    """Notes for each binding of one of its plans which thread made it."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[int] = []

    def init(self, **params: Any) -> Backend:
        return _Stream(self, **params)


@pytest.fixture(params=["reference", "CPU"])
def counting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Device, list[int]]]:
    """A device, and a list that for every binding of one of its plans gets the thread that made it."""
    if request.param == "reference":
        device = CountingDevice()
        yield device, device.bound
        return
    found = [device for device in REGISTRY.devices() if device.name == "CPU"]
    if not found:
        pytest.skip("the CPU device is not installed")
    with found[0].init() as stream:
        kind = type(stream.plan(gg.Graph(gg.neg(placed(1)))))
    bound: list[int] = []
    bind = kind._bind  # type: ignore[attr-defined]

    def noted(plan: Any, *args: Any) -> None:
        bound.append(get_ident())
        bind(plan, *args)

    monkeypatch.setattr(kind, "_bind", noted)
    yield found[0], bound


class Model:
    """Weights of its own, an input that is marked, and a scheduler that computes graphs of any length."""

    def __init__(self, device: Device, factor: float) -> None:
        self.factor = factor
        self.context = gg.Context("weights")
        self.w = self.context.new_tensor("f32", (N,), "w")
        gg.allocate(self.context, device, BufferUsage.WEIGHTS)
        self.w.set(factor)
        self.scheduler = gg.Scheduler([device])

    def graph(self, columns: int) -> gg.Graph:
        x = gg.new_tensor("f32", (N, columns), "x").set_input()
        return gg.Graph(gg.add(gg.mul(x, self.w), self.w).set_output(), name=f"{columns} columns")

    def __call__(self, graph: gg.Graph, value: float) -> np.ndarray[Any, Any]:
        self.scheduler.allocate(graph)
        graph["x"].set(value)
        self.scheduler.compute(graph)
        return graph.outputs[0].numpy()

    def free(self) -> None:
        self.scheduler.free()
        self.context.free()


def test_a_model_is_not_bound_anew_because_of_another_one(counting: tuple[Device, list[int]]) -> None:
    device, bound = counting
    first, second = Model(device, 2), Model(device, 3)
    graph = first.graph(4)
    assert (first(graph, 1) == 4).all()
    bound.clear()
    mine, others = 0, 0
    for columns in range(1, 9):
        new = second.graph(columns)
        new["x"].set_input()
        before = len(bound)
        assert (second(new, 1) == 6).all()
        new.outputs[0].set_output()
        third = Model(device, 5)
        assert (third(third.graph(columns), 1) == 10).all()
        third.free()
        others += len(bound) - before
        before = len(bound)
        assert (first(graph, columns) == 2 * columns + 2).all()
        mine += len(bound) - before
    assert mine == 0
    assert others >= 16  # the counter counts
    second.free()
    assert (first(graph, 1) == 4).all()
    first.free()


def test_nor_because_of_one_that_another_thread_computes(counting: tuple[Device, list[int]]) -> None:
    device, bound = counting
    mine = Model(device, 2)
    graph = mine.graph(4)
    mine(graph, 1)
    bound.clear()
    wrong: list[float] = []

    def others() -> None:
        for columns in range(1, 20):
            model = Model(device, 3)
            if (model(model.graph(columns), 1) != 6).any():
                wrong.append(columns)
            model.free()

    thread = Thread(target=others)
    thread.start()
    value = 0
    while thread.is_alive() or value < 20:
        value += 1
        if (mine(graph, value) != 2 * value + 2).any():
            wrong.append(value)
    thread.join()
    assert not wrong
    assert get_ident() not in bound
    assert len(bound) == 19  # one for each model of the other thread
    mine.free()


def test_equal_graphs_in_one_memory_are_bound_once_each(counting: tuple[Device, list[int]]) -> None:
    device, bound = counting
    x, other = placed(1, "x"), placed(7)
    graph = gg.Graph(gg.neg(gg.neg(x)))
    allocation = allocate_graph(graph, device.buffer_type)
    with device.init() as stream:
        bound.clear()
        for _ in range(5):
            stream.compute(graph, allocation)
            other.set_input()
            other.place(HOST.alloc(64))
        assert len(bound) == 1


# -- what makes a graph stale ------------------------------------------------------------------------


def leaf_is_placed(x: gg.Tensor) -> None:
    x.place(HOST.alloc(64))


def leaf_moves_within_its_buffer(x: gg.Tensor) -> None:
    assert x.buffer is not None
    x.place(x.buffer, 64)


def leaf_loses_its_place(x: gg.Tensor) -> None:
    x.place(None)


def leaf_is_marked(x: gg.Tensor) -> None:
    x.set_input()


def buffer_is_freed(x: gg.Tensor) -> None:
    assert x.buffer is not None
    x.buffer.free()


def buffer_is_for_something_else(x: gg.Tensor) -> None:
    assert x.buffer is not None
    x.buffer.usage = BufferUsage.WEIGHTS


CHANGES = [
    leaf_is_placed,
    leaf_moves_within_its_buffer,
    leaf_loses_its_place,
    leaf_is_marked,
    buffer_is_freed,
    buffer_is_for_something_else,
]


def over_the_leaf(x: gg.Tensor) -> gg.Graph:
    return gg.Graph(gg.neg(x))


def over_a_view(x: gg.Tensor) -> gg.Graph:
    """The graph has the leaf only as the root of what it reads."""
    view = gg.view(x, (N // 2,), offset=4 * N // 2)
    whole = gg.Graph(gg.neg(view))
    return whole


def with_the_leaf_twice(x: gg.Tensor) -> gg.Graph:
    return gg.Graph(gg.add(x, gg.neg(x)))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("build", [over_the_leaf, over_a_view, with_the_leaf_twice])
@pytest.mark.parametrize("when", ["placed before the graph was built", "placed after it", "placed a second time"])
def test_a_change_makes_every_graph_with_the_tensor_stale(
    change: Callable[[gg.Tensor], None], build: Callable[[gg.Tensor], gg.Graph], when: str
) -> None:
    x = vector("x")
    if when == "placed before the graph was built":
        x.place(HOST.alloc(256))
    graphs = [build(x), build(x)]
    if when == "placed a second time":
        x.place(HOST.alloc(256))
        for graph in graphs:
            graph.watch()
        x.place(None)
        for graph in graphs:
            graph.watch()
    if when != "placed before the graph was built":
        x.place(HOST.alloc(256))
    unconcerned = gg.Graph(gg.neg(placed(1)))
    for _ in range(3):
        before = [graph.watch() for graph in graphs]
        other = unconcerned.watch()
        if x.buffer is None or x.buffer.freed:
            x.place(HOST.alloc(256))
        else:
            change(x)
        assert not set(before) & {graph.revision.now for graph in graphs}
        assert unconcerned.revision.now == other


def test_a_tensor_that_had_no_buffer_when_it_was_looked_at_makes_its_graphs_stale_too() -> None:
    x = placed(1, "x")
    graph = gg.Graph(gg.neg(x))
    for _ in range(3):
        x.place(None)
        before = graph.watch()
        x.place(HOST.alloc(64))
        assert graph.revision.now != before
        graph.watch()


@pytest.mark.parametrize("persistent", [False, True])
def test_marking_a_view_makes_its_graphs_stale(persistent: bool) -> None:
    x = vector("x")
    if persistent:
        x.place(HOST.alloc(64))
    view = gg.view(x, (N // 2,))
    graph = gg.Graph(gg.neg(view))
    before, signature = graph.watch(), graph.signature()
    view.set_output()
    assert graph.revision.now != before
    assert graph.signature() != signature


def test_the_root_of_a_view_that_lost_its_place_is_found_when_its_view_is_marked() -> None:
    x = placed(1, "x")
    view = gg.view(x, (N // 2,))
    graph = gg.Graph(gg.neg(view))
    graph.watch()
    x.place(None)
    before = graph.watch()
    view.set_output()
    assert graph.revision.now != before


def test_a_part_is_as_stale_as_its_whole() -> None:
    x = placed(1, "x")
    whole = gg.Graph(gg.neg(gg.neg(x)))
    part = gg.Graph.part([whole.nodes[1]], whole=whole)
    before = part.watch()
    whole.watch()
    x.set_input()
    assert part.revision.now != before
    other = gg.Graph(gg.neg(gg.neg(placed(2))))
    assert part.over(other).revision is other.revision


def test_a_part_that_was_looked_at_first_does_not_speak_for_its_whole() -> None:
    x, y = placed(1, "x"), placed(2, "y")
    whole = gg.Graph(gg.neg(x), gg.neg(y))
    gg.Graph.part([whole.nodes[0]], whole=whole).watch()
    before = whole.watch()
    y.place(HOST.alloc(64))
    assert whole.revision.now != before


def test_a_graph_that_grows_is_stale() -> None:
    x = placed(1)
    graph = gg.Graph(gg.neg(x))
    before = graph.watch()
    graph.expand(graph.outputs[0])
    assert graph.revision.now == before  # nothing came in
    graph.expand(gg.neg(x))
    assert graph.revision.now != before
    before = graph.watch()
    graph.clear()
    assert graph.revision.now != before


# -- what stale bindings do --------------------------------------------------------------------------


def test_results_follow_a_leaf_wherever_it_is_placed(counting: tuple[Device, list[int]]) -> None:
    device, _ = counting
    x = placed(1, "x")
    graph = gg.Graph(gg.neg(x).set_output())
    with gg.Scheduler([device]) as scheduler:
        for value in (1, 2, 3):
            x.place(HOST.alloc(64))
            x.set(value)
            scheduler.compute(graph)
            assert (graph.outputs[0].numpy() == -value).all()
        x.place(None)
        with pytest.raises(gg.TensorStateError, match="has no place any more"):
            scheduler.compute(graph)
        scheduler.allocate(graph)
        x.set(4)
        scheduler.compute(graph)
        assert (graph.outputs[0].numpy() == -4).all()
        x.place(HOST.alloc(64))
        x.set(5)
        scheduler.compute(graph)
        assert (graph.outputs[0].numpy() == -5).all()


def test_memory_of_intermediates_that_was_freed_is_not_computed_in(counting: tuple[Device, list[int]]) -> None:
    device, _ = counting
    graph = gg.Graph(gg.neg(gg.neg(placed(1))))
    allocation = allocate_graph(graph, device.buffer_type)
    with device.init() as stream:
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        stream.compute(graph, allocation)
        for buffer in allocation.buffers:
            buffer.free()
        with pytest.raises(gg.BufferUseError, match="freed"):
            stream.compute(graph, allocation)
        with pytest.raises(gg.BufferUseError, match="freed"):
            plan.compute()


def test_the_usage_of_a_buffer_decides_at_once_where_its_readers_run() -> None:
    home, away = ReferenceDevice("home"), ReferenceDevice("away")
    w = vector("w")
    w.place(home.buffer_type.alloc(64))
    graph = gg.Graph(gg.neg(w))
    with gg.Scheduler([away, home]) as scheduler:
        assert [row.device for row in scheduler.explain(graph).rows if row.op == "neg"] == ["away"]
        assert w.buffer is not None
        w.buffer.usage = BufferUsage.WEIGHTS
        assert "weight" in next(row.reason for row in scheduler.explain(graph).rows if row.op == "neg")


# -- the records themselves --------------------------------------------------------------------------


def test_graphs_that_are_gone_are_forgotten_by_the_weights_that_they_read() -> None:
    w = placed(1, "w")
    assert w.buffer is not None
    for _ in range(1000):
        graph = gg.Graph(gg.neg(w))
        graph.watch()
    del graph
    gc.collect()
    assert len(w.buffer.watchers) <= 128


def test_a_watcher_is_told_once_and_then_has_to_ask_again() -> None:
    watchers, revision = Watchers(), Revision()
    watchers.add(revision)
    watchers.add(revision)
    assert len(watchers) == 1
    before = revision.now
    watchers.advance()
    after = revision.now
    assert after != before
    watchers.advance()
    assert revision.now == after
    watchers.add(revision)
    watchers.advance()
    assert revision.now != after


class _Interrupting(Watchers):
    """Does something just before or after a graph makes itself known, as another thread might."""

    def __init__(self, action: Callable[[], object], *, after: bool = False) -> None:
        super().__init__()
        self.action: Callable[[], object] | None = action
        self.after = after

    def add(self, revision: Revision) -> None:
        action, self.action = self.action, None
        if self.after:
            super().add(revision)
        if action is not None:
            action()
        if not self.after:
            super().add(revision)


def test_a_tensor_that_moves_while_its_graph_makes_itself_known_is_followed() -> None:
    x = placed(1, "x")
    other = HOST.alloc(64)
    first = x.buffer
    assert isinstance(first, Buffer)
    first.watchers = _Interrupting(lambda: x.place(other))
    graph = gg.Graph(gg.neg(x))
    now = graph.watch()
    other.free()
    assert graph.revision.now != now


def test_a_graph_that_a_change_made_unknown_again_makes_itself_known_the_next_time() -> None:
    x = placed(1, "x")
    assert x.buffer is not None
    x.buffer.watchers = _Interrupting(x.set_input, after=True)
    graph = gg.Graph(gg.neg(x))
    graph.watch()  # what is made of the tensors now is stale already
    now = graph.watch()
    x.set_output()
    assert graph.revision.now != now


def test_a_tensor_that_moves_while_addresses_are_gathered_is_bound_anew() -> None:
    """The number is taken before the tensors are looked at, so a change in between is not missed."""
    x = placed(1, "x")
    graph = gg.Graph(gg.neg(x).set_output())
    moved = HOST.alloc(64)
    moved.set(0, np.full(N, 9, np.float32))

    class Moving(Allocation):
        def addresses(self, graph: gg.Graph, held: set[Buffer] | None = None, groups: Groups = UNGROUPED) -> Any:
            found = super().addresses(graph, held, groups)
            if x.buffer is not moved:
                x.place(moved)
            return found

        def places(self, graph: gg.Graph, groups: Groups = UNGROUPED) -> Any:
            found = super().places(graph, groups)
            if x.buffer is not moved:
                x.place(moved)
            return found

    plain = allocate_graph(graph, HOST)
    for device in (ReferenceDevice(), *(each for each in REGISTRY.devices() if each.name == "CPU")):
        x.place(HOST.alloc(64))
        x.set(1)
        allocation = Moving(graph, plain.buffers, plain.slots, plain.offsets)
        with device.init() as stream:
            stream.compute(graph, allocation)
            stream.compute(graph, allocation)
            assert (graph.outputs[0].numpy() == -9).all()

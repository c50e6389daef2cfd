"""Equal graphs share everything: a warm run costs a few calls for each split, whatever the number of nodes."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graphs import compute_apart, random_case

import ggplug as gg
from ggplug.backend import UNGROUPED, Accept, Backend, Decline, Group, Groups, Plan, Support
from ggplug.combined import CombinedDevice
from ggplug.host import HOST
from ggplug.memory import Allocation, allocate_graph
from ggplug.ops import Relu
from ggplug.scheduler import Scheduler
from ggplug.scheduler.feed import Feed
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice


class Counting(ReferenceDevice):
    """Computes nothing, and counts how often it is asked."""

    def __init__(self, name: str, only: str = "") -> None:
        super().__init__(name)
        self.only = only
        self.asked = self.planned = self.bound = self.run = 0

    def supports_op(self, node: gg.Tensor) -> Support:
        self.asked += 1
        assert node.op is not None
        return Accept() if not self.only or node.op.name == self.only else Decline(f"only {self.only}")

    def init(self, **params: Any) -> Backend:
        return CountingStream(self)


class CountingStream(Backend):
    device: Counting

    def plan(self, graph: gg.Graph, groups: Groups = UNGROUPED) -> Plan:
        self.device.planned += 1
        return CountingPlan(self.device)


class CountingPlan(Plan):
    def __init__(self, device: Counting) -> None:
        self.device = device

    def rebind(self, graph: gg.Graph, allocation: Allocation) -> None:
        allocation.addresses(graph)
        self.device.bound += 1

    def compute(self) -> None:
        self.device.run += 1


def counted_calls(function: Callable[[], object]) -> int:
    """How many Python functions a call enters."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def weight(n: int = 16) -> gg.Tensor:
    tensor = gg.new_tensor("f32", n)
    buffer = HOST.alloc(tensor.nbytes)
    buffer.usage = BufferUsage.WEIGHTS
    tensor.place(buffer)
    return tensor


def model(layers: int, weights: list[gg.Tensor]) -> gg.Graph:
    """``layers`` nodes; the one in the middle is a silu."""
    h = weights[0]
    for number in range(layers):
        h = gg.silu(h) if number == layers // 2 else gg.mul(h, weights[number % len(weights)])
    return gg.Graph(h)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_warm_run_makes_as_many_calls_for_100_nodes_as_for_10_000(devices: int) -> None:
    weights = [weight() for _ in range(20)]
    found = []
    for layers in (100, 1000, 10_000):
        streams = [Counting("silu only", "silu"), Counting("all")][-devices:]
        with Scheduler(streams) as scheduler:
            graph = model(layers, weights)
            scheduler.compute(graph)
            assert scheduler.n_splits == (1 if devices == 1 else 3)
            same = counted_calls(lambda s=scheduler, g=graph: s.compute(g))
            fresh = model(layers, weights)
            equal = counted_calls(lambda s=scheduler, g=fresh: s.compute(g))
            weights[0].mark(gg.TensorFlag(0))  # somebody, somewhere, places a tensor
            moved = counted_calls(lambda s=scheduler, g=fresh: s.compute(g))
            found.append((same, equal, moved))
    assert found[0] == found[1] == found[2]
    assert found[0][0] < 80
    assert max(found[0]) < 250


def test_without_the_scheduler_it_is_the_same() -> None:
    weights = [weight() for _ in range(20)]
    found = []
    for layers in (100, 10_000):
        graph = model(layers, weights)
        allocation = allocate_graph(graph, HOST)
        stream = Counting("all").init()
        stream.compute(graph, allocation)
        fresh = model(layers, weights)
        found.append(
            (
                counted_calls(lambda s=stream, g=graph, a=allocation: s.compute(g, a)),
                counted_calls(lambda s=stream, g=fresh, a=allocation: s.compute(g, a)),
            )
        )
    assert found[0] == found[1]


def test_an_equal_new_graph_is_neither_assigned_nor_planned_again() -> None:
    first, second = Counting("silu only", "silu"), Counting("all")
    weights = [weight() for _ in range(4)]
    with Scheduler([first, second]) as scheduler:
        scheduler.compute(model(50, weights))
        before = first.asked, second.asked, first.planned, second.planned
        assert before[2:] == (1, 2)
        scheduler.compute(model(50, weights))
        assert (first.asked, second.asked, first.planned, second.planned) == before
        assert (first.bound, second.bound, first.run, second.run) == (2, 4, 2, 4)


def test_the_same_graph_is_not_even_bound_again() -> None:
    device = Counting("all")
    with Scheduler([device]) as scheduler:
        graph = model(50, [weight()])
        for _ in range(3):
            scheduler.compute(graph)
        assert (device.bound, device.run) == (1, 3)


def test_alike_nodes_are_asked_about_once() -> None:
    device = Counting("all")
    with Scheduler([device]) as scheduler:
        scheduler.compute(model(500, [weight()]))
        assert device.asked <= 4


def test_an_equal_graph_over_other_tensors_reads_those() -> None:
    gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
    for seed in range(30):
        with Scheduler([gpu, cpu]) as scheduler:
            for values in (seed, 1000 + seed):
                case = random_case(seed, [gpu.buffer_type, cpu.buffer_type])
                numbers = np.random.default_rng(values)
                for tensor in case.values:
                    if tensor.type.name != "i64":
                        fresh = numbers.standard_normal(tensor.shape).astype(tensor.type.dtype)
                        case.values[tensor] = fresh.tobytes()
                wanted = compute_apart(case)
                case.restore()
                scheduler.allocate(case.graph)
                case.set_inputs()
                scheduler.compute(case.graph)
                assert case.results() == wanted
            assert len(scheduler._executions) == 1


def test_a_tensor_that_moves_to_another_buffer_is_found_there() -> None:
    stream = ReferenceDevice().init()
    x = weight(4).set([1, 2, 3, 4])
    graph = gg.Graph(gg.neg(x))
    with Scheduler([stream]) as scheduler:
        scheduler.compute(graph)
        x.place(HOST.alloc(64))
        x.set([5, 6, 7, 8])
        scheduler.compute(graph)
        assert graph.node(0).numpy().tolist() == [-5, -6, -7, -8]


def test_a_tensor_without_bytes_any_more_is_refused() -> None:
    x = weight(4)
    buffer = x.buffer
    assert buffer is not None
    graph = gg.Graph(gg.neg(x))
    with Scheduler([ReferenceDevice()]) as scheduler:
        scheduler.compute(graph)
        buffer.free()
        with pytest.raises(gg.BufferUseError, match="was freed"):
            scheduler.compute(graph)


def test_a_place_that_another_thread_is_taking_away_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = weight(4).set([1, 2, 3, 4]), weight(4).set([1, 2, 3, 4])
    graph, other = gg.Graph(gg.neg(x)), gg.Graph(gg.neg(y))
    changed, met = gg.Tensor._changed, []

    def meanwhile(tensor: gg.Tensor, before: gg.Buffer | None) -> None:
        """The place was removed, and no revision was advanced yet."""
        for each in (graph, other):
            try:
                scheduler.compute(each)
            except gg.TensorStateError as error:
                met.append(error.tensor)
        changed(tensor, before)

    with Scheduler([ReferenceDevice()]) as scheduler:
        scheduler.compute(graph)
        scheduler.compute(other)
        monkeypatch.setattr(gg.Tensor, "_changed", meanwhile)
        x.place(None)
        assert met == [x]


def test_growth_for_another_graph_leaves_earlier_ones_computable() -> None:
    with Scheduler([ReferenceDevice()]) as scheduler:
        graphs = [gg.Graph(gg.neg(gg.silu(weight(n).set(np.ones(n))))) for n in (4, 4000, 400_000)]
        for graph in (*graphs, *graphs):
            scheduler.compute(graph)
            assert np.allclose(graph.node(-1).numpy(), -1 / (1 + np.exp(-1)))


@pytest.mark.parametrize("difference", ["flags", "parameters", "shape", "order", "usage", "pin", "expanded"])
def test_what_matters_makes_another_structure(difference: str) -> None:
    with Scheduler([ReferenceDevice("a"), ReferenceDevice("b")]) as scheduler:
        x, y = weight(16), weight(16)

        def build(other: bool) -> gg.Graph:
            if other and difference == "usage":
                assert x.buffer is not None
                x.buffer.usage = BufferUsage.ANY
                x.place(x.buffer)
            a = gg.scale(x, 3.0 if other and difference == "parameters" else 2.0)
            if other and difference == "flags":
                a.set_output()
            b = gg.mul(y, a) if other and difference == "order" else gg.mul(a, y)
            if other and difference == "shape":
                b = gg.mul(a, weight(8))
            if other and difference == "pin":
                scheduler.pin(b, scheduler.backends[1])
            graph = gg.Graph(b)
            return graph.expand(gg.neg(b)) if other and difference == "expanded" else graph

        for other in (False, True):
            scheduler.compute(build(other))
        assert len(scheduler._executions) == 2
        scheduler.compute(build(True))
        assert len(scheduler._executions) == 2


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    device = Counting("all")
    with Scheduler([device], cache_size=2) as scheduler:
        graphs = [model(n, [weight()]) for n in (3, 4, 5)]
        for number in (0, 1, 0, 2):
            scheduler.compute(graphs[number])
        assert device.planned == 3
        scheduler.compute(graphs[0])
        assert device.planned == 3
        scheduler.compute(graphs[1])
        assert device.planned == 4


def test_results_can_be_read_as_long_as_the_scheduler_holds_the_graph() -> None:
    x = weight(4).set([1, 2, 3, 4])
    with Scheduler([ReferenceDevice()]) as scheduler:
        y = gg.neg(x)
        scheduler.compute(gg.Graph(y))
        gc.collect()
        assert y.numpy().tolist() == [-1, -2, -3, -4]


def test_a_graph_that_is_no_longer_the_last_is_let_go() -> None:
    x = weight(4)
    with Scheduler([ReferenceDevice()]) as scheduler:
        graph = gg.Graph(gg.neg(x))
        gone = weakref.ref(graph)
        scheduler.compute(graph)
        del graph
        scheduler.compute(gg.Graph(gg.neg(x)))
        gc.collect()
        assert gone() is None


def test_building_and_splitting_a_thousand_nodes_is_quick() -> None:
    """Bounds a slow machine keeps; the benchmark prints the numbers."""
    gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
    weights = []
    for number in range(250):
        tensor = gg.new_tensor("f32", (8, 8))
        buffer = (gpu if number % 4 < 2 else cpu).buffer_type.alloc(256)
        buffer.usage = BufferUsage.WEIGHTS
        tensor.place(buffer)
        weights.append(tensor)

    def build() -> gg.Graph:
        h = gg.new_tensor("f32", (8, 3)).set_input()
        for w in weights:
            h = gg.add(gg.silu(gg.mul_mat(w, gg.rms_norm(h))), h)
        return gg.Graph(h)

    building, splitting = [], []
    for _ in range(5):
        with Scheduler([gpu, cpu]) as scheduler:
            start = time.process_time()
            graph = build()
            building.append(time.process_time() - start)
            start = time.process_time()
            scheduler._find(graph)
            splitting.append(time.process_time() - start)
            assert len(graph) == 1000
            assert scheduler.n_splits == 125
    assert min(building) < 0.05
    assert min(splitting) < 0.1


# -- settings of devices ---------------------------------------------------------------------------


class Signed(ReferenceDevice):
    """Computes relu, or its opposite, or declines it, as its ``setting`` says."""

    setting = "usual"

    @property
    def variant(self) -> Any:
        return self.setting

    def match(self, group: Group) -> Any:
        if self.setting == "declines" and isinstance(group.node.op, Relu):
            return Decline("it was switched off")
        if self.setting == "opposite" and isinstance(group.node.op, Relu):
            return lambda op, dst, a: np.copyto(dst.array(), np.minimum(a.array(), 0))
        return super().match(group)


@pytest.mark.parametrize("how", ["scheduler", "feed", "stream"])
def test_a_setting_that_devices_answers_depend_on_counts_from_the_next_computation_on(how: str) -> None:
    device = Signed("signed")
    x = gg.new_tensor("f32", 3).set_input()
    y = gg.relu(x).set_output()
    graph, values = gg.Graph(y), np.array([-1, 2, -3], np.float32)
    with Scheduler([device, gg.device("CPU")]) as scheduler, device.init() as stream:
        feed = Feed(scheduler, graph, [x], [y])

        def computed() -> list[float]:
            if how == "feed":
                return feed([values])[0].tolist()
            allocation = gg.memory.GraphAllocator(device.buffer_type).allocate(graph) if how == "stream" else None
            if how != "stream":
                scheduler.allocate(graph)
            x.set(values)
            if how == "stream":
                stream.compute(graph, allocation)
            else:
                scheduler.compute(graph)
            return y.numpy().tolist()

        for setting in ("usual", "opposite", "usual", "declines", "opposite"):
            device.setting = setting
            if how == "stream" and setting == "declines":
                continue
            assert computed() == ([-1, 0, -3] if setting == "opposite" else [0, 2, 0]), setting
            if how != "stream":
                on = scheduler.backend_of(y, graph)
                assert on is not None
                assert (on.device is device) == (setting != "declines")


def test_the_answers_of_devices_that_compute_as_one_follow_a_setting_of_a_member() -> None:
    member = Signed("signed")
    together = CombinedDevice([member, ReferenceDevice("other")])
    node = gg.relu(gg.new_tensor("f32", 4))
    for setting in ("usual", "declines", "usual"):
        member.setting = setting
        assert isinstance(together.supports_op(node), Decline) == (setting == "declines")

"""Groups under the scheduler: parts, copies, callbacks, poison, several computations under way, and explanations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Backend, BufferType, Decline, Device, Group, Groups, NodeTime
from ggplug.errors import ComputeError, GraphError, TensorStateError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.host import HOST
from ggplug.memory import check_overlaps
from ggplug.nodes.groups import Missed
from ggplug.patterns import Pattern
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice
from ggplug_testing.devices.fusing import PATTERNS, FusingDevice


def placed(*shape: int, seed: int = 0, memory: BufferType = HOST, usage: BufferUsage = BufferUsage.ANY) -> Tensor:
    rng = np.random.default_rng((len(shape), *shape, seed))
    tensor = gg.new_tensor("f32", shape[::-1])
    buffer = memory.alloc(max(tensor.nbytes, 1))
    buffer.usage = usage
    tensor.place(buffer)
    return tensor.set(rng.uniform(-1, 1, shape).astype(np.float32))


def affine(x: Tensor) -> list[Tensor]:
    normed = gg.norm(x)
    scaled = gg.mul(normed, placed(x.ne[0], seed=1))
    return [normed, scaled, gg.add(scaled, placed(x.ne[0], seed=2))]


def block(x: Tensor, memory: BufferType = HOST, seed: int = 0) -> Tensor:
    """A layer as encoders have it: products with bias, activation and residual, norms with scale and shift."""
    inside = affine(x)[-1]
    up = gg.gelu(
        gg.add(
            gg.mul_mat(placed(12, x.ne[0], seed=seed, memory=memory, usage=BufferUsage.WEIGHTS), inside),
            placed(12, seed=3),
        )
    )
    down = gg.mul_mat(placed(x.ne[0], 12, seed=seed + 1, memory=memory, usage=BufferUsage.WEIGHTS), up)
    return affine(gg.add(gg.add(down, placed(x.ne[0], seed=4)), x))[-1]


def alone(graph: Graph) -> list[Any]:
    with Scheduler([FusingDevice()], groups=False) as scheduler:
        assert not scheduler.explain(graph).groups or all(len(g.nodes) == 1 for g in scheduler.explain(graph).groups)
        scheduler.compute(graph)
        return [output.numpy() for output in graph.outputs]


def assert_same(graph: Graph, want: Sequence[Any]) -> None:
    for output, values in zip(graph.outputs, want, strict=True):
        np.testing.assert_allclose(output.numpy(), values, rtol=1e-5, atol=1e-6)


class Several(FakeDevice):
    """A discrete device that computes groups, with memory of its own, perhaps late."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, inner=FusingDevice(f"{name} inside"), **options)


@pytest.fixture
def fusing() -> Iterator[Scheduler]:
    with Scheduler([FusingDevice()]) as scheduler:
        yield scheduler


# -- computing ----------------------------------------------------------------------------------------


def test_groups_are_formed_and_results_stay_what_they_were(fusing: Scheduler) -> None:
    graph = Graph(block(block(placed(4, 8))).set_output())
    want = alone(graph)
    for _ in range(2):
        fusing.compute(graph)
        assert_same(graph, want)
    shown = fusing.explain(graph)
    assert len(shown.groups) < sum(len(group.nodes) for group in shown.groups)


def test_an_equal_graph_shares_the_groups(fusing: Scheduler) -> None:
    first, second = (Graph(affine(placed(4, 8, seed=seed))[-1].set_output()) for seed in range(2))
    for graph in (first, second, first):
        want = alone(graph)
        fusing.compute(graph)
        assert_same(graph, want)
    assert len(fusing._executions) == 1


def test_graphs_with_and_without_an_output_inside_are_told_apart(fusing: Scheduler) -> None:
    nodes = affine(placed(4, 8))
    graph = Graph(nodes[-1].set_output())
    fusing.compute(graph)
    with pytest.raises(TensorStateError, match="inside of a group"):
        nodes[1].numpy()
    nodes[1].set_output()
    fusing.compute(graph)
    nodes[1].numpy()
    with pytest.raises(TensorStateError, match="inside of a group"):
        nodes[0].numpy()


def test_a_result_inside_of_a_group_can_be_fetched_in_no_way(fusing: Scheduler) -> None:
    nodes = affine(placed(4, 8))
    graph = Graph(nodes[-1].set_output())
    fusing.compute(graph)
    out = np.empty(nodes[0].nbytes, np.uint8)
    for fetch in (
        lambda: fusing.get_async(nodes[0], graph, out),
        lambda: gg.asarray(nodes[0]),
        lambda: nodes[0].set(0.0),
        nodes[0].item,
        nodes[0].locate,
    ):
        with pytest.raises(gg.GGPlugError) as caught:
            fetch()  # type: ignore[operator]
        assert isinstance(caught.value, TensorStateError) or fetch == nodes[0].item


def test_without_reuse_or_groups_every_intermediate_can_be_read() -> None:
    nodes = affine(placed(4, 8))
    graph = Graph(nodes[-1])
    with Scheduler([FusingDevice()], reuse=False) as scheduler:
        scheduler.compute(graph)
        assert all(node.numpy().size for node in nodes)


# -- parts ----------------------------------------------------------------------------------------------


def two_devices(**options: Any) -> tuple[Several, FusingDevice]:
    return Several("gpu", **options), FusingDevice("cpu")


def test_a_result_that_another_device_reads_is_kept_and_copied() -> None:
    gpu, cpu = two_devices()
    x = placed(4, 8, memory=gpu.buffer_type)
    nodes = affine(x)
    other = gg.mul_mat(placed(8, 8, usage=BufferUsage.WEIGHTS), nodes[0])
    graph = Graph(nodes[-1].set_output(), other.set_output())
    want = alone_on_host(graph, x)
    for poison in (None, "groups", "nodes"):
        with Scheduler([gpu, cpu], poison=poison) as scheduler:
            scheduler.pin(other, scheduler.backends[1])
            for node in nodes:
                scheduler.pin(node, scheduler.backends[0])
            shown = scheduler.explain(graph)
            assert [row.inner for row in shown.rows if row.op in ("norm", "mul", "add")] == [False, True, False]
            scheduler.compute(graph)
            assert_same(graph, want)


def alone_on_host(graph: Graph, *moved: Tensor) -> list[Any]:
    """Results of the graph with some tensors in host memory for the time of the computation."""
    places = [(tensor, tensor.buffer, tensor.numpy()) for tensor in moved]
    for tensor, _, values in places:
        tensor.place(HOST.alloc(tensor.nbytes))
        tensor.set(values)
    try:
        return alone(graph)
    finally:
        for tensor, buffer, _ in places:
            tensor.place(buffer)


def test_a_view_that_another_device_reads_keeps_its_root() -> None:
    gpu, cpu = two_devices()
    x = placed(4, 8, memory=gpu.buffer_type)
    nodes = affine(x)
    other = gg.neg(gg.view(nodes[1], 8))
    graph = Graph(nodes[-1].set_output(), other.set_output())
    want = alone_on_host(graph, x)
    with Scheduler([gpu, cpu], poison="groups") as scheduler:
        scheduler.pin(other, scheduler.backends[1])
        for node in nodes:
            scheduler.pin(node, scheduler.backends[0])
        assert not next(row for row in scheduler.explain(graph).rows if row.op == "mul").inner
        scheduler.compute(graph)
        assert_same(graph, want)


def test_a_copy_that_a_group_reads_is_kept_until_the_group_s_end() -> None:
    gpu, cpu = two_devices()
    far = placed(64, 64, seed=5)  # the copy of this is read by the group's first node only
    first = gg.mul_mat(placed(64, 64, memory=gpu.buffer_type, usage=BufferUsage.WEIGHTS), far)
    noise = gg.mul_mat(placed(64, 64, seed=9, memory=gpu.buffer_type, usage=BufferUsage.WEIGHTS), gg.neg(far))
    last = gg.add(first, placed(64, seed=6, memory=gpu.buffer_type))
    graph = Graph(first, noise.set_output(), last.set_output())
    with Scheduler([gpu, cpu], poison="groups") as scheduler:
        for node in graph.nodes:
            scheduler.pin(node, scheduler.backends[0])
        execution = scheduler._find(graph)
        layout, cut = execution.schedule.layout, execution.schedule.cut
        number = {position: n for n, position in enumerate(cut.order)}
        members = tuple(graph.index[node] for node in (first, last))
        assert members in layout.groups.members
        (storage,) = [s for s in layout.storages if s.range in layout.extra[:1]]
        assert storage.last >= number[graph.index[last]] > cut.copies[0].last or len(cut.copies) > 1
        scheduler.compute(graph)
        got = [noise.numpy(), last.numpy()]
    with Scheduler([gpu, cpu], groups=False) as scheduler:
        for node in graph.nodes:
            scheduler.pin(node, scheduler.backends[0])
        scheduler.compute(graph)
        np.testing.assert_allclose(noise.numpy(), got[0], rtol=1e-5)
        np.testing.assert_allclose(last.numpy(), got[1], rtol=1e-5)


@pytest.mark.parametrize("n_copies", [1, 2, 3])
@pytest.mark.parametrize("poison", [False, "nodes", "groups"])
def test_random_layers_on_two_devices_compute_what_one_does_without_groups(n_copies: int, poison: Any) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        gpu, cpu = two_devices(execution="late", order="shuffled", seed=seed)
        x = gg.new_tensor("f32", (8, 4)).set_input()
        y = x
        for layer in range(4):
            y = block(y, memory=rng.choice((gpu.buffer_type, HOST)), seed=10 * layer)
            if rng.random() < 0.3:
                y.set_output()
        graph = Graph(y.set_output())
        values = [np.random.default_rng(n).uniform(-1, 1, (4, 8)).astype(np.float32) for n in range(3)]
        want = []
        with Scheduler([gpu, cpu], groups=False) as scheduler:
            for each in values:
                scheduler.allocate(graph)
                x.set(each)
                scheduler.compute(graph)
                want.append(y.numpy())
        with Scheduler([gpu, cpu], n_copies=n_copies, poison=poison) as scheduler:
            for each, wanted in zip(values, want, strict=True):
                scheduler.allocate(graph)
                x.set(each)
                scheduler.compute(graph)
                np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)
            execution = scheduler._find(graph)
            assert execution.schedule.groups.inner
            whole = execution.allocation(graph, 0)
            check_overlaps(graph, whole, order=execution.schedule.cut.order)


class Reversing(FusingDevice):
    """Its streams compute independent nodes of a part in another order."""

    def init(self, **params: Any) -> Backend:
        return _Reversing(self)


class _Reversing(Backend):
    def optimize(self, graph: Graph) -> Graph:
        done: list[Tensor] = []

        def visit(node: Tensor) -> None:
            for source in reversed(node.src):
                if source is not None and source in graph.nodes and source not in done:
                    visit(source)
            if node not in done:
                done.append(node)

        for node in reversed(graph.nodes):
            visit(node)
        return Graph.part(done)


def test_groups_follow_the_order_that_a_stream_prefers() -> None:
    nodes, others = affine(placed(4, 8)), affine(placed(4, 8, seed=3))
    graph = Graph(gg.mul_mat(nodes[-1], others[-1]).set_output())
    want = alone(graph)
    for poison in (False, "nodes", "groups"):
        with Scheduler([Reversing()], poison=poison) as scheduler:
            shown = scheduler.explain(graph)
            assert [len(group.nodes) for group in shown.groups] == [3, 3, 1]
            assert shown.rows[0].name == graph.nodes[0].name
            scheduler.compute(graph)
            assert_same(graph, want)


# -- callbacks and poison ---------------------------------------------------------------------------------


def test_a_callback_sees_every_node_and_none_is_inside_of_a_group(fusing: Scheduler) -> None:
    x = placed(4, 8)
    graph = Graph(block(x).set_output())
    want = alone(graph)
    seen: list[Tensor] = []

    def look(tensor: Tensor, ask: bool) -> bool:
        if not ask:
            assert np.isfinite(tensor.numpy()).all()
            seen.append(tensor)
        return True

    fusing.compute(graph)
    fusing.set_eval_callback(look)
    fusing.compute(graph)
    assert seen == graph.nodes
    assert_same(graph, want)
    fusing.set_eval_callback(None)
    fusing.compute(graph)
    assert_same(graph, want)
    with pytest.raises(TensorStateError):
        graph.nodes[0].numpy()


def test_a_callback_may_be_set_between_allocating_and_computing(fusing: Scheduler) -> None:
    x = gg.new_tensor("f32", (8, 4)).set_input()
    nodes = affine(gg.neg(x))
    graph = Graph(nodes[-1].set_output())
    values = np.random.default_rng(3).uniform(-1, 1, (4, 8)).astype(np.float32)
    got = []
    for callback in (None, lambda tensor, ask: tensor is nodes[0] or not ask, None):
        fusing.allocate(graph)
        x.set(values)
        fusing.set_eval_callback(callback)
        fusing.compute(graph)
        got.append(nodes[-1].numpy())
        # inputs keep their values, whichever way the graph is computed next
        fusing.set_eval_callback(None if callback else lambda tensor, ask: True)
        fusing.compute(graph)
        got.append(nodes[-1].numpy())
        fusing.set_eval_callback(None)
    for each in got:
        np.testing.assert_allclose(each, got[0], rtol=1e-6, atol=1e-6)


def test_a_callback_that_wants_the_last_node_only_has_every_node_computed(fusing: Scheduler) -> None:
    nodes = affine(placed(4, 8))
    graph = Graph(nodes[-1].set_output())
    fusing.compute(graph)
    fusing.set_eval_callback(lambda tensor, ask: tensor is nodes[-1])
    fusing.compute(graph)
    values = nodes[0].src[0].numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(nodes[0].numpy().mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(np.corrcoef(nodes[0].numpy()[0], values[0])[0, 1], 1, atol=1e-6)


def test_a_callback_that_ends_the_computation_leaves_the_rest_uncomputed(fusing: Scheduler) -> None:
    nodes = affine(placed(4, 8))
    graph = Graph(nodes[-1].set_output())
    fusing.set_eval_callback(lambda tensor, ask: ask and tensor is nodes[1])
    fusing.compute(graph)
    assert nodes[1].numpy().size
    with pytest.raises(TensorStateError):
        nodes[2].numpy()


def test_poison_between_groups_computes_groups_and_poison_between_nodes_does_not() -> None:
    device = Several("gpu")
    graph = Graph(affine(placed(4, 8, memory=device.buffer_type))[-1].set_output())
    for node in graph.leafs:
        if node.buffer is not None and node.buffer.type is HOST:
            values = node.numpy()
            node.place(device.buffer_type.alloc(node.nbytes))
            node.set(values)
    apart = ["norm", "mul", "add"]
    for poison, wanted in (("groups", ["norm mul add"]), ("nodes", apart), (True, apart)):
        with Scheduler([device], poison=poison) as scheduler:
            device.forget()
            scheduler.compute(graph)
            assert device.computed() == wanted


# -- answers that are wrong -------------------------------------------------------------------------------


class Answering(FusingDevice):
    def __init__(self, answer: Any) -> None:
        super().__init__("answering", patterns=())
        self.answer = answer

    def groups(self, graph: Graph, leaving: Any = ()) -> Groups:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_wrong_answers_of_a_device_are_errors_that_name_it() -> None:
    nodes = affine(placed(4, 8))
    nodes[0].set_output()
    graph = Graph(nodes[-1].set_output())
    members = tuple(graph.index[node] for node in nodes)
    for answer, kind, message in (
        (RuntimeError("no idea"), ComputeError, "answering failed to form groups.*no idea"),
        (None, ComputeError, r"answering: groups\(\) must return Groups"),
        (Groups([members], frozenset(members[:2])), GraphError, "is an output"),
        (Groups([members[:2]], frozenset()), gg.UnsupportedOpError, "no pattern for norm mul"),
        (AssertionError(), ComputeError, "answering failed to form groups.*AssertionError"),
        (Groups([(members[0], 10**9)]), GraphError, "position 1000000000 is not that of a node"),
        (Groups([(float(members[0]), members[1])]), GraphError, "a tuple of positions"),
        (Groups([("a", "b")]), GraphError, "a tuple of positions"),  # type: ignore[list-item]
        (Groups([], frozenset([10**6])), GraphError, "position 1000000 is marked as inner, but is in no group"),
        (Groups([members[1:]], inplace={members[-1]: (10**6,)}), GraphError, "not one of its sources"),
        (Groups([members[1:]], inplace={members[-1]: (-5,)}), GraphError, "not one of its sources"),
        (Groups([members[1:]], inplace={10**6: (1,)}), GraphError, "is not the last node of a group"),
        (Groups([], missed=[Missed((10**6,), "", "")]), GraphError, "missed must hold objects"),
    ):
        with Scheduler([Answering(answer)]) as scheduler, pytest.raises(kind, match=message):
            scheduler.compute(graph)


def test_a_device_that_fails_to_tell_its_patterns_is_named() -> None:
    class Patternless(FusingDevice):
        @property
        def patterns(self) -> Sequence[Pattern]:
            raise ZeroDivisionError

    graph = Graph(affine(placed(4, 8))[-1].set_output())
    with (
        Scheduler([Patternless()]) as scheduler,
        pytest.raises(ComputeError, match="patterns failed: ZeroDivisionError"),
    ):
        scheduler.compute(graph)


# -- explanations -----------------------------------------------------------------------------------------


def test_an_explanation_shows_groups_and_what_is_none(fusing: Scheduler) -> None:
    nodes = affine(placed(4, 8))
    shared = gg.norm(gg.mul_mat(placed(8, 8), nodes[-1]))
    broken = gg.add(gg.mul(shared, placed(8)), gg.view(gg.sqr(shared), 8))
    graph = Graph(gg.mul_mat(broken, broken).set_output())

    class KeepsNothing(FusingDevice):
        def match(self, group: Group) -> Any:
            return super().match(group) if sum(group.kept) == 1 else Decline("keeps nothing inside")

    patterns = [each for each in PATTERNS if "norm_affine" in each.name or "product" in each.name]
    with Scheduler([KeepsNothing(patterns=patterns)]) as scheduler:
        shown = scheduler.explain(graph)
    by_op = {row.number: row for row in shown.rows}
    together = [group for group in shown.groups if len(group.nodes) > 1]
    assert [by_op[n].op for n in together[0].nodes] == ["norm", "mul", "add"]
    assert together[0].kernel == "interpret_group"
    assert [by_op[n].inner for n in together[0].nodes] == [True, True, False]
    assert all(row.group == -1 for row in shown.rows if row.split == -1)
    missed = next(each for each in shown.missed if each.pattern == "norm_affine")
    assert "is computed in between" in missed.reason or "keeps nothing" in missed.reason
    text = str(shown)
    assert f"in {len(shown.groups)} groups" in text
    assert "in group 0, not kept" in text
    assert "are no group (norm_affine)" in text
    assert len(shown.to_dict()["groups"]) == len(shown.groups)


def test_traces_name_groups_and_time_them_at_their_last_node(fusing: Scheduler) -> None:
    nodes = affine(placed(4, 8))
    graph = Graph(gg.mul_mat(nodes[-1], nodes[-1]).set_output())

    class Observer:
        @gg.hookimpl
        def ggplug_nodes_timed(self, graph: Graph, device: Device, times: Sequence[NodeTime], groups: Groups) -> None:
            self.times = [graph.tensors[time.node] for time in times]
            self.groups = [[graph.tensors[p] for p in members] for members in groups.members]

    observer = Observer()
    HOOKS.register(observer)
    try:
        fusing.compute(graph)
    finally:
        HOOKS.unregister(observer)
    assert observer.times == [nodes[-1], graph.nodes[-1]]
    assert observer.groups == [nodes]


def test_devices_without_patterns_are_not_asked() -> None:
    class Silent(FusingDevice):
        def __init__(self) -> None:
            super().__init__("silent", patterns=())

        asked = 0

        def match(self, group: Group) -> Any:
            assert len(group) == 1
            return super().match(group)

    graph = Graph(affine(placed(4, 8))[-1].set_output())
    with Scheduler([Silent()]) as scheduler:
        scheduler.compute(graph)
        assert scheduler._find(graph).schedule.groups.members == ()


@pytest.mark.parametrize("aliased", ["source", "inner"])
def test_a_group_stays_one_where_another_part_reads_its_bytes_through_a_tensor_over_them(aliased: str) -> None:
    buffer = HOST.alloc(4096)
    buffer.set(0, np.arange(1, 1025, dtype=np.float32).view(np.uint8))

    def at(tensor: Tensor, offset: int) -> Tensor:
        tensor.place(buffer, offset)
        return tensor

    low = at(gg.new_tensor("f32", (8, 2)), 0)
    normed = gg.rms_norm(low)
    if aliased == "inner":
        at(normed, 128)
    y = at(gg.mul(normed, at(gg.new_tensor("f32", (8, 2)), 1024)), 64)
    # of the part in which y is, this is missing: there nothing joins the bytes of low, y and the norm
    whole = at(gg.new_tensor("f32", (8, 4) if aliased == "source" else (8, 6)), 0)
    z = gg.neg(whole).set_output()
    x = low.numpy()
    weights = np.arange(257, 273, dtype=np.float32).reshape(2, 8)
    with Scheduler([FakeDevice(), FusingDevice()]) as scheduler:
        scheduler.pin(z, scheduler.backends[0])
        graph = Graph(y, z)
        assert [len(each.nodes) for each in scheduler.explain(graph).groups if len(each.nodes) > 1] == [2]
        scheduler.compute(graph)
        found, negated = y.numpy(), z.numpy()
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + normed.op.eps) * weights  # type: ignore[union-attr]
    np.testing.assert_allclose(found, want, rtol=1e-5)
    np.testing.assert_array_equal(negated, -whole.numpy())

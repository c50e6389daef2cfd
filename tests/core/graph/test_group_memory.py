"""What groups change about memory: lifetimes, places, what may be overwritten, and what can be read afterwards."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops
from ggplug.errors import GraphError, ParameterError, TensorStateError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import Allocation, GraphAllocator, check_overlaps, compute_poisoned, lifetimes
from ggplug.memory.graph_allocator import poison_mode
from ggplug.memory.layout import NOWHERE
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.patterns import chain, of, pattern
from ggplug.tensor import Tensor
from ggplug_testing.devices.fusing import FusingDevice

DEVICE = FusingDevice()
STREAM = DEVICE.init()
NORM, MUL, ADD = of(ops.Norm), of(ops.Mul), of(ops.Add)
AFFINE = pattern("norm_affine", lambda x, w, b: ADD(MUL(NORM(x), w), b))


def placed(*shape: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng((len(shape), *shape, seed))
    return gg.tensor(rng.uniform(-1, 1, shape[::-1]).astype(np.float32))


def affine(x: Tensor) -> list[Tensor]:
    normed = gg.norm(x)
    scaled = gg.mul(normed, placed(x.ne[0], seed=1))
    return [normed, scaled, gg.add(scaled, placed(x.ne[0], seed=2))]


def positions(graph: Graph, *tensors: Tensor) -> tuple[int, ...]:
    return tuple(graph.index[tensor] for tensor in tensors)


def grouped(graph: Graph, nodes: list[Tensor], *inplace: Tensor) -> Groups:
    """These nodes as one group, with nothing kept but the last result."""
    members = positions(graph, *nodes)
    return Groups([members], frozenset(members[:-1]), {members[-1]: positions(graph, *inplace)})


# -- lifetimes ----------------------------------------------------------------------------------------


def test_what_a_group_reads_lives_until_its_last_node() -> None:
    x = gg.neg(placed(8, 3))
    nodes = affine(x)
    graph = Graph(gg.neg(nodes[-1]))
    at = graph.index
    alone, together = lifetimes(graph), lifetimes(graph, groups=grouped(graph, nodes))
    number = {position: number for number, position in enumerate(graph.order)}
    assert alone.last[at[x]] == number[at[nodes[0]]]
    assert together.last[at[x]] == number[at[nodes[-1]]]


def test_a_result_inside_of_a_group_has_no_life_and_a_kept_one_its_own() -> None:
    nodes = affine(gg.neg(placed(8, 3)))
    graph = Graph(gg.neg(nodes[-1]))
    members = positions(graph, *nodes)
    lives = lifetimes(graph, groups=Groups([members], frozenset([members[1]])))
    assert members[1] not in lives.first
    assert lives.first[members[0]] == graph.order.index(members[0])
    assert lives.last[members[0]] == graph.order.index(members[2])


def test_lives_without_groups_lie_within_those_with_groups() -> None:
    for seed in range(40):
        graph = chains(random.Random(seed), 5)
        groups = DEVICE.groups(graph)
        alone, together = lifetimes(graph), lifetimes(graph, groups=groups)
        assert set(alone.first) - set(together.first) == set(groups.inner)
        for root in together.first:
            assert together.first[root] == alone.first[root]
            assert together.last[root] >= alone.last[root]


# -- places -------------------------------------------------------------------------------------------


def test_results_inside_of_groups_take_no_memory() -> None:
    nodes = affine(gg.neg(placed(64, 16)))
    graph = Graph(gg.neg(nodes[-1]))
    allocator = GraphAllocator(HOST)
    groups = grouped(graph, nodes)
    alone, together = allocator.lay_out(graph), allocator.lay_out(graph, groups=groups)
    assert together.live[0] <= alone.live[0]
    assert {p for p, slot in enumerate(together.slots) if slot == NOWHERE} == groups.inner
    view = gg.reshape(nodes[1], 64 * 16)
    last = gg.add(gg.reshape(view, 64, 16), placed(64))
    graph = Graph(last)
    members = positions(graph, nodes[1], last)
    layout = allocator.lay_out(graph, groups=Groups([members], frozenset(members[:1])))
    assert layout.slots[graph.index[view]] == NOWHERE


def test_everything_else_lies_at_the_same_place_when_nodes_are_computed_one_by_one() -> None:
    for seed in range(40):
        graph = chains(random.Random(seed), 6)
        layout = GraphAllocator(HOST).lay_out(graph, groups=DEVICE.groups(graph))
        alone = layout.ungrouped
        inside = layout.slots == NOWHERE
        np.testing.assert_array_equal(layout.slots[~inside], alone.slots[~inside])
        np.testing.assert_array_equal(layout.offsets[~inside], alone.offsets[~inside])
        assert alone.chunks[: alone.inside] == layout.chunks
        assert (alone.slots[inside] >= alone.inside).all()
        assert not (alone.slots == NOWHERE).any()
        allocator = GraphAllocator(HOST)
        check_overlaps(graph, allocator.bind(layout, graph))
        check_overlaps(graph, allocator.bind(alone, graph))


def test_memory_for_results_inside_of_groups_is_taken_when_it_is_needed_and_moves_nothing() -> None:
    nodes = affine(gg.neg(placed(8, 3)))
    graph = Graph(gg.neg(nodes[-1]))
    allocator = GraphAllocator(HOST)
    layout = allocator.lay_out(graph, groups=grouped(graph, nodes))
    first = allocator.bind(layout, graph)
    before, sizes = allocator.generation, allocator.sizes()
    allocator.bind(layout.ungrouped, graph)
    assert (allocator.generation, allocator.sizes()) == (before, sizes)
    larger = affine(gg.neg(placed(64, 30)))
    graph = Graph(gg.neg(larger[-1]))
    allocator.bind(allocator.lay_out(graph, groups=grouped(graph, larger)).ungrouped, graph)
    assert not first.buffers[0].freed or allocator.generation > before
    allocator.free()
    assert all(buffer.freed for buffer in first.buffers)


def test_an_allocator_without_reuse_gives_every_result_its_bytes() -> None:
    nodes = affine(placed(8, 3))
    graph = Graph(nodes[-1])
    allocation = GraphAllocator(HOST, reuse=False).allocate(graph, groups=grouped(graph, nodes))
    assert not allocation.groups
    STREAM.compute(graph, allocation)
    assert nodes[0].numpy().shape == (3, 8)


def test_groups_that_break_a_rule_are_not_laid_out() -> None:
    nodes = affine(placed(8, 3))
    nodes[0].set_output()
    graph = Graph(nodes[-1])
    with pytest.raises(GraphError, match="is an output"):
        GraphAllocator(HOST).lay_out(graph, groups=grouped(graph, nodes))


# -- in the place of a source ---------------------------------------------------------------------------


def taken(graph: Graph, result: Tensor, source: Tensor, groups: Groups) -> bool:
    layout = GraphAllocator(HOST).lay_out(graph, groups=groups)
    a, b = positions(graph, result, source)
    check_overlaps(graph, GraphAllocator(HOST).bind(layout, graph))
    check_overlaps(graph, GraphAllocator(HOST).bind(layout.ungrouped, graph))
    return (layout.slots[a], layout.offsets[a]) == (layout.slots[b], layout.offsets[b])


def test_a_group_s_result_takes_the_place_of_a_source_only_where_the_group_says_so() -> None:
    x = gg.neg(placed(8, 3))
    nodes = affine(x)
    graph = Graph(gg.neg(nodes[-1]))
    assert taken(graph, nodes[-1], x, grouped(graph, nodes, x))
    assert not taken(graph, nodes[-1], x, grouped(graph, nodes))


def test_all_reads_of_a_group_count() -> None:
    w, x = placed(8, 8), gg.neg(placed(8, 8))
    product = gg.mul_mat(w, x)
    for residual, shared in ((x, True), (gg.neg(placed(8, 8)), False), (gg.view(x, (8, 8)), True)):
        last = gg.add(product, residual)
        graph = Graph(gg.neg(last))
        groups = grouped(graph, [product, last], residual, x)
        assert taken(graph, last, residual.root, groups) == (not shared)


def test_a_source_that_is_needed_later_or_is_of_another_shape_stays() -> None:
    x = gg.neg(placed(8, 3))
    nodes = affine(x)
    graph = Graph(gg.add(gg.neg(nodes[-1]), x))
    assert not taken(graph, nodes[-1], x, grouped(graph, nodes, x))
    row = gg.neg(placed(8))
    first = gg.silu(gg.neg(placed(8, 3)))
    last = gg.add(first, row)
    graph = Graph(gg.neg(last))
    assert not taken(graph, last, row, grouped(graph, [first, last], row))


def test_what_the_last_node_reads_is_overwritten_only_if_its_own_op_allows_that() -> None:
    x = gg.neg(placed(8, 8))
    first = gg.silu(placed(8, 8))
    for make, allowed in ((gg.add, True), (gg.mul_mat, False)):
        last = make(first, x)
        graph = Graph(gg.neg(last))
        assert last.op is not None
        assert (1 in last.op.inplace) == allowed
        assert taken(graph, last, x, grouped(graph, [first, last], x)) == allowed


# -- computing and reading --------------------------------------------------------------------------------


def test_a_group_computes_what_its_nodes_do() -> None:
    nodes = affine(gg.neg(placed(8, 3)))
    graph = Graph(gg.neg(nodes[-1]))
    STREAM.compute(graph, GraphAllocator(HOST).allocate(graph))
    want = graph.nodes[-1].numpy()
    STREAM.compute(graph, GraphAllocator(HOST).allocate(graph, groups=DEVICE.groups(graph)))
    np.testing.assert_array_equal(graph.nodes[-1].numpy(), want)


def test_one_stream_computes_a_graph_with_and_without_groups_in_turn() -> None:
    nodes = affine(placed(8, 3))
    graph = Graph(nodes[-1])
    alone = GraphAllocator(HOST).allocate(graph)
    together = GraphAllocator(HOST).allocate(graph, groups=DEVICE.groups(graph))
    for _ in range(2):
        STREAM.compute(graph, together)
        with pytest.raises(TensorStateError):
            nodes[0].numpy()
        STREAM.compute(graph, alone)
        nodes[-1].numpy()


def test_reading_a_result_inside_of_a_group_says_what_to_do() -> None:
    nodes = affine(placed(8, 3))
    nodes[0].named("inside")
    graph = Graph(nodes[-1])
    view = gg.reshape(nodes[0], 24)
    STREAM.compute(graph, GraphAllocator(HOST).allocate(graph, groups=DEVICE.groups(graph)))
    for tensor in (nodes[0], nodes[1]):
        with pytest.raises(TensorStateError, match=r"inside of a group.*norm.*mul.*add") as caught:
            tensor.numpy()
        assert "set_output" in str(caught.value)
    with pytest.raises(TensorStateError):
        view.numpy()
    nodes[0].set_output()
    STREAM.compute(graph, GraphAllocator(HOST).allocate(graph, groups=DEVICE.groups(graph)))
    nodes[0].numpy()


def test_a_plan_is_bound_to_places_of_its_own_groups_only() -> None:
    nodes = affine(placed(8, 3))
    graph = Graph(nodes[-1])
    groups = DEVICE.groups(graph)
    allocation = GraphAllocator(HOST).allocate(graph, groups=groups)
    for plan in (STREAM.plan(graph), STREAM.plan(graph, Groups([positions(graph, *nodes[:2])]))):
        with pytest.raises(TensorStateError, match="inside of a group"):
            plan.rebind(graph, allocation)
    plan = STREAM.plan(graph, groups)
    plan.rebind(graph, allocation)
    kept = Groups(groups.members)
    for others in (UNGROUPED, kept, Groups([positions(graph, *nodes[:2])])):
        with pytest.raises(GraphError, match=r"norm.*mul.*add.*made for other groups"):
            plan.rebind(graph, GraphAllocator(HOST).allocate(graph, groups=others))
    # what is written there without need does no harm, nor do places that wait for a group's end
    for fewer in (kept, UNGROUPED):
        STREAM.plan(graph, fewer).rebind(graph, GraphAllocator(HOST).allocate(graph, groups=kept))
    for ask in (allocation.check, allocation.addresses, allocation.places):
        with pytest.raises(TensorStateError, match="inside of a group"):
            ask(graph)  # type: ignore[operator]
    assert (allocation.addresses(graph, None, groups)[list(groups.inner)] == 0).all()


# -- poison ------------------------------------------------------------------------------------------------


def test_poison_between_groups_spares_what_a_group_reads_and_finds_what_it_should_not() -> None:
    x = gg.neg(placed(8, 3))
    nodes = affine(x)
    graph = Graph(gg.neg(nodes[-1]))
    allocator = GraphAllocator(HOST)
    groups = grouped(graph, nodes)
    for wanted in (UNGROUPED, groups):
        allocation = allocator.allocate(graph, groups=wanted)
        STREAM.compute(graph, allocation)
        want = graph.nodes[-1].numpy()
        compute_poisoned(STREAM, graph, allocation)
        np.testing.assert_array_equal(graph.nodes[-1].numpy(), want)
    # in places that were chosen for single nodes, what a group reads is overwritten before the group runs
    alone = allocator.allocate(graph)
    wrong = Allocation(graph, alone.buffers, alone.slots, alone.offsets, layout=alone.layout, groups=groups)
    compute_poisoned(STREAM, graph, wrong)
    assert np.isnan(graph.nodes[-1].numpy()).all()


def test_poison_has_two_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, mode in ((None, ""), ("0", ""), ("1", "nodes"), ("nodes", "nodes"), ("groups", "groups")):
        if value is None:
            monkeypatch.delenv("GGPLUG_POISON", raising=False)
        else:
            monkeypatch.setenv("GGPLUG_POISON", value)
        assert poison_mode() == mode
    assert poison_mode(True) == "nodes"
    assert poison_mode(False) == ""
    with pytest.raises(ParameterError, match="'nodes' or 'groups'"):
        poison_mode("all")


# -- random graphs ------------------------------------------------------------------------------------------


def chains(rng: random.Random, length: int) -> Graph:
    """A graph of norms, products, gates, residuals and runs of elementwise ops, with outputs and views inside."""
    tensors = [gg.neg(placed(8, 8, seed=seed)) for seed in range(2)]
    for _ in range(length):
        x, y = rng.choice(tensors), rng.choice(tensors)
        kind = rng.randrange(6)
        if kind == 0:
            made = affine(x)
        elif kind == 1:
            product = gg.mul_mat(placed(8, 8, seed=3), x)
            made = [product, gg.add(product, placed(8, seed=4))]
            made.append(gg.add(gg.gelu(made[-1]), y))
        elif kind == 2:
            first, second = gg.mul_mat(placed(8, 8, seed=5), x), gg.mul_mat(placed(8, 8, seed=6), x)
            made = [first, second, gg.swiglu(first, gate=second)]
        elif kind == 3:
            made = [gg.add(x, y)]
            made += affine(made[0])
        elif kind == 4:
            made = [gg.silu(x)]
            made += [gg.mul(made[0], y), gg.view(made[0], 8)]
        else:
            made = [gg.silu(gg.reshape(x, 8, 8))]
        tensors += [tensor for tensor in made if tensor.ne[:2] == (8, 8)]
        if rng.random() < 0.1:
            rng.choice(made).set_output()
    return Graph(*(tensor.set_output() for tensor in tensors[-2:]))


def test_random_graphs_compute_the_same_in_groups_and_poisoned_and_overlap_nothing() -> None:
    formed = 0
    for seed in range(60):
        graph = chains(random.Random(seed), 6)
        allocator = GraphAllocator(HOST)
        STREAM.compute(graph, allocator.allocate(graph))
        want = [output.numpy() for output in graph.outputs]
        groups = DEVICE.groups(graph)
        formed += len(groups.members)
        allocation = allocator.allocate(graph, groups=groups)
        check_overlaps(graph, allocation)
        for compute in (STREAM.compute, lambda g, a: compute_poisoned(STREAM, g, a)):
            compute(graph, allocation)
            for output, values in zip(graph.outputs, want, strict=True):
                np.testing.assert_allclose(output.numpy(), values, rtol=1e-6, atol=1e-6)
    assert formed > 100


def test_a_chain_that_keeps_its_first_result_writes_it() -> None:
    device = FusingDevice(patterns=[AFFINE, chain("run", ops.Unary)])
    nodes = affine(placed(8, 3))
    nodes[0].set_output()
    graph = Graph(nodes[-1])
    allocator = GraphAllocator(HOST)
    groups = device.groups(graph)
    assert groups.inner == set(positions(graph, nodes[1]))
    allocation = allocator.allocate(graph, groups=groups)
    device.init().compute(graph, allocation)
    got = [nodes[0].numpy(), nodes[2].numpy()]
    STREAM.compute(graph, GraphAllocator(HOST).allocate(graph))
    np.testing.assert_array_equal(got[0], nodes[0].numpy())
    np.testing.assert_array_equal(got[1], nodes[2].numpy())

"""Groups of nodes: what they are made of, when two are equal, and how plans receive them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug.backend import Decline, Group, Groups, Operand, signature_of
from ggplug.errors import ComputeError, GraphError, UnsupportedOpError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import GraphAllocator, allocate_graph
from ggplug.nodes.groups import UNGROUPED
from ggplug.tensor import Tensor
from ggplug_testing import FakeDevice, ReferenceDevice
from ggplug_testing.devices.packing import PackingDevice


def leaf(*ne: int) -> Tensor:
    return gg.new_tensor("f32", ne)


def norm_affine(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    normed = gg.norm(x)
    scaled = gg.mul(normed, w)
    return normed, scaled, gg.add(scaled, b)


def affine_group(kept: tuple[bool, ...] = (False, False, True)) -> Group:
    return Group(norm_affine(leaf(8, 3), leaf(8), leaf(8)), kept)


# -- groups -----------------------------------------------------------------------------------------


def test_a_group_of_one_node_has_the_node_s_own_operands() -> None:
    x = leaf(4)
    node = gg.add(x, x)
    group = Group((node,))
    assert group.node is node
    assert group.operands == (node, x, x)
    assert group.kept == (True,)
    assert len(group) == 1
    assert repr(group) == repr(node)


def test_a_group_names_each_tensor_that_it_reads_once_and_its_kept_results_last() -> None:
    x, w = leaf(8, 3), leaf(8)
    first, second, last = norm_affine(x, w, w)
    assert Group((first, second, last), (False, False, True)).operands == (last, x, w)
    kept = Group((first, second, last), (False, True, True))
    assert kept.operands == (last, x, w, second)
    assert "norm" in repr(kept)
    assert "mul" in repr(kept)


def test_a_view_of_a_result_of_the_group_is_no_source_of_it() -> None:
    w, x, b = leaf(8, 4), leaf(8, 6), leaf(4, 2)
    product = gg.mul_mat(w, x)
    last = gg.add(gg.reshape(product, 4, 2, 3), b)
    assert Group((product, last), (False, True)).sources == (w, x, b)


# -- signatures -------------------------------------------------------------------------------------


def test_groups_of_equal_shapes_have_equal_signatures() -> None:
    assert signature_of(affine_group()) == signature_of(affine_group())
    assert hash(signature_of(affine_group())) == hash(signature_of(affine_group()))
    assert signature_of(Group((gg.neg(leaf(3)),))) == signature_of(Group((gg.neg(leaf(3)),)))


def test_a_signature_tells_parameters_shapes_memory_and_what_is_kept() -> None:
    x, w, b = leaf(8, 3), leaf(8), leaf(8)
    normed = gg.norm(x, eps=0.5)
    scaled = gg.mul(normed, w)
    other = Group((normed, scaled, gg.add(scaled, b)), (False, False, True))
    placed = affine_group()
    tensor = placed.sources[0]
    tensor.place(HOST.alloc(tensor.nbytes))
    wide = Group(norm_affine(leaf(8, 4), leaf(8), leaf(8)), (False, False, True))
    found = [affine_group(), affine_group((False, True, True)), other, placed, wide]
    assert len(set(map(signature_of, found))) == len(found)


def test_a_signature_tells_the_memory_of_a_view_s_root() -> None:
    root = leaf(8)
    node = gg.neg(gg.view(root, 4, offset=16))
    before = signature_of(Group((node,)))
    root.place(HOST.alloc(root.nbytes))
    assert signature_of(Group((node,))) != before


def test_a_signature_tells_views_from_tensors_in_memory_with_a_layout_of_its_own() -> None:
    device = PackingDevice()
    (packing,) = device.extra_buffer_types
    for kind, differs in ((packing, True), (HOST, False)):
        whole, root, x, b = leaf(8, 4), leaf(8, 6), leaf(8, 2), leaf(4)
        for tensor in (whole, root):
            tensor.place(kind.alloc(kind.alloc_size(tensor)))
        products = [gg.mul_mat(w, x) for w in (whole, gg.view(root, 8, 4, offset=root.nb[1]))]
        assert (signature_of(products[0]) != signature_of(products[1])) is differs
        groups = [Group((product, gg.add(product, b)), (False, True)) for product in products]
        assert (signature_of(groups[0]) != signature_of(groups[1])) is differs


def test_a_signature_tells_which_source_is_which() -> None:
    x, y = leaf(8), leaf(8)

    def group(*sources: Tensor) -> Group:
        first = gg.sub(sources[0], sources[1])
        return Group((first, gg.mul(first, sources[2])), (False, True))

    found = {signature_of(group(*sources)) for sources in ((x, y, x), (x, y, y), (x, x, y), (x, y, leaf(8)))}
    assert len(found) == 4
    assert signature_of(group(y, x, y)) == signature_of(group(x, y, x))
    first = gg.silu(x)
    assert signature_of(Group((first, gg.sub(first, x)), (False, True))) != signature_of(
        Group((first, gg.sub(x, first)), (False, True))
    )


def test_a_signature_tells_how_sources_share_bytes() -> None:
    def group(first: int, second: int, *, apart: bool = False) -> Group:
        root = leaf(16)
        a, b = gg.view(root, 4, offset=first), gg.view(leaf(16) if apart else root, 4, offset=second)
        node = gg.silu(a)
        return Group((node, gg.add(node, b)), (False, True))

    assert signature_of(group(0, 16)) != signature_of(group(0, 32))
    assert signature_of(group(0, 16)) != signature_of(group(0, 16, apart=True))
    # offsets of what shares nothing do not count: a cache grows from token to token
    assert signature_of(group(0, 16, apart=True)) == signature_of(group(0, 32, apart=True))


# -- groups of a graph ------------------------------------------------------------------------------


def affine_graph() -> tuple[Graph, Groups]:
    x, w, b = leaf(8, 3), leaf(8), leaf(8)
    first, second, last = norm_affine(x, w, b)
    graph = Graph(gg.neg(last))
    positions = tuple(graph.index[node] for node in (first, second, last))
    return graph, Groups([positions], frozenset(positions[:2]))


def test_without_groups_every_node_that_computes_something_is_alone() -> None:
    empty = gg.silu(leaf(0, 4))
    node = gg.neg(gg.reshape(gg.silu(leaf(4, 3)), 12))
    graph = Graph(node, empty)
    assert [group.nodes for group in UNGROUPED.of(graph)] == [(graph.nodes[0],), (node,)]


def test_a_group_comes_at_the_place_of_its_last_node() -> None:
    graph, groups = affine_graph()
    assert [len(group) for group in groups.of(graph)] == [3, 1]
    assert next(iter(groups.of(graph))).kept == (False, False, True)


def test_groups_are_equal_by_value() -> None:
    assert affine_graph()[1] == affine_graph()[1]
    assert hash(affine_graph()[1]) == hash(affine_graph()[1])
    assert affine_graph()[1] != UNGROUPED
    assert not UNGROUPED
    assert Groups([(1, 2)], frozenset([1]), {2: (0,)}) != Groups([(1, 2)], frozenset([1]))


def test_groups_of_a_part_count_the_part_s_tensors() -> None:
    graph, groups = affine_graph()
    part = Graph.part(graph.nodes[:3], whole=graph)
    assert part.positions is not None
    inside = groups.within(part)
    assert [group.nodes for group in inside.of(part)] == [tuple(graph.nodes[:3])]
    assert {part.positions[p] for p in inside.inner} == groups.inner
    assert not groups.within(Graph.part(graph.nodes[3:], whole=graph))
    assert groups.within(graph) is groups


# -- plans receive groups -----------------------------------------------------------------------------


def fused(group: Group, operands: Mapping[Tensor, Operand]) -> None:
    """A norm with scale and shift, in one pass."""
    last = operands[group.node].array()
    x, w, b = (operands[source].array().astype(np.float64) for source in group.sources)
    centred = x - x.mean(-1, keepdims=True)
    last[...] = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w + b


class Fusing(ReferenceDevice):
    def match(self, group: Group) -> Any:
        names = [node.op.name for node in group.nodes if node.op is not None]
        if len(group) == 1:
            return super().match(group)
        return fused if names == ["norm", "mul", "add"] else Decline(f"nothing computes {' '.join(names)}")


def test_a_walking_plan_calls_the_kernel_of_a_group_with_its_operands() -> None:
    rng = np.random.default_rng(1)
    x, w, b = (gg.tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((3, 8), 8, 8))
    first, second, last = norm_affine(x, w, b)
    graph = Graph(gg.neg(last))
    positions = tuple(graph.index[node] for node in (first, second, last))
    stream = Fusing().init()
    groups = Groups([positions], frozenset(positions[:2]))
    plan = stream.plan(graph, groups)
    assert plan.kernel_names() == ["fused", "interpret"]
    allocation = GraphAllocator(HOST).allocate(graph, groups=groups)
    plan.rebind(graph, allocation)
    times = plan.compute_traced()
    allocation.computed(graph)
    assert [time.node for time in times] == [positions[-1], graph.index[graph.nodes[-1]]]
    got = graph.nodes[-1].numpy()
    stream.compute(graph, allocate_graph(graph, HOST))
    np.testing.assert_allclose(got, graph.nodes[-1].numpy(), rtol=1e-6, atol=1e-6)


def test_a_group_that_is_declined_is_an_error_that_names_its_nodes() -> None:
    x = leaf(4)
    first = gg.silu(x).named("first")
    graph = Graph(gg.neg(first).named("second"))
    groups = Groups([(1, 2)], frozenset([1]))
    with pytest.raises(UnsupportedOpError, match=r"first.*second.*nothing computes silu neg"):
        Fusing().init().plan(graph, groups)


@pytest.mark.parametrize("name", ["reference", "fake", "CPU", "OpenCL0"])
def test_a_plan_takes_no_groups_that_break_a_rule(name: str) -> None:
    """Its kernels would write results that have no bytes, or leave out results that somebody reads."""
    devices = {"reference": Fusing, "fake": lambda: FakeDevice(execution="late")}
    device = devices[name]() if name in devices else device_or_skip(name)
    a, b = leaf(8, 4), leaf(8, 4)
    total = gg.add(a, b)
    graph = Graph(gg.neg(gg.mul(total, b)).set_output())
    first, second, last = graph.order
    wrong = {
        "is in no group": Groups([], frozenset([first])),
        "not that of a node": Groups([(1000, 1001)]),
        "is not that of a node": Groups([(-1, -2)]),
        "is the group's result": Groups([(first, second)], frozenset([first, second])),
        "is computed in between": Groups([(first, last)]),
        "not one of its sources": Groups([(first, second)], frozenset([first]), {second: (last,)}),
        "a tuple of positions": Groups([(float(first), second)]),  # type: ignore[list-item]
    }
    with device.init() as stream:
        for message, groups in wrong.items():
            with pytest.raises(GraphError, match=message):
                stream.plan(graph, groups)


def test_an_error_in_a_group_s_kernel_names_its_nodes() -> None:
    class Failing(Fusing):
        def match(self, group: Group) -> Any:
            return fails if len(group) > 1 else super().match(group)

    def fails(group: Group, operands: Mapping[Tensor, Operand]) -> None:
        raise RuntimeError("no luck")

    first = gg.silu(gg.tensor([1.0])).named("first")
    graph = Graph(gg.neg(first).named("second"))
    groups = Groups([(1, 2)], frozenset([1]))
    plan = Failing().init().plan(graph, groups)
    plan.rebind(graph, GraphAllocator(HOST).allocate(graph, groups=groups))
    with pytest.raises(ComputeError, match=r"failed in .*first.*second.*no luck"):
        plan.compute()

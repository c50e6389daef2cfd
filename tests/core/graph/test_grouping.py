"""Which nodes form groups: what patterns find, and each rule that breaks a group or has a result written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug import ops
from ggplug.errors import GraphError, ParameterError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.interface.grouping import ALIKE, Tried, check_groups, form_groups
from ggplug.memory import GraphAllocator
from ggplug.nodes.groups import UNGROUPED, Group, Groups, Missed
from ggplug.patterns import Chain, Found, Pattern, chain, maybe, of, pattern, viewed
from ggplug.tensor import Tensor

NORM, MUL, ADD = of(ops.Norm, ops.RmsNorm, name="norm"), of(ops.Mul), of(ops.Add)
PRODUCT, ROPE, SET_ROWS = of(ops.MulMat), of(ops.Rope), of(ops.SetRows)
SILU, NEG = of(ops.Silu), of(ops.Neg)

AFFINE = pattern("norm_affine", lambda x, w, b: ADD(MUL(NORM(x), w), b), inplace=("x",))
GATED = pattern(
    "gated",
    lambda gate, up, x: of(ops.Swiglu)(of(ops.MulMat, name="first")(gate, x), of(ops.MulMat, name="second")(up, x)),
)
STORED = pattern(
    "stored", lambda cache, x, pos, rows, factors=None: SET_ROWS(cache, viewed(ROPE(x, pos, factors)), rows)
)
RUN = chain("run", ops.Binary, ops.Unary, inplace=True)
EPILOGUE = chain("epilogue", ops.Binary, ops.Unary, start=lambda w, x: PRODUCT(w, x), inplace=True)


def leaf(*ne: int) -> Tensor:
    return gg.new_tensor("f32", ne)


def formed(
    graph: Graph, *patterns: Pattern, leaving: Collection[int] = (), declines: Collection[str] = (), kept: bool = True
) -> Groups:
    """Groups of a device that takes everything but groups of these ops, and with ``kept=False`` keeps nothing."""

    def declined(group: Group) -> str | None:
        names = " ".join(node.op.name for node in group.nodes if node.op is not None)
        if names in declines:
            return "not these"
        return None if kept or sum(group.kept) == 1 else "keeps no result inside"

    groups = form_groups(graph, patterns, declined, leaving)
    check_groups(graph, groups)
    return groups


def shown(graph: Graph, groups: Groups) -> list[str]:
    """The groups of several nodes as ``norm mul add*``, results that are kept with a star."""
    found = []
    for group in groups.of(graph):
        if len(group) > 1:
            names = [node.op.name for node in group.nodes if node.op is not None]
            found.append(" ".join(name + "*" * kept for name, kept in zip(names, group.kept, strict=True)))
    return found


def affine(x: Tensor | None = None, w: Tensor | None = None, b: Tensor | None = None) -> list[Tensor]:
    normed = gg.norm(leaf(8, 3) if x is None else x)
    scaled = gg.mul(normed, leaf(8) if w is None else w)
    return [normed, scaled, gg.add(scaled, leaf(8) if b is None else b)]


# -- patterns ---------------------------------------------------------------------------------------


def test_a_formula_is_found_and_its_names_stand_for_the_tensors() -> None:
    x, w, b = leaf(8, 3), leaf(8), leaf(8)
    nodes = affine(x, w, b)
    graph = Graph(gg.neg(nodes[-1]))
    groups = formed(graph, AFFINE)
    assert shown(graph, groups) == ["norm mul add*"]
    names = AFFINE.names(Group(tuple(nodes), (False, False, True)))
    assert names == {"x": x, "w": w, "b": b, "norm": nodes[0], "mul": nodes[1], "add": nodes[2]}
    assert {graph.tensors[p] for p in groups.inner} == set(nodes[:2])
    assert groups.inplace == {graph.index[nodes[-1]]: (graph.index[x],)}


def test_a_group_that_is_something_else_has_no_names() -> None:
    nodes = affine()
    assert AFFINE.names(Group(tuple(nodes[1:]), (False, True))) is None
    assert AFFINE.names(Group((gg.neg(leaf(3)),))) is None
    longer = (*nodes, gg.add(nodes[-1], leaf(8)))
    assert AFFINE.names(Group(longer, (False, False, False, True))) is None
    assert RUN.names(Group(longer[1:], (False, False, True))) == {}


def test_a_chain_that_ends_with_another_op_has_no_names() -> None:
    total = gg.add(leaf(8, 3), leaf(8))
    assert RUN.names(Group((total, gg.rms_norm(total)), (False, True))) is None
    product = gg.mul_mat(leaf(8, 8), total)
    assert EPILOGUE.names(Group((total, product), (False, True))) is None


def test_what_a_pattern_finds_has_names_also_where_an_earlier_source_is_read_again() -> None:
    behind_a_norm = chain("behind a norm", ops.Binary, ops.Unary, start=lambda a, b: NORM(ADD(a, b)))
    total = gg.add(leaf(8, 3), leaf(8))
    normed = gg.norm(total)
    scaled = gg.mul(normed, leaf(8))
    last = gg.sub(total, scaled)
    graph = Graph(last)
    assert shown(graph, formed(graph, behind_a_norm)) == ["add norm mul sub*"]
    names = behind_a_norm.names(Group((total, normed, scaled, last), (False, False, False, True)))
    assert names is not None
    assert names["norm"] is normed


def test_a_pattern_that_has_no_names_for_what_it_finds_forms_no_group() -> None:
    class Nameless(Chain):
        def names(self, group: Group) -> None:
            return None

    graph = Graph(gg.neg(gg.silu(leaf(8))))
    groups = formed(graph, Nameless("nameless", (ops.Unary,), None, True, 8))
    assert not groups
    assert "names() returned None" in groups.missed[0].reason


def test_add_and_mul_are_found_in_either_order_and_others_in_theirs() -> None:
    normed = gg.norm(leaf(8))
    graph = Graph(gg.add(leaf(8), gg.mul(leaf(8), normed)))
    assert shown(graph, formed(graph, AFFINE)) == ["norm mul add*"]
    difference = pattern("difference", lambda x, y: of(ops.Sub)(SILU(x), y))
    for graph, found in ((Graph(gg.sub(gg.silu(leaf(8)), leaf(8))), 1), (Graph(gg.sub(leaf(8), gg.silu(leaf(8)))), 0)):
        assert len(formed(graph, difference).members) == found


def test_a_hole_that_occurs_twice_is_one_tensor() -> None:
    x, gate, up = leaf(8, 3), leaf(8, 4), leaf(8, 4)
    graph = Graph(gg.swiglu(gg.mul_mat(gate, x), gate=gg.mul_mat(up, x)))
    assert shown(graph, formed(graph, GATED)) == ["mul_mat mul_mat swiglu*"]
    graph = Graph(gg.swiglu(gg.mul_mat(gate, x), gate=gg.mul_mat(up, leaf(8, 3))))
    assert formed(graph, GATED) is UNGROUPED


def test_two_steps_are_two_nodes() -> None:
    product = gg.mul_mat(leaf(8, 4), leaf(8, 3))
    assert formed(Graph(gg.swiglu(product, gate=product)), GATED) is UNGROUPED


def test_a_hole_is_never_a_result_of_the_group_or_a_view_of_one() -> None:
    normed = gg.norm(leaf(8, 3))
    for twice in (normed, gg.view(normed, (8, 3)), gg.reshape(normed, 8, 3)):
        graph = Graph(gg.add(gg.mul(normed, leaf(8)), twice))
        assert not formed(graph, AFFINE).members


def test_an_optional_hole_may_be_absent_and_a_source_that_no_formula_names_has_to_be() -> None:
    x, pos, rows = leaf(8, 2, 3), gg.new_tensor("i32", 3), gg.new_tensor("i64", 3)
    plain = pattern("plain", lambda cache, x, pos, rows: SET_ROWS(cache, viewed(ROPE(x, pos)), rows))
    for factors in (None, leaf(4)):
        rotated = gg.rope(x, pos, freq_factors=factors, n_dims=8)
        graph = Graph(gg.set_rows(leaf(16, 5), gg.reshape(rotated, 16, 3), rows))
        assert shown(graph, formed(graph, STORED)) == ["rope set_rows*"]
        assert len(formed(graph, plain).members) == (factors is None)
    names = STORED.names(Group((rotated, graph.nodes[-1]), (False, True)))
    assert names is not None
    assert names["factors"].ne[0] == 4


def test_a_view_inside_is_found_only_where_the_formula_says_so() -> None:
    product = gg.mul_mat(leaf(8, 6), leaf(8, 3))
    graph = Graph(gg.add(gg.reshape(product, 3, 2, 3), leaf(3)))
    assert formed(graph, pattern("biased", lambda w, x, b: ADD(PRODUCT(w, x), b))) is UNGROUPED
    assert shown(graph, formed(graph, pattern("biased", lambda w, x, b: ADD(viewed(PRODUCT(w, x)), b)))) == [
        "mul_mat add*"
    ]


def test_a_step_that_may_be_absent_is_found_where_it_is_there_and_is_preferred() -> None:
    silent = pattern("silent", lambda w, x: maybe(SILU, PRODUCT(maybe(NEG, w), x)))
    w, x = leaf(8, 6), leaf(8, 3)
    for weights, expected in ((w, "mul_mat"), (gg.neg(w), "neg mul_mat")):
        product = gg.mul_mat(weights, x)
        graph = Graph(gg.silu(product))
        assert shown(graph, formed(graph, silent)) == [f"{expected} silu*"]
        names = silent.names(Group(tuple(graph.nodes), (False,) * (len(graph.nodes) - 1) + (True,)))
        assert names is not None
        assert names["w"] is w
    graph = Graph(gg.mul_mat(gg.neg(w), x))
    assert shown(graph, formed(graph, silent)) == ["neg mul_mat*"]
    graph = Graph(gg.silu(gg.mul_mat(gg.neg(w), x)))
    assert shown(graph, formed(graph, silent, declines=["neg mul_mat silu"])) == ["mul_mat silu*"]


def test_a_step_that_may_be_absent_has_a_name_of_its_own() -> None:
    with pytest.raises(ParameterError, match="name 'neg' twice"):
        pattern("twice", lambda x: maybe(NEG, SILU(NEG(x))))


def test_a_chain_goes_back_as_far_as_one_shape_and_one_reader_go() -> None:
    x, row = leaf(8, 3), leaf(8)
    graph = Graph(gg.mul(gg.silu(gg.add(gg.neg(x), row)), x))
    assert shown(graph, formed(graph, RUN)) == ["neg add silu mul*"]
    graph = Graph(gg.mul(x, gg.silu(row)))
    assert formed(graph, RUN) is UNGROUPED
    shared = gg.neg(x)
    graph = Graph(gg.add(gg.silu(gg.sqr(shared)), shared))
    assert shown(graph, formed(graph, RUN)) == ["sqr silu add*"]


def test_a_chain_has_a_limited_length_and_gives_way_where_it_is_declined() -> None:
    x = leaf(8)
    for _ in range(5):
        x = gg.neg(x)
    graph = Graph(x)
    assert shown(graph, formed(graph, chain("short", ops.Unary, at_most=2))) == ["neg neg*", "neg neg*"]
    assert shown(graph, formed(graph, RUN, declines=["neg " * 4 + "neg"])) == ["neg neg neg neg*"]


def test_a_chain_begins_with_the_step_that_it_names() -> None:
    w, x, b, residual = leaf(8, 4), leaf(8, 3), leaf(4), leaf(4, 3)
    product = gg.mul_mat(w, x)
    nodes = [product, gg.add(product, b)]
    nodes.append(gg.gelu(nodes[-1]))
    nodes.append(gg.add(residual, nodes[-1]))
    graph = Graph(nodes[-1])
    groups = formed(graph, EPILOGUE)
    assert shown(graph, groups) == ["mul_mat add gelu add*"]
    assert EPILOGUE.names(Group(tuple(nodes), (False, False, False, True))) == {"w": w, "x": x, "mul_mat": product}
    # sources of the start are never overwritten
    assert {graph.tensors[p] for p in groups.inplace[graph.index[nodes[-1]]]} == {b, residual}
    graph = Graph(gg.add(gg.gelu(x), x))
    assert formed(graph, EPILOGUE) is UNGROUPED


def test_the_first_pattern_in_the_list_wins_and_a_node_is_in_one_group() -> None:
    graph = Graph(gg.neg(affine()[-1]))
    assert shown(graph, formed(graph, AFFINE, RUN)) == ["mul add neg*"]
    graph = Graph(affine()[-1])
    assert shown(graph, formed(graph, AFFINE, RUN)) == ["norm mul add*"]
    assert shown(graph, formed(graph, RUN, AFFINE)) == ["mul add*"]
    assert shown(graph, formed(graph, AFFINE, RUN, declines=["norm mul add"])) == ["mul add*"]


def test_names_are_used_once_and_stand_for_something() -> None:
    with pytest.raises(ParameterError, match="twice"):
        pattern("twice", lambda x: ADD(NEG(x), NEG(x)))
    with pytest.raises(ParameterError, match="twice"):
        pattern("twice", lambda neg: NEG(neg))
    with pytest.raises(ParameterError, match="no parameter 'y'"):
        pattern("unknown", lambda x: NEG(x), inplace=("y",))


# -- rules: results that have to be kept ----------------------------------------------------------------


def kept_of(outputs: Sequence[Tensor], *, leaving: Sequence[Tensor] = ()) -> list[str]:
    graph = Graph(*outputs)
    return shown(graph, formed(graph, AFFINE, leaving=[graph.index[tensor] for tensor in leaving]))


def test_an_output_is_kept() -> None:
    nodes = affine()
    nodes[0].set_output()
    assert kept_of([nodes[-1]]) == ["norm* mul add*"]


def test_a_result_with_a_view_that_is_an_output_or_that_nobody_reads_is_kept() -> None:
    nodes = affine()
    assert kept_of([nodes[-1], gg.reshape(nodes[0], 24)]) == ["norm* mul add*"]
    nodes = affine()
    seen = gg.reshape(nodes[0], 24).set_output()
    assert kept_of([nodes[-1], gg.view(seen, 4)]) == ["norm* mul add*"]


def test_a_result_that_another_node_reads_is_kept_also_through_a_view() -> None:
    nodes = affine()
    assert kept_of([nodes[-1], gg.neg(nodes[1])]) == ["norm mul* add*"]
    nodes = affine()
    assert kept_of([nodes[-1], gg.neg(gg.view(nodes[0], 4))]) == ["norm* mul add*"]


def test_a_result_that_leaves_its_part_is_kept() -> None:
    nodes = affine()
    assert kept_of([nodes[-1]], leaving=[nodes[0]]) == ["norm* mul add*"]
    nodes = affine()
    view = gg.view(nodes[1], 8)
    graph = Graph(nodes[-1], gg.neg(view))
    part = Graph.part([*nodes, view], whole=graph)
    leaving = [part.index[view]]
    assert shown(part, form_groups(part, [AFFINE], lambda group: None, leaving)) == ["norm mul* add*"]


def test_a_result_with_a_place_of_its_own_is_kept() -> None:
    nodes = affine()
    nodes[1].place(HOST.alloc(nodes[1].nbytes))
    assert kept_of([nodes[-1]]) == ["norm mul* add*"]


def test_a_result_that_an_op_writes_into_is_kept() -> None:
    nodes = affine()
    written = gg.set_rows(nodes[0], leaf(8, 1), gg.new_tensor("i64", 1))
    last = gg.add(gg.mul(nodes[0], leaf(8)), leaf(8))
    graph = Graph(last, written)
    assert shown(graph, formed(graph, AFFINE)) == ["norm* mul add*"]


def test_a_result_that_the_group_itself_writes_into_is_kept() -> None:
    written = pattern("written", lambda x, y, rows: SET_ROWS(SILU(x), y, rows))
    graph = Graph(gg.set_rows(gg.silu(leaf(8, 3)), leaf(8, 1), gg.new_tensor("i64", 1)))
    assert shown(graph, formed(graph, written)) == ["silu* set_rows*"]


def test_a_device_may_decline_to_keep_results() -> None:
    nodes = affine()
    nodes[0].set_output()
    graph = Graph(nodes[-1])
    groups = formed(graph, AFFINE, kept=False)
    assert not groups.members
    (missed,) = groups.missed
    assert missed.pattern == "norm_affine"
    assert [graph.tensors[p] for p in missed.nodes] == nodes
    assert "is an output" in missed.reason
    assert "keeps no result inside" in missed.reason


def test_where_a_shorter_chain_is_found_it_is_told_why_the_rest_is_alone() -> None:
    graph = Graph(affine()[-1])
    for patterns in ((AFFINE,), (AFFINE, RUN)):
        (missed,) = formed(graph, *patterns, declines=["norm mul add"]).missed
        assert (missed.pattern, missed.reason) == ("norm_affine", "not these")
    assert formed(graph, AFFINE, RUN).missed == ()


# -- rules: nodes that cannot be computed at the last one's place ------------------------------------------


def test_a_node_in_between_that_reads_a_result_of_the_group_breaks_it() -> None:
    nodes = affine()
    between = gg.neg(nodes[0])
    last = gg.add(nodes[1], gg.view(between, 8))
    graph = Graph(last)
    groups = formed(graph, AFFINE)
    assert not groups.members
    assert "is computed in between" in groups.missed[0].reason
    assert "read after write" in groups.missed[0].reason


def cache_graph(*, before: bool) -> Graph:
    """A norm of a cache with scale and shift, and a write into the cache before the norm, or in between."""
    cache = leaf(8, 3)
    write = gg.set_rows(cache, leaf(8, 1), gg.new_tensor("i64", 1))
    nodes = affine(cache)
    return Graph(write, nodes[-1]) if before else Graph(nodes[0], write, nodes[-1])


def test_a_write_in_between_into_what_the_group_reads_breaks_it() -> None:
    assert len(formed(cache_graph(before=True), AFFINE).members) == 1
    groups = formed(cache_graph(before=False), AFFINE)
    assert not groups.members
    assert "write after read" in groups.missed[0].reason


def test_a_node_in_between_that_has_nothing_to_do_with_the_group_is_no_matter() -> None:
    nodes = affine()
    other = gg.neg(leaf(8))
    graph = Graph(nodes[0], other, nodes[1], gg.add(nodes[1], other))
    assert shown(graph, formed(graph, AFFINE)) == ["norm mul add*"]


def test_a_write_of_the_group_that_a_node_in_between_reads_breaks_it() -> None:
    cache, x, rows = leaf(8, 5), leaf(8, 3), gg.new_tensor("i64", 3)
    stored, other, last = gg.set_rows(cache, x, rows), gg.neg(x), gg.silu(x)
    graph = Graph(stored, other, last)
    check_groups(graph, Groups([(graph.index[stored], graph.index[last])]))
    graph = Graph(stored, gg.sqr(gg.view(cache, 8)), last)
    assert "read after write" in refusal(graph, Groups([(graph.index[stored], graph.index[last])]))


def test_a_group_does_not_read_the_bytes_that_it_writes() -> None:
    cache, rows, pos = leaf(16, 5), gg.new_tensor("i64", 3), gg.new_tensor("i32", 3)

    def stored(x: Tensor) -> Graph:
        return Graph(gg.set_rows(cache, gg.reshape(gg.rope(x, pos, n_dims=8), 16, 3), rows))

    assert len(formed(stored(leaf(8, 2, 3)), STORED).members) == 1
    groups = formed(stored(gg.reshape(gg.view(cache, 48), 8, 2, 3)), STORED)
    assert not groups.members
    assert "which the group also reads" in groups.missed[0].reason


def test_a_result_that_lies_where_the_group_reads_breaks_it() -> None:
    def gated() -> tuple[Tensor, Tensor]:
        x = leaf(8, 3)
        x.place(HOST.alloc(256))
        return x, ops.swiglu(ops.mul_mat(leaf(8, 8), x), ops.mul_mat(leaf(8, 8), x))

    for offset, wanted in ((0, []), (32, []), (128, ["mul_mat mul_mat swiglu*"])):
        x, result = gated()
        assert x.buffer is not None
        result.place(x.buffer, offset)
        graph = Graph(result)
        assert shown(graph, formed(graph, GATED)) == wanted


def test_groups_of_an_allocation_are_refused_to_a_graph_that_shares_bytes() -> None:
    graphs = []
    for shares in (False, True):
        x = leaf(8, 3)
        x.place(HOST.alloc(256))
        x.set(1)
        w = gg.tensor(np.ones((8, 8)), type="f32")
        result = ops.swiglu(ops.mul_mat(w, x), ops.mul_mat(w, x))
        assert x.buffer is not None
        result.place(x.buffer, 0 if shares else 128)
        graphs.append(Graph(result))
    groups = formed(graphs[0], GATED)
    allocation = GraphAllocator(HOST).allocate(graphs[0], groups=groups)
    allocation.check(graphs[0], groups)
    with pytest.raises(GraphError, match="which the group also reads"):
        allocation.check(graphs[1], groups)


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
def test_equal_graphs_that_share_bytes_differently_are_grouped_differently(name: str) -> None:
    device = device_or_skip(name)
    random = np.random.default_rng(3)
    with gg.Scheduler([device]) as scheduler:
        for shares in (False, True, False, True):
            w, x, r = leaf(48, 64), leaf(48, 9), leaf(64, 9)
            for tensor in (w, x, r):
                tensor.place(device.buffer_type.alloc(tensor.nbytes))
                tensor.set(random.standard_normal(tensor.shape))
            wanted = x.numpy().astype(float) @ w.numpy().T.astype(float) + r.numpy()
            y = ops.add(ops.mul_mat(w, x), r).set_output()
            memory = r.buffer if shares else device.buffer_type.alloc(r.nbytes)
            assert memory is not None
            y.place(memory, 0)
            scheduler.compute(Graph(y))
            np.testing.assert_allclose(y.numpy(), wanted, atol=1e-4)


def test_nodes_without_elements_are_in_no_group() -> None:
    assert formed(Graph(affine(leaf(8, 0))[-1]), AFFINE) is UNGROUPED


# -- groups that a device forms by itself are checked ----------------------------------------------------


def refusal(graph: Graph, groups: Groups, order: Sequence[int] | None = None, leaving: Collection[int] = ()) -> str:
    with pytest.raises(GraphError) as caught:
        check_groups(graph, groups, order, leaving)
    return str(caught.value)


def test_groups_that_break_a_rule_are_refused_in_words() -> None:
    nodes = affine()
    view = gg.reshape(nodes[-1], 24)
    graph = Graph(gg.neg(view), gg.sqr(nodes[0]))
    at = graph.index
    positions = tuple(at[node] for node in nodes)
    check_groups(graph, Groups([positions], frozenset([positions[1]])))
    assert "is also read by" in refusal(graph, Groups([positions], frozenset(positions[:2])))
    assert "is the group's result" in refusal(graph, Groups([positions], frozenset(positions[1:])))
    assert "is marked as inner, but is in no group" in refusal(
        graph, Groups([positions[1:]], frozenset([positions[0]]))
    )
    assert "in the order in which they are computed" in refusal(graph, Groups([positions[::-1]]))
    assert "two or more nodes" in refusal(graph, Groups([positions[:1]]))
    assert "computes nothing" in refusal(graph, Groups([(positions[-1], at[view])]))
    assert "is not that of a node" in refusal(graph, Groups([(at[nodes[0].src[0]], positions[0])]))  # type: ignore[index]
    assert "is not that of a node" in refusal(graph, Groups([(positions[0], 99)]))
    assert "is also in another group" in refusal(graph, Groups([positions[:2], positions[1:]]))
    assert "is computed in between" in refusal(graph, Groups([(positions[0], positions[2])]))


def test_groups_of_other_things_than_positions_are_refused_in_words() -> None:
    nodes = affine()
    graph = Graph(gg.neg(nodes[-1]))
    _, second, last = (graph.index[node] for node in nodes)
    x = graph.index[nodes[0].src[0]]  # type: ignore[index]
    pair, result = (second, last), graph.index[nodes[-1]]
    for members in ((float(second), last), ("a", "b"), (True, last), (None, last), "ab", 5):
        assert "a tuple of positions" in refusal(graph, Groups([members]))  # type: ignore[list-item]
    for inner in (frozenset("a"), frozenset([float(second)]), (second,), frozenset([None, second])):
        assert "a frozenset of positions" in refusal(graph, Groups([pair], inner))  # type: ignore[arg-type]
    for sources in (5, [x], (float(x),), ("x",)):
        groups = Groups([pair])
        groups.inplace = {result: sources}  # type: ignore[dict-item]
        assert "inplace must map positions to tuples of positions" in refusal(graph, groups)
    for missed in (5, (1, 2), Missed((99,), "", ""), Missed(("a",), "", ""), Missed(5, "", "")):  # type: ignore[arg-type]
        assert "missed must hold objects" in refusal(graph, Groups([pair], missed=[missed]))  # type: ignore[list-item]


def test_positions_that_stand_for_nothing_are_refused_in_words() -> None:
    nodes = affine()
    graph = Graph(gg.neg(nodes[-1]))
    first, second, last = (graph.index[node] for node in nodes)
    for members in ((1000, 1001), (-1, -2), (-1, last), (second, 10**9), ()):
        assert "cannot be a group" in refusal(graph, Groups([members]))
    for stray in (first, last, 99, -1):
        assert "is marked as inner, but is in no group" in refusal(graph, Groups([], frozenset([stray])))
    pair = (second, last)
    for end in (first, second, 99, -1):
        assert "is not the last node of a group" in refusal(graph, Groups([pair], inplace={end: (first,)}))
    for source in (second, last, 99, -1, graph.index[graph.nodes[-1]]):
        assert "not one of its sources" in refusal(graph, Groups([pair], inplace={last: (source,)}))
    check_groups(graph, Groups([pair], frozenset([second]), {last: (first,)}))


def test_groups_are_checked_again_when_what_they_depend_on_changes() -> None:
    nodes = affine()
    graph = Graph(gg.neg(nodes[-1]))
    groups = formed(graph, AFFINE)
    asked = groups.checked
    check_groups(graph, groups)
    assert groups.checked is asked  # not again
    nodes[0].set_output()
    assert "is an output" in refusal(graph, groups)
    nodes = affine()
    graph = Graph(gg.neg(nodes[-1]))
    groups = formed(graph, AFFINE)
    nodes[1].place(HOST.alloc(nodes[1].nbytes))
    assert "has a place of its own" in refusal(graph, groups)
    graph = Graph(gg.neg(affine()[-1]))
    check_groups(graph, groups)
    assert "is needed by another part" in refusal(graph, groups, leaving=[graph.index[graph.nodes[0]]])
    assert "is not that of a node" in refusal(Graph(gg.neg(leaf(8))), groups)


def test_what_is_written_into_a_source_is_never_inside() -> None:
    x, rows = leaf(8, 3), gg.new_tensor("i64", 3)
    stored, last = gg.set_rows(leaf(8, 5), x, rows), gg.silu(x)
    graph = Graph(stored, last)
    members = positions = (graph.index[stored], graph.index[last])
    assert "writes into a source" in refusal(graph, Groups([members], frozenset(positions[:1])))


def test_groups_are_checked_in_the_order_in_which_nodes_are_computed() -> None:
    nodes = affine()
    other = gg.sqr(nodes[0])
    graph = Graph(nodes[-1], other)
    groups = Groups([tuple(graph.index[node] for node in nodes)], frozenset([graph.index[nodes[1]]]))
    check_groups(graph, groups)
    order = [graph.index[node] for node in (nodes[0], other, *nodes[1:])]
    assert "is computed in between" in refusal(graph, groups, order)


class Searched(Chain):
    """A chain that counts how often it is looked for."""

    def __init__(self) -> None:
        super().__init__("searched", (ops.Silu, ops.Neg), None, True, 8)
        self.count = 0

    def find(self, last: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> Iterator[Found]:
        self.count += 1
        return super().find(last, free, lone)


def found_again(first: Graph, second: Graph, declined: Callable[[Group], str | None] = lambda group: None) -> bool:
    """Whether the second graph's groups are found without a search, because those of the first are known.

    Either way they have to be those that are found without knowing any.
    """
    tried: Tried = {}
    searched = Searched()
    form_groups(first, [searched], declined, (), tried)
    searched.count = 0
    groups = form_groups(second, [searched], declined, (), tried)
    known = searched.count == 0
    alone = form_groups(second, [searched], declined)
    assert (groups, groups.missed) == (alone, alone.missed)
    return known


def test_nothing_is_searched_for_a_graph_that_differs_from_an_earlier_one_in_extents_alone() -> None:
    assert found_again(Graph(gg.neg(gg.silu(leaf(8, 3)))), Graph(gg.neg(gg.silu(leaf(16, 5)))))
    part, other = gg.view(leaf(8, 3), 8), gg.view(leaf(8, 3), 4, offset=16)
    assert found_again(Graph(gg.neg(gg.silu(part))), Graph(gg.neg(gg.silu(other))))


def test_groups_are_searched_where_more_than_extents_differs() -> None:
    first = Graph(gg.neg(gg.silu(leaf(8, 3))))
    output, placed, read = gg.silu(leaf(8)), gg.silu(leaf(8)), gg.silu(leaf(8))
    output.set_output()
    placed.place(HOST.alloc(placed.nbytes))
    others = [gg.silu(gg.neg(leaf(8, 3))), gg.neg(output), gg.neg(placed)]
    others += [gg.add(gg.neg(read), read), gg.neg(gg.silu(gg.new_tensor("f16", (8, 3))))]
    found = [found_again(first, Graph(other)) for other in others]
    assert not any(found)
    assert not found_again(Graph(gg.neg(gg.silu(leaf(0, 3)))), first)


def test_groups_are_searched_where_the_device_gives_another_answer() -> None:
    def declined(group: Group) -> str | None:
        return "too large" if group.node.size > 100 else None

    small, other, large = (Graph(gg.neg(gg.silu(leaf(size)))) for size in (8, 16, 128))
    assert found_again(small, other, declined)
    assert not found_again(small, large, declined)
    assert not found_again(large, small, declined)


def test_groups_are_searched_where_other_accesses_overlap() -> None:
    def written_between(offset: int) -> list[Tensor]:
        """A chain between whose nodes another one writes rows of what the first one reads, or rows behind these."""
        whole = leaf(8, 8)
        first = gg.silu(gg.view(whole, 8, 2))
        rows = gg.view(whole, 8, 2, nb=(32,), offset=offset)
        return [first, gg.set_rows(rows, leaf(8, 1), gg.new_tensor("i64", 1)), gg.neg(first)]

    assert found_again(Graph(*written_between(96)), Graph(*written_between(160)))
    assert not found_again(Graph(*written_between(96)), Graph(*written_between(32)))
    assert not found_again(Graph(*written_between(32)), Graph(*written_between(96)))


def test_only_some_graphs_are_remembered() -> None:
    tried: Tried = {}
    for length in range(2 * ALIKE):
        last = leaf(8)
        for _ in range(length):
            last = gg.silu(last)
        form_groups(Graph(last), [RUN], lambda group: None, (), tried)
        assert len(tried) <= ALIKE


def test_groups_of_random_graphs_satisfy_their_rules() -> None:
    rng = np.random.default_rng(11)
    count = 0
    for _ in range(60):
        tensors = [leaf(4, 2), leaf(4)]
        for _ in range(int(rng.integers(3, 14))):
            a, b = (tensors[int(i)] for i in rng.integers(0, len(tensors), 2))
            kind = int(rng.integers(0, 6))
            if kind < 3:
                made = (gg.norm, gg.silu, gg.neg)[kind](a)
            elif kind == 3:
                made = gg.view(a, 4)
            else:
                made = (gg.add, gg.mul)[kind % 2](tensors[0] if a.ne[1] < b.ne[1] else a, b)
            tensors.append(made)
        graph = Graph(tensors[-1], *(t for t in tensors[2:] if rng.random() < 0.1))
        count += len(formed(graph, AFFINE, RUN).members)
    assert count > 30


def test_the_bytes_that_a_group_reads_and_writes_must_not_meet_whatever_joins_their_roots() -> None:
    buffer = HOST.alloc(4096)
    for offset, meets in ((64, False), (32, True), (0, True)):
        low, w, whole = leaf(8, 2), leaf(8, 2), leaf(8, 4)
        normed = gg.rms_norm(low)
        y = gg.mul(normed, w)
        for tensor, place in ((low, 0), (w, 1024), (whole, 0), (y, offset)):
            tensor.place(buffer, place)
        for graph in (Graph(y), Graph(y, gg.neg(whole))):
            groups = Groups([(graph.index[normed], graph.index[y])])
            if meets:
                with pytest.raises(GraphError, match=r"writes into bytes of .*, which the group also reads"):
                    check_groups(graph, groups)
            else:
                check_groups(graph, groups)

"""Accesses to the same bytes keep their order: who writes is declared, and views share the bytes of their root."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_graphs import random_case

import ggplug as gg
from ggplug.host import HOST
from ggplug.memory import Access, HazardKind, Hazards, allocate_graph
from ggplug.ops.base import Op, apply
from ggplug.tensor import Spec

RAW, WAR, WAW = HazardKind.RAW, HazardKind.WAR, HazardKind.WAW


def leaf(*ne: int, kind: str = "f32") -> gg.Tensor:
    return gg.new_tensor(kind, ne)


def rows(x: gg.Tensor, first: int, count: int) -> gg.Tensor:
    return gg.view(x, x.ne[0], count, nb=(x.nb[1],), offset=first * x.nb[1])


def edges(graph: gg.Graph) -> set[tuple[gg.Tensor, gg.Tensor, HazardKind]]:
    return {(graph.nodes[e.before], graph.nodes[e.after], e.kind) for e in Hazards(graph).edges}


def test_a_reader_follows_the_node_that_computes_its_source() -> None:
    a = gg.silu(leaf(4))
    b = gg.neg(a)
    assert edges(gg.Graph(b)) == {(a, b, RAW)}


def test_a_reader_of_a_view_follows_the_root() -> None:
    a = gg.silu(leaf(4, 4))
    v = gg.transpose(rows(a, 1, 2))
    b = gg.cont(v)
    assert edges(gg.Graph(b)) == {(a, b, RAW)}


def test_a_write_into_a_cache_comes_before_a_later_read_and_after_an_earlier_one() -> None:
    cache, x, index = leaf(4, 8), leaf(4, 2), leaf(2, kind="i64")
    before = gg.cont(cache)
    write = gg.set_rows(cache, x, index)
    after = gg.cont(cache)
    assert edges(gg.Graph(before, write, after)) == {(before, write, WAR), (write, after, RAW)}


def test_persistent_tensors_that_share_bytes_are_one_memory() -> None:
    buffer = HOST.alloc(256)
    whole, second, elsewhere = leaf(4, 4), leaf(4, 2), leaf(4, 2)
    whole.place(buffer, 64)
    second.place(buffer, 64 + 32)
    elsewhere.place(buffer, 0)
    before, apart = gg.cont(whole), gg.cont(elsewhere)
    first = gg.cont(rows(whole, 0, 2))
    write = gg.cpy(gg.silu(leaf(4, 2)), second)
    after = gg.cont(whole)
    graph = gg.Graph(before, first, apart, write, after)
    assert {(before, write, WAR), (write, after, RAW)} <= edges(graph)
    assert not any(write in edge for edge in edges(graph) if first in edge or apart in edge)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    hazards = Hazards(graph)
    assert hazards.is_rewritten(graph.index[whole], 0, numbers[write])
    assert not hazards.is_rewritten(graph.index[whole], 0, numbers[write] - 1)


def test_a_result_with_a_place_in_what_others_read_keeps_its_order_too() -> None:
    x, y = leaf(4), gg.silu(leaf(4))
    x.place(HOST.alloc(64))
    assert x.buffer is not None
    y.place(x.buffer, 0)
    before, after = gg.neg(x), gg.cont(x)
    assert edges(gg.Graph(before, y, after)) == {(before, y, WAR), (y, after, RAW)}


def test_the_order_of_expansion_decides_what_a_read_sees() -> None:
    cache, x, index = leaf(4, 8), leaf(4, 2), leaf(2, kind="i64")
    read, write = gg.cont(cache), gg.set_rows(cache, x, index)
    assert edges(gg.Graph(write, read)) == {(write, read, RAW)}
    assert edges(gg.Graph(read, write)) == {(read, write, WAR)}


def test_writes_to_different_bytes_of_a_root_are_independent() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    low, high = gg.cpy(x, rows(cache, 0, 2)), gg.cpy(x, rows(cache, 4, 2))
    seen = gg.cont(rows(cache, 4, 2))
    assert edges(gg.Graph(low, high, seen)) == {(high, seen, RAW)}


def test_overlapping_writes_keep_their_order() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    first, second = gg.cpy(x, rows(cache, 0, 2)), gg.cpy(x, rows(cache, 1, 2))
    assert edges(gg.Graph(first, second)) == {(first, second, WAW)}


def test_what_a_write_covers_needs_no_edge_to_later_nodes() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    first, whole = gg.cpy(x, rows(cache, 0, 2)), gg.cpy(leaf(4, 8), cache)
    read = gg.cont(cache)
    assert edges(gg.Graph(first, whole, read)) == {(first, whole, WAW), (whole, read, RAW)}


def test_a_write_into_an_intermediate_follows_it_and_precedes_its_readers() -> None:
    a = gg.silu(leaf(4, 4))
    write = gg.set_rows(a, leaf(4, 1), leaf(1, kind="i64"))
    read = gg.neg(a)
    found = edges(gg.Graph(write, read))
    assert found == {(a, write, WAW), (write, read, RAW)}


def test_reads_and_writes_are_byte_ranges_of_roots() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    graph = gg.Graph(gg.cpy(x, rows(cache, 2, 2)))
    hazards = Hazards(graph)
    number = len(graph.nodes) - 1
    assert hazards.writes(number) == [Access(graph.index[cache], 32, 64)]
    assert hazards.reads(number) == [Access(graph.index[x], 0, 32), Access(graph.index[cache], 32, 64)]
    assert hazards.reads(number - 1) == hazards.writes(number - 1) == []


def test_a_copy_is_stale_after_a_write_into_its_bytes_only() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    read, untouched = rows(cache, 0, 2), rows(cache, 6, 2)
    graph = gg.Graph(gg.cont(read), gg.cont(untouched), gg.cpy(x, rows(cache, 1, 2)), gg.cont(read))
    hazards = Hazards(graph)
    write = next(n for n, node in enumerate(graph.nodes) if node.op is not None and node.op.writes)
    assert hazards.is_rewritten(graph.index[read], 0, write)
    assert not hazards.is_rewritten(graph.index[read], 0, write - 1)
    assert not hazards.is_rewritten(graph.index[untouched], 0, len(graph))


@pytest.mark.parametrize("swap", [False, True])
def test_an_order_that_changes_the_meaning_is_refused(swap: bool) -> None:
    cache, x, index = leaf(4, 8), leaf(4, 2), leaf(2, kind="i64")
    graph = gg.Graph(gg.cont(cache), gg.set_rows(cache, x, index))
    order = graph.order[::-1] if swap else graph.order
    if swap:
        with pytest.raises(gg.GraphError, match="write after read"):
            Hazards(graph).check_order(order)
    else:
        Hazards(graph).check_order(order)


def test_an_order_with_a_node_before_its_source_is_refused() -> None:
    graph = gg.Graph(gg.neg(gg.silu(leaf(4))))
    with pytest.raises(gg.GraphError, match="before its source"):
        Hazards(graph).check_order(graph.order[::-1])


def test_an_order_has_to_hold_every_node() -> None:
    graph = gg.Graph(gg.neg(gg.silu(leaf(4))))
    with pytest.raises(gg.GraphError, match="each of its nodes once"):
        Hazards(graph).check_order(graph.order[:1])


@pytest.fixture
def define() -> Callable[..., type[Op]]:
    """Defines an op for one test."""
    from ggplug.ops.base import OPS

    made: list[str] = []

    def make(name: str, **attributes: object) -> type[Op]:
        made.append(name)
        return type("Broken", (Op,), {"name": name, **attributes})

    yield make
    for name in made:
        OPS.pop(name, None)


def test_a_write_that_is_not_declared_is_refused(define: Callable[..., type[Op]]) -> None:
    sneaky = define("test.sneaky", result=lambda self, x: Spec(x.type, x.ne, x.rank, x.nb, x))
    graph = gg.Graph(apply(sneaky(), (leaf(4),)))
    with pytest.raises(gg.GraphError, match="without declaring it"):
        Hazards(graph)
    with pytest.raises(gg.GraphError, match="without declaring it"):
        allocate_graph(graph, HOST)


def test_a_declared_write_whose_result_lies_elsewhere_is_refused(define: Callable[..., type[Op]]) -> None:
    boastful = define("test.boastful", writes=(0,), result=lambda self, x: Spec(x.type, x.ne, x.rank))
    with pytest.raises(gg.GraphError, match="is no view of that source"):
        Hazards(gg.Graph(apply(boastful(), (leaf(4),))))


@pytest.mark.parametrize("seed", range(40))
def test_edges_order_every_pair_of_conflicting_accesses(seed: int) -> None:
    graph = random_case(seed).graph
    hazards = Hazards(graph)
    after: list[set[int]] = [set() for _ in graph.nodes]
    for edge in hazards.edges:
        after[edge.before].add(edge.after)
    reachable: list[set[int]] = [set() for _ in graph.nodes]
    for number in range(len(graph) - 1, -1, -1):
        for other in after[number]:
            reachable[number] |= {other} | reachable[other]
    for second in range(len(graph)):
        for first in range(second):
            conflict = any(
                a.overlaps(b)
                for mine, theirs in (("writes", "reads"), ("reads", "writes"), ("writes", "writes"))
                for a in getattr(hazards, mine)(first)
                for b in getattr(hazards, theirs)(second)
            )
            if conflict:
                assert second in reachable[first], (graph.nodes[first], graph.nodes[second])

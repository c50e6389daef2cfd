"""Accesses to the same bytes keep their order: who writes is declared, and views share the bytes of their root."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from random_graphs import random_case

import ggplug as gg
from ggplug.host import HOST
from ggplug.memory import Access, HazardKind, Hazards, allocate_graph
from ggplug.nodes.hazards import Latest
from ggplug.ops.base import Op, apply
from ggplug.tensor import Spec

RAW, WAR, WAW = HazardKind.RAW, HazardKind.WAR, HazardKind.WAW


def leaf(*ne: int, kind: str = "f32") -> gg.Tensor:
    return gg.new_tensor(kind, ne)


def last_writes(graph: gg.Graph, tensor: gg.Tensor) -> list[int]:
    """For each node the last one up to it that writes into bytes of a tensor."""
    hazards, found = Hazards(graph), []
    latest = Latest(hazards)
    for number in range(len(graph)):
        for access in hazards.writes(number):
            latest.note(access, number)
        found.append(latest.of(hazards.access(graph.index[tensor])))
    return found


def rows(x: gg.Tensor, first: int, count: int) -> gg.Tensor:
    return gg.view(x, x.ne[0], count, nb=(x.nb[1],), offset=first * x.nb[1])


def ordered(graph: gg.Graph) -> set[tuple[gg.Tensor, gg.Tensor, HazardKind]]:
    """The pairs of nodes that have to keep their order, and why."""
    hazards, n = Hazards(graph), len(graph)
    return {(graph.nodes[b], graph.nodes[a], kind) for b in range(n) for a, kind in hazards.between(b, n)}


def test_a_reader_follows_the_node_that_computes_its_source() -> None:
    a = gg.silu(leaf(4))
    b = gg.neg(a)
    assert ordered(gg.Graph(b)) == {(a, b, RAW)}


def test_a_reader_of_a_view_follows_the_root() -> None:
    a = gg.silu(leaf(4, 4))
    v = gg.transpose(rows(a, 1, 2))
    b = gg.cont(v)
    assert ordered(gg.Graph(b)) == {(a, b, RAW)}


def test_a_write_into_a_cache_comes_before_a_later_read_and_after_an_earlier_one() -> None:
    cache, x, index = leaf(4, 8), leaf(4, 2), leaf(2, kind="i64")
    before = gg.cont(cache)
    write = gg.set_rows(cache, x, index)
    after = gg.cont(cache)
    assert ordered(gg.Graph(before, write, after)) == {(before, write, WAR), (write, after, RAW)}


def test_persistent_tensors_that_share_bytes_are_one_memory() -> None:
    buffer = HOST.alloc(256)
    whole, second, other = leaf(4, 4), leaf(4, 2), leaf(4, 2)
    whole.place(buffer, 64)
    second.place(buffer, 64 + 32)
    other.place(buffer, 0)
    before, apart = gg.cont(whole), gg.cont(other)
    first = gg.cont(rows(whole, 0, 2))
    write = gg.cpy(gg.silu(leaf(4, 2)), second)
    after = gg.cont(whole)
    graph = gg.Graph(before, first, apart, write, after)
    assert {(before, write, WAR), (write, after, RAW)} <= ordered(graph)
    assert not any(write in pair for pair in ordered(graph) if first in pair or apart in pair)
    assert last_writes(graph, whole)[-1] == graph.nodes.index(write)


def test_a_result_with_a_place_in_what_others_read_keeps_its_order_too() -> None:
    x, y = leaf(4), gg.silu(leaf(4))
    x.place(HOST.alloc(64))
    assert x.buffer is not None
    y.place(x.buffer, 0)
    before, after = gg.neg(x), gg.cont(x)
    assert ordered(gg.Graph(before, y, after)) == {(before, y, WAR), (y, after, RAW)}


def test_the_order_of_expansion_decides_what_a_read_sees() -> None:
    cache, x, index = leaf(4, 8), leaf(4, 2), leaf(2, kind="i64")
    read, write = gg.cont(cache), gg.set_rows(cache, x, index)
    assert ordered(gg.Graph(write, read)) == {(write, read, RAW)}
    assert ordered(gg.Graph(read, write)) == {(read, write, WAR)}


def test_writes_to_different_bytes_of_a_root_are_independent() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    low, high = gg.cpy(x, rows(cache, 0, 2)), gg.cpy(x, rows(cache, 4, 2))
    seen = gg.cont(rows(cache, 4, 2))
    assert ordered(gg.Graph(low, high, seen)) == {(high, seen, RAW)}


def test_overlapping_writes_keep_their_order() -> None:
    cache, x = leaf(4, 8), leaf(4, 2)
    first, second = gg.cpy(x, rows(cache, 0, 2)), gg.cpy(x, rows(cache, 1, 2))
    assert ordered(gg.Graph(first, second)) == {(first, second, WAW)}


def test_a_write_into_an_intermediate_follows_it_and_precedes_its_readers() -> None:
    a = gg.silu(leaf(4, 4))
    write = gg.set_rows(a, leaf(4, 1), leaf(1, kind="i64"))
    read = gg.neg(a)
    found = ordered(gg.Graph(write, read))
    assert found == {(a, write, WAW), (a, read, RAW), (write, read, RAW)}


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
    write = next(n for n, node in enumerate(graph.nodes) if node.op is not None and node.op.writes)
    assert last_writes(graph, read) == [-1] * write + [write] * (len(graph) - write)
    assert last_writes(graph, untouched) == [-1] * len(graph)


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
    with pytest.raises(gg.GraphError, match="each node of the graph exactly once"):
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
    with pytest.raises(gg.GraphError, match="does not declare it"):
        Hazards(graph)
    with pytest.raises(gg.GraphError, match="does not declare it"):
        allocate_graph(graph, HOST)


def test_a_declared_write_whose_result_lies_elsewhere_is_refused(define: Callable[..., type[Op]]) -> None:
    boastful = define("test.boastful", writes=(0,), result=lambda self, x: Spec(x.type, x.ne, x.rank))
    with pytest.raises(gg.GraphError, match="is no view of that source"):
        Hazards(gg.Graph(apply(boastful(), (leaf(4),))))


# -- against single bytes --------------------------------------------------------------------------


def one_memory(seed: int) -> gg.Graph:
    """Nodes that read and write views of a few tensors, some of which share bytes: rows, columns, every second row."""
    rng = random.Random(seed)
    buffer = HOST.alloc(512)
    roots = [leaf(4, 8), leaf(4, 4), leaf(4, 2)]
    for root in roots:
        root.place(buffer, 16 * rng.randrange(20))
    roots += [gg.silu(leaf(4, 8)), gg.neg(leaf(4, 4)), leaf(4, 4)]
    graph = gg.Graph()

    def view() -> gg.Tensor:
        root = rng.choice(roots)
        first, step, columns = rng.randrange(root.ne[1]), rng.choice((1, 1, 2)), rng.choice((4, 4, 2, 1))
        count = rng.randint(1, (root.ne[1] - first + step - 1) // step)
        offset = first * root.nb[1] + 4 * rng.randrange(5 - columns)
        return gg.view(root, columns, count, nb=(step * root.nb[1],), offset=offset)

    for _ in range(25):
        one, other = view(), view()
        if rng.random() < 0.5:
            graph.expand(gg.cont(one))
        else:
            graph.expand(gg.cpy(other if one.ne == other.ne else gg.silu(leaf(*one.ne[:2])), one))
    return graph


GRAPHS = [one_memory(seed) for seed in range(40)] + [random_case(seed).graph for seed in range(40)]


def bytes_of(tensor: gg.Tensor) -> set[tuple[object, int]]:
    start = tensor.view_offset + tensor.root.offset
    return {(tensor.root.buffer or tensor.root, byte) for byte in range(start, start + tensor.nbytes)}


def touched(node: gg.Tensor) -> tuple[set[tuple[object, int]], set[tuple[object, int]]]:
    """The single bytes that a node reads, and those that it writes."""
    assert node.op is not None
    if node.op.is_view:
        return set(), set()
    read = [bytes_of(source) for source in node.src if source is not None]
    written = [bytes_of(node.src[i]) for i in node.op.writes] or [bytes_of(node)]
    return set().union(*read), set().union(*written)


def conflicts(graph: gg.Graph) -> dict[tuple[int, int], HazardKind]:
    found, nodes = {}, [touched(node) for node in graph.nodes]
    for after, (reads, writes) in enumerate(nodes):
        for before, (read, written) in enumerate(nodes[:after]):
            if written & writes:
                found[before, after] = WAW
            elif written & reads:
                found[before, after] = RAW
            elif read & writes:
                found[before, after] = WAR
    return found


def other_order(graph: gg.Graph, rng: random.Random) -> list[int]:
    """The numbers of the nodes in an order, near the graph's, in which each comes after its sources."""
    order: list[int] = []
    left = list(range(len(graph)))
    while left:
        missing = {graph.nodes[number] for number in left}
        ready = [number for number in left if not missing & {*graph.nodes[number].src, graph.nodes[number].view_src}]
        order.append(ready[0] if rng.random() < 0.6 else rng.choice(ready))
        left.remove(order[-1])
    return order


@pytest.mark.parametrize("graph", GRAPHS, ids=range(len(GRAPHS)))
def test_the_pairs_that_keep_their_order_are_those_that_touch_the_same_bytes(graph: gg.Graph) -> None:
    hazards, wanted = Hazards(graph), conflicts(graph)
    assert wanted
    for stop in (len(graph) // 2, len(graph)):
        for before in range(stop):
            here = [(after, kind) for (b, after), kind in sorted(wanted.items()) if b == before and after < stop]
            assert list(hazards.between(before, stop)) == here


def test_an_order_is_refused_if_and_only_if_it_turns_such_a_pair_around() -> None:
    verdicts = []
    for seed, graph in enumerate(GRAPHS):
        rng, hazards, wanted = random.Random(seed), Hazards(graph), conflicts(graph)
        for _ in range(10):
            order = other_order(graph, rng)
            place = {number: at for at, number in enumerate(order)}
            verdicts.append(any(place[before] > place[after] for before, after in wanted))
            with pytest.raises(gg.GraphError, match="must follow") if verdicts[-1] else contextlib.nullcontext():
                hazards.check_order([graph.order[number] for number in order])
    assert 100 < sum(verdicts) < len(verdicts) - 100


@pytest.mark.parametrize("graph", GRAPHS, ids=range(len(GRAPHS)))
def test_what_wrote_into_a_tensor_last_is_the_last_that_wrote_one_of_its_bytes(graph: gg.Graph) -> None:
    hazards = Hazards(graph)
    writes = [touched(node)[1] for node in graph.nodes]
    for tensor in graph.tensors:
        if hazards.memory(graph.index[tensor]) in hazards.rewritten and graph.users()[tensor]:
            wanted, last = [], -1
            for number, written in enumerate(writes):
                last = number if written & bytes_of(tensor) else last
                wanted.append(last)
            assert last_writes(graph, tensor) == wanted

"""Memory is reused, tightly, and never while somebody needs it."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import corpus
import numpy as np
import pytest
from random_graphs import compute_apart, random_case

import ggplug as gg
from ggplug.host import HOST, HostBufferType
from ggplug.memory import (
    Allocation,
    GraphAllocator,
    NeededBytes,
    allocate_graph,
    check_overlaps,
    compute_poisoned,
    lifetimes,
)
from ggplug.memory.packing import Item, largest_live_set, pack
from ggplug_testing import ReferenceDevice

STREAM = ReferenceDevice().init()


class Chunked(HostBufferType):
    """Host memory in buffers of at most 2 KiB."""

    max_size = 2048


MEMORIES = (HOST, HostBufferType("other"), Chunked("chunked"))


def check_against_separate_memory(seed: int) -> None:
    """A random graph gives the same bytes with reuse, without, in several memories, and poisoned."""
    case = random_case(seed, MEMORIES, size=40)
    wanted = compute_apart(case)
    rng = random.Random(seed)
    assignment = [rng.randrange(len(MEMORIES)) if t.root.nbytes <= 2048 else 0 for t in case.graph.tensors]
    for memories, numbers, reuse in (((HOST,), None, True), (MEMORIES, assignment, True), ((HOST,), None, False)):
        allocator = GraphAllocator(memories, reuse=reuse)
        for compute in (STREAM.compute, lambda graph, allocation: compute_poisoned(STREAM, graph, allocation)):
            case.restore()
            allocation = allocator.allocate(case.graph, numbers)
            check_overlaps(case.graph, allocation)
            case.set_inputs()
            compute(case.graph, allocation)
            assert case.results() == wanted, f"seed {seed}"
        if not reuse:
            assert not allocation.lost


@pytest.mark.parametrize("seed", range(150))
def test_reuse_changes_no_bit(seed: int) -> None:
    check_against_separate_memory(seed)


@pytest.mark.long
def test_reuse_changes_no_bit_of_2000_graphs() -> None:
    for seed in range(2000):
        check_against_separate_memory(seed)


# -- how tight -------------------------------------------------------------------------------------


def test_the_peak_is_at_most_a_tenth_above_the_largest_live_set_in_the_median() -> None:
    ratios = []
    for seed in range(100):
        graph = random_case(seed, size=80).graph
        layout = GraphAllocator(HOST).lay_out(graph)
        ratios.append(layout.peak[0] / layout.live[0])
    assert statistics.median(ratios) <= 1.1
    assert max(ratios) < 1.5


@pytest.mark.parametrize("part", [slice(None, None, 16), pytest.param(slice(None), marks=pytest.mark.long)], ids=str)
def test_the_peak_of_graphs_of_models_is_at_most_a_tenth_above_the_largest_live_set(
    tmp_path: Path, part: slice
) -> None:
    for name, content in [*corpus.graphs().items()][part]:
        with corpus.load(name, content, tmp_path) as graph:
            layout = GraphAllocator(HOST).lay_out(graph)
        assert layout.peak[0] <= 1.1 * layout.live[0], name


def random_items(rng: random.Random, count: int) -> list[Item]:
    items = []
    for first in range(count):
        life = int(rng.expovariate(1 / 4)) + 1 if rng.random() < 0.9 else rng.randrange(1, count)
        size = 64 * rng.choice((0, 1, 1, 2, 4, 8, 16, rng.randrange(1, 64)))
        items.append(Item(size, first, min(first + life, count)))
    return items


@pytest.mark.parametrize("count", [1, 2, 10, 50, 300, 1000])
@pytest.mark.parametrize("limit", [None, 64 * 64])
def test_pieces_that_live_together_never_overlap(count: int, limit: int | None) -> None:
    items = random_items(random.Random(count), count)
    offsets, peak, bound = pack(items, limit)
    assert (
        bound
        == largest_live_set(items)
        == max(sum(p.size for p in items if p.first <= now <= p.last) for now in range(count + 1))
    )
    for one, (a, start) in enumerate(zip(items, offsets, strict=True)):
        assert start >= 0
        assert start + a.size <= peak or not a.size
        assert limit is None or not a.size or start // limit == (start + a.size - 1) // limit
        for b, other in list(zip(items, offsets, strict=True))[:one]:
            if a.first <= b.last and b.first <= a.last and a.size and b.size:
                assert start + a.size <= other or other + b.size <= start
    if limit is None:
        assert peak <= 1.2 * bound


def test_nothing_is_packed_into_nothing() -> None:
    assert pack([]).peak == 0


def test_laying_out_ten_thousand_nodes_stays_quick() -> None:
    x = gg.new_tensor("f32", 64)
    layers = [gg.cont(x)]
    rng = random.Random(1)
    for _ in range(5000):
        layers.append(gg.add(gg.cont(layers[-1]), rng.choice(layers)))
    graph = gg.Graph(layers[-1])
    start = time.process_time()
    layout = GraphAllocator(HOST).lay_out(graph)
    # Generous: the machine that runs this may be slow, and the point is that it is not quadratic.
    assert time.process_time() - start < 5
    assert layout.peak[0] <= 1.1 * layout.live[0]


# -- lifetimes -------------------------------------------------------------------------------------


def test_an_intermediate_lives_from_its_node_to_its_last_reader() -> None:
    x = gg.new_tensor("f32", 4, name="x")
    a = gg.cont(x, name="a")
    b = gg.cont(a, name="b")
    v = gg.reshape(a, 2, 2, name="v")
    c = gg.cont(b, name="c")
    d = gg.sum_rows(v, name="d")
    graph = gg.Graph(c, d)
    lives = lifetimes(graph)

    def life(tensor: gg.Tensor) -> tuple[int, int]:
        return lives.first[graph.index[tensor]], lives.last[graph.index[tensor]]

    numbers = {node.name: number for number, node in enumerate(graph.nodes)}
    assert life(x) == (-1, len(graph)), "a leaf without a place keeps its value"
    assert life(a) == (numbers["a"], numbers["d"]), "a view extends the life of its root"
    assert life(b) == (numbers["b"], numbers["c"])
    assert life(c) == (numbers["c"], len(graph)), "a result that nobody reads is what was asked for"
    assert graph.index[v] not in lives.first


def test_marking_a_view_as_output_keeps_its_root() -> None:
    a = gg.cont(gg.new_tensor("f32", 4))
    view = gg.reshape(a, 2, 2).set_output()
    graph = gg.Graph(view, gg.cont(gg.cont(a)))
    assert lifetimes(graph).last[graph.index[a]] == len(graph)


def test_a_write_extends_the_life_of_what_it_writes_into() -> None:
    a = gg.cont(gg.new_tensor("f32", (4, 4)))
    other = gg.cont(gg.cont(gg.new_tensor("f32", 4)))
    write = gg.set_rows(a, gg.new_tensor("f32", 4), gg.new_tensor("i64", 1))
    graph = gg.Graph(other, a, write)
    lives = lifetimes(graph)
    assert lives.last[graph.index[a]] == len(graph)


# -- reading ---------------------------------------------------------------------------------------


def deep(x: gg.Tensor, layers: int = 6) -> list[gg.Tensor]:
    nodes = [gg.cont(x)]
    for _ in range(layers):
        nodes.append(gg.cont(nodes[-1]))
    return nodes


def test_reading_an_intermediate_whose_bytes_were_reused_raises() -> None:
    x = gg.new_tensor("f32", 8)
    nodes = deep(x)
    graph = gg.Graph(nodes[-1])
    allocation = allocate_graph(graph, HOST)
    x.set(np.arange(8))
    STREAM.compute(graph, allocation)
    assert nodes[-1].numpy().tolist() == list(range(8))
    with pytest.raises(gg.TensorStateError, match=r"reused by a later node of its graph \(mark it with set_output"):
        nodes[0].numpy()


def test_an_output_is_never_reused() -> None:
    x = gg.new_tensor("f32", 8)
    nodes = deep(x)
    nodes[1].set_output()
    graph = gg.Graph(nodes[-1])
    allocation = allocate_graph(graph, HOST)
    x.set(np.arange(8))
    STREAM.compute(graph, allocation)
    assert nodes[1].numpy().tolist() == list(range(8))


def test_a_source_that_was_overwritten_in_place_cannot_be_read() -> None:
    x = gg.new_tensor("f32", 8)
    a = gg.cont(x)
    b = gg.neg(a)
    graph = gg.Graph(b)
    allocation = allocate_graph(graph, HOST)
    x.set(np.arange(8))
    STREAM.compute(graph, allocation)
    assert allocation.lost == {graph.index[a]: 1}
    with pytest.raises(gg.TensorStateError, match="later node"):
        a.numpy()


def test_an_intermediate_that_still_has_its_bytes_can_be_read() -> None:
    x = gg.new_tensor("f32", 8)
    a = gg.cont(x)
    graph = gg.Graph(gg.sum_rows(a))
    allocation = allocate_graph(graph, HOST)
    x.set(np.arange(8))
    STREAM.compute(graph, allocation)
    assert a.numpy().tolist() == list(range(8))


def test_a_node_cannot_be_read_before_it_is_computed_but_a_leaf_can() -> None:
    x = gg.new_tensor("f32", 8)
    graph = gg.Graph(gg.cont(x))
    allocate_graph(graph, HOST)
    x.set(np.arange(8))
    assert x.numpy().tolist() == list(range(8))
    with pytest.raises(gg.TensorStateError, match="not computed yet"):
        graph.node(0).numpy()


def test_results_end_with_the_next_computation_in_the_same_memory() -> None:
    allocator = GraphAllocator(HOST)
    first, second = (gg.Graph(gg.cont(gg.new_tensor("f32", 8))) for _ in range(2))
    for graph in (first, second):
        allocation = allocator.allocate(graph)
        graph.leafs[0].set(np.ones(8))
        STREAM.compute(graph, allocation)
    assert second.node(0).numpy().sum() == 8
    with pytest.raises(gg.TensorStateError, match="later computation"):
        first.node(0).numpy()


def test_inputs_keep_their_values_from_run_to_run() -> None:
    x = gg.new_tensor("f32", 8)
    nodes = deep(x)
    graph = gg.Graph(nodes[-1])
    allocation = allocate_graph(graph, HOST)
    x.set(np.arange(8))
    for _ in range(3):
        STREAM.compute(graph, allocation)
        assert nodes[-1].numpy().tolist() == list(range(8))


def test_what_reuse_loses_is_exactly_what_no_longer_has_its_bytes() -> None:
    for seed in range(30):
        case = random_case(seed, size=40, writes=False)
        apart, shared = GraphAllocator(HOST, reuse=False), GraphAllocator(HOST)
        values: list[dict[int, bytes]] = []
        for allocator in (apart, shared):
            allocation = allocator.allocate(case.graph)
            case.set_inputs()
            STREAM.compute(case.graph, allocation)
            values.append({p: t.tobytes() for p, t in enumerate(case.graph.tensors) if p not in allocation.lost})
        assert len(values[0]) == len(case.graph.tensors)
        assert values[1].items() <= values[0].items(), f"seed {seed}"


# -- the checkers ----------------------------------------------------------------------------------


def overlapping() -> tuple[gg.Graph, Allocation]:
    """``a`` and ``b`` are both needed by the last node, and share 64 bytes."""
    x = gg.new_tensor("f32", 32, name="x")
    a, b = gg.cont(x, name="a"), gg.sqr(x, name="b")
    graph = gg.Graph(gg.concat(a, b, 0, name="c"))
    places = {"x": 0, "a": 128, "b": 192, "c": 384}
    buffer = HOST.alloc(1024)
    return graph, Allocation(graph, [buffer], [0] * 4, [places[t.name] for t in graph.tensors])


def test_the_overlap_checker_names_both_tensors() -> None:
    with pytest.raises(gg.OverlapError, match=r"'b'.*shares bytes 192 to 256 of buffer 0 with .*'a'"):
        check_overlaps(*overlapping())


def test_the_overlap_checker_finds_what_leaves_its_buffer() -> None:
    graph, allocation = overlapping()
    with pytest.raises(gg.OverlapError, match="the copy, bytes 960 to 1216, is not inside of its buffer of 1024 bytes"):
        check_overlaps(graph, allocation, extra=[NeededBytes("the copy", 0, 960, 256, 0, 0)])


def test_the_overlap_checker_knows_further_bytes_in_use() -> None:
    x = gg.new_tensor("f32", 32)
    graph = gg.Graph(gg.cont(x))
    allocation = allocate_graph(graph, HOST)
    assert check_overlaps(graph, allocation) == 1
    with pytest.raises(gg.OverlapError, match="the copy"):
        check_overlaps(graph, allocation, extra=[NeededBytes("the copy", 0, 0, 64, 0, 0)])


@pytest.mark.parametrize("mistake", ["not allowed", "read later"])
def test_the_overlap_checker_refuses_a_wrong_overwriting_in_place(mistake: str) -> None:
    x = gg.new_tensor("f32", 32)
    a = gg.cont(x)
    node = gg.cont(a) if mistake == "not allowed" else gg.neg(a)
    graph = gg.Graph(node) if mistake == "not allowed" else gg.Graph(node, gg.sum_rows(a))
    offsets = [0 if t is x else 128 if t in (a, node) else 256 for t in graph.tensors]
    with pytest.raises(gg.OverlapError):
        check_overlaps(graph, Allocation(graph, [HOST.alloc(512)], [0] * len(offsets), offsets))


def test_poison_makes_a_stale_read_visible() -> None:
    """An allocation whose lifetimes are a lie: ``a`` ends before its reader."""
    x = gg.new_tensor("f32", 16)
    a = gg.cont(x)
    b = gg.cont(a)
    c = gg.concat(b, a, 0)
    graph = gg.Graph(c)
    allocator = GraphAllocator(HOST, reuse=False)
    allocation = allocator.allocate(graph)
    x.set(np.ones(16))
    compute_poisoned(STREAM, graph, allocation)
    assert c.numpy().tolist() == [1.0] * 32
    place = next(s.range for s in allocation.layout.storages if graph.index[a] in s.members)
    allocation.layout.dying[1] = [place]
    compute_poisoned(STREAM, graph, allocation)
    assert np.isnan(c.numpy()).tolist() == [False] * 16 + [True] * 16


def test_poison_spares_the_inputs() -> None:
    x = gg.new_tensor("f32", 16)
    graph = gg.Graph(gg.cont(x))
    allocation = allocate_graph(graph, HOST)
    x.set(np.ones(16))
    for _ in range(2):
        compute_poisoned(STREAM, graph, allocation)
    assert x.numpy().sum() == 16

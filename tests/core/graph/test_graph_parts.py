"""A part of a graph: a small graph over the same tensors, that can be taken over from an equal whole."""

from __future__ import annotations

import numpy as np
import pytest

import ggplug as gg
from ggplug.host import HOST
from ggplug.memory import PERSISTENT, Allocation, GraphAllocator, allocate_graph
from ggplug_testing import ReferenceDevice

STREAM = ReferenceDevice().init()


def build() -> gg.Graph:
    x = gg.tensor([1.0, 2.0, 3.0, 4.0], name="x")
    a = gg.silu(x, name="a")
    v = gg.reshape(a, 2, 2, name="v")
    b = gg.neg(v, name="b")
    return gg.Graph(gg.add(b, v, name="c"))


def test_sources_from_outside_are_leafs_and_roots_come_along() -> None:
    whole = build()
    part = gg.Graph.part([whole["b"], whole["c"]])
    assert [t.name for t in part.nodes] == ["b", "c"]
    assert [t.name for t in part.leafs] == ["a", "v"]
    assert part.roots == [0, 0, 2, 3]
    assert part.sources == [(), (), (1,), (2, 1)]
    assert [part.tensors[position] for position in part.order] == part.nodes


def test_a_part_prints_nodes_of_the_whole_graph_that_it_only_reads_as_leafs() -> None:
    whole = build()
    part = gg.Graph.part([whole["b"], whole["c"]])
    lines = str(part).splitlines()[1:]
    assert [("leaf" in line, line.split()[-1]) for line in lines] == [
        (tensor in part.leafs, tensor.name) for tensor in part.tensors
    ]
    assert part.dot().count("->") == 3
    assert part.dot().count("shape=box") == len(part.leafs)


def test_a_part_knows_its_positions_in_the_whole() -> None:
    whole = build()
    part = gg.Graph.part([whole["b"]], whole=whole)
    assert [whole.tensors[position] for position in part.positions] == part.tensors
    assert gg.Graph.part([whole["b"]]).positions is None


def test_a_part_is_taken_over_from_an_equal_graph() -> None:
    first, second = build(), build()
    part = gg.Graph.part([first["b"], first["c"]], whole=first)
    taken = part.over(second)
    assert [t.name for t in taken.tensors] == [t.name for t in part.tensors]
    assert all(t in second for t in taken.tensors)
    assert taken.nodes == [second["b"], second["c"]]
    assert taken.leafs == [second["a"], second["v"]]
    assert taken.index[second["c"]] == part.index[first["c"]]
    assert taken.signature() == part.signature()
    assert taken.over(first).nodes == part.nodes


def test_only_a_part_can_be_taken_over_and_only_from_a_graph_that_has_it() -> None:
    whole = build()
    with pytest.raises(gg.GraphError, match="is no part"):
        whole.over(build())
    with pytest.raises(gg.GraphError, match="is no part"):
        gg.Graph.part([whole["c"]], whole=whole).over(gg.Graph(gg.neg(gg.tensor([1.0]))))


def test_a_part_is_not_expanded() -> None:
    whole = build()
    with pytest.raises(gg.GraphError, match="expand the whole one"):
        gg.Graph.part([whole["b"]], whole=whole).expand(whole["c"])


def test_nodes_of_a_part_come_in_order() -> None:
    whole = build()
    with pytest.raises(gg.GraphError, match="comes after its users"):
        gg.Graph.part([whole["c"], whole["b"]])


def test_a_tensor_apart_shares_bytes_with_nothing() -> None:
    whole = build()
    part = gg.Graph.part([whole["b"]], whole=whole, apart={whole["v"]})
    assert [t.name for t in part.tensors] == ["v", "b"]
    assert part.roots == [0, 1]


def test_a_part_computes_over_the_places_that_its_own_allocation_gives() -> None:
    whole = build()
    part = gg.Graph.part([whole["b"]], whole=whole, apart={whole["v"]})
    buffer = HOST.alloc(128)
    buffer.set(0, np.arange(4, dtype=np.float32))
    plan = STREAM.plan(part)
    plan.rebind(part, Allocation(part, [buffer], [0, 0], [0, 64]))
    plan.compute()
    assert buffer.bytes(64, 16).view(np.float32).tolist() == [0, -1, -2, -3]


def test_the_whole_tells_where_results_are_not_its_parts() -> None:
    whole = build()
    gg.Graph.part([whole["b"]], whole=whole)
    allocation = allocate_graph(whole, HOST)
    STREAM.compute(whole, allocation)
    assert whole["c"].numpy().tolist() == [[0, 0], [0, 0]]


def test_places_are_told_all_at_once_as_handles_and_as_addresses() -> None:
    whole = build()
    allocation = GraphAllocator(HOST).allocate(whole)
    buffers, which, offsets = allocation.places(whole)
    addresses = allocation.addresses(whole)
    for position in range(len(whole.tensors)):
        buffer, offset = allocation.place(whole, position)
        assert (buffers[which[position]], offsets[position]) == (buffer, offset)
        assert addresses[position] == buffer.address + offset
    assert allocation.slots[whole.index[whole["x"]]] == PERSISTENT
    assert allocation.persistent_buffers(whole) == {whole["x"].buffer}


def test_a_signature_is_gathered_only_when_something_was_placed_or_marked() -> None:
    whole = build()
    before = whole.signature()
    assert whole.signature() is before
    whole["a"].set_output()
    assert whole.signature() != before


def test_a_graph_can_live_as_long_as_its_results() -> None:
    whole = build()
    result = whole["c"]
    allocation = allocate_graph(whole, HOST)
    STREAM.compute(whole, allocation)
    whole.live_with(result)
    del whole, allocation
    assert result.numpy().tolist() == [[0, 0], [0, 0]]

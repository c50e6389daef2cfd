"""Graphs as bytes are equal again, also parts of others; damaged bytes are refused as damaged files are."""

from __future__ import annotations

import numpy as np
import pytest

import ggplug as gg
from ggplug.errors import GGPlugError, SerializationError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.saved import decode_graph, encode_graph


def example() -> Graph:
    x = gg.new_tensor("f32", (32, 4), "x").set_input()
    weights = gg.new_tensor("q4_0", (32, 8), "weights")
    product = gg.mul_mat(weights, x)
    return Graph(gg.soft_max(gg.reshape(product, (4, 8)), scale=0.5).set_output(), name="example")


def test_a_graph_is_equal_again_with_names_and_marks() -> None:
    graph = example()
    found = decode_graph(encode_graph(graph))
    assert found.structure == graph.structure
    assert [each.name for each in found.tensors] == [each.name for each in graph.tensors]
    assert [each.flags for each in found.tensors] == [each.flags for each in graph.tensors]
    assert found.name == "example"
    assert all(each.buffer is None for each in found.tensors)


def test_a_part_is_equal_again_with_its_sources_as_leafs() -> None:
    whole = example()
    for node in whole.nodes:
        part = Graph.part([node], whole=whole)
        found = decode_graph(encode_graph(part))
        assert found.structure == part.structure
        assert len(found.nodes) == 1


def test_tensors_that_share_bytes_are_no_reason_to_refuse() -> None:
    graph = example()
    with HOST.alloc(4096) as buffer:
        graph["x"].place(buffer, 0)
        graph["weights"].place(buffer, 0)
        assert decode_graph(encode_graph(graph)).structure == graph.structure


def test_an_op_that_calls_a_python_function_is_refused() -> None:
    x = gg.new_tensor("f32", (4,), "x")
    with pytest.raises(SerializationError):
        encode_graph(Graph(gg.map_custom1(x, lambda dst, a: None)))


def test_damaged_bytes_are_refused_or_a_graph() -> None:
    raw, random, refused = np.frombuffer(encode_graph(example()), np.uint8), np.random.default_rng(40), 0
    for _ in range(2000):
        damaged = raw.copy()
        for position in random.integers(0, raw.size, random.integers(1, 4)):
            damaged[position] = random.choice([0, 1, 0x7F, 0xFF, random.integers(256)])
        try:
            decode_graph(damaged[: random.integers(raw.size // 2, raw.size + 1)].tobytes())
        except GGPlugError:
            refused += 1
    assert refused > 1000

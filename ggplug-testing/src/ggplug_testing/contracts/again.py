"""The contract of computing again: a plan keeps nothing of what its sources held before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ggplug.backend import Device
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug.ops.attention import soft_max
from ggplug.ops.base import Array
from ggplug.ops.copy import concat
from ggplug.ops.elementwise import add, mul
from ggplug.ops.matrix import mul_mat, mul_mat_id
from ggplug.ops.norms import rms_norm
from ggplug.ops.rotary import rope
from ggplug.ops.rows import get_rows, set_rows
from ggplug.tensor import Tensor, new_tensor
from ggplug.values.arrays import as_bytes, encode
from ggplug_testing.contracts.clause import clause, expect, expect_raises
from ggplug_testing.contracts.ids import ids, ids_of, nodes_with_ids, values_of
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.expected import Expected
from ggplug_testing.running.placement import Placement

_Values = dict[Tensor, Array]

_NODES: tuple[Callable[[], Tensor], ...] = (
    lambda: mul_mat(new_tensor("f32", (64, 8)), new_tensor("f32", (64, 3))),
    lambda: mul_mat(new_tensor("f16", (64, 8)), new_tensor("f32", (64, 3))),
    lambda: mul_mat(new_tensor("q8_0", (64, 8)), new_tensor("f32", (64, 3))),
    lambda: mul_mat(new_tensor("q4_0", (64, 8)), new_tensor("f32", (64, 3))),
    lambda: mul_mat_id(new_tensor("f32", (64, 8, 4)), new_tensor("f32", (64, 1, 3)), new_tensor("i32", (2, 3))),
    lambda: get_rows(new_tensor("f32", (64, 4)), new_tensor("i32", 3)),
    lambda: get_rows(new_tensor("q8_0", (64, 4)), new_tensor("i32", 3)),
    lambda: set_rows(new_tensor("f32", (64, 4)), new_tensor("f32", (64, 1)), new_tensor("i64", 1)),
    lambda: soft_max(new_tensor("f32", (64, 4, 2)), mask=new_tensor("f32", (64, 4))),
    lambda: rope(new_tensor("f32", (64, 2, 4)), new_tensor("i32", 4), n_dims=64),
    lambda: rope(new_tensor("f32", (64, 2, 4)), new_tensor("i32", 4), n_dims=64, freq_factors=new_tensor("f32", 32)),
    lambda: concat(new_tensor("f32", (64, 4)), new_tensor("f32", (64, 2)), dim=1),
    lambda: rms_norm(new_tensor("f32", (64, 4))),
    lambda: add(new_tensor("f32", (64, 4)), new_tensor("f32", 1)),
    lambda: mul(new_tensor("f32", (64, 4)), new_tensor("f16", 1)),
    lambda: get_rows(new_tensor("f32", (64, 4)), new_tensor("i32", 1)),
    lambda: rope(new_tensor("f32", (64, 2, 1)), new_tensor("i32", 1), n_dims=64),
    lambda: soft_max(new_tensor("f32", (64, 1, 2)), mask=new_tensor("f16", (64, 1))),
)
"""Nodes whose sources a device may be tempted to prepare once: weights, tables, positions, masks, single numbers."""


def _supported(device: Device) -> Iterator[Tensor]:
    for make in _NODES:
        node = make()
        if device.supports_op(node):
            yield node


def _values(graph: Graph, seed: int) -> _Values:
    random = np.random.default_rng(seed)
    found: _Values = {}
    for leaf in graph.leafs:
        if leaf.type.dtype.kind == "i" and not leaf.type.is_quantized:
            found[leaf] = as_bytes(random.integers(0, 4, leaf.ne[::-1]).astype(leaf.type.dtype))
        else:
            found[leaf] = as_bytes(encode(random.uniform(0.5, 2, leaf.ne[::-1]).astype(np.float32), leaf.type))
    return found


def _other_values(graph: Graph, seed: int, before: _Values) -> _Values:
    """Other values, but for the first and the last number or block where there are others between them.

    What keeps something that it has made of a source may look at its beginning and its end to see whether it changed.
    """
    found = _values(graph, seed)
    for leaf, raw in before.items():
        size = leaf.type.block_bytes
        if raw.size > 2 * size:
            found[leaf][:size], found[leaf][-size:] = raw[:size], raw[-size:]
    return found


@clause
def every_source_is_read_in_each_computation(device: Device) -> None:
    """A plan computes from what all sources hold then, and so does another plan in the same places."""
    with device.init() as stream, device.init() as other:
        for node in _supported(device):
            graph = Graph(node.set_output())
            with Placement(graph, device.buffer_type) as placement:
                plans = [each.plan(graph) for each in (stream, other)]
                for turn, (plan, user) in enumerate(zip([*plans, plans[0]], (stream, other, stream), strict=True)):
                    values = _values(graph, turn)
                    for leaf, raw in values.items():
                        placement.write(leaf, raw)
                    plan.rebind(graph, placement.allocation)
                    for again in (0, 1, 2):
                        if again:
                            values = _other_values(graph, 10 * again + turn, values if again == 2 else {})
                            for leaf, raw in values.items():
                                placement.write(leaf, raw)
                        plan.compute()
                        user.synchronize()
                        expected = Expected(graph, values)
                        found = compare(placement.read(node), expected[node], expected.allowed(node))
                        expect(found, f"{node!r}, computed again from other values: {found.reason}")
                for plan in plans:
                    plan.free()


@clause
def ids_are_looked_at_in_each_computation(device: Device) -> None:
    """An id out of range raises in the computation that reads it, whatever the ids of others were."""
    with device.init() as stream:
        for node in nodes_with_ids(device):
            graph = Graph(node)
            with Placement(graph, device.buffer_type) as placement:
                plan = stream.plan(graph)
                for leaf, raw in values_of(node).items():
                    placement.write(leaf, raw)
                plan.rebind(graph, placement.allocation)
                for wrong in (False, True, False, True):
                    placement.write(ids_of(node), ids(node, wrong=wrong))
                    if wrong:
                        with expect_raises(ComputeError, f"an id out of range in {node!r}"):
                            plan.compute()
                            stream.synchronize()
                    else:
                        plan.compute()
                        stream.synchronize()
                plan.free()

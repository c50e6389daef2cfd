"""The contract of computing again: a plan keeps nothing of what its sources held before."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

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
from ggplug_testing.contracts.clause import expect_raises
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.ids import ids, ids_of, nodes_with_ids, values_of
from ggplug_testing.contracts.sample import check_expected
from ggplug_testing.judging.expected import Expected


def _leaf(type: str, *ne: int) -> Tensor:
    return new_tensor(type, ne)


_NODES: tuple[Callable[[], Tensor], ...] = (
    lambda: mul_mat(_leaf("f32", 64, 8), _leaf("f32", 64, 3)),
    lambda: mul_mat(_leaf("f16", 64, 8), _leaf("f32", 64, 3)),
    lambda: mul_mat(_leaf("q8_0", 64, 8), _leaf("f32", 64, 3)),
    lambda: mul_mat(_leaf("q4_0", 64, 8), _leaf("f32", 64, 3)),
    lambda: mul_mat_id(_leaf("f32", 64, 8, 4), _leaf("f32", 64, 1, 3), _leaf("i32", 2, 3)),
    lambda: get_rows(_leaf("f32", 64, 4), _leaf("i32", 3)),
    lambda: get_rows(_leaf("q8_0", 64, 4), _leaf("i32", 3)),
    lambda: set_rows(_leaf("f32", 64, 4), _leaf("f32", 64, 1), _leaf("i64", 1)),
    lambda: soft_max(_leaf("f32", 64, 4, 2), mask=_leaf("f32", 64, 4)),
    lambda: rope(_leaf("f32", 64, 2, 4), _leaf("i32", 4), n_dims=64),
    lambda: rope(_leaf("f32", 64, 2, 4), _leaf("i32", 4), n_dims=64, freq_factors=_leaf("f32", 32)),
    lambda: concat(_leaf("f32", 64, 4), _leaf("f32", 64, 2), dim=1),
    lambda: rms_norm(_leaf("f32", 64, 4)),
    lambda: add(_leaf("f32", 64, 4), _leaf("f32", 1)),
    lambda: mul(_leaf("f32", 64, 4), _leaf("f16", 1)),
    lambda: get_rows(_leaf("f32", 64, 4), _leaf("i32", 1)),
    lambda: rope(_leaf("f32", 64, 2, 1), _leaf("i32", 1), n_dims=64),
    lambda: soft_max(_leaf("f32", 64, 1, 2), mask=_leaf("f16", 64, 1)),
)
"""Nodes whose sources a device may be tempted to prepare once: weights, tables, positions, masks, single numbers."""


def _values(graph: Graph, seed: int, ends: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
    """Bytes for the leafs; those in ``ends`` keep its first and last number or block, where others are between them.

    What keeps something that it has made of a source may look at its beginning and its end to see whether it changed.
    """
    random = np.random.default_rng(seed)
    found: dict[Tensor, Array] = {}
    for leaf in graph.leafs:
        if leaf.type.dtype.kind == "i" and not leaf.type.is_quantized:
            found[leaf] = as_bytes(random.integers(0, 4, leaf.ne[::-1]).astype(leaf.type.dtype))
        else:
            found[leaf] = as_bytes(encode(random.uniform(0.5, 2, leaf.ne[::-1]).astype(np.float32), leaf.type))
        raw, size = ends.get(leaf), leaf.type.block_bytes
        if raw is not None and raw.size > 2 * size:
            found[leaf][:size], found[leaf][-size:] = raw[:size], raw[-size:]
    return found


@clause
def every_source_is_read_in_each_computation(given: Given) -> None:
    """Each computation (``compute``) of a plan reads all sources anew, and so does another plan in the same places."""
    stream, other = given.streams(2)
    for node in filter(given.device.supports_op, (make() for make in _NODES)):
        graph = Graph(node.set_output())
        with Given(given.device) as own:
            placement = own.placement(graph)
            plan, twin = own.plan(stream, graph), own.plan(other, graph)
            for number, (computed, user) in enumerate(((plan, stream), (twin, other), (plan, stream))):
                computed.rebind(graph, placement.allocation)
                values: dict[Tensor, Array] = {}
                for again in (0, 1, 2):
                    values = _values(graph, 10 * again + number, values if again == 2 else {})
                    placement.write_all(values)
                    computed.compute()
                    user.synchronize()
                    what = f"{node!r}, computed again from other values"
                    check_expected(Expected(graph, values), placement.read(node), what)


@clause
def ids_are_looked_at_in_each_computation(given: Given) -> None:
    """An id out of range raises in the computation (``compute``) that reads it, whatever the ids of others were."""
    stream = given.stream()
    for node in nodes_with_ids(given.device):
        with Given(given.device) as own:
            placement = own.placement(Graph(node))
            placement.write_all(values_of(node))
            plan = own.bound(stream, placement)
            for _ in range(2):
                placement.write(ids_of(node), ids(node))
                plan.compute()
                stream.synchronize()
                placement.write(ids_of(node), ids(node, wrong=True))
                with expect_raises(ComputeError, f"an id out of range in {node!r}"):
                    plan.compute()
                    stream.synchronize()

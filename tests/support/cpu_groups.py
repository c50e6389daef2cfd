"""What the CPU device computes together, described and compared with the same nodes one by one."""

from __future__ import annotations

from typing import Any

import pytest

from ggplug.graph import Graph
from ggplug.memory import Allocation
from ggplug.memory.layout import PERSISTENT
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.tensor import Tensor
from ggplug_cpu import features
from ggplug_cpu.device import CpuDevice


def with_other_instructions(*more: Any) -> list[Any]:
    """Parameters: instructions whose products add a bias in kernels of their own, the type of weights, and ``more``.

    Those that ``nox -s features`` runs all tests with are long ones here.
    """
    others = [(name, kind) for name, kind in (("generic", "f32"), ("avx2", "bf16")) if name in features.choices()]
    emulated = [("native+amx-emulated", "bf16")] if features.has("avx512f") else []
    return [
        *(pytest.param(*other, *more, marks=pytest.mark.long) for other in others),
        *((*other, *more) for other in emulated),
    ]


def described(graph: Graph, groups: Groups) -> list[str]:
    """The groups of several nodes as ``add norm mul``, results that are written with a star."""
    return [
        " ".join(n.op.name + "*" * (kept and n is not g.node) for n, kept in zip(g.nodes, g.kept, strict=True) if n.op)
        for g in groups.of(graph)
        if len(g) > 1
    ]


def check(device: CpuDevice, outputs: Tensor | list[Tensor], *expected: str) -> None:
    """Exactly these groups are formed, and what they write equals the results of single nodes."""
    graph = Graph(*([outputs] if isinstance(outputs, Tensor) else outputs))
    groups = device.groups(graph)
    assert described(graph, groups) == list(expected)
    inner = {graph.tensors[position] for position in groups.inner}
    nodes = [node for node in graph.nodes if node.view_src is None]
    own = {node: device.buffer_type.alloc(node.nbytes) for node in nodes}  # every result in memory of its own
    caches = {node.root: node.root.buffer for node in graph.nodes if node.op.writes}  # type: ignore[union-attr]
    before = {cache: bytes(buffer.bytes(0, buffer.size)) for cache, buffer in caches.items()}  # type: ignore[union-attr]
    slots = [nodes.index(tensor.root) if tensor.root in own else PERSISTENT for tensor in graph.tensors]
    offsets = [tensor.view_offset for tensor in graph.tensors]
    results = []
    with device.init() as stream:
        for together in (UNGROUPED, groups):
            for buffer in own.values():
                buffer.clear(0x55)
            for cache, where in caches.items():
                where.set(0, before[cache])  # type: ignore[union-attr]
            plan = stream.plan(graph, together)
            allocation = Allocation(graph, list(own.values()), slots, offsets, groups=together)
            plan.rebind(graph, allocation)
            plan.compute()
            places = own | caches
            results.append([bytes(places[node].bytes(0, node.nbytes)) for node in places])  # type: ignore[union-attr]
    for node, single, together in zip((*nodes, *caches), *results, strict=True):  # type: ignore[assignment]
        if node in inner:
            assert set(together) == {0x55}, f"{node!r} was written"
        else:
            assert together == single, f"{node!r} differs"

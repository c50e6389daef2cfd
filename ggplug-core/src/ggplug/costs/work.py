"""What a kernel has to do, as the table of measured times knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ggplug.tensor import Tensor


class Work(NamedTuple):
    """``what``: ops, types and layouts in words; ``flops`` and ``bytes``: what they compute and move."""

    what: str
    flops: int
    bytes: int


def work_of(nodes: Sequence[Tensor]) -> Work:
    """The work of a kernel that computes these nodes: one, or the nodes of a group, of which it moves no inner result.

    The bytes of a group are those of what it reads and of its last result.
    """
    if len(nodes) == 1:
        node = nodes[0]
        assert node.op is not None
        cost = node.op.cost(node)
        return Work(f"{node.op.name} {_types(node.src)} {node.type.name}", cost.flops, cost.bytes)
    members = set(nodes)
    flops = moved = 0
    for node in nodes:
        assert node.op is not None
        cost = node.op.cost(node)
        flops += cost.flops
        moved += cost.bytes - node.nbytes
        moved -= sum(source.nbytes for source in node.src if source is not None and source.root in members)
    ops = "+".join(node.op.name for node in nodes if node.op is not None)
    outside = [source for node in nodes for source in node.src if source is not None and source.root not in members]
    return Work(f"{ops} {_types(outside)} {nodes[-1].type.name}", flops, max(moved, 0) + nodes[-1].nbytes)


def _types(sources: Sequence[Tensor | None]) -> str:
    """The types of some sources; a star marks those whose elements do not lie one after the other."""
    return ",".join("-" if s is None else s.type.name + ("" if s.is_contiguous() else "*") for s in sources)

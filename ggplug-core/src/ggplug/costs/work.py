"""What a kernel has to do, as the table of measured times knows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ggplug.tensor import Cost, Tensor


class Work(NamedTuple):
    """``what``: ops, types and layouts in words; ``flops`` and ``bytes``: what they compute and move; ``ne``: the
    extents of what they read and of the result, in words."""

    what: str
    flops: int
    bytes: int
    ne: str


def work_of(nodes: Sequence[Tensor]) -> Work:
    """The work of a kernel that computes these nodes: one, or those of a group, whose inner results are not moved."""
    ops = "+".join(node.op.name for node in nodes if node.op is not None)
    members = set(nodes)
    outside = [s for node in nodes for s in node.src if s is None or s.root not in members]
    flops = moved = 0
    for node in nodes:
        cost = cost_of(node)
        flops += cost.flops
        moved += max(cost.bytes - inner_bytes(node, members, nodes[-1]), 0)
    ne = ",".join("x".join(map(str, each.ne)) for each in (*outside, nodes[-1]) if each is not None)
    return Work(f"{ops} {_types(outside)} {nodes[-1].type.name}", flops, moved, ne)


def cost_of(node: Tensor) -> Cost:
    """The operations and bytes of a node."""
    assert node.op is not None
    return node.op.cost(node)


def inner_bytes(node: Tensor, members: Collection[Tensor], last: Tensor) -> int:
    """The bytes that a node of a group moves if it is computed alone, and not in the group."""
    read = sum(source.nbytes for source in node.src if source is not None and source.root in members)
    return read + (0 if node is last else node.nbytes)


def _types(sources: Sequence[Tensor | None]) -> str:
    """The types of some sources; marked with a star where elements do not lie one after the other, ``^`` if packed."""
    return ",".join(map(_type, sources))


def _type(source: Tensor | None) -> str:
    if source is None:
        return "-"
    memory = source.root.buffer_type
    packed = memory is not None and memory.has_own_layout
    return source.type.name + ("" if source.is_contiguous() else "*") + ("^" if packed else "")

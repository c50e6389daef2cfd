"""The errors of nodes that could not be computed: failed kernels, and ids out of range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ggplug.errors import ComputeError, GGPlugError, OutOfMemoryError
from ggplug.groups import Group
from ggplug.tensor import Tensor

if TYPE_CHECKING:
    from ggplug.backend import Device


def first_out_of_range(node: Tensor, ids: npt.NDArray[Any]) -> int | None:
    """Of a node's ids, in NumPy order, the first that is out of range; None if there is none."""
    outside = ids[(ids < 0) | (ids >= limit_of_ids(node))]
    return int(outside[0]) if outside.size else None


def limit_of_ids(node: Tensor) -> int:
    """What the ids of a node have to stay below."""
    assert node.op is not None
    assert node.op.indexes is not None
    indexed = node.src[node.op.indexes.of]
    assert indexed is not None
    return indexed.ne[node.op.indexes.dim]


def id_out_of_range(device: Device, node: Tensor, got: int) -> ComputeError:
    """The error of a node that was given the id ``got``; its op says what the ids choose from (``Op.indexes``)."""
    op = node.op
    assert op is not None
    assert op.indexes is not None
    ids, of, dim = op.indexes
    limit = limit_of_ids(node)
    consequence = "that row was left out" if op.writes else "its row of the result is zeros"
    return ComputeError(
        f"{device.name}: {node!r} was given the id {got} in {op.sources[ids]!r}; ids must be at least 0 and less than "
        f"{limit}, ne{dim} of {op.sources[of]!r}; {consequence}",
        op=op, device=device, tensor=node, got=got, wanted=limit,
    )  # fmt: skip


def compute_error(device: Device, computed: Tensor | Group, error: BaseException) -> GGPlugError:
    """The typed error for what a kernel raised: it names the node, or all nodes of a group."""
    node = computed.node if isinstance(computed, Group) else computed
    if isinstance(error, MemoryError):
        return OutOfMemoryError(f"{device.name} ran out of memory in {computed!r}: {error}", device=device, op=node.op)
    return ComputeError(f"{device.name} failed in {computed!r}: {error}", device=device, op=node.op, tensor=node)

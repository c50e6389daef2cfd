"""The errors of nodes that could not be computed: failed kernels, devices without an answer, ids out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ggplug.errors import ComputeError, GGPlugError, OutOfMemoryError, told
from ggplug.nodes.groups import Group
from ggplug.tensor import Tensor
from ggplug.values.described import Named

Asked = TypeVar("Asked", Tensor, Group)


def first_out_of_range(node: Tensor, ids: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Of a node's ids, in NumPy order, the first that is out of range, and its number; None if there is none."""
    flat = ids.reshape(-1)
    outside = np.flatnonzero((flat < 0) | (flat >= limit_of_ids(node)))
    return (int(flat[outside[0]]), int(outside[0])) if outside.size else None


def limit_of_ids(node: Tensor) -> int:
    """What the ids of a node have to stay below."""
    assert node.op is not None
    assert node.op.indexes is not None
    return _indexed(node).ne[node.op.indexes.dim]


def _indexed(node: Tensor) -> Tensor:
    """What a node's ids choose from: a source, or the result."""
    assert node.op is not None
    assert node.op.indexes is not None
    of = node.op.indexes.of
    indexed = node if of is None else node.src[of]
    assert indexed is not None
    return indexed


def id_out_of_range(device: Named, node: Tensor, got: int, number: int | None = None) -> ComputeError:
    """The error of a node that was given the id ``got``; its op says what the ids choose from (``Op.indexes``).

    ``number``: how many ids of the node come before it, in NumPy order, if that is known.  Fields of the error:
    ``tensor`` (the node), ``got``, ``wanted`` (the limit), ``ids`` and ``indexed`` (the tensors), and ``position``: the
    index of the id in ``ids``, or None.
    """
    op = node.op
    assert op is not None
    assert op.indexes is not None
    ids, of, dim = op.indexes
    limit = limit_of_ids(node)
    given, indexed = node.src[ids], _indexed(node)
    assert given is not None
    position = None
    if number is not None and number < given.size:
        position = tuple(map(int, np.unravel_index(number, given.shape)))
    at = "" if position is None else f" at {list(position)}"
    consequence = "that row was left out" if op.writes or of is None else "its row of the result is zeros"
    chosen = "the result" if of is None else _called(node, of)
    return ComputeError(
        f"{device.name}: {node!r} was given the id {got}{at} of {_called(node, ids)}; ids must be at least 0 and less "
        f"than {limit}, ne{dim} of {chosen}; {consequence}; what nodes wrote into persistent tensors "
        "stays written",
        op=op,
        device=device,
        tensor=node,
        got=got,
        wanted=limit,
        ids=given,
        indexed=indexed,
        position=position,
    )


def _called(node: Tensor, source: int) -> str:
    """A source by its name, or by that of the op's parameter."""
    tensor = node.src[source]
    assert tensor is not None
    assert node.op is not None
    return repr(tensor.name or node.op.sources[source])


def compute_error(device: Named | None, computed: Tensor | Group, error: BaseException) -> GGPlugError:
    """The typed error for what a kernel raised: it names the node, or all nodes of a group.

    ``device``: None if a kernel that serves all devices does not know it.
    """
    node = computed.node if isinstance(computed, Group) else computed
    who = "a kernel" if device is None else device.name
    if isinstance(error, MemoryError):
        what = f"{who} ran out of memory in {computed!r}: {told(error)}"
        return OutOfMemoryError(what, device=device, op=node.op, tensor=node)
    return ComputeError(f"{who} failed in {computed!r}: {told(error)}", device=device, op=node.op, tensor=node)


def answer_of(device: Named, asked: Asked, question: Callable[[Asked], Any]) -> Any:
    """What ``device.match`` says of a group, or ``device.supports_op`` of a node.

    Raises ComputeError if it raises anything but a GGPlugError, or returns None.
    """
    try:
        answer = question(asked)
    except GGPlugError:
        raise
    except Exception as error:
        raise compute_error(device, asked, error) from error
    if answer is None:
        node = asked.node if isinstance(asked, Group) else asked
        raise ComputeError(
            f"{device.name} says nothing of {asked!r}: match() must return a kernel or a Decline",
            device=device,
            op=node.op,
            tensor=node,
        )
    return answer

"""The errors of nodes that could not be computed: failed kernels, invalid answers of devices, ids out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ggplug.errors import ComputeError, GGPlugError, OutOfMemoryError, TimeLimitError, in_one_line
from ggplug.nodes.groups import Group
from ggplug.tensor import Tensor
from ggplug.values.described import Named

Asked = TypeVar("Asked", Tensor, Group)


def first_out_of_range(node: Tensor, ids: npt.NDArray[Any]) -> tuple[int, int] | None:
    """The first id of a node that is out of range, and its number in NumPy order; None if all are in range."""
    flat = ids.reshape(-1)
    outside = np.flatnonzero((flat < 0) | (flat >= limit_of_ids(node)))
    return (int(flat[outside[0]]), int(outside[0])) if outside.size else None


def limit_of_ids(node: Tensor) -> int:
    """The number that every id of a node must be less than."""
    assert node.op is not None
    assert node.op.indexes is not None
    return _indexed(node).ne[node.op.indexes.dim]


def _indexed(node: Tensor) -> Tensor:
    """The tensor whose elements a node's ids choose: a source, or the result."""
    assert node.op is not None
    assert node.op.indexes is not None
    of = node.op.indexes.of
    indexed = node if of is None else node.src[of]
    assert indexed is not None
    return indexed


def id_out_of_range(device: Named, node: Tensor, got: int, number: int | None = None) -> ComputeError:
    """The error of a node whose id ``got`` is out of range.

    ``number``: how many ids of the node come before it, in NumPy order, if that is known.  Fields of the error:
    ``tensor`` (the node), ``got``, ``wanted`` (the limit), ``ids`` and ``indexed`` (the tensors of the ids, and of the
    elements that they choose), and ``position``: the index of the id in ``ids``, or None.
    """
    op = node.op
    assert op is not None
    assert op.indexes is not None
    ids, of, dim = op.indexes
    limit = limit_of_ids(node)
    ids_tensor, indexed = node.src[ids], _indexed(node)
    assert ids_tensor is not None
    position = None
    if number is not None and number < ids_tensor.size:
        position = tuple(map(int, np.unravel_index(number, ids_tensor.shape)))
    at = "" if position is None else f" at {list(position)}"
    consequence = "that row was left out" if op.writes or of is None else "its row of the result is zeros"
    chosen = "the result" if of is None else _called(node, of)
    return ComputeError(
        f"{device.name}: {node!r} got the id {got}{at} of {_called(node, ids)}; ids must be at least 0 and less "
        f"than {limit}, ne{dim} of {chosen}; {consequence}; what nodes wrote into persistent tensors "
        "stays written",
        op=op,
        device=device,
        tensor=node,
        got=got,
        wanted=limit,
        ids=ids_tensor,
        indexed=indexed,
        position=position,
    )


def _called(node: Tensor, source: int) -> str:
    """The name of a source, or of the op's parameter if it has none."""
    tensor = node.src[source]
    assert tensor is not None
    assert node.op is not None
    return repr(tensor.name or node.op.sources[source])


def compute_error(device: Named | None, computed: Tensor | Group, error: BaseException) -> GGPlugError:
    """The typed error for an error of a kernel: it names the node, or all nodes of a group.

    ``device``: None where the kernel does not know its device.
    """
    node = computed.node if isinstance(computed, Group) else computed
    who = "a kernel" if device is None else device.name
    if isinstance(error, MemoryError):
        what = f"{who} ran out of memory in {computed!r}: {in_one_line(error)}"
        return OutOfMemoryError(what, device=device, op=node.op, tensor=node)
    return ComputeError(f"{who} failed in {computed!r}: {in_one_line(error)}", device=device, op=node.op, tensor=node)


_LONGER = "set a longer limit: --time-limit, in Python set_time_limit()"


def beyond_limit(device: Named, limit: float, node: Tensor, kernel: str, *, goes_on: bool = False) -> TimeLimitError:
    """The error of a computation that took longer than ``limit`` seconds, and was aborted in a node.

    ``goes_on``: the kernel cannot be aborted, and still runs.
    """
    end = "goes on, and the stream waits for it" if goes_on else "was aborted"
    return TimeLimitError(
        f"{device.name}: a computation took longer than its time limit of {limit:g} s; the kernel {kernel} of {node!r} "
        f"{end}; what the computation was to write is undefined",
        op=node.op,
        device=device,
        tensor=node,
        kernel=kernel,
        wanted=limit,
        remedy=_LONGER,
    )


def late(device: Named, limit: float, seconds: float) -> TimeLimitError:
    """The error of a computation that took longer than ``limit`` seconds, and is complete."""
    return TimeLimitError(
        f"{device.name}: a computation took {seconds:.3g} s, longer than its time limit of {limit:g} s; the device did "
        "not abort it (it cannot, or looks at the clock less often), and its results are there",
        device=device,
        got=seconds,
        wanted=limit,
        remedy=_LONGER,
    )


def answer_of(device: Named, asked: Asked, question: Callable[[Asked], Any]) -> Any:
    """The result of ``question``, which is ``device.match`` for a group or ``device.supports_op`` for a node.

    Raises ComputeError if the method raises anything but a GGPlugError, or returns None.
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
            f"{device.name} returned None for {asked!r}: match() must return a kernel or a Decline",
            device=device,
            op=node.op,
            tensor=node,
        )
    return answer

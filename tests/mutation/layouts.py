"""Devices whose memory with a layout of its own is handled wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.arrays import as_bytes, strided
from ggplug.backend import (
    UNGROUPED,
    Backend,
    Buffer,
    BufferType,
    Bytes,
    Decline,
    Device,
    Group,
    Groups,
    Operand,
    Plan,
    check_parameters,
)
from ggplug.graph import Graph
from ggplug.graph import Layouts as KnownLayouts
from ggplug.ops.base import Op
from ggplug.ops.matrix import MulMat
from ggplug.tensor import Tensor
from ggplug.walking import WalkPlan
from ggplug_testing.oracle import compute_node
from ggplug_testing.packing import PADDING, PackingDevice, TurnedBuffer, TurnedBufferType, turned_back


class OtherLayout(PackingDevice):
    """Has another extra buffer type than it should."""

    def __init__(self, make: Callable[[str, Device], BufferType]) -> None:
        self._make = make
        super().__init__("faulty")

    def turned(self) -> BufferType:
        return self._make("faulty turned", self)


def other_buffers(kind: Callable[[BufferType, Bytes], Buffer]) -> Callable[[str, Device], BufferType]:
    """A buffer type whose buffers are of another class."""

    class Other(TurnedBufferType):
        def _alloc(self, size: int) -> Buffer:
            return kind(self, np.empty(size, np.uint8))

    return Other


class ReadsAsStored(TurnedBuffer):
    """Turns what is set, and not what is read."""

    def get_tensor(self, tensor: Tensor, out: Bytes, start: int, offset: int = 0) -> None:
        self._get(start + PADDING + offset, out)


class SetsParts(TurnedBuffer):
    """Stores a part of a tensor as it would in plain memory."""

    def set_tensor(self, tensor: Tensor, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        if tensor.view_src is None and raw.size == tensor.nbytes:
            super().set_tensor(tensor, data, start, offset)
        else:
            self._set(start + PADDING + offset, raw)


class IgnoresOffsets(TurnedBuffer):
    """Reads every view of a tensor from its beginning."""

    def get_tensor(self, tensor: Tensor, out: Bytes, start: int, offset: int = 0) -> None:
        super().get_tensor(tensor.root, out, start - tensor.view_offset)


class ShowsBytes(TurnedBuffer):
    """Lets raw accesses through to bytes that are not in ggml's layout."""

    def check_read(self, offset: int, size: int) -> tuple[int, int]:
        self.check_there()
        return offset, size


class TakesResults(TurnedBufferType):
    """Takes whatever is placed there."""

    def refusal(self, tensor: Tensor) -> str | None:
        return None


class TooSmall(TurnedBufferType):
    """Forgets what tensors take beyond their own bytes."""

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes


class ClaimsEverything(PackingDevice):
    """Computes every op, and products with views, on turned bytes as if they were plain."""

    def match(self, group: Group) -> Any:
        found = super().match(group)
        if not isinstance(found, Decline) or group.node.op is None or not self._reads_turned(group):
            return found
        return _as_plain

    def _reads_turned(self, group: Group) -> bool:
        return any(s is not None and s.root.buffer_type is self._extra for s in group.node.src)


def _as_plain(op: Op, dst: Operand, *src: Operand | None) -> None:
    compute_node(dst.tensor, _stored(dst), [None if each is None else _stored(each).copy() for each in src])


def _stored(operand: Operand) -> Any:
    assert operand.buffer.address is not None
    memory: Any = operand.buffer._memory  # type: ignore[attr-defined]
    return strided(memory[operand.offset : operand.offset + operand.tensor.nbytes], operand.tensor)


class ForgetsTheLayout(PackingDevice):
    """Its streams bind a plan to whatever memory the weights of an equal graph lie in."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _ForgetfulStream(self)


class _ForgetfulStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _ForgetfulPlan(self, graph, groups)


class _ForgetfulPlan(WalkPlan):
    def rebind(self, graph: Graph, allocation: Any) -> None:
        self._layouts: KnownLayouts = graph.layouts()
        super().rebind(graph, allocation)


class LosesTheLastRow(PackingDevice):
    """Its product leaves out the last row of turned weights, as one that forgets to fill up a panel."""

    def match(self, group: Group) -> Any:
        found = super().match(group)
        if isinstance(found, Decline) or not isinstance(group.node.op, MulMat):
            return found
        weights = group.node.src[0]
        return _without_the_last_row if weights is not None and weights.buffer_type is self._extra else found


def _without_the_last_row(op: Op, dst: Operand, weights: Operand, other: Operand) -> None:
    known = turned_back(weights)
    if known.shape[2] % 32:
        known[:, :, -1] = 0
    compute_node(dst.tensor, dst.array(), [known, other.array()])

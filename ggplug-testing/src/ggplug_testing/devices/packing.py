"""The reference device with memory that has a layout of its own, as packed weights have.

It shows what such memory needs: what tensors it takes, how these are stored and read back, and kernels that are chosen
only for what they were written for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Buffer, BufferType, Bytes, Decline, Described, Group, Operand
from ggplug.errors import BufferUseError
from ggplug.host import HostBuffer
from ggplug.ops.base import Op
from ggplug.ops.matrix import MulMat
from ggplug.sharing import accessing
from ggplug.types import KERNEL_FLOATS
from ggplug.values.arrays import as_bytes, strided
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.judging.oracle import compute_node

PADDING = 40
"""Additional bytes of each tensor."""


class ReversedBufferType(BufferType):
    """Keeps the bytes of each tensor in reverse order, all bits inverted, behind :data:`PADDING` bytes."""

    @property
    def has_own_layout(self) -> bool:
        return True

    def refusal(self, tensor: Described) -> str | None:
        if tensor.op is not None or not tensor.is_contiguous() or not tensor.size:
            return "only leafs with elements and without gaps are reversed"
        taken = tensor.type in KERNEL_FLOATS or tensor.type.is_quantized
        return None if taken else f"{tensor.type.name} is not reversed"

    def alloc_size(self, tensor: Described) -> int:
        return tensor.nbytes + PADDING

    def _alloc(self, size: int) -> Buffer:
        return ReversedBuffer(self, np.empty(size, np.uint8))


class ReversedBuffer(HostBuffer):
    """Reversed tensors: set as a whole, read as a whole or in part."""

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        if tensor.view_src is not None or offset or raw.size != tensor.nbytes:
            raise BufferUseError(f"{tensor!r} can only be set as a whole", tensor=tensor)
        with accessing(self):
            self.check_there()
            self._set(start + PADDING, ~raw[::-1])
            self.fill(start, tensor.nbytes)

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        root = tensor.root
        whole = np.empty(root.nbytes, np.uint8)
        with accessing(self):
            self.check_there()
            self._get(start - tensor.view_offset + PADDING, whole)
        out[...] = ~whole[::-1][tensor.view_offset + offset :][: out.size]


class PackingDevice(ReferenceDevice):
    """A reference device whose products read weights that were reversed (:class:`ReversedBufferType`)."""

    def __init__(self, name: str = "packing") -> None:
        super().__init__(name)
        self._extra = self.reversed_memory()

    def reversed_memory(self) -> BufferType:
        """The extra buffer type."""
        return ReversedBufferType(f"{self.name} reversed", self)

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return (self._extra,)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.is_host or buffer_type is self._extra

    def match(self, group: Group) -> Any:
        packed = [s for s in group.node.src if s is not None and s.root.buffer_type is self._extra]
        found = super().match(group)
        if not packed or isinstance(found, Decline):
            return found
        node = group.node
        if not isinstance(node.op, MulMat) or packed != [node.src[0]] or packed[0].is_view:
            return Decline(f"{self.name} reads reversed tensors only as the weights of products")
        return multiply_reversed


def multiply_reversed(op: Op, dst: Operand, weights: Operand, other: Operand) -> None:
    """Computes a product by its reference; ``Buffer.get_tensor`` restores the bytes of the reversed weights."""
    compute_node(dst.tensor, dst.array(), [restored(weights), other.array()])


def restored(operand: Operand) -> npt.NDArray[Any]:
    """A copy of what a reversed tensor holds."""
    raw = np.empty(operand.tensor.nbytes, np.uint8)
    operand.buffer.get_tensor(operand.tensor, raw, operand.offset)
    return strided(raw, operand.tensor)

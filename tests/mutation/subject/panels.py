"""Memory with a layout of its own: the rows of weights in panels of four, block next to block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes, Described
from ggplug.errors import BufferUseError
from ggplug.sharing import accessing
from ggplug.tensor import Tensor
from ggplug.types import F16, F32, Q8_0
from ggplug.values.arrays import as_bytes, strided
from tests.mutation.subject.kernels import products
from tests.mutation.subject.memory import SubjectBuffer
from tests.mutation.subject.values import Array, Values, single, store

if TYPE_CHECKING:
    from tests.mutation.subject.device import SubjectDevice

ROWS = 4
"""Rows of a panel."""


def panels_of(tensor: Described) -> int:
    """Panels of each matrix; the last one may be filled up."""
    return -(-tensor.ne[1] // ROWS)


def packed(raw: Bytes, tensor: Described) -> Bytes:
    """The bytes of a tensor in panels."""
    matrices, blocks = tensor.ne[2] * tensor.ne[3], tensor.ne[0] // tensor.type.block_size
    size = tensor.type.block_bytes
    filled = np.zeros((matrices, panels_of(tensor) * ROWS, blocks, size), np.uint8)
    filled[:, : tensor.ne[1]] = raw.reshape(matrices, tensor.ne[1], blocks, size)
    panels = filled.reshape(matrices, panels_of(tensor), ROWS, blocks, size)
    return panels.transpose(0, 1, 3, 2, 4).reshape(-1)


def unpacked(raw: Bytes, tensor: Described) -> Bytes:
    """The bytes of a tensor out of its panels."""
    matrices, blocks = tensor.ne[2] * tensor.ne[3], tensor.ne[0] // tensor.type.block_size
    size = tensor.type.block_bytes
    panels = raw.reshape(matrices, panels_of(tensor), blocks, ROWS, size)
    rows = panels.transpose(0, 1, 3, 2, 4).reshape(matrices, panels_of(tensor) * ROWS, blocks * size)
    return rows[:, : tensor.ne[1]].reshape(-1)


class PanelType(BufferType):
    """Weights in panels."""

    device: SubjectDevice

    @property
    def has_own_layout(self) -> bool:
        return True

    def refusal(self, tensor: Described) -> str | None:
        if tensor.op is not None or not tensor.is_contiguous() or not tensor.size:
            return "only leafs with elements and without gaps lie in panels"
        return None if tensor.type in (F32, F16, Q8_0) else f"there are no panels of {tensor.type.name}"

    def alloc_size(self, tensor: Described) -> int:
        row = tensor.ne[0] // tensor.type.block_size * tensor.type.block_bytes
        return tensor.ne[2] * tensor.ne[3] * panels_of(tensor) * ROWS * row

    def _alloc(self, size: int) -> Buffer:
        return PanelBuffer(self, size, self.device)


class PanelBuffer(SubjectBuffer):
    """Tensors in panels: set as a whole, read as a whole or in part."""

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        if tensor.view_src is not None or offset or raw.size != tensor.nbytes:
            raise BufferUseError(f"{tensor!r} can only be set as a whole", tensor=tensor)
        with accessing(self):
            self.check_there()
            self._set(start, packed(raw, tensor))
            self.fill(start, self.type.alloc_size(tensor))

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        root = tensor.root
        raw = np.empty(self.type.alloc_size(root), np.uint8)
        with accessing(self):
            self.check_there()
            self._get(start - tensor.view_offset, raw)
        first = tensor.view_offset + offset
        out[...] = unpacked(raw, root)[first : first + out.size]


class Panels(NamedTuple):
    """What a kernel is given for weights in panels."""

    tensor: Tensor
    memory: Bytes

    def rows(self) -> Values:
        """The weights in their usual order."""
        return Values(self.tensor.type, strided(unpacked(self.memory, self.tensor), self.tensor))


def mul_mat_panels(op: Any, dst: Values, a: Panels, b: Values) -> None:
    weights: Array = single(a.rows())
    store(dst, products(weights, single(b)))

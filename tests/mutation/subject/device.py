"""The device and its streams."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from ggplug import ops, quants
from ggplug.backend import BufferType, Decline, Group, Memory, TensorLayout, check_parameters
from ggplug.discrete import DiscreteBuffer, DiscreteDevice, Job, QueuedBackend
from ggplug.errors import OutOfMemoryError
from ggplug.tensor import Tensor
from ggplug.types import INTEGERS, KERNEL_FLOATS, DeviceKind
from tests.mutation.subject import kernels, together
from tests.mutation.subject.memory import SubjectBuffer, SubjectMemory
from tests.mutation.subject.panels import Panels, PanelType, mul_mat_panels
from tests.mutation.subject.values import Values

MEMORY = 1 << 33
"""Bytes that the device has."""


class SubjectStream(QueuedBackend):
    """A thread that calls what it is given, in order."""

    def __init__(self, device: SubjectDevice) -> None:
        super().__init__(device)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ggplug-subject")

    def submit(self, job: Job) -> None:
        self._executor.submit(job)

    def close(self) -> None:
        self._executor.shutdown()


class SubjectDevice(DiscreteDevice):
    """A conforming discrete device over NumPy."""

    description = "NumPy, as an author would use it"
    kind = DeviceKind.ACCEL
    kernels: ClassVar[dict[Any, Any]] = {**kernels.KERNELS, **together.KERNELS}

    def __init__(self, name: str = "subject") -> None:
        super().__init__()
        self.name = name
        self.used = 0
        self._taking = threading.Lock()
        self._buffer_type = SubjectMemory(name, self)
        self._panels = PanelType(f"{name} panels", self)

    def memory(self) -> Memory:
        return Memory(MEMORY - self.used, MEMORY)

    def take(self, size: int) -> None:
        """Counts bytes as used, or those of a negative number as free again.  Raises OutOfMemoryError."""
        with self._taking:
            if self.used + size > MEMORY:
                free = MEMORY - self.used
                raise OutOfMemoryError(
                    f"{self.name}: {size} bytes were requested, {free} are free", device=self, requested=size, free=free
                )
            self.used += size

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return (self._panels,)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._buffer_type or buffer_type is self._panels

    def init(self, **params: Any) -> SubjectStream:
        check_parameters(self, params)
        return SubjectStream(self)

    def match(self, group: Group) -> Any:
        for node in group.nodes:
            reason = self._refused(node, len(group) > 1)
            if reason:
                return Decline(reason)
        if len(group) > 1:
            reason = together.cannot_together(group)
            return Decline(reason) if reason else super().match(group)
        weights = next(iter(group.node.src), None)
        if weights is not None and weights.root.buffer_type is self._panels:
            return mul_mat_panels
        return super().match(group)

    def _refused(self, node: Tensor, together: bool) -> str:
        """Why a node is not computed, or an empty string."""
        for number, tensor in enumerate((node, *node.src)):
            if tensor is None:
                continue
            if tensor.root.buffer_type is self._panels:
                product = number == 1 and isinstance(node.op, ops.MulMat) and not tensor.is_view
                if together or not product:
                    return f"{self.name} reads panels only as the weights of products"
            if tensor.type in KERNEL_FLOATS or tensor.type in INTEGERS:
                continue
            read = number == 1 and isinstance(node.op, (ops.MulMat, ops.MulMatId, ops.GetRows))
            if not read or not quants.can_dequantize(tensor.type):
                return f"{self.name} has no {tensor.type.name} for {node.op.name if node.op else 'leafs'}"
        return kernels.cannot(node)

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Values | Panels:
        assert isinstance(buffer, SubjectBuffer)
        if buffer.type.has_own_layout:
            return Panels(tensor, buffer.memory[offset : offset + buffer.type.alloc_size(tensor)])
        return Values(tensor.type, self.array(tensor, buffer, offset))

    def array(self, tensor: Tensor, buffer: SubjectBuffer, offset: int) -> Any:
        """The elements of a tensor in place."""
        layout = TensorLayout.of(tensor)
        memory = buffer.memory[offset : offset + layout.nbytes]
        strides = tuple(stride * layout.dtype.itemsize for stride in layout.strides)
        return np.ndarray(layout.shape, layout.dtype, memory.data, 0, strides)

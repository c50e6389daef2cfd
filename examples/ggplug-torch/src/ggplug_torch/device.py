"""Memory, streams and the device: what a backend over another array library brings besides its kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from ggplug import host, quants
from ggplug.backend import BufferType, Bytes, Decline, Group, Memory, TensorLayout, check_parameters
from ggplug.discrete import DiscreteBuffer, DiscreteDevice, Job, QueuedBackend
from ggplug.errors import OutOfMemoryError
from ggplug.ops import GetRows, MulMat, MulMatId
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind, Type
from ggplug_torch.kernels import KERNELS, cannot

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}
"""PyTorch's dtypes by the names of ggplug's plain types."""


class TorchBuffer(DiscreteBuffer):
    """Bytes that PyTorch has allocated."""

    def __init__(self, type: BufferType, size: int, device: TorchDevice) -> None:
        super().__init__(type, size, device)
        self.memory = torch.empty(size, dtype=torch.uint8)

    def store(self, offset: int, data: Bytes) -> None:
        self.memory[offset : offset + data.size] = torch.from_numpy(data if data.flags.writeable else data.copy())

    def fetch(self, offset: int, out: Bytes) -> None:
        torch.from_numpy(out).copy_(self.memory[offset : offset + out.size])

    def dispose(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)


class TorchMemory(BufferType):
    device: TorchDevice

    def _alloc(self, size: int) -> TorchBuffer:
        try:
            return TorchBuffer(self, size, self.device)
        except RuntimeError as error:  # PyTorch has no error of its own for this
            raise OutOfMemoryError(f"{self.name}: {error}", device=self.device, requested=size) from error


class Blocks(NamedTuple):
    """A tensor of a block type: the bytes of its blocks, [n3, n2, n1, blocks, bytes]."""

    type: Type
    bytes: torch.Tensor

    def float(self) -> torch.Tensor:
        """Its values; slow, because the host unpacks them."""
        raw = self.bytes.contiguous().numpy()
        if not raw.size:
            return torch.zeros(*raw.shape[:3], raw.shape[3] * self.type.block_size)
        return torch.from_numpy(quants.dequantize(raw.reshape(*raw.shape[:3], -1), self.type))


class TorchStream(QueuedBackend):
    """A thread that calls what it is given, in order."""

    def __init__(self, device: TorchDevice) -> None:
        super().__init__(device)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ggplug-torch")

    def submit(self, job: Job) -> None:
        self._executor.submit(job)

    def close(self) -> None:
        self._executor.shutdown()


class TorchDevice(DiscreteDevice):
    name = "Torch"
    description = f"PyTorch {torch.__version__} on its CPU tensors"
    kind = DeviceKind.ACCEL
    kernels = KERNELS

    def __init__(self) -> None:
        super().__init__()
        self._buffer_type = TorchMemory("Torch", self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def init(self, **params: Any) -> TorchStream:
        check_parameters(self, params)
        return TorchStream(self)

    def match(self, group: Group) -> Any:
        node = group.node
        for number, tensor in enumerate((node, *node.src)):
            if tensor is None or tensor.type.name in DTYPES:
                continue
            weights = number == 1 and isinstance(node.op, (MulMat, MulMatId, GetRows))
            if not weights or not quants.can_dequantize(tensor.type):
                return Decline(f"PyTorch has no {tensor.type.name}")
        reason = cannot(node)
        return Decline(reason) if reason else super().match(group)

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> torch.Tensor | Blocks:
        """What a kernel is given: a tensor of PyTorch over the same bytes, four-dimensional, outermost first."""
        assert isinstance(buffer, TorchBuffer)
        layout = TensorLayout.of(tensor)
        memory = buffer.memory[offset : offset + layout.nbytes]
        dtype = DTYPES.get(tensor.type.name)
        if dtype is not None:
            return memory.view(dtype).as_strided(layout.shape, layout.strides)
        step = layout.dtype.itemsize
        strides = (*(stride * step for stride in layout.strides), 1)
        return Blocks(tensor.type, memory.as_strided((*layout.shape, step), strides))

"""A complete ggplug backend: matrix products by the BLAS that NumPy brings.

It is the smallest possible backend: a dictionary of kernels over host memory.  When it is installed with ggplug,
``ggplug devices`` lists it, and the scheduler gives it large matrix products and leaves the rest to the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ggplug import host, quants
from ggplug.backend import BufferType, Decline, Device, Group, Memory, Operand, Registration
from ggplug.hookspecs import hookimpl
from ggplug.ops import MulMat, Op
from ggplug.types import F32, DeviceKind

MIN_COLUMNS = 32
"""Below this many columns a product is bound by memory, and BLAS has nothing to add."""


def mul_mat(op: Op, dst: Operand, weights: Operand, x: Operand) -> None:
    """dst[m, n] = sum over k of weights[k, m] * x[k, n]; broadcasts weights over the outer two dimensions."""
    w = as_float(weights)
    repeat = [outer // inner for outer, inner in zip(x.array().shape[:2], w.shape[:2], strict=True)]
    w = w.repeat(repeat[0], axis=0).repeat(repeat[1], axis=1)
    np.matmul(as_float(x), w.swapaxes(-1, -2), out=dst.array())


def as_float(operand: Operand) -> np.ndarray[Any, Any]:
    """Values as float32, four-dimensional, outermost first."""
    stored = operand.array()
    if operand.tensor.type is F32:
        return stored
    rows = np.ascontiguousarray(stored).view(np.uint8)
    return quants.dequantize(rows.reshape(*stored.shape[:3], -1), operand.tensor.type)


class BlasDevice(Device):
    name = "BLAS"
    description = "matrix products through NumPy's BLAS"
    kind = DeviceKind.ACCEL
    kernels: ClassVar = {MulMat: mul_mat}

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self._buffer_type = host.HostBufferType("BLAS", self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.is_host

    def match(self, group: Group) -> Any:
        node = group.node
        if isinstance(node.op, MulMat) and node.ne[1] < MIN_COLUMNS:
            return Decline(f"{node.ne[1]} columns are too few for BLAS")
        return super().match(group)


class BlasRegistration(Registration):
    name = "BLAS"
    version = "0.1.0"
    api_version = 2

    def __init__(self) -> None:
        self._devices = [BlasDevice(self)]

    def devices(self) -> Sequence[Device]:
        return self._devices


@hookimpl
def ggplug_backend_registration() -> Registration:
    return BlasRegistration()

"""The few functions of CuPy that this package calls: no other module of it imports CuPy.

Devices, drivers and queues get this module as an object from :attr:`ggplug_cuda.CudaRegistration.cuda`.
"""

from __future__ import annotations

from typing import Any

from cupy.cuda import Event as Event
from cupy.cuda import MemoryPool as MemoryPool
from cupy.cuda import Stream as Stream
from cupy.cuda import alloc_pinned_memory as alloc_pinned_memory
from cupy.cuda.function import Module as Module
from cupy_backends.cuda.api import driver as driver
from cupy_backends.cuda.api import runtime as runtime
from cupy_backends.cuda.libs import nvrtc as nvrtc

try:
    from cupy_backends.cuda.libs import cublas as _cublas
except ImportError:
    _cublas = None

cublas: Any = _cublas
"""cuBLAS, or None where its library is not installed: the kernels of ggplug then compute products."""

"""The few calls of CuPy that this package makes: nothing else here imports CuPy.

Devices, drivers and queues get this module as an object from :attr:`ggplug_cuda.CudaRegistration.cuda`.
"""

from __future__ import annotations

from typing import Any

from cupy.cuda import Event, MemoryPool, Stream, alloc_pinned_memory
from cupy.cuda.function import Module
from cupy.cuda.memory import OutOfMemoryError
from cupy_backends.cuda.api import driver, runtime
from cupy_backends.cuda.libs import nvrtc

try:
    from cupy_backends.cuda.libs import cublas as _cublas
except ImportError:
    _cublas = None

cublas: Any = _cublas
"""cuBLAS, or None where its library is not installed: products then go through our own kernels."""

__all__ = [
    "Event",
    "MemoryPool",
    "Module",
    "OutOfMemoryError",
    "Stream",
    "alloc_pinned_memory",
    "cublas",
    "driver",
    "nvrtc",
    "runtime",
]

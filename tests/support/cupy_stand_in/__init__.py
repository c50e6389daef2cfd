"""A stand-in for CuPy that takes notes and computes: all that ``ggplug_cuda`` needs of CuPy, without a GPU.

==================  ====================================================================================================
devices             ``runtime``: getDeviceCount, getDeviceProperties, driverGetVersion, runtimeGetVersion, is_hip,
                    getDevice, setDevice, memGetInfo, deviceCanAccessPeer, deviceEnablePeerAccess
memory              ``MemoryPool``, ``alloc_pinned_memory``; ``runtime``: memcpyAsync, memcpyDefault, memsetAsync,
                    pointerGetAttributes
order               ``Stream``, ``Event``; a stream's capture gives a graph to launch
programs            ``nvrtc``: createProgram, compileProgram, getCUBIN, getPTX, getProgramLog, destroyProgram,
                    getVersion, getSupportedArchs; ``Module``; ``driver``: launchKernel
products            ``cublas``: create, destroy, setMathMode, sgemmStridedBatched
errors              ``runtime.CUDARuntimeError``, ``driver.CUDADriverError``, ``nvrtc.NVRTCError``,
                    ``cublas.CUBLASError``, ``OutOfMemoryError``
==================  ====================================================================================================

Kernels run on the processor, if there is a compiler for them (:mod:`cuda_on_host`); otherwise they do nothing.
A test asks for the ``calls`` of a name, orders the next one to ``refuse``, and ends with ``verify``.
"""

from __future__ import annotations

import functools
from collections import deque

from cupy_stand_in.calls import Cublas, Driver, Nvrtc, Runtime
from cupy_stand_in.errors import (
    CUBLASError,
    CUDADriverError,
    CUDARuntimeError,
    Fault,
    NVRTCError,
    OutOfMemoryError,
)
from cupy_stand_in.kernels import can_run
from cupy_stand_in.machine import Call, Gpu, Machine
from cupy_stand_in.objects import Event, MemoryPool, Module, PinnedAllocator, Stream

__all__ = [
    "CUBLASError",
    "CUDADriverError",
    "CUDARuntimeError",
    "Call",
    "Fault",
    "Gpu",
    "NVRTCError",
    "OutOfMemoryError",
    "StandIn",
    "can_run",
]


class StandIn:
    """CuPy on a machine with these devices.

    ``driver``, ``runtime``: their versions of CUDA; a driver of 0 is none.  ``architectures``: what the compiler
    knows.  ``hip``: CuPy's build for AMD.  ``blas``: whether cuBLAS is installed.  ``limit``: what the environment
    variable CUPY_GPU_MEMORY_LIMIT sets, in bytes.
    """

    def __init__(
        self,
        *gpus: Gpu,
        driver: int = 13020,
        runtime: int = 13020,
        architectures: tuple[int, ...] = (75, 80, 86, 89, 90, 100, 120),
        hip: bool = False,
        blas: bool = True,
        limit: int = 0,
    ) -> None:
        self.machine = Machine(gpus, hip)
        self.runtime = Runtime(self.machine, driver, runtime)
        self.driver = Driver(self.machine)
        self.nvrtc = Nvrtc(self.machine, architectures)
        self.cublas = Cublas(self.machine) if blas else None
        self.Stream = functools.partial(Stream, self.machine)
        self.Event = functools.partial(Event, self.machine)
        self.MemoryPool = functools.partial(MemoryPool, self.machine, limit=limit)
        self.Module = functools.partial(Module, self.machine)
        self.alloc_pinned_memory = PinnedAllocator(self.machine).alloc_pinned_memory

    def calls(self, *names: str) -> list[Call]:
        """The calls of these names so far, or all."""
        return [each for each in self.machine.log if not names or each.name in names]

    def forget(self) -> None:
        """Makes the log empty."""
        self.machine.log.clear()

    def refuse(self, name: str, error: Exception | int, after: int = 0) -> None:
        """Orders a call to raise, once ``after`` others have gone well; a number is a status of the library.

        An error after which CUDA takes nothing more from the process (700, 719) ends the device.
        """
        self.machine.ordered.setdefault(name, deque()).extend([*[None] * after, error])

    def verify(self) -> None:
        """Raises the first mistake that was seen, though someone may have caught it."""
        if self.machine.faults:
            raise self.machine.faults[0]

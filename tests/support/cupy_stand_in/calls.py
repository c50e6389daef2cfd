"""The modules of CuPy's that wrap CUDA's libraries: runtime, driver, nvrtc and cublas.

Names of functions and parameters are CuPy's.
"""

# ruff: noqa: N802

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from cuda_on_host import DoesNotCompile

from cupy_stand_in import kernels
from cupy_stand_in.errors import CUBLASError, CUDADriverError, CUDARuntimeError, Fault, NVRTCError, Status
from cupy_stand_in.machine import THREADS, Device, Machine, Queue
from cupy_stand_in.products import Matrices, product

F = TypeVar("F", bound=Callable[..., Any])


def call(function: F) -> F:
    """A call into CuPy: noted, refused if a test has ordered it, and one at a time."""
    names = list(inspect.signature(function).parameters)[1:]

    @functools.wraps(function)
    def noted(self: Noted, *args: Any, **keywords: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | keywords
        # Objects are in the log as their handles, so that it keeps none of them alive.
        arguments = {name: getattr(value, "ptr", value) for name, value in given.items()}
        arguments["of"] = getattr(self, "ptr", 0)
        with self._machine.lock:
            self._noted = self._machine.note(function.__name__, self._about(), self._error, arguments).arguments
            try:
                return function(self, *args, **keywords)
            except Fault as fault:
                self._machine.faults.append(fault)
                raise

    return noted  # type: ignore[return-value]


def query(function: F) -> F:
    """A call that is not noted: it asks, or belongs to the thread, and works whatever happened to the devices."""

    @functools.wraps(function)
    def locked(self: Noted, *args: Any, **keywords: Any) -> Any:
        with self._machine.lock:
            return function(self, *args, **keywords)

    return locked  # type: ignore[return-value]


class Noted:
    """What makes calls.  ``_error``: what they raise.  ``_noted``: the arguments in the log, to say more about them."""

    _error: type[Status] = CUDARuntimeError
    _noted: dict[str, Any]

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def _about(self) -> Device:
        """The device that a call is about."""
        return self._machine.device

    def _made(self, name: str) -> Device:
        """Notes that an object is made, on the device that this returns."""
        with self._machine.lock:
            device = self._machine.device
            self._machine.note(name, device, self._error, {})
            return device

    def _queue(self, stream: int) -> Queue:
        """The queue behind a stream's number."""
        found: Queue | None = self._machine.meant(stream)
        if stream == 0:
            raise Fault("work was given to the default stream, for which the others do not wait")
        if found is None:
            raise self._error(400)
        return found

    def _queue_here(self, stream: int) -> Queue:
        """The same; the stream has to be one of the current device."""
        found = self._queue(stream)
        if found.device is not self._machine.device:
            raise self._error(400)
        return found


class Runtime(Noted):
    """``cupy_backends.cuda.api.runtime``."""

    CUDARuntimeError = CUDARuntimeError
    memcpyDefault = 4  # noqa: N815

    def __init__(self, machine: Machine, driver: int, runtime: int) -> None:
        super().__init__(machine)
        self._driver = driver
        self._runtime = runtime
        self.is_hip = machine.hip

    @query
    def driverGetVersion(self) -> int:
        return self._driver

    @query
    def runtimeGetVersion(self) -> int:
        return self._runtime

    @query
    def getDeviceCount(self) -> int:
        if self._driver // 1000 < self._runtime // 1000:
            raise CUDARuntimeError(35)
        if not self._machine.devices:
            raise CUDARuntimeError(100)
        return len(self._machine.devices)

    @query
    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        return self._machine.devices[device].gpu.properties(self.is_hip)

    @query
    def getDevice(self) -> int:
        return self._machine.current

    @query
    def setDevice(self, device: int) -> None:
        self._machine.current = self._machine.devices[device].number
        self._machine.bound = True

    @query
    def deviceCanAccessPeer(self, device: int, peerDevice: int) -> int:
        return int(peerDevice in self._machine.devices[device].gpu.peers)

    @call
    def deviceEnablePeerAccess(self, peerDevice: int) -> None:
        here = self._machine.device
        if peerDevice not in here.gpu.peers:
            raise CUDARuntimeError(217)
        if peerDevice in here.reached:
            raise CUDARuntimeError(704)
        here.reached.add(peerDevice)

    @call
    def memGetInfo(self) -> tuple[int, int]:
        here = self._machine.device
        return here.gpu.memory - here.used, here.gpu.memory

    @call
    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        assert kind == self.memcpyDefault, "the stand-in knows no other kind"
        # Copies may be given to streams of any device.
        queue, machine = self._queue(stream), self._machine
        hosts = [a for a in (dst, src) if machine.is_host(a)]
        assert len(hosts) < 2, "a copy from host to host"
        if hosts and machine.pinned_at(hosts[0]) is None:
            queue.forbid_capture()
        to, source = (machine.place(address, size, "memcpyAsync") for address in (dst, src))
        if machine.is_host(src) and machine.pinned_at(src) is None:
            staged = source().copy()
            queue.give(lambda: np.copyto(to(), staged))
        else:
            queue.give(lambda: _copy(to(), source()))
        pageable = [a for a in hosts if machine.pinned_at(a) is None]
        if pageable and (pageable == [dst] or size > SENT):
            queue.run(queue.given)  # CUDA returns when such a copy is done

    @call
    def pointerGetAttributes(self, ptr: int) -> PointerAttributes:
        machine = self._machine
        return PointerAttributes(2 if not machine.is_host(ptr) else 0 if machine.pinned_at(ptr) is None else 1)

    @call
    def memsetAsync(self, ptr: int, value: int, size: int, stream: int) -> None:
        place = self._machine.place(ptr, size, "memsetAsync")
        self._queue_here(stream).give(lambda: place().fill(value))


SENT = 64 << 10
"""Bytes of pageable memory that CUDA takes along with the command."""


class PointerAttributes(NamedTuple):
    """What memory an address is in; ``type``: 0 pageable, 1 pinned, 2 a device's."""

    type: int


def _copy(to: Any, source: Any) -> None:
    if np.may_share_memory(to, source):
        raise Fault("memcpyAsync: source and target overlap")
    np.copyto(to, source)


class Function:
    """A loaded kernel; ``loaded`` says whether its module still is."""

    def __init__(self, device: Device, text: str, name: str) -> None:
        self.device = device
        self.name = name
        self.signature = kernels.signature(text)
        self.loaded = True
        self.program = kernels.program(text)


class Driver(Noted):
    """``cupy_backends.cuda.api.driver``."""

    _error = CUDADriverError
    CUDADriverError = CUDADriverError

    @call
    def launchKernel(
        self,
        f: int,
        grid_dim_x: int,
        grid_dim_y: int,
        grid_dim_z: int,
        block_dim_x: int,
        block_dim_y: int,
        block_dim_z: int,
        shared_mem_bytes: int,
        stream: int,
        kernel_params: int,
        extra: int,
    ) -> None:
        """The arguments are read now: ``kernel_params`` is the address of an array with the address of each."""
        queue, function = self._queue_here(stream), self._machine.meant(f)
        grid, block = (grid_dim_x, grid_dim_y, grid_dim_z), (block_dim_x, block_dim_y, block_dim_z)
        if not self._machine.bound:
            raise CUDADriverError(201)
        if function is None or not function.loaded or function.device is not queue.device:
            raise CUDADriverError(400)
        if min(grid + block) < 1 or max(grid[1:]) > 65535 or np.prod(block) > THREADS or extra:
            raise CUDADriverError(1)
        expected = function.signature
        addresses = (ctypes.c_void_p * (expected.pointers + 1)).from_address(kernel_params)
        pointers = [ctypes.c_uint64.from_address(a or 0).value for a in addresses[:-1]]
        struct = ctypes.string_at(addresses[-1] or 0, expected.bytes)
        self._noted.update(
            kernel=function.name,
            grid=grid,
            block=block,
            pointers=pointers,
            struct=struct,
            captured=queue.captured is not None,
        )

        def work() -> None:
            if not function.loaded:
                raise Fault(f"{function.name}: the module was unloaded")
            memories, touched = [], []
            for pointer in pointers:
                allocation, offset = self._machine.allocation(pointer, function.name)
                if allocation.device not in {queue.device.number, *queue.device.reached}:
                    raise CUDARuntimeError(700)
                memories.append(allocation.bytes(offset, None, function.name))
                touched.append(allocation)
            if function.program is not None:
                kernels.run(function.program, grid, block, [each.ctypes.data for each in memories], struct)
                for allocation in touched:
                    allocation.check(function.name)

        queue.give(work)


class Program:
    """A program of NVRTC's."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.log = ""
        self.architecture = ""


CUBIN = b"stand-in cubin for "


class Nvrtc(Noted):
    """``cupy_backends.cuda.libs.nvrtc``.  A binary is the architecture and the program's text."""

    _error = NVRTCError
    NVRTCError = NVRTCError

    def __init__(self, machine: Machine, architectures: tuple[int, ...]) -> None:
        super().__init__(machine)
        self._architectures = architectures

    @query
    def getVersion(self) -> tuple[int, int]:
        return 13, 2

    @query
    def getSupportedArchs(self) -> tuple[int, ...]:
        self._only_cuda("getSupportedArchs")
        return self._architectures

    @call
    def createProgram(self, src: str, name: str, headers: Any, include_names: Any) -> int:
        return self._machine.handle(Program(src))

    @call
    def compileProgram(self, prog: int, options: Any) -> None:
        program = self._program(prog)
        program.architecture = next((o.partition("=")[2] for o in options if o.startswith("--gpu-arch")), "")
        known = program.architecture.partition("_")[2] in map(str, self._architectures)
        if known is self._machine.hip:
            program.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)"
            raise NVRTCError(5)
        try:
            kernels.program(program.text)
        except DoesNotCompile as refused:
            program.log = str(refused)
            raise NVRTCError(6) from None

    @call
    def getCUBIN(self, prog: int) -> bytes:
        self._only_cuda("getCUBIN")
        program = self._program(prog)
        if not program.architecture.startswith("sm_"):
            raise RuntimeError("cubin is requested, but the real arch (sm_XX) is not provided")
        return self._binary(program)

    @call
    def getPTX(self, prog: int) -> bytes:
        return self._binary(self._program(prog)).replace(b"sm_", b"compute_", 1)

    @call
    def getProgramLog(self, prog: int) -> str:
        return self._program(prog).log

    @call
    def destroyProgram(self, prog: int) -> None:
        self._machine.drop(prog)

    def _only_cuda(self, name: str) -> None:
        if self._machine.hip:
            raise RuntimeError(f"HIP does not support {name}")

    def _program(self, handle: int) -> Program:
        found: Program = self._machine.meant(handle)
        return found

    @staticmethod
    def _binary(program: Program) -> bytes:
        return CUBIN + f"{program.architecture}\n{program.text}".encode()


class Blas:
    """A context of cuBLAS."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.mode = 0


class Cublas(Noted):
    """``cupy_backends.cuda.libs.cublas``."""

    _error = CUBLASError
    CUBLASError = CUBLASError
    CUBLAS_DEFAULT_MATH = 0
    CUBLAS_TF32_TENSOR_OP_MATH = 3

    @call
    def create(self) -> int:
        return self._machine.handle(Blas(self._machine.device))

    @call
    def destroy(self, handle: int) -> None:
        self._blas(handle)  # of this device
        self._machine.drop(handle)

    @call
    def setMathMode(self, handle: int, mode: int) -> None:
        assert not self._machine.hip, "hipBLAS has no modes"
        self._blas(handle).mode = mode

    @call
    def sgemmStridedBatched(
        self,
        handle: int,
        transa: int,
        transb: int,
        m: int,
        n: int,
        k: int,
        alpha: int,
        A: int,
        lda: int,
        strideA: int,
        B: int,
        ldb: int,
        strideB: int,
        beta: int,
        C: int,
        ldc: int,
        strideC: int,
        batchCount: int,
    ) -> None:
        """C = transposed A * B in the thread's current stream."""
        queue, blas = self._queue_here(self._machine.streams[-1]), self._blas(handle)
        if queue.captured is not None:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        by, plus = (ctypes.c_float.from_address(address).value for address in (alpha, beta))
        assert (transa, transb, by, plus) == (1, 0, 1.0, 0.0), "other products are not stood in for"
        assert min(m, n, k, batchCount) > 0, "products without elements are not stood in for"
        a = Matrices(A, k, m, lda, strideA, batchCount)
        b = Matrices(B, k, n, ldb, strideB, batchCount)
        c = Matrices(C, m, n, ldc, strideC, batchCount)
        if any(each.leading < each.rows for each in (a, b, c)):
            raise CUBLASError(7)
        self._noted.update(mode=blas.mode)
        at_a, at_b, at_c = (self._machine.place(each.address, each.bytes, "sgemmStridedBatched") for each in (a, b, c))
        tf32 = blas.mode == self.CUBLAS_TF32_TENSOR_OP_MATH
        queue.give(lambda: product(a.view(at_a()), b.view(at_b()), c.view(at_c()), tf32))

    def _blas(self, handle: int) -> Blas:
        found: Blas = self._machine.meant(handle)
        if found.device is not self._machine.device:
            raise Fault("a cuBLAS handle was used while another device was current")
        return found

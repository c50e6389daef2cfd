"""The driver of CUDA: memory, programs, launches and events; captured graphs, cuBLAS, peers, pinned memory."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Bytes
from ggplug_cuda.products import CudaProduct
from ggplug_simt import Bound, Compiled, Dispatch, Driver, Failure, Properties, StepwiseQueue
from ggplug_simt.c import CLibrary, MatrixProduct

log = logging.getLogger("ggplug")

ARGUMENTS = 16
"""Most pointers among a kernel's arguments."""

STAGED = 16 << 20
"""Bytes of pinned memory through which asynchronous copies from and to pageable memory go."""

SENT = 64 << 10
"""Bytes of pageable memory that CUDA takes along with the command to copy them, so that nothing waits."""

_PINNED = 1  # cudaMemoryTypeHost
_NO_BLAS_MEMORY = 3  # CUBLAS_STATUS_ALLOC_FAILED
_CAPTURE = range(900, 910)  # cudaErrorStreamCapture...: another call in the process broke the capture
# After these the process cannot use the device any more: ECC errors, NVLink, faults of a kernel, a destroyed context.
_LOST = (46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999)
# cudaError_t and CUresult have equal values for equal errors.
_MEANINGS = {2: Failure.MEMORY, **dict.fromkeys(_LOST, Failure.LOST)}


class CompileError(Exception):
    """A program does not compile; the compiler's log is its text."""


class CudaKernel(Bound):
    """A kernel, and its arguments in the form of ``cuLaunchKernel``: an array of their addresses."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._pointers = np.zeros(ARGUMENTS, np.uintp)
        self._struct = np.empty(0, np.uint8)
        self._addresses = np.zeros(ARGUMENTS + 1, np.uintp)

    def set_buffer(self, position: int, handle: Any) -> None:
        self._pointers[position] = handle.ptr

    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        self._struct = arguments.copy()
        self._addresses[:position] = self._pointers.ctypes.data + self._pointers.itemsize * np.arange(position)
        self._addresses[position] = self._struct.ctypes.data

    def launcher(self, queue: CudaQueue, groups: int, lanes: int) -> Callable[[], object]:
        launch, function, stream = queue.cuda.driver.launchKernel, self.function.ptr, queue.stream.ptr
        addresses = self._addresses.ctypes.data
        return lambda: launch(function, groups, 1, 1, lanes, 1, 1, 0, stream, addresses, 0)


class Current:
    """A context that makes a device the thread's current one, and restores the previous one at its end."""

    def __init__(self, runtime: Any, number: int) -> None:
        self._runtime = runtime
        self._number = number

    def __enter__(self) -> None:
        self._before = self._runtime.getDevice()
        # Even if it is the current one already: this binds the context, which launches in a new thread need.
        self._runtime.setDevice(self._number)

    def __exit__(self, *_: object) -> None:
        if self._before != self._number:
            self._runtime.setDevice(self._before)


class CudaQueue(StepwiseQueue):
    """A CUDA stream that does not wait for the default stream."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self.cuda = driver.cuda
        self.stream = driver.cuda.Stream(non_blocking=True)
        # If another thread waited for a stream during its capture, the capture would fail.
        self._capturing = threading.Lock()
        self._blas_handle: int | None = None

    @property
    def blas(self) -> tuple[Any, int]:
        """cuBLAS, and this queue's handle of it: a handle serves one thread at a time."""
        if self._blas_handle is None:
            self._blas_handle = self.cuda.cublas.create()
        return self.cuda.cublas, self._blas_handle

    def free(self) -> None:
        handle, self._blas_handle = self._blas_handle, None
        if handle is not None:
            # On a lost device there is nothing to release.
            lost = self.cuda.cublas.CUBLASError, self.cuda.runtime.CUDARuntimeError
            with contextlib.suppress(*lost), self._driver.current():
                self.cuda.cublas.destroy(handle)

    def write(self, handle: Any, offset: int, data: Bytes) -> object:
        self._move(handle.ptr + offset, data.ctypes.data, data.size)
        return data

    def read(self, handle: Any, offset: int, out: Bytes) -> object:
        self._move(out.ctypes.data, handle.ptr + offset, out.size)
        return out

    def write_async(self, handle: Any, offset: int, data: Bytes) -> object:
        staged = self._staging(data) if data.size > SENT else None
        if staged is None:
            return self.write(handle, offset, data)
        for start in range(0, data.size, STAGED):
            part = data[start : start + STAGED]
            self.stream.launch_host_func(_take_over, (staged[: part.size], part))
            self._move(handle.ptr + offset + start, staged.ctypes.data, part.size)
        return data, staged

    def read_async(self, handle: Any, offset: int, out: Bytes) -> object:
        staged = self._staging(out)
        if staged is None:
            return self.read(handle, offset, out)
        for start in range(0, out.size, STAGED):
            part = out[start : start + STAGED]
            self._move(staged.ctypes.data, handle.ptr + offset + start, part.size)
            self.stream.launch_host_func(_take_over, (part, staged[: part.size]))
        return out

    def _staging(self, host: Bytes) -> Bytes | None:
        """Pinned memory to copy through, or None where none is needed.

        CUDA copies between pageable memory and a device while the caller waits for all earlier work.
        """
        runtime = self.cuda.runtime
        if runtime.is_hip or runtime.pointerGetAttributes(host.ctypes.data).type == _PINNED:
            return None
        return self._driver.allocate_host(min(host.size, STAGED))

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        self._move(target.ptr + target_offset, source.ptr + source_offset, size)

    def _move(self, target: int, source: int, size: int) -> None:
        # Addresses are unique in all devices and the host, so CUDA knows where they are.
        runtime = self.cuda.runtime
        runtime.memcpyAsync(target, source, size, runtime.memcpyDefault, self.stream.ptr)

    def fill(self, handle: Any, offset: int, size: int, value: int) -> None:
        self.cuda.runtime.memsetAsync(handle.ptr + offset, value, size, self.stream.ptr)

    def bind(self, dispatch: Dispatch) -> CudaKernel | CudaProduct:
        if isinstance(dispatch.program, MatrixProduct):
            return CudaProduct(dispatch.program.exact)
        return CudaKernel(dispatch.program.get_function(dispatch.kernel))

    def launcher(self, bound: Bound, groups: int, lanes: int) -> Callable[[], object]:
        assert isinstance(bound, (CudaKernel, CudaProduct))
        return bound.launcher(self, groups, lanes)

    def capture(self, launchers: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        if self.cuda.runtime.is_hip:  # CuPy captures on CUDA only
            return None
        try:
            with self._capturing:
                try:
                    self.stream.begin_capture()
                    for start in launchers:
                        start()
                finally:
                    if self._is_capturing():  # wherever it was interrupted
                        graph = self.stream.end_capture()
        except (self.cuda.runtime.CUDARuntimeError, self.cuda.driver.CUDADriverError) as error:
            if error.status not in _CAPTURE:
                raise
            log.warning("CUDA: launches cannot be captured, so they are launched one by one: %s", error)
            return None
        return functools.partial(graph.launch, self.stream)

    def _is_capturing(self) -> bool:
        try:
            return bool(self.stream.is_capturing())
        except RuntimeError:  # an error has invalidated the capture, which only ending it takes the stream out of
            return True

    def record(self) -> Any:
        return self.stream.record(self.cuda.Event(disable_timing=True))

    def wait(self, mark: Any) -> None:
        self.stream.wait_event(mark)

    def flush(self) -> None:
        pass  # CUDA's streams run by themselves

    def stall(self) -> Callable[[], None]:
        gate = threading.Event()
        # CUDA calls it on another thread, in the order of the stream; it may not call CUDA.
        self.stream.launch_host_func(lambda opened: opened.wait(), gate)
        return gate.set

    def finish(self) -> None:
        with self._capturing:
            self.stream.synchronize()


def _take_over(pair: tuple[Bytes, Bytes]) -> None:
    """Copies on the host, in the order of the stream, on a thread of CUDA."""
    target, source = pair
    np.copyto(target, source)


class CudaDriver(Driver):
    """A GPU in CUDA's primary context, which other libraries of the process use, too."""

    def __init__(self, cuda: Any, number: int, facts: Mapping[str, Any]) -> None:
        self.cuda = cuda
        self.number = number
        self._peers: set[int] = set()
        with self.current():
            self._pool = cuda.MemoryPool()  # takes its limit from CUPY_GPU_MEMORY_LIMIT
            limit = self._pool.get_limit()
        self.total_memory = min(facts["totalGlobalMem"], limit or facts["totalGlobalMem"])
        self.max_buffer = self.total_memory
        self.alignment = 256
        self.properties = Properties(
            processor=False,
            vector_width=1,
            local_bytes=facts["sharedMemPerBlock"],
            max_lanes=facts["maxThreadsPerBlock"],
            products=cuda.cublas is not None,
            max_tensors=ARGUMENTS,
        )
        self.library = CLibrary("cuda", self.properties)
        self._options = compiler_options(cuda, facts)
        self.identity = "\n".join((facts["name"].decode(), str(cuda.nvrtc.getVersion()), *self._options))

    def current(self) -> Current:
        return Current(self.cuda.runtime, self.number)

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Any:
        return self._pool.malloc(size)

    def free(self, handle: Any) -> None:
        # To the pool, and from there unused memory to other programs.  A lost device frees nothing.
        handle.mem.free()
        with contextlib.suppress(self.cuda.runtime.CUDARuntimeError), self.current():
            if not self._pool.used_bytes():
                self._pool.free_all_blocks()

    def free_memory(self) -> int | None:
        with contextlib.suppress(self.cuda.runtime.CUDARuntimeError), self.current():
            free = self.cuda.runtime.memGetInfo()[0] + self._pool.free_bytes()
            return int(min(free, self.total_memory - self._pool.used_bytes()))
        return None  # a lost device does not answer

    def allocate_host(self, size: int) -> Bytes:
        return np.frombuffer(self.cuda.alloc_pinned_memory(size), np.uint8, size)

    # -- programs ----------------------------------------------------------------------------------

    def compile(self, text: str) -> Compiled:
        binary = compile_text(self.cuda, text, self._options)
        return Compiled(self.load(binary), binary)

    def load(self, binary: bytes) -> Any:
        module = self.cuda.Module()
        module.load(binary)
        return module

    # -- order -------------------------------------------------------------------------------------

    def queue(self) -> CudaQueue:
        return CudaQueue(self)

    def finish_mark(self, mark: Any) -> None:
        mark.synchronize()

    def reaches(self, other: Driver) -> bool:
        if other is self:
            return True
        if not isinstance(other, CudaDriver) or other.cuda is not self.cuda:
            return False
        # Copies work anyway, through the host; enabled peers do them directly.
        if other.number not in self._peers:
            self._peers.add(other.number)
            if self.cuda.runtime.deviceCanAccessPeer(self.number, other.number):
                with self.current(), contextlib.suppress(self.cuda.runtime.CUDARuntimeError):  # enabled by others
                    self.cuda.runtime.deviceEnablePeerAccess(other.number)
        return True

    def failure(self, error: Exception) -> tuple[Failure, str]:
        blas, meaning = self.cuda.cublas, Failure.OTHER
        if isinstance(error, CompileError):
            meaning = Failure.COMPILE
        elif isinstance(error, MemoryError):  # CuPy's are such, too
            meaning = Failure.MEMORY
        elif isinstance(error, (self.cuda.runtime.CUDARuntimeError, self.cuda.driver.CUDADriverError)):
            meaning = _MEANINGS.get(error.status, meaning)
        elif blas is not None and isinstance(error, blas.CUBLASError) and error.status == _NO_BLAS_MEMORY:
            meaning = Failure.MEMORY
        return meaning, str(error)


def compiler_options(cuda: Any, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of NVRTC: machine code for this GPU, or portable code where it is too new for this NVRTC."""
    if cuda.runtime.is_hip:
        return ("-ffp-contract=off",)
    own = 10 * facts["major"] + facts["minor"]
    known = cuda.nvrtc.getSupportedArchs()
    if own in known:
        target = f"sm_{own}"
    else:
        target = f"compute_{max((each for each in known if each < own), default=own)}"
    return (f"--gpu-architecture={target}", "-fmad=false")


def compile_text(cuda: Any, text: str, options: Sequence[str]) -> bytes:
    """A program's binary.  Needs no GPU.  Raises CompileError with the compiler's log."""
    nvrtc = cuda.nvrtc
    program = nvrtc.createProgram(text, "ggplug.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise CompileError(nvrtc.getProgramLog(program) or str(error)) from error
        portable = not any("=sm_" in option for option in options)
        return bytes(nvrtc.getPTX(program) if portable else nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)

"""The driver of OpenCL: memory, programs, launches and events."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl
from pyopencl.characterize import has_src_build_cache

from ggplug.backend import Bytes
from ggplug_opencl.caches import remove_damaged, writable_caches
from ggplug_simt import Bound, Compiled, Dispatch, Driver, Failure, Properties, StepwiseQueue
from ggplug_simt.c import CLibrary

_LOST = {"DEVICE_NOT_AVAILABLE", "DEVICE_NOT_FOUND", "INVALID_DEVICE", "INVALID_CONTEXT", "INVALID_COMMAND_QUEUE"}
_MEMORY = {"MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE"}
_COMPILE = {"BUILD_PROGRAM_FAILURE", "COMPILE_PROGRAM_FAILURE", "LINK_PROGRAM_FAILURE", "INVALID_BUILD_OPTIONS"}

_STATUS = {getattr(cl.status_code, name): name for name in (*_LOST, *_MEMORY, *_COMPILE)}

OPTIONS = ["-cl-std=CL1.2"]


class OpenCLProgram:
    """A built program of one kernel.

    ``spare``: its ``cl_kernel`` objects that are not in use.  pyopencl generates Python code for each new one, which
    takes longer than the rest of a plan's work for a launch.
    """

    def __init__(self, built: Any) -> None:
        self.built = built
        self.spare: list[Any] = []

    def kernel(self, name: str) -> Any:
        """A ``cl_kernel`` for one launch of a plan."""
        try:
            return self.spare.pop()
        except IndexError:
            return cl.Kernel(self.built, name)


class OpenCLBound(Bound):
    """A ``cl_kernel`` for one launch, as OpenCL keeps the arguments in it.  Returns to ``spare`` in the end."""

    def __init__(self, kernel: Any, spare: list[Any]) -> None:
        self.kernel = kernel
        self.spare = spare

    def __del__(self) -> None:
        self.spare.append(self.kernel)

    def set_buffer(self, position: int, handle: Any) -> None:
        self.kernel.set_arg(position, handle)

    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        self.kernel.set_arg(position, arguments)


class OpenCLQueue(StepwiseQueue):
    """An in-order command queue."""

    def __init__(self, context: Any, device: Any) -> None:
        self.context = context
        self.queue = cl.CommandQueue(context, device)

    # pyopencl's events of transfers wait when they are freed, so the caller has to keep them.

    def write(self, handle: Any, offset: int, data: Bytes) -> object:
        return cl.enqueue_copy(self.queue, handle, data, dst_offset=offset, is_blocking=False)

    def read(self, handle: Any, offset: int, out: Bytes) -> object:
        return cl.enqueue_copy(self.queue, out, handle, src_offset=offset, is_blocking=False)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        cl.enqueue_copy(self.queue, target, source, byte_count=size, src_offset=source_offset, dst_offset=target_offset)

    def fill(self, handle: Any, offset: int, size: int, value: int) -> None:
        cl.enqueue_fill_buffer(self.queue, handle, np.full(1, value, np.uint8), offset, size)

    def bind(self, dispatch: Dispatch) -> OpenCLBound:
        return OpenCLBound(dispatch.program.kernel(dispatch.kernel), dispatch.program.spare)

    def launcher(self, bound: Bound, groups: int, lanes: int) -> Callable[[], object]:
        assert isinstance(bound, OpenCLBound)
        enqueue, queue = cl.enqueue_nd_range_kernel, self.queue
        size, group = (groups * lanes,), (lanes,)
        return lambda: enqueue(queue, bound.kernel, size, group)

    def record(self) -> Any:
        return cl.enqueue_marker(self.queue)

    def wait(self, mark: Any) -> None:
        cl.enqueue_barrier(self.queue, wait_for=[mark])

    def flush(self) -> None:
        self.queue.flush()

    def finish(self) -> None:
        self.queue.finish()

    def stall(self) -> Callable[[], None]:
        gate = cl.UserEvent(self.context)
        cl.enqueue_barrier(self.queue, wait_for=[gate])
        self.queue.flush()
        return lambda: gate.set_status(cl.command_execution_status.COMPLETE)


class OpenCLDriver(Driver):
    """A context on one device."""

    def __init__(self, device: Any) -> None:
        self.device = device
        with writable_caches():
            remove_damaged()
            importlib.import_module("pyopencl.invoker")  # it opens its cache file when it is imported
        self.context = cl.Context([device])
        processor = bool(device.type & cl.device_type.CPU)
        self.identity = "\n".join(
            (device.platform.name, device.platform.version, device.name, device.version, device.driver_version)
        )
        self.properties = Properties(
            processor=processor,
            vector_width=device.native_vector_width_float,
            local_bytes=device.local_mem_size,
            max_lanes=device.max_work_group_size,
        )
        self.library = CLibrary("opencl", self.properties)
        # PoCL would allocate at the first use, and crash if there is no memory then; on a CPU both are host memory.
        self.memory_flags = cl.mem_flags.READ_WRITE | (cl.mem_flags.ALLOC_HOST_PTR if processor else 0)
        self.total_memory = device.global_mem_size
        self.max_buffer = device.max_mem_alloc_size
        self.alignment = device.mem_base_addr_align // 8
        # PoCL and NVIDIA keep what they compile on disk themselves; asking PoCL for a binary compiles once more.
        self.keeps_programs = bool(has_src_build_cache(device))

    def allocate(self, size: int) -> Any:
        return cl.Buffer(self.context, self.memory_flags, size)

    def free(self, handle: Any) -> None:
        handle.release()

    def queue(self) -> OpenCLQueue:
        return OpenCLQueue(self.context, self.device)

    def compile(self, text: str) -> Compiled:
        program = self._built(cl.Program(self.context, text))
        if self.keeps_programs:
            return Compiled(program, b"")
        binaries: Any = program.built.get_info(cl.program_info.BINARIES)
        return Compiled(program, binaries[0])

    def load(self, binary: bytes) -> OpenCLProgram:
        return self._built(cl.Program(self.context, [self.device], [binary]))

    def _built(self, program: Any) -> OpenCLProgram:
        with warnings.catch_warnings():
            # Some compilers log a message for every program.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            # Binaries are kept by ggplug or by the driver, so pyopencl need not keep them too.
            return OpenCLProgram(program.build(options=OPTIONS, devices=[self.device], cache_dir=False))

    def finish_mark(self, mark: Any) -> None:
        mark.wait()

    def failure(self, error: Exception) -> tuple[Failure, str]:
        if isinstance(error, (MemoryError, cl.MemoryError)):
            return Failure.MEMORY, str(error)
        status = _STATUS.get(error.code, "") if isinstance(error, cl.Error) else ""
        for known, failure in ((_LOST, Failure.LOST), (_MEMORY, Failure.MEMORY), (_COMPILE, Failure.COMPILE)):
            if status in known:
                return failure, str(error)
        return Failure.OTHER, str(error)

    def allocate_host(self, size: int) -> Bytes | None:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        pinned = cl.Buffer(self.context, flags, size)
        queue = cl.CommandQueue(self.context, self.device)
        access: Any = cl.map_flags.READ | cl.map_flags.WRITE
        # The array keeps the mapping, and with it the buffer.
        memory: Bytes = cl.enqueue_map_buffer(queue, pinned, access, 0, (size,), np.dtype(np.uint8))[0]
        return memory

"""The stand-in for CuPy does what CUDA does, says loudly what CUDA would pass over, and offers nothing CuPy lacks."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import importlib.util
import inspect
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_simt")

from cupy_stand_in import (
    CUDADriverError,
    CUDARuntimeError,
    Fault,
    Gpu,
    NVRTCError,
    OutOfMemoryError,
    StandIn,
    can_run,
)

from ggplug import ops, types
from ggplug.backend import Decline, Group
from ggplug.tensor import new_tensor
from ggplug_simt import Launch, Properties
from ggplug_simt.c import Source
from ggplug_simt.c.kernels import match
from ggplug_simt.c.launch import arguments
from ggplug_simt.c.profile import Profile

PROFILE = Profile.of(Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024))
SIZE = 256
needs_compiler = pytest.mark.skipif(not can_run(), reason="install ziglang")


@contextmanager
def on(cuda: StandIn, number: int) -> Iterator[None]:
    """Makes a device the thread's own for a while."""
    before = cuda.runtime.getDevice()
    cuda.runtime.setDevice(number)
    yield
    cuda.runtime.setDevice(before)


def write(cuda: StandIn, stream: Any, to: Any, data: npt.NDArray[Any]) -> None:
    cuda.runtime.memcpyAsync(to.ptr, data.ctypes.data, data.nbytes, cuda.runtime.memcpyDefault, stream.ptr)


def read(cuda: StandIn, stream: Any, source: Any, out: npt.NDArray[Any]) -> None:
    cuda.runtime.memcpyAsync(out.ctypes.data, source.ptr, out.nbytes, cuda.runtime.memcpyDefault, stream.ptr)


def copy(cuda: StandIn, stream: Any, source: Any, to: Any, size: int = SIZE) -> None:
    cuda.runtime.memcpyAsync(to.ptr, source.ptr, size, cuda.runtime.memcpyDefault, stream.ptr)


def fill(cuda: StandIn, stream: Any, to: Any, value: int, size: int = SIZE) -> None:
    cuda.runtime.memsetAsync(to.ptr, value, size, stream.ptr)


def content(cuda: StandIn, stream: Any, source: Any, size: int = SIZE) -> npt.NDArray[np.uint8]:
    out = np.zeros(size, np.uint8)
    read(cuda, stream, source, out)
    stream.synchronize()
    return out


# -- order ---------------------------------------------------------------------------------------------


def test_work_is_done_in_order_when_somebody_waits_and_not_before() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    out = np.zeros(SIZE, np.uint8)
    fill(cuda, stream, memory, 1)
    read(cuda, stream, memory, out)
    fill(cuda, stream, memory, 2)
    assert not out.any()
    stream.synchronize()
    assert (out == 1).all()
    assert (content(cuda, stream, memory) == 2).all()


def test_fresh_memory_holds_no_numbers() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    assert np.isnan(content(cuda, stream, memory).view(np.float32)).all()
    assert np.isnan(content(cuda, stream, memory).view(np.float16)).all()


def test_pageable_memory_is_read_at_the_call_and_pinned_memory_when_the_copy_is_done() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    pageable, pinned = np.zeros(SIZE, np.uint8), np.frombuffer(cuda.alloc_pinned_memory(SIZE), np.uint8, SIZE)
    for data, seen in ((pageable, 1), (pinned, 2)):
        data[...] = 1
        write(cuda, stream, memory, data)
        data[...] = 2
        assert (content(cuda, stream, memory) == seen).all()


def test_a_stream_waits_for_an_event_as_it_was_recorded_then() -> None:
    cuda = StandIn(Gpu(), Gpu())
    source = cuda.MemoryPool().malloc(SIZE)
    first, event = cuda.Stream(non_blocking=True), cuda.Event(disable_timing=True)
    fill(cuda, first, source, 1)
    first.record(event)
    with on(cuda, 1):
        target, second = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    second.wait_event(event)
    copy(cuda, second, source, target)
    fill(cuda, first, source, 2)
    first.record(event)
    assert (content(cuda, second, target) == 1).all()
    event.synchronize()
    assert (content(cuda, second, source) == 2).all()


def test_without_an_event_streams_are_in_no_order() -> None:
    cuda = StandIn(Gpu())
    memory, first, second = (
        cuda.MemoryPool().malloc(SIZE),
        cuda.Stream(non_blocking=True),
        cuda.Stream(non_blocking=True),
    )
    fill(cuda, first, memory, 1)
    assert not (content(cuda, second, memory) == 1).any()


def test_the_work_of_a_stream_that_nobody_keeps_is_done() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    fill(cuda, cuda.Stream(non_blocking=True), memory, 1)
    gc.collect()
    assert (content(cuda, stream, memory) == 1).all()


# -- graphs --------------------------------------------------------------------------------------------


def test_captured_work_is_done_as_often_as_its_graph_is_launched() -> None:
    cuda = StandIn(Gpu())
    pool, stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)
    source, target = pool.malloc(SIZE), pool.malloc(SIZE)
    stream.begin_capture()
    assert stream.is_capturing()
    copy(cuda, stream, source, target)
    graph = stream.end_capture()
    fill(cuda, stream, target, 0)
    assert (content(cuda, stream, target) == 0).all()
    for value in (1, 2):
        fill(cuda, stream, source, value)
        graph.launch(stream)
        assert (content(cuda, stream, target) == value).all()
    assert [call.captured for call in cuda.calls("launch")] == [1, 1]


def test_a_capture_ends_when_its_stream_is_waited_for() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="operation not permitted when stream is capturing"):
        stream.synchronize()
    with pytest.raises(CUDARuntimeError, match="Invalidated"):
        fill(cuda, stream, memory, 1)
    with pytest.raises(RuntimeError, match="invalidated the capture"):
        stream.is_capturing()
    with pytest.raises(CUDARuntimeError, match="Invalidated"):
        stream.end_capture()
    assert not stream.is_capturing()
    fill(cuda, stream, memory, 1)
    assert (content(cuda, stream, memory) == 1).all()


def test_a_capture_neither_waits_for_what_is_outside_of_it_nor_is_waited_for() -> None:
    cuda = StandIn(Gpu())
    stream, other, event = cuda.Stream(non_blocking=True), cuda.Stream(non_blocking=True), cuda.Event()
    other.record(event)
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="uncaptured work") as caught:
        stream.wait_event(event)
    assert caught.value.status == 905
    with pytest.raises(CUDARuntimeError):
        stream.end_capture()
    stream.begin_capture()
    stream.record(event)
    stream.end_capture()
    with pytest.raises(CUDARuntimeError, match="CapturedEvent"):
        event.synchronize()


def test_cupy_refuses_cublas_during_a_capture() -> None:
    cuda = StandIn(Gpu())
    stream, handle = cuda.Stream(non_blocking=True), cuda.cublas.create()
    stream.begin_capture()
    with stream, pytest.raises(NotImplementedError, match="cuBLAS API during stream capture"):
        cuda.cublas.sgemmStridedBatched(handle, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1)
    stream.end_capture()


# -- devices -------------------------------------------------------------------------------------------


def test_each_thread_has_a_current_device() -> None:
    cuda = StandIn(Gpu(), Gpu())
    cuda.runtime.setDevice(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(cuda.runtime.getDevice()))
    thread.start()
    thread.join()
    with on(cuda, 0), on(cuda, 1):
        seen.append(cuda.runtime.getDevice())
    assert [*seen, cuda.runtime.getDevice()] == [0, 1, 1]


def test_what_belongs_to_another_device_is_refused_and_copies_are_not() -> None:
    cuda = StandIn(Gpu(), Gpu())
    here, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    with on(cuda, 1):
        there, foreign = cuda.MemoryPool().malloc(SIZE), cuda.Event()
        with pytest.raises(CUDARuntimeError, match="invalid resource handle"):
            fill(cuda, stream, here, 1)
        with pytest.raises(RuntimeError, match="does not match with the current device"), stream:
            pass
        copy(cuda, stream, here, there)
    with pytest.raises(CUDARuntimeError, match="invalid resource handle"):
        stream.record(foreign)


def test_peers_are_enabled_once_and_only_where_there_are_any() -> None:
    cuda = StandIn(Gpu(peers=frozenset({1})), Gpu(), Gpu())
    assert [cuda.runtime.deviceCanAccessPeer(0, other) for other in (1, 2)] == [1, 0]
    cuda.runtime.deviceEnablePeerAccess(1)
    for other, said in ((1, "already enabled"), (2, "not supported")):
        with pytest.raises(CUDARuntimeError, match=said):
            cuda.runtime.deviceEnablePeerAccess(other)


@pytest.mark.parametrize(
    ("cuda", "status"),
    [(StandIn(Gpu(), driver=0), 35), (StandIn(Gpu(), driver=12080), 35), (StandIn(), 100)],
    ids=["no driver", "old driver", "no device"],
)
def test_without_driver_or_device_there_is_no_count(cuda: StandIn, status: int) -> None:
    with pytest.raises(CUDARuntimeError) as caught:
        cuda.runtime.getDeviceCount()
    assert caught.value.status == status


def test_work_for_the_default_stream_is_a_mistake() -> None:
    cuda = StandIn(Gpu())
    with pytest.raises(Fault, match="default stream"):
        cuda.runtime.memsetAsync(cuda.MemoryPool().malloc(SIZE).ptr, 0, SIZE, 0)


# -- memory --------------------------------------------------------------------------------------------


def test_memory_that_is_freed_before_its_work_is_done_is_a_mistake_that_is_told_twice() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    fill(cuda, stream, memory, 1)
    cuda.verify()
    memory.mem.free()
    with pytest.raises(Fault, match="were freed"):
        stream.synchronize()
    with pytest.raises(Fault, match="were freed"):
        cuda.verify()


def test_pinned_memory_that_is_freed_before_its_work_is_done_is_a_mistake() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    pinned = np.frombuffer(cuda.alloc_pinned_memory(SIZE), np.uint8, SIZE)
    write(cuda, stream, memory, pinned)
    del pinned
    gc.collect()
    with pytest.raises(Fault, match="pinned memory was freed"):
        stream.synchronize()


def test_what_is_beyond_an_allocation_is_a_mistake() -> None:
    cuda = StandIn(Gpu())
    memory, stream = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    fill(cuda, stream, memory, 1, SIZE + 1)
    with pytest.raises(Fault, match="beyond the 256 bytes"):
        stream.synchronize()
    with pytest.raises(Fault, match="there is no memory"):
        cuda.runtime.memsetAsync(memory.ptr - 1, 0, 1, stream.ptr)


def test_a_pool_keeps_what_it_is_given_back_until_it_is_needed() -> None:
    cuda = StandIn(Gpu(memory=4096))
    pool = cuda.MemoryPool()
    blocks = [pool.malloc(1000), pool.malloc(1)]
    assert (pool.used_bytes(), pool.free_bytes()) == (1536, 0)
    blocks[0].mem.free()
    assert (pool.used_bytes(), pool.free_bytes()) == (512, 1024)
    assert cuda.runtime.memGetInfo() == (4096 - 1536, 4096)
    with pytest.raises(OutOfMemoryError, match="Out of memory allocating 4,096 bytes"):
        pool.malloc(4096)
    assert pool.free_bytes() == 0
    pool.set_limit(size=2048)
    assert pool.get_limit() == 2048
    with pytest.raises(OutOfMemoryError, match="limit set to: 2,048 bytes"):
        pool.malloc(2048)
    blocks.clear()
    pool.free_all_blocks()
    assert cuda.runtime.memGetInfo() == (4096, 4096)


# -- errors on order -----------------------------------------------------------------------------------


def test_a_call_raises_what_a_test_ordered_and_some_errors_end_the_device() -> None:
    cuda = StandIn(Gpu(), Gpu())
    pool, stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)
    cuda.refuse("malloc", OutOfMemoryError(1, 2), after=1)
    pool.malloc(SIZE)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(SIZE)
    pool.malloc(SIZE)
    cuda.refuse("synchronize", 700)
    for _ in range(2):
        with pytest.raises(CUDARuntimeError, match="illegal memory access"):
            stream.synchronize()
    with pytest.raises(CUDARuntimeError, match="illegal memory access"):
        pool.malloc(SIZE)
    with on(cuda, 1):
        cuda.Stream(non_blocking=True).synchronize()


# -- products ------------------------------------------------------------------------------------------


def product(
    cuda: StandIn,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    c: npt.NDArray[Any],
    *rest: Any,
    mode: int = 0,
    scales: tuple[float, float] = (1.0, 0.0),
) -> npt.NDArray[np.float32]:
    """``rest``: transa, transb, m, n, k, lda, strideA, ldb, strideB, ldc, strideC, batchCount."""
    transa, transb, m, n, k, lda, stride_a, ldb, stride_b, ldc, stride_c, count = rest
    pool, stream, handle = cuda.MemoryPool(), cuda.Stream(non_blocking=True), cuda.cublas.create()
    at = [pool.malloc(each.nbytes) for each in (a, b, c)]
    for memory, values in zip(at, (a, b, c), strict=True):
        write(cuda, stream, memory, values)
    by = np.array(scales, np.float32)
    cuda.cublas.setMathMode(handle, mode)
    with stream:
        cuda.cublas.sgemmStridedBatched(
            handle,
            transa,
            transb,
            m,
            n,
            k,
            by.ctypes.data,
            at[0].ptr,
            lda,
            stride_a,
            at[1].ptr,
            ldb,
            stride_b,
            by.ctypes.data + 4,
            at[2].ptr,
            ldc,
            stride_c,
            count,
        )
    by[...] = 7
    out = np.empty_like(c)
    read(cuda, stream, at[2], out)
    stream.synchronize()
    cuda.verify()
    return out


@pytest.mark.parametrize("transa", [0, 1])
@pytest.mark.parametrize("transb", [0, 1])
@pytest.mark.parametrize("scales", [(1.0, 0.0), (0.5, -2.0)])
def test_products_are_cublas_own(transa: int, transb: int, scales: tuple[float, float]) -> None:
    m, n, k, count = 5, 4, 3, 2
    lda, ldb, ldc, stride_a, stride_b, stride_c = 7, 6, 9, 53, 0, 41
    generator = np.random.default_rng(5)
    a, b, c = (generator.standard_normal(100).astype(np.float32) for _ in range(3))
    if not scales[1]:
        c[...] = np.nan  # not read then
    wanted = c.copy()
    for i in range(count):
        for row in range(m):
            for column in range(n):
                at = stride_c * i + row + column * ldc
                total = 0.0
                for j in range(k):
                    x = a[stride_a * i + (j + row * lda if transa else row + j * lda)]
                    y = b[stride_b * i + (column + j * ldb if transb else j + column * ldb)]
                    total += float(x) * float(y)
                wanted[at] = scales[0] * total + (scales[1] * c[at] if scales[1] else 0.0)
    found = product(
        StandIn(Gpu()),
        a,
        b,
        c,
        transa,
        transb,
        m,
        n,
        k,
        lda,
        stride_a,
        ldb,
        stride_b,
        ldc,
        stride_c,
        count,
        scales=scales,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_tensor_cores_take_ten_bits_of_mantissa_where_that_is_allowed() -> None:
    a = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-11 - 2**-20, -3 - 2**-12], np.float32)
    b, c = np.ones(1, np.float32), np.zeros(4, np.float32)
    exact = [product(StandIn(Gpu()), a, b, c, 0, 0, 4, 1, 1, 4, 4, 1, 1, 4, 4, 1, mode=mode) for mode in (0, 3)]
    assert exact[0].tolist() == a.tolist()
    assert exact[1].tolist() == [1 + 2**-10, 1 + 2**-10, 1.0, -3.0]


# -- kernels -------------------------------------------------------------------------------------------


def squares(elements: int) -> Launch:
    """The launch that squares so many numbers, which are its pointers' second."""
    found = match(PROFILE, Group((ops.sqr(new_tensor(types.F32, (elements,))),)))
    assert not isinstance(found, Decline)
    return found.launches[0]


def text_of(launch: Launch) -> str:
    assert isinstance(launch.program, Source)
    return launch.program.text("cuda")


def compiled(cuda: StandIn, text: str, *options: str) -> bytes:
    program = cuda.nvrtc.createProgram(text, "a.cu", (), ())
    cuda.nvrtc.compileProgram(program, options or ("--gpu-architecture=sm_90",))
    binary: bytes = cuda.nvrtc.getCUBIN(program)
    cuda.nvrtc.destroyProgram(program)
    return binary


def start(cuda: StandIn, stream: Any, launch: Launch, *memory: Any, function: Any = None) -> Any:
    """Launches a kernel; returns it.  All it is given is scribbled over after the call."""
    if function is None:
        module = cuda.Module()
        module.load(compiled(cuda, text_of(launch)))
        function = module.get_function(launch.program.kernel)
    pointers = np.array([each.ptr for each in memory], np.uintp)
    struct = arguments(launch).copy()
    addresses = np.array([*(pointers.ctypes.data + 8 * n for n in range(len(memory))), struct.ctypes.data], np.uintp)
    cuda.driver.launchKernel(
        function.ptr, launch.groups, 1, 1, launch.lanes, 1, 1, 0, stream.ptr, addresses.ctypes.data, 0
    )
    for each in (pointers, struct, addresses):
        each[...] = 1
    return function


def test_a_launch_is_in_the_log_with_what_it_was_given() -> None:
    cuda = StandIn(Gpu())
    pool, stream, launch = cuda.MemoryPool(), cuda.Stream(non_blocking=True), squares(1000)
    memory = [pool.malloc(4000) for _ in range(2)]
    start(cuda, stream, launch, *memory)
    (call,) = cuda.calls("launchKernel")
    assert (call.kernel, call.grid, call.block) == ("map_one", (launch.groups, 1, 1), (launch.lanes, 1, 1))
    assert call.pointers == [each.ptr for each in memory]
    assert call.struct == arguments(launch).tobytes()
    assert not call.captured


@needs_compiler
def test_kernels_compute_when_somebody_waits() -> None:
    cuda = StandIn(Gpu())
    pool, stream, launch = cuda.MemoryPool(), cuda.Stream(non_blocking=True), squares(1000)
    target, source = pool.malloc(4000), pool.malloc(4000)
    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    write(cuda, stream, source, x)
    function = start(cuda, stream, launch, target, source)
    assert (content(cuda, stream, target, 4000).view(np.float32) == x * x).all()
    stream.begin_capture()
    start(cuda, stream, launch, target, source, function=function)
    graph = stream.end_capture()
    write(cuda, stream, source, x + 1)
    graph.launch(stream)
    assert (content(cuda, stream, target, 4000).view(np.float32) == (x + 1) * (x + 1)).all()
    cuda.verify()


def test_a_launch_needs_a_thread_with_a_context() -> None:
    cuda = StandIn(Gpu())
    pool, stream, launch = cuda.MemoryPool(), cuda.Stream(non_blocking=True), squares(8)
    memory = pool.malloc(32), pool.malloc(32)
    function = start(cuda, stream, launch, *memory)
    seen: list[str] = []

    def work() -> None:
        try:
            start(cuda, stream, launch, *memory, function=function)
        except CUDADriverError as error:
            seen.append(str(error))
        cuda.runtime.setDevice(0)
        start(cuda, stream, launch, *memory, function=function)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["CUDA_ERROR_INVALID_CONTEXT: invalid device context"]
    stream.synchronize()


@needs_compiler
def test_a_kernel_that_writes_beside_its_memory_is_a_mistake() -> None:
    cuda = StandIn(Gpu())
    pool, stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)
    memory = pool.malloc(3996), pool.malloc(4000)
    function = start(cuda, stream, squares(1000), *memory)
    with pytest.raises(Fault, match="map_one: something was written beside the 3996 bytes"):
        stream.synchronize()
    del function


def test_a_kernel_reaches_only_peers_with_access() -> None:
    cuda = StandIn(Gpu(peers=frozenset({1})), Gpu())
    pool, stream, launch = cuda.MemoryPool(), cuda.Stream(non_blocking=True), squares(8)
    here = pool.malloc(32)
    with on(cuda, 1):
        there, other = pool.malloc(32), cuda.Stream(non_blocking=True)
    cuda.runtime.deviceEnablePeerAccess(1)
    function = start(cuda, stream, launch, here, there)
    stream.synchronize()
    with on(cuda, 1):
        foreign = start(cuda, other, launch, here, there)
        with pytest.raises(CUDARuntimeError, match="IllegalAddress"):
            other.synchronize()
    stream.synchronize()
    del function, foreign


def test_a_launch_that_cuda_refuses_is_refused() -> None:
    cuda = StandIn(Gpu(threads=512), Gpu())
    pool, stream, launch = cuda.MemoryPool(), cuda.Stream(non_blocking=True), squares(8)
    memory = pool.malloc(32), pool.malloc(32)
    function = start(cuda, stream, launch, *memory)
    with on(cuda, 1), pytest.raises(CUDADriverError, match="INVALID_HANDLE"):
        start(cuda, stream, launch, *memory, function=function)
    with pytest.raises(CUDADriverError, match="INVALID_VALUE"):
        start(cuda, stream, launch._replace(lanes=513), *memory, function=function)
    stream.synchronize()
    cuda.verify()


def test_a_kernel_whose_module_was_unloaded_is_a_mistake() -> None:
    cuda = StandIn(Gpu())
    pool, stream, launch = cuda.MemoryPool(), cuda.Stream(non_blocking=True), squares(8)
    memory = pool.malloc(32), pool.malloc(32)
    function = start(cuda, stream, launch, *memory)
    del function
    gc.collect()
    with pytest.raises(Fault, match="map_one: the module was unloaded"):
        stream.synchronize()


@needs_compiler
def test_a_program_that_does_not_compile_leaves_a_log() -> None:
    cuda = StandIn(Gpu())
    program = cuda.nvrtc.createProgram(text_of(squares(8)) + "\nvoid broken( {", "a.cu", (), ())
    with pytest.raises(NVRTCError, match="COMPILATION"):
        cuda.nvrtc.compileProgram(program, ("--gpu-architecture=sm_90",))
    assert "error" in cuda.nvrtc.getProgramLog(program)


def test_binaries_are_for_architectures() -> None:
    cuda, launch = StandIn(Gpu(capability=(8, 6))), squares(8)
    for architecture, fits in (("sm_80", True), ("sm_86", True), ("sm_75", False), ("sm_90", False)):
        binary, module = compiled(cuda, text_of(launch), f"--gpu-architecture={architecture}"), cuda.Module()
        if fits:
            module.load(binary)
            with pytest.raises(CUDADriverError, match="NOT_FOUND"):
                module.get_function("nothing")
        else:
            with pytest.raises(CUDADriverError, match="NO_BINARY_FOR_GPU"):
                module.load(binary)
    with pytest.raises(CUDADriverError, match="INVALID_IMAGE"):
        cuda.Module().load(b"anything")
    with pytest.raises(NVRTCError, match="INVALID_OPTION"):
        compiled(cuda, text_of(launch), "--gpu-architecture=sm_61")


# -- nothing that CuPy lacks ---------------------------------------------------------------------------

MODULES = {
    "runtime": "cupy_backends.cuda.api.runtime",
    "driver": "cupy_backends.cuda.api.driver",
    "nvrtc": "cupy_backends.cuda.libs.nvrtc",
}
OBJECTS = {
    "Event": "cupy.cuda.Event",
    "Stream": "cupy.cuda.Stream",
    "MemoryPool": "cupy.cuda.MemoryPool",
    "Module": "cupy.cuda.function.Module",
    "alloc_pinned_memory": "cupy.cuda.alloc_pinned_memory",
}


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def parameters(function: Any) -> list[str] | None:
    """Names of parameters but self; Cython writes the signature into the first line of the docstring."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = declared(function.__doc__ or "")
    return [name for name in names if name != "self"] if names is not None else None


def declared(signature: str) -> list[str] | None:
    found = re.match(r"[\w.]+\(([^)]*)\)", signature)
    if found is None:
        return None
    given = [each.partition("=")[0].split() for each in found[1].split(",") if each.strip()]
    return [each[-1] for each in given]


def assert_has(real: Any, stand_in: Any, names: list[str]) -> None:
    for name in names:
        assert hasattr(real, name) or f"~{real.__name__}.{name} " in real.__doc__, f"CuPy has no {real}.{name}"
        assert_alike(getattr(real, name, None), getattr(stand_in, name))


def assert_alike(real: Any, stand_in: Any) -> None:
    """The stand-in takes the first of the real one's parameters, by the same names."""
    if isinstance(real, int):
        assert real == stand_in
    if callable(stand_in) and not isinstance(stand_in, type):
        wanted, known = parameters(stand_in), parameters(real)
        assert wanted is not None
        if isinstance(stand_in, functools.partial):  # what the stand-in is told beforehand
            wanted = [name for name in wanted if name not in stand_in.keywords]
        if known is not None:
            assert wanted == known[: len(wanted)]


@pytest.fixture(scope="module")
def cuda() -> StandIn:
    return StandIn(Gpu())


def test_all_names_are_those_of_cupy_calls(cuda: StandIn) -> None:
    pytest.importorskip("cupy")
    calls = importlib.import_module("ggplug_cuda.cupy_calls")
    own = {"calls", "forget", "machine", "refuse", "verify"}
    assert set(public(cuda)) - own == set(public(calls)) - {"Any", "annotations"}


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_nothing_that_cupys_lack(cuda: StandIn, name: str) -> None:
    pytest.importorskip("cupy")
    stand_in = getattr(cuda, name)
    assert_has(importlib.import_module(MODULES[name]), stand_in, public(stand_in))


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_have_nothing_that_cupys_lack(cuda: StandIn, name: str) -> None:
    pytest.importorskip("cupy")
    where, _, called = OBJECTS[name].rpartition(".")
    real, stand_in = getattr(importlib.import_module(where), called), getattr(cuda, name)
    if inspect.isclass(real) and not issubclass(real, Exception):
        instance = stand_in(**({"non_blocking": True} if name == "Stream" else {}))
        assert_alike(real, stand_in)
        assert_has(real, instance, public(instance))
    elif inspect.isclass(real):
        assert issubclass(real, MemoryError)
        assert parameters(real)[:3] == parameters(stand_in)
    else:
        assert_alike(real, stand_in)


def test_what_cupys_objects_give_has_nothing_that_cupys_lacks(cuda: StandIn) -> None:
    pytest.importorskip("cupy")
    from cupy.cuda import Graph, MemoryPointer, PinnedMemoryPointer
    from cupy.cuda.function import Function
    from cupy.cuda.memory import PooledMemory

    stream, memory, module = cuda.Stream(non_blocking=True), cuda.MemoryPool().malloc(SIZE), cuda.Module()
    stream.begin_capture()
    graph = stream.end_capture()
    assert_has(Graph, graph, public(graph))
    assert_has(MemoryPointer, memory, public(memory))
    assert_has(PooledMemory, memory.mem, public(memory.mem))
    assert hasattr(PinnedMemoryPointer, "ptr")
    module.load(compiled(cuda, text_of(squares(8))))
    assert_has(Function, function := module.get_function("map_one"), public(function))


def test_cublas_has_nothing_that_cupys_lacks(cuda: StandIn) -> None:
    """CuPy's module needs cuBLAS to be imported, but its signatures and names are in the file as text."""
    pytest.importorskip("cupy")
    found = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    assert found is not None
    assert found.origin is not None
    held = Path(found.origin).read_bytes().decode("latin-1")
    for name in public(cuda.cublas):
        assert re.search(rf"\b{name}\b", held), f"CuPy has no cublas.{name}"
        if not inspect.ismethod(getattr(cuda.cublas, name)):
            continue
        signature = re.search(rf"(?<![\w.]){name}\([^)\0]*\)", held)
        assert signature, f"CuPy does not tell the parameters of cublas.{name}"
        assert declared(signature[0]) == parameters(getattr(cuda.cublas, name))


def test_statuses_and_messages_are_cudas() -> None:
    pytest.importorskip("cupy")
    from cupy_backends.cuda.api.runtime import CUDARuntimeError as Real
    from cupy_stand_in.errors import _CUDA

    for status in _CUDA:
        assert str(CUDARuntimeError(status)) == str(Real(status))
        assert CUDARuntimeError(status).status == Real(status).status


def test_pinned_memory_begins_at_a_page_and_may_be_longer_than_asked() -> None:
    memory = StandIn(Gpu()).alloc_pinned_memory(5000)
    assert memory.ptr % 4096 == 0
    assert memory.ptr == ctypes.addressof(memory)
    assert len(memory) == 8192

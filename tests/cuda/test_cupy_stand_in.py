"""The stand-in for CuPy does what CUDA does, says loudly what CUDA would pass over, and offers nothing CuPy lacks."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_simt")

from cupy_stand_in import CUDADriverError, CUDARuntimeError, Fault, Gpu, StandIn, can_run
from cupy_stand_in.errors import _CUDA

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


@pytest.fixture
def cuda() -> StandIn:
    """Two GPUs; the first one can reach the second one's memory."""
    return StandIn(Gpu(peers=frozenset({1})), Gpu())


@pytest.fixture
def stream(cuda: StandIn) -> Any:
    return cuda.Stream(non_blocking=True)


@pytest.fixture
def memory(cuda: StandIn) -> Any:
    return cuda.MemoryPool().malloc(SIZE)


@contextmanager
def on(cuda: StandIn, number: int) -> Iterator[None]:
    """Makes a device the thread's own for a while."""
    before = cuda.runtime.getDevice()
    cuda.runtime.setDevice(number)
    yield
    cuda.runtime.setDevice(before)


def pinned(cuda: StandIn) -> npt.NDArray[np.uint8]:
    return np.frombuffer(cuda.alloc_pinned_memory(SIZE), np.uint8, SIZE)


def copy(cuda: StandIn, stream: Any, source: int, to: int, size: int = SIZE) -> None:
    cuda.runtime.memcpyAsync(to, source, size, cuda.runtime.memcpyDefault, stream.ptr)


def write(cuda: StandIn, stream: Any, to: Any, data: npt.NDArray[Any]) -> None:
    copy(cuda, stream, data.ctypes.data, to.ptr, data.nbytes)


def fill(cuda: StandIn, stream: Any, to: Any, value: int, size: int = SIZE) -> None:
    cuda.runtime.memsetAsync(to.ptr, value, size, stream.ptr)


def content(cuda: StandIn, stream: Any, source: Any, kind: Any = np.uint8, size: int = SIZE) -> npt.NDArray[Any]:
    out = np.zeros(size, np.uint8)
    copy(cuda, stream, source.ptr, out.ctypes.data, size)
    stream.synchronize()
    return out.view(kind)


# -- order ---------------------------------------------------------------------------------------------


def test_work_is_done_in_order_when_somebody_waits_and_not_before(cuda: StandIn, stream: Any, memory: Any) -> None:
    for kind in (np.float32, np.float16):  # fresh memory holds no numbers
        assert np.isnan(content(cuda, stream, memory, kind)).all()
    out = pinned(cuda)
    out[...] = 0
    fill(cuda, stream, memory, 1)
    copy(cuda, stream, memory.ptr, out.ctypes.data)
    fill(cuda, stream, memory, 2)
    assert not out.any()
    stream.synchronize()
    assert (out == 1).all()
    assert (content(cuda, stream, memory) == 2).all()


def test_pageable_memory_is_read_at_the_call_and_pinned_memory_when_the_copy_is_done(
    cuda: StandIn, stream: Any, memory: Any
) -> None:
    for data, seen in ((np.zeros(SIZE, np.uint8), 1), (pinned(cuda), 2)):
        data[...] = 1
        write(cuda, stream, memory, data)
        data[...] = 2
        assert (content(cuda, stream, memory) == seen).all()


def test_a_copy_to_pageable_memory_returns_when_it_is_done(cuda: StandIn, stream: Any, memory: Any) -> None:
    out = np.zeros(SIZE, np.uint8)
    fill(cuda, stream, memory, 1)
    copy(cuda, stream, memory.ptr, out.ctypes.data)
    assert (out == 1).all()


def test_addresses_are_of_pageable_or_pinned_memory_or_a_device(cuda: StandIn, memory: Any) -> None:
    pageable, fixed = np.zeros(SIZE, np.uint8), pinned(cuda)
    addresses = (pageable.ctypes.data, fixed.ctypes.data, memory.ptr)
    assert [cuda.runtime.pointerGetAttributes(address).type for address in addresses] == [0, 1, 2]


def test_a_stream_waits_for_an_event_as_it_was_recorded_then(cuda: StandIn, stream: Any, memory: Any) -> None:
    event = cuda.Event(disable_timing=True)
    fill(cuda, stream, memory, 1)
    stream.record(event)
    with on(cuda, 1):
        target, second = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
    second.wait_event(event)
    copy(cuda, second, memory.ptr, target.ptr)
    fill(cuda, stream, memory, 2)
    stream.record(event)
    assert (content(cuda, second, target) == 1).all()
    event.synchronize()
    assert (content(cuda, second, memory) == 2).all()


def test_without_an_event_streams_are_in_no_order_until_one_is_dropped(cuda: StandIn, stream: Any, memory: Any) -> None:
    first = cuda.Stream(non_blocking=True)
    fill(cuda, first, memory, 1)
    assert not (content(cuda, stream, memory) == 1).any()
    del first
    gc.collect()
    assert (content(cuda, stream, memory) == 1).all()


# -- graphs --------------------------------------------------------------------------------------------


def test_a_capture_is_invalid_once_its_stream_is_waited_for(cuda: StandIn, stream: Any, memory: Any) -> None:
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="operation not permitted when stream is capturing"):
        stream.synchronize()
    with pytest.raises(CUDARuntimeError, match="Invalidated"):
        fill(cuda, stream, memory, 1)
    with pytest.raises(RuntimeError, match="invalidated the capture") as caught:
        stream.is_capturing()
    assert type(caught.value) is RuntimeError
    with pytest.raises(CUDARuntimeError, match="Invalidated"):
        stream.end_capture()
    assert not stream.is_capturing()
    fill(cuda, stream, memory, 1)
    assert (content(cuda, stream, memory) == 1).all()


def test_neither_events_nor_cublas_are_captured(cuda: StandIn, stream: Any) -> None:
    event, handle = stream.record(cuda.Event()), cuda.cublas.create()
    stream.begin_capture()
    for use in (stream.record, stream.wait_event):
        with pytest.raises(Fault, match="events in a capture"):
            use(event)
    with stream, pytest.raises(NotImplementedError, match="cuBLAS API during stream capture"):
        cuda.cublas.sgemmStridedBatched(handle, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1)


# -- products ------------------------------------------------------------------------------------------


def product(
    cuda: StandIn, m: int, n: int, k: int, count: int, *matrices: tuple[npt.NDArray[Any], int, int], mode: int = 0
) -> npt.NDArray[np.float32]:
    """What cuBLAS leaves in the last of three matrices, each with its leading dimension and stride."""
    handle, pool, stream = cuda.cublas.create(), cuda.MemoryPool(), cuda.Stream(non_blocking=True)
    scales = np.array([1, 0], np.float32)
    at = [pool.malloc(values.nbytes) for values, _, _ in matrices]
    for place, (values, _, _) in zip(at, matrices, strict=True):
        write(cuda, stream, place, values)
    cuda.cublas.setMathMode(handle, mode)
    a, b, c = ((place.ptr, leading, stride) for place, (_, leading, stride) in zip(at, matrices, strict=True))
    alpha, beta = scales.ctypes.data, scales.ctypes.data + 4
    with stream:
        cuda.cublas.sgemmStridedBatched(handle, 1, 0, m, n, k, alpha, *a, *b, beta, *c, count)
    return content(cuda, stream, at[2], np.float32, matrices[2][0].nbytes)


def test_products_are_cublas_own_columns_first(cuda: StandIn) -> None:
    m, n, k, count = 5, 4, 3, 2
    a, b = (np.random.default_rng(seed).standard_normal(100).astype(np.float32) for seed in (5, 6))
    wanted = np.full(100, np.nan, np.float32)
    found = product(cuda, m, n, k, count, (a, 7, 43), (b, 6, 0), (wanted, 9, 41))
    for i, row, column in np.ndindex(count, m, n):
        wanted[41 * i + row + 9 * column] = sum(float(a[43 * i + j + 7 * row]) * b[j + 6 * column] for j in range(k))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_tensor_cores_take_ten_bits_of_mantissa_where_that_is_allowed(cuda: StandIn) -> None:
    a = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-11 - 2**-20, -3 - 2**-12], np.float32)
    for mode, taken in ((0, a.tolist()), (3, [1 + 2**-10, 1 + 2**-10, 1.0, -3.0])):
        found = product(cuda, 4, 1, 1, 1, (a, 1, 4), (np.ones(1, np.float32), 1, 1), (a, 4, 4), mode=mode)
        assert found.tolist() == taken


# -- kernels -------------------------------------------------------------------------------------------


def squares(elements: int) -> Launch:
    """The launch that squares so many numbers, which are its pointers' second."""
    found = match(PROFILE, Group((ops.sqr(new_tensor(types.F32, (elements,))),)))
    assert not isinstance(found, Decline)
    return found.launches[0]


def loaded(cuda: StandIn, launch: Launch, architecture: str = "sm_90") -> Any:
    """The module of a launch's program."""
    assert isinstance(launch.program, Source)
    program = cuda.nvrtc.createProgram(launch.program.text("cuda"), "a.cu", (), ())
    cuda.nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}",))
    module = cuda.Module()
    module.load(cuda.nvrtc.getCUBIN(program))
    return module


def start(cuda: StandIn, stream: Any, launch: Launch, *memory: Any, function: Any = None) -> Any:
    """Launches a kernel; returns it.  All its arguments are overwritten after the call."""
    if function is None:
        function = loaded(cuda, launch).get_function("map_one")
    pointers = np.array([each.ptr for each in memory], np.uintp)
    struct = arguments(launch).copy()
    addresses = np.array([*(pointers.ctypes.data + 8 * n for n in range(len(memory))), struct.ctypes.data], np.uintp)
    cuda.driver.launchKernel(
        function.ptr, launch.groups, 1, 1, launch.lanes, 1, 1, 0, stream.ptr, addresses.ctypes.data, 0
    )
    for each in (pointers, struct, addresses):
        each[...] = 1
    return function


@needs_compiler
def test_kernels_compute_when_somebody_waits_and_captured_ones_as_often_as_their_graph_is_launched(
    cuda: StandIn, stream: Any
) -> None:
    launch, x = squares(1000), np.linspace(-2, 2, 1000, dtype=np.float32)
    target, source = (cuda.MemoryPool().malloc(4000) for _ in range(2))
    write(cuda, stream, source, x)
    function = start(cuda, stream, launch, target, source)
    assert (content(cuda, stream, target, np.float32, 4000) == x * x).all()
    write(cuda, stream, source, x + 1)
    stream.synchronize()
    stream.begin_capture()
    start(cuda, stream, launch, target, source, function=function)
    graph = stream.end_capture()
    assert (content(cuda, stream, target, np.float32, 4000) == x * x).all()
    for more in (1, 2):
        write(cuda, stream, source, x + more)
        graph.launch(stream)
        assert (content(cuda, stream, target, np.float32, 4000) == (x + more) * (x + more)).all()
    assert [call.captured for call in cuda.calls("launchKernel", "end_capture", "launch")] == [False, True, 1, 1, 1]
    cuda.verify()


def test_each_thread_has_a_device_and_a_launch_needs_its_context(cuda: StandIn, stream: Any, memory: Any) -> None:
    function = start(cuda, stream, squares(8), memory, memory)
    launched = []

    def work() -> None:
        assert cuda.runtime.getDevice() == 0
        with pytest.raises(CUDADriverError, match="INVALID_CONTEXT: invalid device context"):
            start(cuda, stream, squares(8), memory, memory, function=function)
        cuda.runtime.setDevice(0)
        launched.append(start(cuda, stream, squares(8), memory, memory, function=function))

    thread = threading.Thread(target=work)
    with on(cuda, 1):
        thread.start()
        thread.join()
        assert cuda.runtime.getDevice() == 1
    assert launched


def test_a_kernel_reaches_only_peers_with_access_which_is_enabled_once(cuda: StandIn, stream: Any, memory: Any) -> None:
    with on(cuda, 1):
        there, other = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
        foreign = start(cuda, other, squares(8), memory, there)
        with pytest.raises(CUDARuntimeError, match="IllegalAddress"):
            other.synchronize()
    cuda.runtime.deviceEnablePeerAccess(1)
    function = start(cuda, stream, squares(8), memory, there)
    stream.synchronize()
    for device, said in ((1, "already enabled"), (0, "not supported")):
        with pytest.raises(CUDARuntimeError, match=said):
            cuda.runtime.deviceEnablePeerAccess(device)
    del function, foreign


# -- mistakes and refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "mistake"),
    [
        ("default stream", lambda cuda, stream, memory: cuda.runtime.memsetAsync(memory.ptr, 0, SIZE, 0)),
        ("there is no memory", lambda cuda, stream, memory: cuda.runtime.memsetAsync(memory.ptr - 1, 0, 1, stream.ptr)),
        ("beyond the 256 bytes", lambda cuda, stream, memory: fill(cuda, stream, memory, 1, SIZE + 1)),
        ("were freed", lambda cuda, stream, memory: (fill(cuda, stream, memory, 1), memory.mem.free())),
        ("pinned memory was freed", lambda cuda, stream, memory: write(cuda, stream, memory, pinned(cuda))),
        ("overlap", lambda cuda, stream, memory: copy(cuda, stream, memory.ptr, memory.ptr + 1, 8)),
        ("module was unloaded", lambda cuda, stream, memory: start(cuda, stream, squares(8), memory, memory) and None),
        pytest.param(
            "map_one: something was written outside of the 256 bytes",
            lambda cuda, stream, memory: start(cuda, stream, squares(65), memory, memory),
            marks=needs_compiler,
        ),
    ],
)
def test_what_cuda_would_pass_over_is_a_mistake_and_stays_one(
    cuda: StandIn, stream: Any, memory: Any, said: str, mistake: Callable[..., object]
) -> None:
    def work() -> object:
        kept = mistake(cuda, stream, memory)
        gc.collect()
        stream.synchronize()
        return kept

    for raising in (work, cuda.verify):
        with pytest.raises(Fault, match=said):
            raising()


def test_groups_too_large_and_what_belongs_to_another_device_are_refused_and_copies_are_not(
    cuda: StandIn, stream: Any, memory: Any
) -> None:
    event, handle, launch = cuda.Event(), cuda.cublas.create(), squares(8)
    function = loaded(cuda, launch).get_function("map_one")
    with pytest.raises(CUDADriverError, match="INVALID_VALUE"):
        start(cuda, stream, launch._replace(lanes=1025), memory, memory, function=function)
    with on(cuda, 1):
        there, own = cuda.MemoryPool().malloc(SIZE), cuda.Stream(non_blocking=True)
        uses: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (CUDARuntimeError, "invalid resource handle", lambda: fill(cuda, stream, memory, 1)),
            (CUDARuntimeError, "invalid resource handle", lambda: own.record(event)),
            (CUDADriverError, "INVALID_HANDLE", lambda: start(cuda, own, launch, there, there, function=function)),
            (RuntimeError, "does not match with the current device", lambda: stream.__enter__()),
            (Fault, "cuBLAS handle", lambda: cuda.cublas.setMathMode(handle, 0)),
        ]
        for kind, said, use in uses:
            with pytest.raises(kind, match=said):
                use()
        copy(cuda, stream, memory.ptr, there.ptr)


def test_some_errors_end_the_device_and_no_other(cuda: StandIn, stream: Any) -> None:
    cuda.refuse("synchronize", 700)
    for use in (stream.synchronize, stream.synchronize, lambda: cuda.MemoryPool().malloc(SIZE)):
        with pytest.raises(CUDARuntimeError, match="illegal memory access"):
            use()
    with on(cuda, 1):
        cuda.Stream(non_blocking=True).synchronize()


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("sm_80", "NOT_FOUND"),  # of the kernel, once the binary is loaded
        ("sm_86", "NOT_FOUND"),
        ("sm_75", "NO_BINARY_FOR_GPU"),
        ("sm_89", "NO_BINARY_FOR_GPU"),
        ("sm_61", "INVALID_OPTION"),
        ("compute_80", "cubin is requested"),
    ],
)
def test_binaries_are_for_architectures(architecture: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        loaded(StandIn(Gpu(capability=(8, 6))), squares(8), architecture).get_function("nothing")


# -- nothing that CuPy lacks ---------------------------------------------------------------------------


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def parameters(function: Any) -> list[str]:
    """Names of parameters but self; Cython writes the signature into the first line of the docstring."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = declared(function.__doc__)
    return [name for name in names if name != "self"]


def declared(signature: str) -> list[str]:
    found = re.match(r"[\w.]+\(([^)]*)\)", signature)
    assert found, signature
    return [each.partition("=")[0].split()[-1] for each in found[1].split(",") if each.strip()]


def assert_has(real: Any, stand_in: Any) -> None:
    """All that the stand-in offers is CuPy's."""
    for name in public(stand_in):
        assert hasattr(real, name) or f"~{real.__name__}.{name} " in real.__doc__, f"CuPy has no {real}.{name}"
        assert_alike(getattr(real, name, None), getattr(stand_in, name))


def assert_alike(real: Any, stand_in: Any) -> None:
    """The stand-in takes the first of the real one's parameters, by the same names."""
    if isinstance(real, int):
        assert real == stand_in
    if callable(stand_in) and not isinstance(stand_in, type):
        preset = getattr(stand_in, "keywords", {})  # preset arguments of the stand-in's constructors
        wanted = [name for name in parameters(stand_in) if name not in preset]
        assert wanted == parameters(real)[: len(wanted)]


def test_all_names_are_those_of_cupy_calls(cuda: StandIn) -> None:
    pytest.importorskip("cupy")
    calls = importlib.import_module("ggplug_cuda.cupy_calls")
    own = {"calls", "forget", "machine", "refuse", "verify"}
    assert set(public(cuda)) - own == set(public(calls)) - {"Any", "annotations"}


def test_modules_and_objects_have_nothing_that_cupys_lack(cuda: StandIn, stream: Any, memory: Any) -> None:
    pytest.importorskip("cupy")
    from cupy.cuda import Event, Graph, MemoryPointer, MemoryPool, PinnedMemoryPointer, Stream, alloc_pinned_memory
    from cupy.cuda.function import Function, Module
    from cupy.cuda.memory import PooledMemory
    from cupy_backends.cuda.api import driver, runtime
    from cupy_backends.cuda.libs import nvrtc

    made = {Event: cuda.Event, MemoryPool: cuda.MemoryPool, Module: cuda.Module}
    for real, make in {**made, Stream: cuda.Stream, alloc_pinned_memory: cuda.alloc_pinned_memory}.items():
        assert_alike(real, make)
    module = loaded(cuda, squares(8))
    stream.begin_capture()
    for real, thing in [
        *((real, make()) for real, make in made.items()),
        (Stream, stream),
        (Graph, stream.end_capture()),
        (MemoryPointer, memory),
        (PooledMemory, memory.mem),
        (Function, module.get_function("map_one")),
        (runtime, cuda.runtime),
        (driver, cuda.driver),
        (nvrtc, cuda.nvrtc),
    ]:
        assert_has(real, thing)
    assert hasattr(PinnedMemoryPointer, "ptr")


def test_cublas_has_nothing_that_cupys_lacks(cuda: StandIn) -> None:
    """CuPy's module needs cuBLAS to be imported, but its signatures and names are in the file as text."""
    pytest.importorskip("cupy")
    found = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    assert found is not None
    assert found.origin is not None
    held = Path(found.origin).read_bytes().decode("latin-1")
    for name in public(cuda.cublas):
        assert re.search(rf"\b{name}\b", held), f"CuPy has no cublas.{name}"
        if inspect.ismethod(getattr(cuda.cublas, name)):
            signature = re.search(rf"(?<![\w.]){name}\([^)\0]*\)", held)
            assert signature, f"CuPy does not report the parameters of cublas.{name}"
            assert declared(signature[0]) == parameters(getattr(cuda.cublas, name))


def test_statuses_and_messages_are_cudas() -> None:
    pytest.importorskip("cupy")
    from cupy_backends.cuda.api.runtime import CUDARuntimeError as Real

    for status in _CUDA:
        assert str(CUDARuntimeError(status)) == str(Real(status))
        assert CUDARuntimeError(status).status == Real(status).status

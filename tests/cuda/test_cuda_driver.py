"""CUDA devices call CuPy as they should: on a stand-in that takes notes and computes."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ggplug import ops, types
from ggplug.backend import Buffer
from ggplug.errors import (
    ComputeError,
    DeviceLostError,
    DeviceNotFoundError,
    GGPlugError,
    KernelCompileError,
    OutOfMemoryError,
    PluginError,
)
from ggplug.graph import Graph
from ggplug.memory import Allocation, allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import BufferUsage, DeviceKind, Precision
from ggplug_testing import ReferenceDevice

pytest.importorskip("ggplug_cuda")

import cupy_stand_in
from cupy_stand_in import CUBLASError, CUDADriverError, CUDARuntimeError, Gpu, StandIn, can_run
from cupy_stand_in.registration import devices

from ggplug_cuda import CudaRegistration
from ggplug_cuda.devices import CudaDevice
from ggplug_cuda.driver import STAGED, CudaQueue
from ggplug_simt import Failure, SimtBuffer
from ggplug_simt.c import source

needs_compiler = pytest.mark.skipif(not can_run(), reason="install ziglang")

TENSOR = np.dtype([("offset", "i8"), ("nb", "i8", 4), ("ne", "i4", 4)])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


@pytest.fixture
def cuda() -> Iterator[StandIn]:
    """Two GPUs; the second one reaches the first one's memory.  The thread's device is none of the two in use."""
    made = StandIn(Gpu(), Gpu(pci=(0, 2, 0), peers=frozenset({0})), Gpu(name="Unused"))
    made.runtime.setDevice(2)
    yield made
    made.verify()
    assert made.runtime.getDevice() == 2


@pytest.fixture
def device(cuda: StandIn) -> CudaDevice:
    return devices(cuda)[0]


def chain() -> Graph:
    x = new_tensor(types.F32, (8, 4), "x").set_input()
    return Graph(ops.norm(ops.add(ops.gelu(x), x)).set_output())


def placed(device: CudaDevice, graph: Graph) -> Allocation:
    allocation = allocate_graph(graph, device.buffer_type)
    allocation.prepare(graph)
    return allocation


def product(a: types.Type, k: int, m: int, n: int) -> tuple[Tensor, Tensor, Graph]:
    weights, x = new_tensor(a, (k, m)).set_input(), new_tensor(types.F32, (k, n)).set_input()
    return weights, x, Graph(ops.mul_mat(weights, x).set_output())


def pointer(buffer: Buffer) -> int:
    assert isinstance(buffer, SimtBuffer)
    found: int = buffer.handle.ptr
    return found


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


# -- devices -------------------------------------------------------------------------------------------


def test_devices_are_listed_with_cudas_properties_and_without_a_context(cuda: StandIn) -> None:
    cuda.machine.devices[1].gpu.integrated = True
    first, second, _ = devices(cuda)
    assert [first.name, second.name] == ["CUDA0", "CUDA1"]
    assert first.description == "Stand-in GPU (sm_90)"
    assert [first.kind, second.kind] == [DeviceKind.GPU, DeviceKind.IGPU]
    assert [first.device_id, second.device_id] == ["0000:01:00.0", "0000:02:00.0"]
    assert first.memory() == (1 << 30, 1 << 30)
    assert first.capabilities.asynchronous
    assert first.capabilities.host_buffer
    assert not cuda.calls()


@pytest.mark.parametrize(
    ("cuda", "kind", "said", "remedy"),
    [
        (StandIn(Gpu(), driver=0), DeviceNotFoundError, "no driver", "install the GPU vendor's driver"),
        (StandIn(Gpu(), driver=12080), PluginError, "for CUDA 12.8, CuPy was built for CUDA 13.2", "core[cuda12]"),
        (StandIn(), DeviceNotFoundError, "finds no GPU", "nvidia-smi"),
    ],
    ids=["no driver", "old driver", "no GPU"],
)
def test_without_driver_or_gpu_the_error_has_the_remedy(
    cuda: StandIn, kind: type[GGPlugError], said: str, remedy: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        devices(cuda)
    assert type(caught.value) is kind
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ModuleNotFoundError("No module named 'cupy'"), DeviceNotFoundError, "CuPy is not installed"),
        (ImportError("Failure finding libnvrtc.so\nmore"), PluginError, "lacks a library of CUDA: .* libnvrtc.so \\("),
    ],
    ids=["no CuPy", "no library"],
)
def test_without_cupy_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, kind: type[GGPlugError], said: str
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(kind, match=said) as caught:
        CudaRegistration().devices()
    assert "ggplug-core[cuda13]" in (caught.value.remedy or "")


def test_importing_the_package_imports_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ggplug_cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    fresh = importlib.import_module("ggplug_cuda")
    with pytest.raises(DeviceNotFoundError, match="CuPy is not installed"):
        fresh.CudaRegistration().devices()


def test_real_cupy_gives_devices_or_says_why_not() -> None:
    pytest.importorskip("cupy")
    try:
        found = CudaRegistration().devices()
    except DeviceNotFoundError as error:
        found, remedy = (), error.remedy
    assert found or remedy


# -- launches ------------------------------------------------------------------------------------------


def test_a_launch_gets_pointers_and_the_struct_of_places(cuda: StandIn, device: CudaDevice) -> None:
    x = new_tensor(types.F32, (8, 4)).set_input()
    graph = Graph(ops.norm(x, eps=0.25).set_output())
    allocation = placed(device, graph)
    with device.init() as stream:
        stream.compute(graph, allocation)
        (launch,) = cuda.calls("launchKernel")
        assert launch.device == 0
        assert (launch.kernel, launch.grid, launch.block) == ("normalise", (4, 1, 1), (128, 1, 1))
        assert launch.shared_mem_bytes == 0
        assert launch.pointers == [pointer(allocation.buffers[0])] * 2
        dst, source_ = np.frombuffer(launch.struct, TENSOR, 2)
        for found, tensor in ((dst, graph.nodes[0]), (source_, x)):
            assert found["offset"] == allocation.offsets[graph.index[tensor]]
            assert (found["nb"] == tensor.nb).all()
            assert (found["ne"] == tensor.ne).all()
        assert np.frombuffer(launch.struct, np.float32)[28] == 0.25


@needs_compiler
def test_a_graph_is_captured_when_it_is_computed_again_and_then_launched_as_one(
    cuda: StandIn, device: CudaDevice
) -> None:
    graph = chain()
    x, y = graph.leafs[0], graph.nodes[-1]
    allocation = placed(device, graph)
    with device.init() as stream:
        done = []
        for value in range(4):
            x.set(normal(4, 8) + value)
            cuda.forget()
            stream.compute(graph, allocation)
            done.append([call.name for call in cuda.calls()])
            x64 = normal(4, 8).astype(np.float64) + value
            y64 = x64 + x64 / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3)))
            wanted = (y64 - y64.mean(1, keepdims=True)) / np.sqrt(y64.var(1, keepdims=True) + y.op.eps)  # type: ignore[union-attr]
            np.testing.assert_allclose(y.numpy(), wanted, rtol=0, atol=1e-5)
    launches = ["launchKernel"] * 3
    assert [[name for name in names if name in ("launchKernel", "begin_capture", "launch")] for names in done] == [
        launches,
        ["begin_capture", *launches, "launch"],
        ["launch"],
        ["launch"],
    ]
    assert len(done[-1]) == 1


def test_other_places_are_captured_anew(cuda: StandIn, device: CudaDevice) -> None:
    graph = chain()
    first, second = placed(device, graph), placed(device, graph)
    with device.init() as stream:
        for allocation, pointers in ((first, 7), (second, 7)):
            cuda.forget()
            for _ in range(3):
                stream.compute(graph, allocation)
            assert len(cuda.calls("begin_capture")) == 1
            captured = [call for call in cuda.calls("launchKernel") if call.captured]
            assert [each for call in captured for each in call.pointers] == [pointer(allocation.buffers[0])] * pointers
        stream.synchronize()


def test_what_cuda_does_not_capture_is_launched_one_by_one(
    cuda: StandIn, device: CudaDevice, caplog: pytest.LogCaptureFixture
) -> None:
    graph = chain()
    allocation = placed(device, graph)
    cuda.refuse("launchKernel", CUDADriverError(900), after=4)
    with device.init() as stream, caplog.at_level(logging.WARNING, "ggplug"):
        for _ in range(3):
            stream.compute(graph, allocation)
        stream.synchronize()
    assert "launched one by one" in caplog.text
    assert not cuda.calls("launch")
    assert sum(not call.arguments.get("captured", True) for call in cuda.calls("launchKernel")) == 9


def test_a_capture_that_cuda_has_invalidated_is_ended(
    cuda: StandIn, device: CudaDevice, caplog: pytest.LogCaptureFixture
) -> None:
    queue = device.driver.queue()
    assert isinstance(queue, CudaQueue)
    with device.driver.current(), caplog.at_level(logging.WARNING, "ggplug"):
        assert queue.capture([queue.stream.synchronize]) is None
        queue.finish()
    assert "launched one by one" in caplog.text


# -- products ------------------------------------------------------------------------------------------


def test_products_of_many_columns_are_cublas_own(cuda: StandIn, device: CudaDevice) -> None:
    w, x, graph = product(types.F32, 24, 10, 12)
    allocation = placed(device, graph)
    w.set(normal(10, 24))
    x.set(normal(12, 24))
    with device.init() as stream:
        for _ in range(3):
            stream.compute(graph, allocation)
        found = graph.nodes[0].numpy()
    np.testing.assert_allclose(found, normal(12, 24) @ normal(10, 24).T, rtol=0, atol=1e-5)
    at = {t: pointer(allocation.buffers[0]) + int(allocation.offsets[graph.index[t]]) for t in (w, x, graph.nodes[0])}
    calls = cuda.calls("sgemmStridedBatched")
    assert len(calls) == 3
    for call in calls:
        assert (call.transa, call.transb, call.m, call.n, call.k, call.batchCount) == (1, 0, 10, 12, 24, 1)
        assert (call.A, call.lda, call.B, call.ldb, call.C, call.ldc) == (at[w], 24, at[x], 24, at[graph.nodes[0]], 10)
        assert call.mode == cuda.cublas.CUBLAS_DEFAULT_MATH
    assert not cuda.calls("launchKernel", "launch")
    assert len(cuda.calls("create")) == len(cuda.calls("destroy")) == 1


def test_batches_and_strides_are_cublas_own(cuda: StandIn, device: CudaDevice) -> None:
    """Three matrices of b, parts of longer rows, that meet as many of a, and each of the other dimension by itself."""
    whole_a, whole_b = (
        new_tensor(types.F32, (20, 6, 3, 1)).set_input(),
        new_tensor(types.F32, (24, 9, 3, 2)).set_input(),
    )
    a = ops.view(whole_a, 16, 6, 3, 1, nb=whole_a.nb[1:], offset=16)
    b = ops.view(whole_b, 16, 9, 3, 2, nb=whole_b.nb[1:], offset=32)
    graph = Graph(ops.mul_mat(a, b).set_output())
    allocation = placed(device, graph)
    x, y = normal(1, 3, 6, 20), normal(2, 3, 9, 24)
    whole_a.set(x)
    whole_b.set(y)
    with device.init() as stream:
        stream.compute(graph, allocation)
        found = graph.nodes[-1].numpy()
    np.testing.assert_allclose(found, y[..., 8:] @ x[..., 4:].swapaxes(-1, -2), rtol=0, atol=1e-5)
    calls = cuda.calls("sgemmStridedBatched")
    assert [(call.m, call.n, call.k, call.batchCount) for call in calls] == [(6, 9, 16, 3)] * 2
    for call in calls:
        assert (call.lda, call.strideA, call.ldb, call.strideB, call.ldc, call.strideC) == (20, 120, 24, 216, 6, 54)
    assert calls[0].A == calls[1].A
    assert calls[1].B - calls[0].B == 4 * 3 * 9 * 24


@needs_compiler
@pytest.mark.parametrize("precision", list(Precision))
def test_blocks_are_decoded_for_cublas_which_may_round_them(
    cuda: StandIn, device: CudaDevice, precision: Precision
) -> None:
    w, x = new_tensor(types.Q8_0, (64, 10)).set_input(), new_tensor(types.F32, (64, 12)).set_input()
    graph = Graph(ops.gelu(ops.mul_mat(w, x, precision=precision)).set_output())
    allocation = placed(device, graph)
    w.set(normal(10, 64))
    x.set(normal(12, 64))
    with device.init() as stream:
        for _ in range(3):
            stream.compute(graph, allocation)
        stream.synchronize()
        scratch = device.used - allocation.buffers[0].size
        names = [call.name for call in cuda.calls("launchKernel", "sgemmStridedBatched", "launch")]
    assert names == ["launchKernel", "sgemmStridedBatched", "launchKernel"] * 3
    decoded, by = cuda.calls("launchKernel")[0], cuda.calls("sgemmStridedBatched")[0]
    assert decoded.pointers == [by.A, pointer(allocation.buffers[0])]
    assert scratch == 4 * 64 * 10
    exact = precision == Precision.F32
    assert by.mode == (cuda.cublas.CUBLAS_DEFAULT_MATH if exact else cuda.cublas.CUBLAS_TF32_TENSOR_OP_MATH)
    assert device.used == allocation.buffers[0].size


@needs_compiler
def test_products_without_cublas_are_our_own() -> None:
    cuda = StandIn(Gpu(), blas=False)
    (device,) = devices(cuda)
    w, x, graph = product(types.F32, 32, 10, 12)
    allocation = placed(device, graph)
    w.set(normal(10, 32))
    x.set(normal(12, 32))
    with device.init() as stream:
        stream.compute(graph, allocation)
        np.testing.assert_allclose(graph.nodes[0].numpy(), normal(12, 32) @ normal(10, 32).T, rtol=0, atol=1e-5)
    assert [call.kernel for call in cuda.calls("launchKernel")] == ["mul_mat_tiles"]


# -- order and copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "parts"), [(64, 1), (STAGED + 64, 2)], ids=["few bytes", "many bytes"])
def test_asynchronous_transfers_wait_for_nothing(cuda: StandIn, device: CudaDevice, size: int, parts: int) -> None:
    with device.buffer_type.alloc(size) as buffer, device.init() as stream:
        data, out = np.random.default_rng(1).integers(0, 256, size, np.uint8), np.zeros(size, np.uint8)
        cuda.forget()
        stream.set_async(buffer, 0, data)
        stream.get_async(buffer, 0, out)
        event = device.event()
        event.record(stream)
        assert not cuda.calls("synchronize")
        assert not out.any()
        event.synchronize()
        assert (out == data).all()
        moves = cuda.calls("memcpyAsync")
        assert [move.size for move in moves] == 2 * [STAGED, 64][-parts:]
        assert moves[0].dst == moves[parts].src == pointer(buffer)


def test_streams_of_a_device_wait_for_each_other_by_events(cuda: StandIn, device: CudaDevice) -> None:
    with device.buffer_type.alloc(64) as source_, device.buffer_type.alloc(64) as target:
        with device.init() as first, device.init() as second:
            first.set_async(source_, 0, np.full(64, 5, np.uint8))
            event = device.event()
            event.record(first)
            event.wait(second)
            second.copy_async(source_, 0, target, 0, 64)
            cuda.forget()
            second.synchronize()
            assert len(cuda.calls("synchronize")) == 1
        out = np.zeros(64, np.uint8)
        target.get(0, out)
        assert (out == 5).all()


def test_pinned_buffers_are_pinned_and_go_to_the_device_without_staging(cuda: StandIn, device: CudaDevice) -> None:
    kind = device.host_buffer_type
    assert kind is not None
    with kind.alloc(100) as pinned, device.buffer_type.alloc(100) as buffer, device.init() as stream:
        assert pinned.address is not None
        assert cuda.machine.pinned_at(pinned.address) is not None
        view = pinned.bytes(0, 100)
        view[...] = 7
        stream.set_async(buffer, 0, view)
        out = np.zeros(100, np.uint8)
        stream.get_async(buffer, 0, out)
        stream.synchronize()
        assert (out == 7).all()
        assert cuda.calls("memcpyAsync")[0].src == pinned.address
        del view


def test_buffers_of_two_devices_are_copied_directly_and_in_order(cuda: StandIn) -> None:
    first, second, third = devices(cuda)
    for target_device, enabled in ((second, [0]), (third, [])):
        with first.buffer_type.alloc(64) as source_, target_device.buffer_type.alloc(64) as target:
            with first.init() as writer, target_device.init() as mover:
                cuda.forget()
                writer.set_async(source_, 0, np.full(64, 9, np.uint8))
                mover.copy_async(source_, 0, target, 0, 64, writer)
                (move,) = [call for call in cuda.calls("memcpyAsync") if call.src == pointer(source_)]
                assert (move.dst, move.device) == (pointer(target), target_device.number)
                peers = cuda.calls("deviceEnablePeerAccess")
                assert [call.peerDevice for call in peers] == enabled
                assert all(call.device == target_device.number for call in peers)
                assert not cuda.calls("synchronize")
                mover.synchronize()
            target.set(0, np.zeros(32, np.uint8))
            target.copy_from(source_, 0, 0, 16)
            out = np.empty(64, np.uint8)
            target.get(0, out)
            assert out.tolist() == [9] * 16 + [0] * 16 + [9] * 32


def test_a_buffer_that_another_device_still_copies_from_is_freed_when_that_is_done(cuda: StandIn) -> None:
    first, second, _ = devices(cuda)
    source_, target = first.buffer_type.alloc(64), second.buffer_type.alloc(64)
    source_.set(0, np.full(64, 9, np.uint8))
    with second.init() as mover:
        mover.copy_async(source_, 0, target, 0, 64)
        source_.free()
        mover.synchronize()
    out = np.empty(64, np.uint8)
    target.get(0, out)
    target.free()
    assert (out == 9).all()


@needs_compiler
@pytest.mark.parametrize("n_copies", [1, 2])
def test_computations_over_two_devices_submitted_one_after_the_other_do_not_disturb_each_other(
    cuda: StandIn, n_copies: int
) -> None:
    gpus = devices(cuda)[:2]
    weights = [new_tensor(types.F32, (8, 8)) for _ in range(4)]
    for n, w in enumerate(weights):
        buffer = gpus[n // 2].buffer_type.alloc(256)
        buffer.usage = BufferUsage.WEIGHTS
        w.place(buffer)
        w.set(normal(8, 8) / 3 * (n + 1))
    x = new_tensor(types.F32, (8, 3)).set_input()
    h = x
    for w in weights:
        h = ops.mul_mat(w, h)
    graph = Graph(h.set_output())
    with Scheduler([*gpus, ReferenceDevice("cpu")], n_copies=n_copies) as scheduler:
        fetched = []
        for step in range(6):
            scheduler.allocate(graph)
            x.set(normal(3, 8) + step)
            scheduler.compute_async(graph)
            fetched.append(np.empty(h.nbytes, np.uint8))
            scheduler.get_async(h, graph, fetched[-1])
        moved = {call.dst >> 48 for call in cuda.calls("memcpyAsync") if call.src >> 48 == 1}
        scheduler.synchronize()
    assert 2 in moved  # from the first device to the second one
    for step, raw in enumerate(fetched):
        wanted = normal(3, 8) + step
        for n in range(4):
            wanted = wanted @ (normal(8, 8) / 3 * (n + 1)).T
        np.testing.assert_allclose(raw.view(np.float32).reshape(3, 8), wanted, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_threads_compute_on_one_device_at_once(cuda: StandIn, device: CudaDevice) -> None:
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        graph = chain()
        with device.init() as stream:
            allocation = placed(device, graph)
            for _ in range(5):
                graph.leafs[0].set(normal(4, 8) * seed)
                stream.compute(graph, allocation)
                stream.synchronize()
            found[seed] = graph.nodes[-1].numpy()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with device.init() as stream:
        for seed in (1, 2, 3):
            graph = chain()
            allocation = placed(device, graph)
            graph.leafs[0].set(normal(4, 8) * seed)
            stream.compute(graph, allocation)
            assert (graph.nodes[-1].numpy() == found[seed]).all()


def test_a_thread_whose_device_is_another_one_uses_each_device(cuda: StandIn) -> None:
    """Every call makes its device current, and gives the thread's own back (the fixture looks)."""
    for each in devices(cuda):
        with each.buffer_type.alloc(256) as buffer, each.init() as stream:
            buffer.clear(1)
            buffer.set(0, np.full(16, 2, np.uint8))
            stream.set_async(buffer, 16, np.full(16, 3, np.uint8))
            event = each.event()
            event.record(stream)
            event.wait(stream)
            out = np.zeros(256, np.uint8)
            stream.get_async(buffer, 0, out)
            stream.synchronize()
            assert out.tolist() == [2] * 16 + [3] * 16 + [1] * 224
            assert each.memory().free < each.memory().total
        _, _, graph = product(types.F32, 8, 10, 12)
        allocation = placed(each, graph)
        with each.init() as stream:
            stream.compute(graph, allocation)
            stream.synchronize()
        del allocation
    assert {call.device for call in cuda.calls("memcpyAsync", "memsetAsync", "malloc", "Stream", "Event")} == {0, 1, 2}


# -- memory --------------------------------------------------------------------------------------------


def test_memory_is_the_pools_and_goes_back_to_it(cuda: StandIn, device: CudaDevice) -> None:
    kept = device.buffer_type.alloc(1000)
    device.buffer_type.alloc(2000).free()
    assert device.memory() == ((1 << 30) - 1024, 1 << 30)
    assert cuda.machine.devices[0].used == 1024 + 2048
    kept.free()
    assert cuda.machine.devices[0].used == 0


def test_the_limit_of_cupys_pool_is_the_devices_memory() -> None:
    cuda = StandIn(Gpu(), limit=1 << 20)
    (device,) = devices(cuda)
    with device.buffer_type.alloc(1 << 19):
        assert device.memory() == (1 << 19, 1 << 20)
        with pytest.raises(OutOfMemoryError) as caught:
            device.buffer_type.alloc((1 << 19) + 1)
    assert (caught.value.requested, caught.value.free) == ((1 << 19) + 1, 1 << 19)
    device.buffer_type.alloc(1 << 20).free()


def test_memory_is_freed_when_nothing_uses_it_any_more(cuda: StandIn, device: CudaDevice) -> None:
    out = np.zeros(64, np.uint8)
    with device.init() as stream:
        buffer = device.buffer_type.alloc(64)
        stream.set_async(buffer, 0, np.full(64, 4, np.uint8))
        stream.get_async(buffer, 0, out)
        buffer.free()
    assert (out == 4).all()


def test_memory_that_others_took_is_missing(cuda: StandIn, device: CudaDevice) -> None:
    cuda.machine.devices[0].used = (1 << 30) - 4096
    with pytest.raises(OutOfMemoryError, match="no memory for 5000 bytes") as caught:
        device.buffer_type.alloc(5000)
    assert (caught.value.device, caught.value.requested, caught.value.free) == (device, 5000, 4096)
    device.buffer_type.alloc(4096).free()
    assert device.used == 0


def test_cublas_without_memory_names_op_and_kernel(cuda: StandIn, device: CudaDevice) -> None:
    _, _, graph = product(types.F32, 8, 10, 12)
    allocation = placed(device, graph)
    cuda.refuse("sgemmStridedBatched", CUBLASError(3))
    with device.init() as stream:
        with pytest.raises(OutOfMemoryError, match=r"CUDA0: launching library_product.* of mul_mat") as caught:
            stream.compute(graph, allocation)
        assert caught.value.op == graph.nodes[0].op
        stream.compute(graph, allocation)
        stream.synchronize()


# -- programs ------------------------------------------------------------------------------------------


def test_programs_are_compiled_for_the_gpu_and_found_on_disk(cuda: StandIn) -> None:
    graph = chain()
    for compiled in (3, 0):
        device = devices(cuda)[0]
        cuda.forget()
        with device.init() as stream:
            stream.plan(graph)
        assert [call.options for call in cuda.calls("compileProgram")] == [
            ("--gpu-architecture=sm_90", "-fmad=false")
        ] * compiled
        assert len(cuda.calls("getCUBIN")) == len(cuda.calls("destroyProgram")) == compiled
        assert len(cuda.calls("load")) == 3


def test_a_gpu_newer_than_the_compiler_gets_portable_code() -> None:
    cuda = StandIn(Gpu(capability=(11, 0)), architectures=(75, 90, 120))
    with devices(cuda)[0].init() as stream:
        stream.plan(chain())
    assert {call.options[0] for call in cuda.calls("compileProgram")} == {"--gpu-architecture=compute_90"}
    assert len(cuda.calls("getPTX")) == len(cuda.calls("load")) == 3


@needs_compiler
def test_a_kernel_that_does_not_compile_gives_the_compilers_log(
    cuda: StandIn, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = source.part
    monkeypatch.setattr(source, "part", lambda path: whole(path) + "\nvoid broken( {" * (path == "kernels/norms.c"))
    with device.init() as stream, pytest.raises(KernelCompileError, match="CUDA0: compiling normalise") as caught:
        stream.plan(Graph(ops.norm(new_tensor(types.F32, (8, 2)))))
    assert "error" in (caught.value.log or "")
    assert len(cuda.calls("destroyProgram")) == 1


@needs_compiler
def test_amds_gpus_compute_without_what_their_build_of_cupy_lacks() -> None:
    cuda = StandIn(Gpu(name="AMD Instinct MI300X"), driver=70051831, runtime=70051831, hip=True)
    (device,) = devices(cuda)
    assert device.description == "AMD Instinct MI300X (gfx942)"
    w, x, graph = product(types.Q8_0, 32, 10, 12)
    allocation = placed(device, graph)
    w.set(np.ones((10, 32), np.float32))
    x.set(normal(12, 32))
    with device.init() as stream:
        for _ in range(3):
            stream.compute(graph, allocation)
        wanted = np.repeat(normal(12, 32).sum(1, keepdims=True), 10, 1)
        np.testing.assert_allclose(graph.nodes[0].numpy(), wanted, rtol=1e-3, atol=1e-2)
    assert not cuda.calls("setMathMode", "begin_capture", "getCUBIN")
    cuda.verify()


# -- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "when"), [("launchKernel", 719, "launching"), ("synchronize", 700, "waiting")]
)
def test_a_lost_device_says_so_from_then_on_and_others_go_on(cuda: StandIn, name: str, status: int, when: str) -> None:
    first, second, _ = devices(cuda)
    graph = chain()
    stream, allocation = first.init(), placed(first, graph)
    buffer = first.buffer_type.alloc(64)
    uses: list[Callable[[], object]] = [
        lambda: stream.compute(graph, allocation),
        stream.synchronize,
        lambda: buffer.set(0, np.zeros(4, np.uint8)),
        lambda: first.buffer_type.alloc(64),
        first.init,
    ]
    cuda.refuse(name, status)
    if name == "synchronize":
        stream.compute(graph, allocation)
    with pytest.raises(DeviceLostError, match=f"CUDA0: {when}.* the device is gone") as caught:
        uses[name == "synchronize"]()
    assert caught.value.device is first
    if name == "launchKernel":
        assert caught.value.op == graph.nodes[0].op
        assert caught.value.kernel == "map_one[TD=f32 TX=f32]"
    for use in uses:
        with pytest.raises(DeviceLostError):
            use()
    buffer.free()
    assert first.memory().total == 1 << 30
    with second.init() as other:
        allocation = placed(second, graph)
        other.compute(graph, allocation)
        other.synchronize()


def test_a_device_that_is_lost_in_a_capture_is_lost(cuda: StandIn, device: CudaDevice) -> None:
    graph = chain()
    stream, allocation = device.init(), placed(device, graph)
    cuda.refuse("launchKernel", 719, after=4)
    stream.compute(graph, allocation)
    with pytest.raises(DeviceLostError):
        stream.compute(graph, allocation)


def test_memory_of_a_lost_device_is_released_without_another_error(cuda: StandIn, device: CudaDevice) -> None:
    _, _, graph = product(types.Q8_0, 32, 10, 12)
    stream, allocation = device.init(), placed(device, graph)
    stream.compute(graph, allocation)
    cuda.refuse("synchronize", 700)
    with pytest.raises(DeviceLostError):
        stream.free()
    allocation.buffers[0].free()
    stream.free()
    assert device.used == 0
    assert not [call for call in cuda.calls("sgemmStridedBatched") if call.device != 0]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (CUDARuntimeError(2), Failure.MEMORY),
        (CUDADriverError(2), Failure.MEMORY),
        (cupy_stand_in.OutOfMemoryError(1, 2), Failure.MEMORY),
        (CUBLASError(3), Failure.MEMORY),
        (CUBLASError(13), Failure.OTHER),
        (CUDARuntimeError(46), Failure.LOST),
        (CUDADriverError(700), Failure.LOST),
        (CUDARuntimeError(719), Failure.LOST),
        (CUDARuntimeError(999), Failure.LOST),
        (CUDARuntimeError(701), Failure.OTHER),
        (ValueError("anything"), Failure.OTHER),
    ],
    ids=str,
)
def test_errors_of_cuda_mean_what_they_say(device: CudaDevice, error: Exception, meaning: Failure) -> None:
    assert device.driver.failure(error) == (meaning, str(error))


def test_any_other_error_is_a_compute_error_and_passes(cuda: StandIn, device: CudaDevice) -> None:
    graph = chain()
    allocation = placed(device, graph)
    cuda.refuse("launchKernel", 701)
    with device.init() as stream:
        with pytest.raises(ComputeError, match="too many resources") as caught:
            stream.compute(graph, allocation)
        assert type(caught.value) is ComputeError
        stream.compute(graph, allocation)
        stream.synchronize()

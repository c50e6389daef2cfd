"""OpenCL devices: their properties, what they compute, and how they fail."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug as gg
import ggplug_models
from ggplug import ops, registry, trace, types
from ggplug.backend import Backend
from ggplug.errors import (
    ComputeError,
    DeviceLostError,
    DeviceNotFoundError,
    GGPlugError,
    KernelCompileError,
    OutOfMemoryError,
)
from ggplug.graph import Graph
from ggplug.memory import allocate_graph
from ggplug.tensor import new_tensor
from ggplug.types import DeviceKind
from ggplug_models.weights.placement import alternating
from ggplug_testing.vectors import Recording, replay, report

pytest.importorskip("ggplug_opencl")

import pyopencl as cl
from simt_devices import opencl_as_gpu

from ggplug_opencl import OpenCLRegistration, pocl
from ggplug_opencl.devices import OpenCLDevice, device_id, device_kind
from ggplug_simt.c import source

IDS = [[2, 9, 33, 120, 7, 3], [2, 250, 11, 3]]


@pytest.fixture(scope="module")
def device() -> OpenCLDevice:
    found = registry.device("OpenCL0")
    assert isinstance(found, OpenCLDevice)
    return found


def test_devices_are_listed_with_what_they_are(device: OpenCLDevice) -> None:
    props = device.props()
    assert props.name == "OpenCL0"
    assert props.kind in DeviceKind
    assert props.description
    assert props.memory_total is not None
    assert props.memory_total > 1 << 28
    assert props.capabilities.asynchronous
    assert props.capabilities.events


def test_the_gradient_of_a_window_over_all_takes_as_many_steps_as_elements(device: OpenCLDevice) -> None:
    """As many for each element would take days."""
    x = np.zeros((1, 1, 2048, 2048), np.float32)
    x[..., -1, -2] = 1
    node = gg.pool_2d_back(gg.tensor(np.full((1, 1, 1, 1), 6, np.float32)), gg.tensor(x), gg.PoolKind.MAX, *4 * (2048,))
    found = gg.compute(node, backends=[device]).numpy()
    assert found[..., -1, -2] == 6
    assert np.count_nonzero(found) == 1


def test_listing_devices_opens_no_driver() -> None:
    made = OpenCLRegistration().devices()
    assert made
    assert all(isinstance(d, OpenCLDevice) and d.runtime.guard.opened is None for d in made)


class _Broken(cl.Error):
    """What pyopencl raises, without asking an OpenCL."""

    def __init__(self, code: int) -> None:
        super().__init__(f"OpenCL error {code}")
        self.error_code = code

    code = property(lambda self: self.error_code)
    __str__ = Exception.__str__


def test_without_an_opencl_driver_the_error_has_the_reason_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_platforms() -> list[object]:
        raise _Broken(cl.status_code.PLATFORM_NOT_FOUND_KHR)

    monkeypatch.setattr(cl, "get_platforms", get_platforms)
    with pytest.raises(DeviceNotFoundError, match="no OpenCL driver is installed") as caught:
        OpenCLRegistration().devices()
    assert 'pip install "ggplug-core[pocl]"' in str(caught.value.remedy)


def test_drivers_that_show_no_device_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[object]:
        raise _Broken(cl.status_code.OUT_OF_HOST_MEMORY)

    useless = _Handle(available=True, compiler_available=False)
    platforms = [_Handle(name="A", get_devices=fail), _Handle(name="B", get_devices=lambda: [useless])]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    with pytest.raises(DeviceNotFoundError, match="drivers that are installed: A, B") as caught:
        OpenCLRegistration().devices()
    assert "clinfo" in str(caught.value.remedy)
    assert ["platform A lists no devices" in message for message in caplog.messages] == [True]


class _Handle:
    """The properties of a device from pyopencl, for devices that this machine lacks."""

    def __init__(self, **properties: object) -> None:
        self.__dict__.update(properties)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"type": 2}, DeviceKind.CPU),
        ({"type": 4, "host_unified_memory": False}, DeviceKind.GPU),
        ({"type": 4, "host_unified_memory": True}, DeviceKind.IGPU),
        ({"type": 8}, DeviceKind.ACCEL),
    ],
)
def test_kinds_are_those_of_ggml(properties: dict[str, object], kind: DeviceKind) -> None:
    assert device_kind(_Handle(**properties)) is kind


def test_the_pci_address_comes_from_any_extension_that_reports_it() -> None:
    khr = _Handle(pci_bus_info_khr=_Handle(pci_domain=0, pci_bus=0x65, pci_device=0, pci_function=0))
    nvidia = _Handle(pci_domain_id_nv=1, pci_bus_id_nv=0x17, pci_slot_id_nv=(2 << 3) | 1)
    amd = _Handle(topology_amd=_Handle(bus=-61, device=0, function=0))
    uuid = _Handle(extensions="cl_khr_device_uuid", uuid_khr=bytes(range(16)))
    assert device_id(khr) == "0000:65:00.0"
    assert device_id(nvidia) == "0001:17:02.1"
    assert device_id(amd) == "0000:c3:00.0"
    assert device_id(uuid) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert device_id(_Handle(extensions="")) is None


def test_a_recorded_case_of_each_op_of_ggml_passes(device: OpenCLDevice, data: Path) -> None:
    found = report(replay({case.op: case for case in Recording(data / "ggml_ops_compact.npz")}.values(), device))
    assert found["failed"] == []
    assert found["passed"] > 90


@pytest.mark.long
def test_all_recorded_cases_of_ggml_pass(device: OpenCLDevice, shared: Path | None, data: Path) -> None:
    file = data / "ggml_ops_compact.npz" if shared is None else shared / "vectors" / "ggml_ops.npz"
    found = report(replay(Recording(file), device))
    assert found["failed"] == []
    assert found["passed"] >= (100 if shared is None else 501)


def test_a_model_gives_the_cpus_result_on_one_device_and_with_alternating_layers(
    device: OpenCLDevice, data: Path
) -> None:
    pytest.importorskip("ggplug_cpu")
    cpu = gg.device("CPU")
    with ggplug_models.load(data / "bert.gguf", [cpu]) as model:
        wanted = model.embed_ids(IDS)
    with ggplug_models.load(data / "bert.gguf", [device]) as model:
        single = model.embed_ids(IDS)
    with ggplug_models.load(data / "bert.gguf", [device, cpu], placement=alternating) as model:
        split = model.embed_ids(IDS)
    np.testing.assert_allclose(single, wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(split, wanted, rtol=0, atol=1e-4)


def test_a_buffer_larger_than_the_device_allows_is_out_of_memory(device: OpenCLDevice) -> None:
    limit = device.buffer_type.max_size
    assert limit is not None
    with pytest.raises(OutOfMemoryError) as caught:
        device.buffer_type.alloc(limit + 1)
    assert caught.value.device is device
    assert caught.value.requested == limit + 1


def test_a_kernel_that_does_not_compile_gives_the_compilers_log(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    whole = source.part
    monkeypatch.setattr(source, "part", lambda path: whole(path) + "\nvoid broken( {" * (path == "kernels/norms.c"))
    assert device.registration is not None
    fresh = OpenCLDevice("fresh", device.handle, device.registration)
    graph = Graph(ops.norm(new_tensor(types.F32, (8, 2))))
    with fresh.init() as stream, pytest.raises(KernelCompileError) as caught:
        stream.plan(graph)
    assert caught.value.op == graph.nodes[0].op
    assert caught.value.device is fresh
    assert caught.value.kernel == "normalise[TD=f32 TX=f32]"
    assert "error" in (caught.value.log or "").lower()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("DEVICE_NOT_AVAILABLE", DeviceLostError),
        ("MEM_OBJECT_ALLOCATION_FAILURE", OutOfMemoryError),
        ("INVALID_KERNEL_ARGS", ComputeError),
    ],
)
def test_a_launch_that_fails_names_op_kernel_and_device_and_others_go_on(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, status: str, error: type[GGPlugError]
) -> None:
    def refuse(*arguments: object) -> None:
        raise _Broken(getattr(cl.status_code, status))

    assert device.registration is not None
    fresh = OpenCLDevice("fresh", device.handle, device.registration)
    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_nd_range_kernel", refuse)
        with pytest.raises(error, match="launching normalise") as caught:
            normalised(fresh, fresh.init())
    assert type(caught.value) is error
    assert (caught.value.op.name, caught.value.device, caught.value.kernel) == (
        "norm",
        fresh,
        "normalise[TD=f32 TX=f32]",
    )
    assert bool(fresh.lost) == (error is DeviceLostError)
    for each in (device,) if fresh.lost else (device, fresh):
        with each.init() as stream:
            np.testing.assert_allclose(normalised(each, stream).mean(axis=1), 0, atol=1e-6)


def normalised(device: OpenCLDevice, stream: Backend) -> Any:
    """Two rows that a stream has normalised."""
    x = new_tensor(types.F32, (8, 2)).set_input()
    graph = Graph(ops.norm(x).set_output())
    allocation = allocate_graph(graph, device.buffer_type)
    allocation.prepare(graph)
    x.set(np.arange(16, dtype=np.float32).reshape(2, 8))
    stream.compute(graph, allocation)
    return graph.nodes[0].numpy()


def test_compiled_programs_are_found_again(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    assert device.registration is not None
    counts = []
    for name in ("first", "second"):
        fresh = OpenCLDevice(name, device.handle, device.registration)
        monkeypatch.setattr(fresh.driver, "keeps_programs", False)
        with fresh.init() as stream, trace.recording() as found:
            np.testing.assert_allclose(normalised(fresh, stream).mean(axis=1), 0, atol=1e-6)
        counts.append((fresh.programs.compiled, fresh.programs.found))
        assert [span.name for span in found.spans if span.kind == "compile"] == [f"for {name}"] * counts[-1][0]
    assert counts == [(1, 0), (0, 1)]


def test_of_more_programs_than_are_kept_the_first_comes_from_disk_again(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("ggplug_simt.programs.KEPT", 1)
    assert device.registration is not None
    fresh = OpenCLDevice("fresh", device.handle, device.registration)
    monkeypatch.setattr(fresh.driver, "keeps_programs", False)
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    with fresh.init() as stream:
        plans = []
        for op in (ops.sqr, ops.sqrt, ops.sqr):
            leaf = new_tensor(types.F32, (7 + len(plans),)).set_input()
            graph = Graph(op(leaf).set_output())
            allocation = allocate_graph(graph, fresh.buffer_type)
            allocation.prepare(graph)
            plans.append((leaf, graph, allocation))
        for _ in range(2):  # the second time by the plans that there are
            for (leaf, graph, allocation), wanted in zip(plans, (np.square, np.sqrt, np.square), strict=True):
                values = np.resize(np.abs(x), leaf.size)
                leaf.set(values)
                stream.compute(graph, allocation)
                np.testing.assert_allclose(graph.nodes[0].numpy(), wanted(values), rtol=1e-6)
    assert (fresh.programs.compiled, fresh.programs.found) == (2, 1)


# -- processes -------------------------------------------------------------------------------------

_SQUARES = """
import os
import numpy as np
from ggplug import ops, registry, trace, types
from ggplug.graph import Graph
from ggplug.memory import allocate_graph
from ggplug.tensor import new_tensor

def squares():
    device = registry.device("OpenCL0")
    x = new_tensor(types.F32, (8,)).set_input()
    graph = Graph(ops.sqr(x).set_output())
    with device.init() as stream:
        allocation = allocate_graph(graph, device.buffer_type)
        allocation.prepare(graph)
        x.set(np.arange(8, dtype=np.float32))
        stream.compute(graph, allocation)
        return graph.nodes[0].numpy().astype(int).tolist()
"""


@pytest.mark.parametrize("name", ["f32", "f16", "q8_0", "q4_K", "iq4_xs"])
def test_up_to_eight_columns_of_a_product_have_the_bits_that_each_has_alone(device: OpenCLDevice, name: str) -> None:
    rng = np.random.default_rng(7)
    kind = types.by_name(name)

    def product(columns: np.ndarray) -> np.ndarray:
        a, b = new_tensor(kind, (512, 33)).set_input(), new_tensor(types.F32, (512, len(columns))).set_input()
        graph = Graph(ops.mul_mat(a, b).set_output())
        with device.init() as stream:
            allocation = allocate_graph(graph, device.buffer_type)
            allocation.prepare(graph)
            a.set(weights)
            b.set(columns)
            stream.compute(graph, allocation)
            return graph.nodes[-1].numpy()

    weights = rng.standard_normal((33, 512)).astype(np.float32)
    columns = rng.standard_normal((8, 512)).astype(np.float32)
    alone = np.concatenate([product(columns[i : i + 1]) for i in range(8)])
    for n in range(2, 9):
        np.testing.assert_array_equal(product(columns[:n]), alone[:n])


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
@pytest.mark.parametrize("queries", [1, 40])
def test_attention_of_a_sequence_has_the_bits_that_it_has_alone(name: str, queries: int) -> None:
    """Beside other sequences, and where these are longer, so that a mask hides what is behind its last key."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((5, 8, queries, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 5, 8, 2600, 32)).astype(np.float16)

    def attended(sequences: int, keys: int) -> np.ndarray:
        hidden = np.where(np.arange(keys) < 2100, 0, -np.inf).astype(np.float16)
        mask = np.broadcast_to(hidden, (sequences, 1, queries, keys))
        sources = [gg.tensor(np.ascontiguousarray(each[:sequences, :, :keys])) for each in (k, v)]
        y = gg.flash_attn_ext(gg.tensor(q[:sequences]), *sources, gg.tensor(np.ascontiguousarray(mask)), scale=0.2)
        with gg.Scheduler([gg.device(name)]) as scheduler:
            scheduler.compute(Graph(y.set_output()))
            return y.numpy()[0]

    alone = attended(1, 2100)
    for sequences, keys in ((2, 2100), (5, 2100), (1, 2600), (5, 2600)):
        np.testing.assert_array_equal(attended(sequences, keys), alone)


def in_a_process(script: str, **environment: str) -> str:
    """What a process prints that computes ``squares()`` as it likes; no warning passes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SQUARES + script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_where_no_cache_can_be_written_computing_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "cache")
    # Where ggplug keeps programs is its own matter, and worth a warning.
    printed = in_a_process("print(squares())", XDG_CACHE_HOME=nowhere, GGPLUG_CACHE_DIR=str(tmp_path / "cache"))
    assert printed == "[0, 1, 4, 9, 16, 25, 36, 49]"


def test_caches_may_lie_in_folders_with_spaces_and_accents(tmp_path: Path) -> None:
    folder = tmp_path / "a folder for café"
    folder.mkdir()
    for _ in ("compiled", "found"):
        printed = in_a_process("print(squares())", XDG_CACHE_HOME=str(folder), GGPLUG_CACHE_DIR=str(folder))
        assert printed == "[0, 1, 4, 9, 16, 25, 36, 49]"


@pytest.mark.parametrize("kept", [0, 0.5], ids=["other bytes", "half of it"])
def test_a_damaged_database_of_pyopencl_is_made_anew(tmp_path: Path, kept: float) -> None:
    folders = {"XDG_CACHE_HOME": str(tmp_path), "GGPLUG_CACHE_DIR": str(tmp_path / "kernels")}
    in_a_process("squares()", **folders)
    [database] = tmp_path.glob("pytools/*invoker*.sqlite")
    whole = database.read_bytes()
    damaged = whole[: int(kept * len(whole))] + b"not a database" * 100
    database.write_bytes(damaged)
    assert (
        in_a_process("import logging; logging.disable(); print(squares())", **folders) == "[0, 1, 4, 9, 16, 25, 36, 49]"
    )
    assert not database.read_bytes().startswith(damaged)


def test_processes_share_the_caches(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", _SQUARES + "print(squares())"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "GGPLUG_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in started]
    assert ended == [("[0, 1, 4, 9, 16, 25, 36, 49]\n", "", 0)] * 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are Linux's")
def test_memory_that_the_host_does_not_have_is_out_of_memory_and_not_the_end() -> None:
    script = """
import resource
from ggplug.errors import OutOfMemoryError
squares()
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
held = []
try:
    while True:
        held.append(registry.device("OpenCL0").buffer_type.alloc(16 << 20))
        held[-1].clear(1)
except OutOfMemoryError as error:
    print(error.requested >> 20, len(held) < 64)
del held
print(squares()[-1])
"""
    assert in_a_process(script) == "16 True\n49"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("first", ["squares()", "registry.device('OpenCL0').props()"], ids=["used", "listed"])
def test_a_forked_process_gets_an_error_as_the_device_stays_with_its_parent(first: str) -> None:
    script = f"""
import warnings
from ggplug.errors import DeviceLostError
{first}
warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
child = os.fork()
if child == 0:
    import signal
    signal.alarm(60)  # some drivers would wait for ever
    try:
        squares()
    except DeviceLostError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), squares()[-1])
"""
    assert in_a_process(script) == "7 49"


@pytest.mark.parametrize("kind", [types.F32, types.F16, types.Q8_0, types.Q4_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("k", "m", "n"), [(96, 70, 3), (64, 130, 40)])
def test_products_cut_as_for_a_gpu_are_those_cut_as_for_a_cpu(
    device: OpenCLDevice, kind: types.Type, k: int, m: int, n: int
) -> None:
    generator = np.random.default_rng(11)
    a_values, b_values = (generator.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    found = []
    for each in (device, opencl_as_gpu()):
        a, b = new_tensor(kind, (k, m)).set_input(), new_tensor(types.F32, (k, n)).set_input()
        graph = Graph(ops.mul_mat(a, b).set_output())
        with each.init() as stream:
            allocation = allocate_graph(graph, each.buffer_type)
            allocation.prepare(graph)
            a.set(a_values)
            b.set(b_values)
            stream.compute(graph, allocation)
            found.append(graph.nodes[0].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("order", [0, 1], ids=["ascending", "descending"])
@pytest.mark.parametrize("length", [7, 256, 2048, 2049, 5000, 70000])
def test_rows_of_any_length_are_sorted_stably_with_nan_last(device: OpenCLDevice, length: int, order: int) -> None:
    generator = np.random.default_rng(length)
    few = np.array([-np.inf, np.inf, np.nan, -np.nan, -0.0, 0.0, 1, -1, 1e-40, -3], np.float32)
    values = np.stack([generator.choice(few, length), generator.standard_normal(length).astype(np.float32)])
    wanted = np.argsort(-values if order else values, axis=-1, kind="stable")
    for each in (device, opencl_as_gpu()):
        x = new_tensor(types.F32, (length, 2)).set_input()
        graph = Graph(ops.argsort(x, order=order).set_output())
        with each.init() as stream:
            allocation = allocate_graph(graph, each.buffer_type)
            allocation.prepare(graph)
            x.set(values)
            stream.compute(graph, allocation)
            np.testing.assert_array_equal(graph.nodes[0].numpy(), wanted)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PoCL's wheel is for Linux")
def test_a_processor_that_pocl_does_not_know_is_found_by_its_placeholder() -> None:
    name = ctypes.create_string_buffer(b"generic")
    other = ctypes.create_string_buffer(b"generic-device")
    words = (ctypes.c_uint64 * 600)()
    words[3], words[7], words[9] = 0x10_0000_0001, ctypes.addressof(other), ctypes.addressof(name)
    with open("/proc/self/mem", "rb", 0) as memory:
        assert pocl._find(memory, ctypes.addressof(words)) == ctypes.addressof(words) + 9 * 8
        words[9] = 0
        assert pocl._find(memory, ctypes.addressof(words)) is None


def test_only_pocls_devices_get_a_processor_name() -> None:
    assert pocl.name_processor(_Handle(name="GPU", platform=_Handle(name="NVIDIA CUDA"))) is None

"""The CPU device: what it says of itself, what it offers by name, and how its plans behave."""

from __future__ import annotations

import importlib
import itertools
import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from python_calls import python_calls

pytest.importorskip("ggplug_cpu")

import ggplug as gg
import ggplug_cpu
from ggplug import host, ops
from ggplug.backend import API_VERSIONS, UNGROUPED, Buffer, Decline, Group, Groups
from ggplug.errors import (
    BufferUseError,
    ComputeAborted,
    ComputeError,
    GraphError,
    ParameterError,
    TensorStateError,
    UnsupportedOpError,
)
from ggplug.graph import Graph
from ggplug.memory import Allocation, GraphAllocator
from ggplug.tensor import Tensor
from ggplug.types import BufferUsage, DeviceKind
from ggplug_cpu import compiler, features, prebuild
from ggplug_cpu import ops as families_of_ops
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.matching import GROUPS, choosers_of
from ggplug_cpu.team import Team


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    cpu = CpuDevice()
    yield cpu
    cpu.team.close()


def ones(*shape: int) -> Tensor:
    return gg.tensor(np.ones(shape, np.float32))


def chain(length: int, x: Tensor | None = None) -> Graph:
    """``length`` additions, one after the other."""
    y = first = ones(2, 8) if x is None else x
    for _ in range(length):
        y = ops.add(y, first)
    return Graph(y.set_output())


def test_the_doctor_finds_that_it_computes_rightly() -> None:
    command = [sys.executable, "-m", "ggplug", "doctor", "CPU", "--strict", "--json"]
    environment = {**os.environ, "GGPLUG_LOAD_TIMEOUT": "1000"}  # kernels are compiled at first
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    (finding,) = json.loads(done.stdout)
    assert finding["error"] is None
    assert (finding["stage"], done.returncode) == ("computed", 0)


def compute(device: CpuDevice, graph: Graph) -> list[npt.NDArray[Any]]:
    with GraphAllocator(device.buffer_type) as memory, device.init() as stream:
        stream.compute(graph, memory.allocate(graph))
        return [output.numpy() for output in graph.outputs]


# -- what it is -------------------------------------------------------------------------------------


def test_importing_the_plugin_and_asking_for_its_device_loads_no_compiler() -> None:
    code = (
        "import sys, ggplug_cpu; r = ggplug_cpu.ggplug_backend_registration(); d, = r.devices(); d.memory(); "
        "sys.exit(any(m.partition('.')[0] == 'llvmlite' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_registration_has_one_device_always_the_same() -> None:
    registration = ggplug_cpu.ggplug_backend_registration()
    (device,) = registration.devices()
    assert registration.name == device.name == "CPU"
    assert registration.api_version in API_VERSIONS
    assert registration.version
    assert device.registration is registration
    assert registration.devices()[0] is device


def test_the_device_describes_the_machine(device: CpuDevice) -> None:
    props = device.props()
    assert props.kind is DeviceKind.CPU
    assert props.capabilities.buffer_from_host
    assert f"{device.n_threads} threads" in props.description
    free, total = device.memory()
    assert free is None or total is None or 0 < free <= total


def test_the_description_names_the_instructions_in_use(device: CpuDevice) -> None:
    with features.forced("generic"):
        assert "avx" not in device.description


def test_it_works_in_any_host_memory(device: CpuDevice) -> None:
    class OtherHostBufferType(host.HostBufferType):
        is_host = False  # type: ignore[assignment]

    assert device.supports_buffer_type(device.buffer_type)
    assert device.supports_buffer_type(host.HOST)
    assert not device.supports_buffer_type(OtherHostBufferType("other"))


def test_memory_maps_are_used_in_place(device: CpuDevice, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    values = np.arange(64, dtype=np.float32)
    path.write_bytes(b"\0" * 128 + values.tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        with device.buffer_from_host(mapped, usage=BufferUsage.WEIGHTS) as buffer:
            assert buffer.address == start
            assert buffer.usage is BufferUsage.WEIGHTS
            weights = gg.new_tensor("f32", (16, 4), "weights")
            weights.place(buffer, 128)
            graph = Graph(ops.sum_rows(weights).set_output())
            (got,) = compute(device, graph)
            with pytest.raises(BufferUseError, match="read-only"):
                weights.set(values.reshape(4, 16))
        del weights, buffer
    np.testing.assert_array_equal(got.ravel(), values.reshape(4, 16).sum(1))


# -- what it computes -------------------------------------------------------------------------------


def test_every_op_of_ggplug_that_computes_has_a_chooser() -> None:
    named = {kind for kind in ops.OPS.values() if kind.__module__.startswith("ggplug.ops") and not kind.is_view}
    assert [kind.name for kind in named if not any(choosers_of(kind))] == []


def test_the_groups_of_every_family_are_in_the_order_of_preference() -> None:
    families = Path(families_of_ops.__file__).parent.glob("*/choosers.py")
    declared = [importlib.import_module(f"ggplug_cpu.ops.{path.parent.name}.choosers") for path in families]
    assert {pattern for family in declared for pattern in getattr(family, "GROUPS", ())} == set(GROUPS)


def test_what_supports_op_says_is_what_a_plan_does(device: CpuDevice) -> None:
    x = ones(4, 32)
    good, bad = ops.neg(x), ops.neg(gg.new_tensor("f64", (32, 4)))
    assert device.supports_op(good)
    refusal = device.supports_op(bad)
    assert isinstance(refusal, Decline)
    assert "neg" in refusal.reason
    assert "f64" in refusal.reason
    with device.init() as stream, pytest.raises(UnsupportedOpError) as caught:
        stream.plan(Graph(bad))
    assert caught.value.reason == refusal.reason
    assert caught.value.device is device
    assert caught.value.tensor is bad


def test_types_that_no_kernel_converts_are_declined_with_their_names(device: CpuDevice) -> None:
    node = ops.cpy(ones(2, 256), gg.new_tensor("iq2_xxs", (256, 2)))
    refusal = device.supports_op(node)
    assert isinstance(refusal, Decline)
    assert "f32 to iq2_xxs" in refusal.reason


def test_views_are_supported_and_compute_nothing(device: CpuDevice) -> None:
    x = ones(4, 6)
    node = ops.transpose(ops.reshape(x, 3, 8))
    assert device.supports_op(node)
    with device.init() as stream:
        assert stream.plan(Graph(node)).kernel_names() == []


def test_empty_tensors_cost_nothing_and_empty_writes_change_nothing(device: CpuDevice) -> None:
    empty = gg.tensor(np.zeros((0, 8), np.float32))
    cache = gg.tensor(np.arange(24, dtype=np.float32).reshape(3, 8))
    written = ops.set_rows(cache, empty, gg.tensor(np.zeros(0, np.int64)))
    total = ops.sum(empty)
    graph = Graph(ops.neg(empty).set_output(), written, total.set_output())
    got = compute(device, graph)
    assert got[0].shape == (0, 8)
    np.testing.assert_array_equal(got[1], np.arange(24).reshape(3, 8))
    assert got[2] == 0


def test_a_target_has_kernels_of_its_own(device: CpuDevice) -> None:
    node = ops.mul_mat(gg.tensor(np.ones((64, 64)), "q8_0"), ones(8, 64))
    target, mine = features.target(), device.chosen(Group((node,)))
    for level in features.choices():
        with features.forced(level):
            assert (device.chosen(Group((node,))) is mine) == (features.target() == target)
    assert device.chosen(Group((node,))) is mine


# -- plans ------------------------------------------------------------------------------------------


class CountingAllocation(Allocation):
    """Counts how often addresses were requested."""

    calls = 0

    def addresses(
        self, graph: Graph, held: set[Buffer] | None = None, groups: Groups = UNGROUPED
    ) -> npt.NDArray[np.int64]:
        self.calls += 1
        return super().addresses(graph, held, groups)


def counting(device: CpuDevice, graph: Graph) -> CountingAllocation:
    """All intermediates of a graph without views, one after the other."""
    slots, offsets, size = [], [], 0
    for tensor in graph.tensors:
        own = tensor.root.buffer is None
        slots.append(0 if own else -1)
        offsets.append(size if own else tensor.view_offset)
        size += -(-tensor.nbytes // 64) * 64 if own else 0
    return CountingAllocation(graph, [device.buffer_type.alloc(size)], slots, offsets)


def test_binding_again_asks_for_addresses_only_when_something_may_have_moved(device: CpuDevice) -> None:
    graph = chain(3)
    allocation = counting(device, graph)
    with device.init() as stream:
        plan = stream.plan(graph)
        for _ in range(5):
            plan.rebind(graph, allocation)
            plan.compute()
        assert allocation.calls == 1
        graph.outputs[0].set_output()
        plan.compute()
        assert allocation.calls == 2
        other = counting(device, graph)
        plan.rebind(graph, other)
        assert other.calls == 1


def test_an_equal_graph_uses_the_plan_of_the_first(device: CpuDevice) -> None:
    with device.init() as stream, GraphAllocator(device.buffer_type) as memory:
        results = []
        for value in (1, 2, 3):
            graph = chain(4, gg.tensor(np.full((2, 8), value, np.float32)))
            stream.compute(graph, memory.allocate(graph))
            results.append(graph.outputs[0].numpy()[0, 0])
        assert len(stream._plans) == 1
    assert results == [5, 10, 15]


def test_computing_costs_the_same_python_for_a_hundred_and_ten_thousand_nodes(device: CpuDevice) -> None:
    counts = []
    with device.init() as stream:
        for length in (100, 10_000):
            graph = chain(length)
            allocation = counting(device, graph)
            plan = stream.plan(graph)
            plan.rebind(graph, allocation)
            plan.compute()
            counts.append([python_calls(plan.compute), python_calls(lambda: plan.rebind(graph, allocation))])  # noqa: B023
    assert counts[0] == counts[1]
    assert counts[0][0] < 40


def test_a_plan_without_memory_says_so(device: CpuDevice) -> None:
    with device.init() as stream:
        graph = chain(2)
        plan = stream.plan(graph)
        with pytest.raises(TensorStateError, match="rebind"):
            plan.compute()
        allocation = counting(device, graph)
        plan.rebind(graph, allocation)
        plan.compute()
        del allocation
        with pytest.raises(TensorStateError, match="keep both"):
            plan.compute()
        with pytest.raises(GraphError, match="the plan was made for another graph"):
            plan.rebind(chain(3), counting(device, graph))


def test_memory_that_was_freed_is_not_touched(device: CpuDevice) -> None:
    with device.init() as stream:
        graph = chain(2)
        allocation = counting(device, graph)
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        allocation.buffers[0].free()
        with pytest.raises(BufferUseError, match="freed"):
            plan.compute()


def test_a_trace_has_the_times_of_each_node(device: CpuDevice) -> None:
    x = ones(64, 64)
    graph = Graph(ops.soft_max(ops.cont(ops.transpose(ops.mul_mat(x, x)))).set_output())
    with device.init(n_threads=2) as stream, GraphAllocator(device.buffer_type) as memory:
        plan = stream.plan(graph)
        allocation = memory.allocate(graph)
        plan.rebind(graph, allocation)
        times = plan.compute_traced()
    nodes = [graph.index[node] for node in graph.nodes if not node.op.is_view]  # type: ignore[union-attr]
    assert [time.node for time in times] == nodes
    assert all(time.start <= time.end for time in times)
    assert all(a.end <= b.start for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("index", [-1, 40, 2**31 - 1])
def test_an_index_out_of_range_is_an_error_and_the_stream_goes_on(index: int, device: CpuDevice) -> None:
    rows = gg.tensor(np.arange(120, dtype=np.float32).reshape(40, 3))
    ids = gg.tensor(np.array([3, index, 5], np.int32))
    node = ops.get_rows(rows, ids)
    graph = Graph(node.set_output())
    with device.init() as stream, GraphAllocator(device.buffer_type) as memory:
        allocation = memory.allocate(graph)
        with pytest.raises(ComputeError, match=rf"got the id {index} .* less than 40, ne1 of 'a'") as caught:
            stream.compute(graph, allocation)
        assert caught.value.tensor is node
        assert (caught.value.got, caught.value.wanted) == (index, 40)
        ids.set(np.array([3, 4, 5], np.int32))
        stream.compute(graph, allocation)
        np.testing.assert_array_equal(node.numpy(), rows.numpy()[3:6])


def test_of_many_ids_out_of_range_the_first_is_named_for_any_number_of_threads(device: CpuDevice) -> None:
    rows = gg.tensor(np.zeros((7, 64), np.float32))
    bad = np.arange(3000, dtype=np.int32)
    bad[:1000] %= 7
    picked = ops.get_rows(rows, gg.tensor(bad))
    # each thread has ids of its own; the fault of the node that comes first counts, whatever ids later ones have
    later = ops.get_rows(rows, gg.tensor(np.full(3000, -5, np.int32)))
    graph = Graph(picked.set_output(), later.set_output())
    with GraphAllocator(device.buffer_type) as memory:
        allocation = memory.allocate(graph)
        for n_threads in (1, 2, 4):
            with device.init(n_threads=n_threads) as stream:
                for _ in range(5):
                    with pytest.raises(ComputeError) as caught:
                        stream.compute(graph, allocation)
                    assert (caught.value.tensor, caught.value.got) == (picked, 1000)


def test_a_computation_that_was_aborted_leaves_no_fault_behind(device: CpuDevice) -> None:
    rows, ids = gg.tensor(np.zeros((7, 64), np.float32)), gg.tensor(np.array([9], np.int32))
    graph = Graph(ops.get_rows(rows, ids).set_output())
    with device.init(n_threads=1) as stream, GraphAllocator(device.buffer_type) as memory:
        allocation = memory.allocate(graph)
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        run = device.team.run

        def aborted(*arguments: object) -> None:
            run(*arguments)  # type: ignore[arg-type]
            raise ComputeAborted("after the last kernel")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device.team, "run", aborted)
            with pytest.raises(ComputeAborted):
                plan.compute()
        ids.set(np.array([6], np.int32))
        plan.compute()


# -- threads ----------------------------------------------------------------------------------------


def busy_graph() -> Graph:
    """Every family of kernels, each with work for several threads."""
    rng = np.random.default_rng(1)
    x = gg.tensor(rng.standard_normal((8, 60, 4, 64), np.float32))
    w = gg.tensor(rng.standard_normal((64, 64)), "q8_0")
    ids = gg.tensor(rng.integers(0, 60, (8, 4, 60)).astype(np.int32))
    positions = gg.tensor(np.arange(60, dtype=np.int32))
    flat = ops.reshape(x, 64, 4, 60, 8)
    outputs = [
        ops.gelu(ops.add(x, gg.tensor(rng.standard_normal(64, np.float32)))),
        ops.soft_max(ops.mul_mat(w, x)),
        ops.norm(ops.cont(ops.permute(x, 0, 2, 1, 3))),
        ops.cont(ops.permute(x, 1, 2, 0, 3)),
        ops.get_rows(ops.cont(ops.permute(x, 0, 2, 1, 3)), ids),
        ops.sum_rows(x),
        ops.rope(flat, positions, 64),
        ops.sum(x),
        ops.argsort(x),
        ops.cast(x, "q4_0"),
    ]
    return Graph(*[output.set_output() for output in outputs])


def test_results_are_the_same_bits_for_every_number_of_threads(device: CpuDevice) -> None:
    graph = busy_graph()
    want: list[bytes] = []
    for n_threads in (1, 2, 3, 8):
        with GraphAllocator(device.buffer_type) as memory, device.init(n_threads=n_threads) as stream:
            stream.compute(graph, memory.allocate(graph))
            assert stream.n_threads == device.n_threads == n_threads
            got = [output.tobytes() for output in graph.outputs]
        want = want or got
        assert got == want


def test_two_threads_compute_on_one_device_one_after_the_other(device: CpuDevice) -> None:
    def work(value: int) -> None:
        with device.init() as stream, GraphAllocator(device.buffer_type) as memory:
            graph = chain(50, gg.tensor(np.full((64, 64), value, np.float32)))
            allocation = memory.allocate(graph)
            for _ in range(20):
                stream.compute(graph, allocation)
                results.append((value, float(graph.outputs[0].numpy().max()), float(graph.outputs[0].numpy().min())))

    results: list[tuple[int, float, float]] = []
    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    assert all(high == low == 51 * value for value, high, low in results)


def test_an_abort_callback_stops_a_computation_and_the_stream_goes_on(device: CpuDevice) -> None:
    graph = chain(200, ones(512, 512))
    with device.init(abort_callback=lambda: True) as stream, GraphAllocator(device.buffer_type) as memory:
        allocation = memory.allocate(graph)
        with pytest.raises(ComputeAborted):
            stream.compute(graph, allocation)
        stream.set_abort_callback(None)
        stream.compute(graph, allocation)
        assert graph.outputs[0].numpy().min() == 201


def test_a_paused_device_still_computes(device: CpuDevice) -> None:
    with device.init(n_threads=2) as stream:
        stream.pause()
        assert compute(device, chain(2, ones(300, 300)))[0].max() == 3
        stream.resume()


def test_no_thread_is_no_number_of_threads(device: CpuDevice) -> None:
    with pytest.raises(ParameterError, match="n_threads must be 1 to 4096, got 0"):
        device.init(n_threads=0)


# -- extras -----------------------------------------------------------------------------------------


def test_extras_by_name(device: CpuDevice) -> None:
    get = ggplug_cpu.ggplug_backend_registration().get
    with device.init() as stream:
        get("set_n_threads")(stream, 3)
        assert stream.n_threads == 3
        team = get("threadpool")(2, poll=0)
        get("set_threadpool")(stream, team)
        assert device.team is team
        assert compute(device, chain(1))[0].max() == 2
        get("set_abort_callback")(stream, None)
    assert set(get("features")()) == features.target().flags
    assert get("no such thing") is None


def test_a_team_that_was_replaced_is_closed(device: CpuDevice) -> None:
    old = device.team
    device.set_team(Team(1))
    with pytest.raises(ComputeError, match="closed"):
        old.reserve(1, 1)


def test_prebuilding_reports_its_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @compiler.kernel
    def nothing(number: int) -> compiler.Body:
        def body(ctx: int, params: int) -> None:
            pass

        return body

    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(prebuild, "likely_kernels", lambda: [nothing(1), nothing(2)])
    kernels = ggplug_cpu.ggplug_backend_registration().get("cache")
    seen: list[tuple[int, int, str]] = []
    assert kernels.prebuild(lambda *facts: seen.append(facts)) == 2
    assert seen == [(0, 2, "nothing[1]"), (1, 2, "nothing[2]")]
    assert [entry.name for entry in kernels.entries()] == ["nothing[1]", "nothing[2]"]
    assert kernels.clear() == 2
    assert kernels.entries() == []


def test_likely_kernels_cover_an_encoder_and_a_decoder() -> None:
    names = {kernel.name.partition("[")[0] for kernel in prebuild.likely_kernels()}
    assert {"elementwise", "norm", "soft_max", "rope", "rows_by_index", "mul_mat_dot", "mul_mat_gemm"} <= names

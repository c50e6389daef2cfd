"""What the device of GPUs does itself, whatever the vendor: over a driver that takes notes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops, types
from ggplug.bench import overhead
from ggplug.bench.overhead import by, count_calls
from ggplug.bench.products import prepared
from ggplug.errors import ComputeError, DeviceLostError, KernelCompileError, OutOfMemoryError
from ggplug.graph import Graph
from ggplug.memory import Allocation, allocate_graph
from ggplug.nodes.groups import Group
from ggplug.scheduler import Scheduler
from ggplug.sharing import HELD
from ggplug.tensor import new_tensor
from ggplug.types import BufferUsage, DeviceKind
from ggplug_testing import ReferenceDevice

pytest.importorskip("ggplug_simt")

from simt_stand_in import GPU, Refused, StandInDevice, StandInDriver

from ggplug_simt import Failure


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


def chain() -> Graph:
    x = new_tensor(types.F32, (8, 4), "x").set_input()
    return Graph(ops.norm(ops.add(ops.gelu(x), x)).set_output())


def placed(device: StandInDevice, graph: Graph) -> Allocation:
    return allocate_graph(graph, device.buffer_type)


def test_a_plan_chooses_and_binds_once_and_replays_its_launches() -> None:
    device, graph = StandInDevice(), chain()
    stream = device.init()
    allocation = placed(device, graph)
    for _ in range(3):
        stream.compute(graph, allocation)
    notes = device.stand_in
    assert [name for _, name, *_ in notes.did("launch")] == ["map_one", "map_two", "normalise"] * 3
    assert len(notes.did("compile")) == 3
    assert len(notes.did("set_arguments")) == 3
    assert len(notes.did("set_buffer")) == 2 + 3 + 2


def test_binding_again_changes_only_the_launches_whose_places_changed() -> None:
    device, graph = StandInDevice(), chain()
    stream = device.init()
    plan = stream.plan(graph)
    first, second = placed(device, graph), placed(device, graph)
    plan.rebind(graph, first)
    device.stand_in.log.clear()
    plan.rebind(graph, first)
    assert not device.stand_in.did("set_buffer", "set_arguments")
    plan.rebind(graph, second)
    assert len(device.stand_in.did("set_buffer")) == 7
    offsets = second.offsets.copy()
    offsets[graph.index[graph.nodes[-1]]] -= 128
    moved = Allocation(graph, second.buffers, second.slots, offsets)
    device.stand_in.log.clear()
    plan.rebind(graph, moved)
    assert device.stand_in.did("set_buffer", "set_arguments") == [("set_arguments", "normalise", 2)]


def test_arguments_hold_the_places_of_the_tensors_and_the_ops_parameters() -> None:
    device = StandInDevice()
    x = new_tensor(types.F32, (8, 4)).set_input()
    graph = Graph(ops.norm(x, eps=0.25).set_output())
    stream = device.init()
    plan = stream.plan(graph)
    allocation = placed(device, graph)
    plan.rebind(graph, allocation)
    (bound,) = device.stand_in.bound
    words = bound.arguments[:112].view(np.int64).reshape(2, 7)
    for row, tensor in zip(words, (graph.nodes[0], x), strict=True):
        assert row[0] == allocation.offsets[graph.index[tensor]]
        assert tuple(row[1:5]) == tensor.nb
        assert tuple(row[5:7].view(np.int32)) == tensor.ne
    assert bound.arguments[112:116].view(np.float32)[0] == 0.25


def test_a_plan_that_is_computed_again_in_the_same_places_is_captured_and_replayed() -> None:
    device, graph = StandInDevice(), chain()
    device.stand_in.captures = True
    stream = device.init()
    plan = stream.plan(graph)
    first, second = placed(device, graph), placed(device, graph)
    plan.rebind(graph, first)
    for _ in range(4):
        plan.compute()
    done = device.stand_in.did("launch", "capture", "replay")
    assert [kind for kind, *_ in done] == ["launch"] * 3 + ["capture"] + ["replay"] * 3
    device.stand_in.log.clear()
    plan.rebind(graph, first)
    plan.compute()
    assert device.stand_in.did("launch", "capture", "replay") == [("replay", 3)]
    plan.rebind(graph, second)
    plan.compute()
    assert len(device.stand_in.did("launch")) == 3


def test_products_by_the_library_stay_outside_of_what_is_captured() -> None:
    driver = StandInDriver(dataclasses.replace(GPU, products=True))
    driver.captures = True
    device = StandInDevice(driver=driver)
    w, x = new_tensor(types.F16, (32, 16)).set_input(), new_tensor(types.F32, (32, 12)).set_input()
    graph = Graph(ops.norm(ops.gelu(ops.mul_mat(w, x))).set_output())
    stream, allocation = device.init(), placed(device, graph)
    stream.compute(graph, allocation)
    driver.log.clear()
    stream.compute(graph, allocation)
    done = [note for note in driver.log if note[0] in ("capture", "replay", "launch")]
    assert [note[:2] for note in done] == [
        ("capture", 2),
        ("launch", "map_one"),
        ("launch", "library_product"),
        ("replay", 2),
    ]


def test_all_plans_of_a_stream_share_scratch_memory_that_goes_with_the_stream() -> None:
    device = StandInDevice(driver=StandInDriver(dataclasses.replace(GPU, products=True)))
    stream = device.init()
    for rows, taken in ((16, 2048), (8, 2048), (32, 6144)):
        w, x = new_tensor(types.F16, (32, rows)).set_input(), new_tensor(types.F32, (32, 12)).set_input()
        stream.plan(Graph(ops.mul_mat(w, x).set_output()))
        assert device.used == taken
    stream.free()
    assert device.used == 0


def test_programs_are_compiled_once_and_found_on_disk_by_the_next_process() -> None:
    for device, kinds in ((StandInDevice(), {"compile"}), (StandInDevice(), {"load"})):
        stream, graph = device.init(), chain()
        stream.plan(graph)
        stream.plan(graph)
        done = device.stand_in.did("compile", "load")
        assert {kind for kind, *_ in done} == kinds
        assert len(done) == 3


def test_a_gpu_takes_host_weights_that_many_columns_share() -> None:
    device, host = StandInDevice(), ReferenceDevice()

    def weight(*ne: int) -> gg.Tensor:
        made = new_tensor(types.F32, ne)
        made.place(host.buffer_type.alloc(made.nbytes))
        made.root.buffer.usage = BufferUsage.WEIGHTS
        return made

    w, experts, scale = weight(8, 4), weight(8, 4, 3), weight(8)

    def where(node: gg.Tensor) -> str:
        return gg.Scheduler([device.init(), host.init()]).explain(Graph(node.set_output())).rows[-1].device

    for columns, name in ((31, host.name), (32, device.name)):
        x = new_tensor(types.F32, (8, columns)).set_input()
        ids = new_tensor(types.I32, (1, columns)).set_input()
        assert where(ops.mul_mat(w, x)) == name
        assert where(ops.mul(x, scale)) == name
        assert where(ops.mul_mat_id(experts, ops.reshape(x, 8, 1, columns), ids)) == name
    assert where(ops.get_rows(w, new_tensor(types.I32, (32,)).set_input())) == host.name
    device.kind = DeviceKind.IGPU
    assert where(ops.mul_mat(w, x)) == host.name


def test_programs_of_another_driver_and_damaged_files_are_compiled_anew(tmp_path: Path) -> None:
    StandInDevice().init().plan(chain())
    other = StandInDriver()
    other.identity = "stand-in, a newer one"
    StandInDevice(driver=other).init().plan(chain())
    assert len(other.did("compile")) == 3
    for path in tmp_path.rglob("*.kernel"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    device = StandInDevice()
    device.init().plan(chain())
    assert len(device.stand_in.did("compile")) == 3


def test_a_program_that_the_driver_refuses_to_load_is_compiled() -> None:
    StandInDevice().init().plan(chain())
    device = StandInDevice()
    device.stand_in.errors["load"] = RuntimeError("made by another compiler")
    device.init().plan(chain())
    assert len(device.stand_in.did("compile")) == 1
    assert len(device.stand_in.did("load")) == 2


def test_a_kernel_that_does_not_compile_names_op_kernel_device_and_log() -> None:
    device = StandInDevice()
    device.stand_in.errors["compile"] = Refused(Failure.COMPILE, "line 7: expected ';'")
    stream, graph = device.init(), chain()
    with pytest.raises(KernelCompileError) as caught:
        stream.plan(graph)
    assert "stand-in: compiling map_one[TD=f32 TX=f32] of gelu failed" in str(caught.value)
    assert caught.value.op == graph.nodes[0].op
    assert caught.value.device is device
    assert caught.value.kernel == "map_one[TD=f32 TX=f32]"
    assert caught.value.log == "line 7: expected ';'"
    stream.plan(graph)  # nothing is left of the failure


def test_memory_beyond_the_devices_is_refused_without_a_call_of_the_driver() -> None:
    device = StandInDevice()
    kept = device.buffer_type.alloc(1 << 19)
    with pytest.raises(OutOfMemoryError) as caught:
        device.buffer_type.alloc((1 << 19) + 1)
    assert (caught.value.requested, caught.value.free) == ((1 << 19) + 1, 1 << 19)
    assert caught.value.device is device
    kept.free()
    device.buffer_type.alloc(1 << 20).free()
    assert device.memory().free == 1 << 20


def test_a_buffer_that_is_dropped_gives_its_memory_back() -> None:
    device = StandInDevice()
    for _ in range(3):  # more than there is, if it were not released
        device.buffer_type.alloc(1 << 19)
    assert device.memory().free == 1 << 20


def test_memory_that_the_driver_refuses_is_the_same_error_and_not_counted() -> None:
    device = StandInDevice()
    device.stand_in.errors["allocate"] = Refused(Failure.MEMORY)
    with pytest.raises(OutOfMemoryError, match="no memory for 4096 bytes"):
        device.buffer_type.alloc(4096)
    assert device.used == 0


def test_running_out_of_memory_in_a_launch_names_op_and_kernel() -> None:
    device, graph = StandInDevice(), chain()
    stream, allocation = device.init(), placed(device, graph)
    device.stand_in.errors["launch"] = Refused(Failure.MEMORY)
    with pytest.raises(OutOfMemoryError) as caught:
        stream.compute(graph, allocation)
    assert caught.value.op == graph.nodes[0].op
    assert caught.value.kernel == "map_one[TD=f32 TX=f32]"
    stream.compute(graph, allocation)


def test_a_lost_device_says_so_from_then_on_and_others_go_on() -> None:
    lost, other, graph = StandInDevice("lost"), StandInDevice("other"), chain()
    stream, allocation = lost.init(), placed(lost, graph)
    lost.stand_in.errors["launch"] = Refused(Failure.LOST, "fallen off the bus")
    with pytest.raises(DeviceLostError, match="fallen off the bus") as caught:
        stream.compute(graph, allocation)
    assert caught.value.op == graph.nodes[0].op
    assert caught.value.device is lost
    for use in (
        lambda: stream.compute(graph, allocation),
        stream.synchronize,
        lambda: lost.buffer_type.alloc(64),
        lambda: allocation.buffers[0].get(0, np.empty(8, np.uint8)),
        lost.init,
    ):
        with pytest.raises(DeviceLostError):
            use()
    allocation.buffers[0].free()
    on_host = chain()
    other.init().compute(on_host, placed(other, on_host))


def test_a_failure_while_waiting_is_raised_by_the_streams_own_synchronize() -> None:
    device = StandInDevice()
    stream, quiet = device.init(), device.init()
    buffer = device.buffer_type.alloc(64)
    device.stand_in.errors["finish"] = Refused(Failure.OTHER, "an illegal address")
    stream.lane.settle()
    buffer.get(0, np.empty(64, np.uint8))
    quiet.synchronize()
    with pytest.raises(ComputeError, match="an illegal address"):
        stream.synchronize()
    stream.synchronize()


def test_a_driver_that_does_not_start_is_a_typed_error_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandInDevice()
    with monkeypatch.context() as patch:
        patch.setattr(device, "open_driver", lambda: 1 // 0)
        group = Group((chain().nodes[0],))
        for use in (device.init, lambda: device.buffer_type.alloc(64), lambda: device.match(group)):
            with pytest.raises(ComputeError, match="stand-in does not start: ZeroDivisionError: integer division"):
                use()
    device.init().synchronize()


class Owned:
    """That a device is a thread's own, as CUDA has it: notes entering and leaving, and may fail at either."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.did: list[str] = []

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what == self.fails_at:
            raise Refused(Failure.OTHER, f"the driver fails at {what}")

    def __enter__(self) -> None:
        self._do("entering")

    def __exit__(self, *exc: object) -> None:
        self._do("leaving")


def test_a_device_is_the_threads_own_while_its_library_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    device, graph = StandInDevice(), chain()
    stream, allocation = device.init(), placed(device, graph)
    plan = stream.plan(graph)
    plan.rebind(graph, allocation)
    own = Owned()
    monkeypatch.setattr(device.stand_in, "current", lambda: own)
    plan.compute()
    stream.synchronize()
    assert own.did == ["entering", "leaving"] * 2


@pytest.mark.parametrize("fails_at", ["entering", "leaving"])
def test_where_a_device_does_not_become_the_threads_own_nothing_stays_claimed(fails_at: str) -> None:
    device, graph = StandInDevice(), chain()
    stream, allocation = device.init(), placed(device, graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.stand_in, "current", lambda: Owned(fails_at))
        with pytest.raises(ComputeError, match=f"the driver fails at {fails_at}"):
            stream.compute(graph, allocation)
    assert not HELD
    stream.compute(graph, allocation)


def test_a_computation_makes_few_python_calls_in_addition_to_its_launches() -> None:
    device = StandInDevice()
    leafs = [gg.new_tensor("f32", (16,)), gg.new_tensor("f32", (16,))]
    for leaf in leafs:
        leaf.place(device.buffer_type.alloc(64))
    with device.init() as stream, Scheduler([stream]) as scheduler:
        by_plan = [count_calls(prepared(stream, overhead.chain(nodes, leafs))) for nodes in (10, 20)]
        by_scheduler = [count_calls(by(scheduler, Graph(overhead.chain(nodes, leafs)))) for nodes in (10, 20)]
    assert 2 * by_plan[0] - by_plan[1] <= 40
    assert 2 * by_scheduler[0] - by_scheduler[1] <= 120


def test_streams_take_no_parameters() -> None:
    with pytest.raises(gg.ParameterError, match="no parameter 'n_threads'; it has none"):
        StandInDevice().init(n_threads=2)


def test_a_buffer_of_another_device_is_refused_with_the_tensors_name() -> None:
    device, graph = StandInDevice(), chain()
    with pytest.raises(gg.BufferUseError, match="gelu"):
        device.init().compute(graph, placed(StandInDevice("on_host"), graph))


def test_a_plan_that_was_never_bound_does_not_compute() -> None:
    with pytest.raises(ComputeError, match="not bound"):
        StandInDevice().init().plan(chain()).compute()

"""Read-only memory is never written: an error is raised before anything runs.

Read-only views of memory that is writable after all show a write that nobody refused; a memory map would end the
process.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import UNGROUPED, Backend, Buffer, Device, Groups, Plan
from ggplug.gguf import GGUFWriter
from ggplug.graph import Graph
from ggplug.host import HOST, HostBuffer, HostBufferType
from ggplug.memory import Allocation, GraphAllocator, allocate_graph, compute_poisoned
from ggplug.ops.base import OPS, Op, apply
from ggplug.scheduler import Scheduler
from ggplug.tensor import Spec, like
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice, cases_of
from ggplug_testing.cases import Leafs
from ggplug_testing.fake import FakeBuffer

WRITERS = sorted(name for name, op in OPS.items() if op.writes)


def closed(values: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """A read-only view of the values' bytes, and a look at what is written there nevertheless."""
    memory = bytearray(np.asarray(values, np.float32).tobytes())
    return memoryview(memory).toreadonly(), np.frombuffer(memory, np.float32)


def placed(memory: Any, *ne: int, name: str = "target") -> gg.Tensor:
    tensor = gg.new_tensor("f32", ne or 4, name)
    tensor.place(memory if isinstance(memory, Buffer) else HOST.wrap(memory))
    return tensor


def copy_into(target: gg.Tensor, value: float = 1) -> Graph:
    return Graph(gg.cpy(gg.tensor(np.full(target.shape, value, np.float32)), target))


def devices() -> list[Any]:
    def cpu() -> Device:
        pytest.importorskip("ggplug_cpu")
        return gg.device("CPU")

    return [pytest.param(ReferenceDevice, id="walking"), pytest.param(cpu, id="CPU")]


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = request.param()
    return made


@pytest.fixture
def stream(device: Device) -> Iterator[Backend]:
    with device.init() as made:
        yield made


# -- what may not be written -----------------------------------------------------------------------


def array_over(values: np.ndarray[Any, Any]) -> Any:
    values.flags.writeable = False
    return values


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


READ_ONLY: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: path.read_bytes(),
    "a read-only view": lambda path: memoryview(bytearray(path.read_bytes())).toreadonly(),
    "an array made read-only": lambda path: array_over(np.fromfile(path, np.float32)),
    "an array of bytes": lambda path: np.frombuffer(path.read_bytes(), np.float32),
    "a read-only map": lambda path: mapped(path),
    "numpy's read-only map": lambda path: np.memmap(path, np.float32, "r"),
}

WRITABLE: dict[str, Callable[[Path], Any]] = {
    "an array": lambda path: np.fromfile(path, np.float32),
    "a bytearray": lambda path: bytearray(path.read_bytes()),
    "a private map": lambda path: np.memmap(path, np.float32, "c"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "values").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    return tmp_path / "values"


@pytest.mark.parametrize("kind", READ_ONLY)
def test_buffers_over_read_only_memory_are_read_and_never_written(kind: str, path: Path) -> None:
    buffer = HOST.wrap(READ_ONLY[kind](path))
    target = placed(buffer)
    assert buffer.is_read_only
    assert "read-only" in repr(buffer)
    assert target.numpy().tolist() == [0, 1, 2, 3]
    other = HOST.alloc(16)
    writes: dict[str, Callable[[], object]] = {
        "set": lambda: buffer.set(0, b"\1"),
        "set nothing": lambda: buffer.set(0, b""),
        "memset": lambda: buffer.memset(0, 1, 0),
        "clear": lambda: buffer.clear(),
        "set_2d": lambda: buffer.set_2d(0, np.ones(2, np.uint8), 1, 2, 4),
        "copy_from": lambda: buffer.copy_from(other, 0, 0, 4),
        "a tensor's values": lambda: target.set(np.ones(4)),
        "a tensor's bytes": lambda: target.set_bytes(b"\0" * 16),
        "a view's values": lambda: gg.view(target, 2, offset=4).set([7, 8]),
        "a stream's store": lambda: ReferenceDevice().init().set_async(buffer, 0, b"\1"),
        "a stream's copy": lambda: ReferenceDevice().init().copy_async(other, 0, buffer, 0, 4),
    }
    for what, write in writes.items():
        with pytest.raises(gg.BufferUseError, match="is read-only") as caught:
            write()
        assert caught.value.remedy, what
    assert target.numpy().tolist() == [0, 1, 2, 3]
    assert path.read_bytes() == np.arange(4, dtype=np.float32).tobytes()


@pytest.mark.parametrize("kind", WRITABLE)
def test_other_memory_of_the_caller_is_written(kind: str, path: Path) -> None:
    target = placed(HOST.wrap(WRITABLE[kind](path)))
    gg.compute(gg.cpy(gg.tensor(np.ones(4, np.float32)), target))
    assert target.numpy().tolist() == [1, 1, 1, 1]


def test_zero_copy_arrays_of_read_only_memory_are_read_only() -> None:
    memory, seen = closed([1, 2, 3, 4])
    target = placed(memory)
    for array in (gg.asarray(target), gg.asarray(gg.reshape(target, 2, 2)), HOST.wrap(memory).bytes(0, 16)):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert seen.tolist() == [1, 2, 3, 4]


def test_an_array_that_becomes_read_only_later_is_not_written_from_then_on() -> None:
    values = np.zeros(4, np.float32)
    target = gg.tensor(values, copy=False)
    gg.compute(gg.cpy(gg.tensor(np.ones(4, np.float32)), target))
    values.flags.writeable = False
    with pytest.raises(gg.BufferUseError, match="is read-only"):
        target.set(np.ones(4))
    with pytest.raises(gg.BufferUseError, match="would write into"):
        gg.compute(gg.cpy(gg.tensor(np.zeros(4, np.float32)), target))
    assert values.tolist() == [1, 1, 1, 1]


def test_nothing_is_fetched_into_a_read_only_array() -> None:
    memory, seen = closed([5])
    out = np.frombuffer(memory, np.uint8)
    fake = FakeDevice(execution="late")
    buffer = fake.buffer_type.alloc(4)
    with fake.init() as stream:
        fetches: list[Callable[[], object]] = [
            lambda: HOST.alloc(4).get(0, out),
            lambda: HOST.alloc(4).get_2d(0, out, 2, 2, 2),
            lambda: buffer.get(0, out),
            lambda: stream.get_async(buffer, 0, out),
            lambda: ReferenceDevice().init().get_async(HOST.alloc(4), 0, out),
        ]
        for fetch in fetches:
            with pytest.raises(gg.BufferUseError, match="read-only"):
                fetch()
    assert seen.tolist() == [5]


# -- graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_every_op_that_writes_is_refused(name: str, stream: Backend) -> None:
    """Cases of the conformance suite, with the root that is written in read-only memory."""
    refused = 0
    for case in cases_of(OPS[name])[::7]:
        leafs = Leafs(case.seed)
        made = case.make(leafs)
        graph = Graph(*([made] if isinstance(made, gg.Tensor) else made))
        written = {
            node.src[i].root
            for node in graph.nodes
            if node.op is not None
            for i in node.op.writes  # type: ignore[union-attr]
        }
        roots = [root for root in written if root.op is None and root.nbytes]
        if not roots or not all(map(stream.device.supports_op, graph.nodes)):
            continue
        memory = leafs.values[roots[0]].copy()
        before = memory.copy()
        roots[0].place(HOST.wrap(memoryview(memory).toreadonly()))
        allocation = allocate_graph(graph, HOST)
        for leaf in graph.leafs:
            if leaf.root is not roots[0]:
                leaf.root.set_bytes(leafs.values[leaf.root])
        with pytest.raises(gg.BufferUseError, match="would write into"):
            stream.compute(graph, allocation)
        np.testing.assert_array_equal(memory, before)
        refused += 1
    assert refused > 3


def test_the_error_names_the_node_the_tensor_and_its_buffer_and_says_what_to_do(stream: Backend) -> None:
    memory, _ = closed(np.zeros(4))
    graph = copy_into(placed(memory))
    with pytest.raises(gg.BufferUseError, match=r"cpy.* would write into .*'target'.* in .*read-only") as caught:
        stream.compute(graph, allocate_graph(graph, HOST))
    assert caught.value.tensor is graph["target"]
    assert caught.value.op is graph.node(0).op
    assert "copy the tensor first" in str(caught.value)


def test_a_schedule_that_was_made_for_writable_memory_refuses_a_map(device: Device) -> None:
    """Schedules are found by the structure of a graph, which says nothing about what may be written."""
    with Scheduler([device]) as scheduler:
        for _ in range(2):
            writable = placed(bytearray(16))
            scheduler.compute(copy_into(writable, 3))
            assert writable.numpy().tolist() == [3, 3, 3, 3]
            memory, seen = closed(np.zeros(4))
            with pytest.raises(gg.BufferUseError, match="would write into"):
                scheduler.compute(copy_into(placed(memory), 3))
            assert seen.tolist() == [0, 0, 0, 0]
        assert len(scheduler._executions) == 1


def test_a_tensor_that_moves_to_a_map_is_refused_by_the_schedule_that_computed_it(device: Device) -> None:
    target = placed(bytearray(16))
    graph = copy_into(target, 3)
    memory, seen = closed(np.zeros(4))
    with Scheduler([device]) as scheduler:
        scheduler.compute(graph)
        target.place(HOST.wrap(memory))
        with pytest.raises(gg.BufferUseError, match="would write into"):
            scheduler.compute(graph)
        target.place(HOST.alloc(16))
        scheduler.compute(graph)
    assert target.numpy().tolist() == [3, 3, 3, 3]
    assert seen.tolist() == [0, 0, 0, 0]


def test_a_stream_that_kept_a_plan_for_writable_memory_refuses_a_map(stream: Backend) -> None:
    for _ in range(2):
        graph = copy_into(placed(bytearray(16)), 3)
        stream.compute(graph, allocate_graph(graph, HOST))
        memory, seen = closed(np.zeros(4))
        graph = copy_into(placed(memory), 3)
        with pytest.raises(gg.BufferUseError, match="would write into"):
            stream.compute(graph, allocate_graph(graph, HOST))
        assert seen.tolist() == [0, 0, 0, 0]


def test_a_plan_that_is_bound_directly_refuses_a_map_and_goes_on_with_what_it_was_bound_to(stream: Backend) -> None:
    first = placed(bytearray(16))
    graph = copy_into(first, 3)
    here = allocate_graph(graph, HOST)
    plan = stream.plan(graph)
    plan.rebind(graph, here)
    memory, seen = closed(np.zeros(4))
    other = copy_into(placed(memory))
    with pytest.raises(gg.BufferUseError, match="would write into"):
        plan.rebind(other, allocate_graph(other, HOST))
    plan.rebind(graph, here)
    plan.compute()
    assert first.numpy().tolist() == [3, 3, 3, 3]
    assert seen.tolist() == [0, 0, 0, 0]


def test_nothing_is_computed_before_a_later_node_is_refused(device: Device) -> None:
    memory, seen = closed(np.zeros(4))
    one = gg.tensor(np.ones(4, np.float32))
    before = placed(bytearray(16), name="before")
    graph = Graph(gg.cpy(one, before), gg.cpy(one, placed(memory)))
    with Scheduler([device]) as scheduler:
        with pytest.raises(gg.BufferUseError):
            scheduler.compute(graph)
        scheduler.set_eval_callback(lambda tensor, ask: True)
        with pytest.raises(gg.BufferUseError):
            scheduler.compute(graph)
    with Scheduler([device], poison=True) as scheduler, pytest.raises(gg.BufferUseError):
        scheduler.compute(graph)
    with device.init() as stream:
        allocation = allocate_graph(graph, HOST)
        with pytest.raises(gg.BufferUseError):
            stream.compute(graph, allocation)
        with pytest.raises(gg.BufferUseError):
            compute_poisoned(stream, graph, allocation)
    assert before.numpy().tolist() == [0, 0, 0, 0]
    assert seen.tolist() == [0, 0, 0, 0]


def test_a_split_on_another_device_is_refused_before_the_first_one_runs() -> None:
    """The first split runs on a device of its own, the second one writes into host memory."""
    fake, host = FakeDevice(declines=lambda node: "" if node.op.name == "sqr" else "only sqr"), ReferenceDevice()  # type: ignore[union-attr]
    memory, seen = closed(np.zeros(4))
    squared = gg.sqr(gg.tensor(np.full(4, 3, np.float32)))
    with Scheduler([fake, host], policy=lambda node, streams: streams[0] if streams else None) as scheduler:
        for buffer in (HOST.alloc(16), HOST.wrap(memory)):
            fake.forget()
            graph = Graph(gg.cpy(squared, placed(buffer)))
            if buffer.is_read_only:
                with pytest.raises(gg.BufferUseError, match="would write into"):
                    scheduler.compute(graph)
                assert fake.computed() == []
            else:
                scheduler.compute(graph)
                assert fake.computed() == ["sqr"]
    assert seen.tolist() == [0, 0, 0, 0]


def test_results_that_were_placed_in_read_only_memory_are_refused(device: Device) -> None:
    memory, seen = closed(np.zeros(4))
    result = gg.neg(gg.tensor(np.ones(4, np.float32)))
    result.place(HOST.wrap(memory))
    with Scheduler([device]) as scheduler, pytest.raises(gg.BufferUseError, match=r"neg.* would write into"):
        scheduler.compute(Graph(result))
    with pytest.raises(gg.BufferUseError, match="would write into"):
        gg.compute(result)
    assert seen.tolist() == [0, 0, 0, 0]


def test_intermediates_in_read_only_memory_of_the_caller_are_refused(stream: Backend) -> None:
    memory, seen = closed(np.zeros(16))
    middle = gg.neg(gg.tensor(np.ones(4, np.float32)))
    graph = Graph(gg.sqr(middle))
    buffers = [HOST.alloc(64), HOST.wrap(memory)]
    slots = [-1 if tensor.op is None else int(tensor is middle) for tensor in graph.tensors]
    allocation = Allocation(graph, buffers, slots, [0] * len(slots))
    with pytest.raises(gg.BufferUseError, match=r"neg.* would write into"):
        stream.compute(graph, allocation)
    assert not seen.any()


def test_a_buffer_type_that_hands_out_read_only_memory_is_refused(device: Device) -> None:
    class Closed(HostBufferType):
        def _alloc(self, size: int) -> HostBuffer:
            return HostBuffer(self, np.frombuffer(memoryview(bytearray(size)).toreadonly(), np.uint8))

    graph = Graph(gg.neg(gg.tensor(np.ones(4, np.float32))))
    with Scheduler([device], buffer_types=[Closed()]) as made, pytest.raises(gg.BufferUseError, match="would write"):
        made.compute(graph)


def test_inputs_in_read_only_memory_are_only_read(device: Device) -> None:
    memory, seen = closed([1, 2, 3, 4])
    x = placed(memory)
    with Scheduler([device]) as scheduler:
        y = gg.neg(gg.sqr(x)).set_output()
        scheduler.compute(Graph(y))
        assert y.numpy().tolist() == [-1, -4, -9, -16]
    assert seen.tolist() == [1, 2, 3, 4]


def test_copies_for_another_device_are_not_made_in_read_only_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's own memory holds nothing here but the copy; results have places of their own."""
    first = FakeDevice("first", declines=lambda node: "" if node.op.name == "neg" else "only neg")  # type: ignore[union-attr]
    second = FakeDevice("second", declines=lambda node: "" if node.op.name == "sqr" else "only sqr")  # type: ignore[union-attr]
    x = placed(first.buffer_type.alloc(16))
    x.set([1, 2, 3, 4])
    negated = gg.neg(x)
    negated.place(first.buffer_type.alloc(16))
    result = gg.sqr(negated)
    result.place(second.buffer_type.alloc(16))
    with Scheduler([first, second]) as scheduler:
        scheduler.compute(Graph(result))
        assert result.numpy().tolist() == [1, 4, 9, 16]
        monkeypatch.setattr(FakeBuffer, "is_read_only", property(lambda each: each.usage is BufferUsage.COMPUTE))
        first.forget()
        result.place(result.buffer)
        with pytest.raises(gg.BufferUseError, match="is read-only"):
            scheduler.compute(Graph(result))
        assert first.computed() == []


def test_all_sources_that_an_op_writes_have_to_be_writable() -> None:
    """Of an op that writes several the result is a view of the first."""

    def result(self: Op, a: gg.Tensor, b: gg.Tensor) -> Spec:
        return like(a)._replace(view_of=a)

    made: type[Op] = type("WritesTwo", (Op,), {"name": "tests.two", "writes": (0, 1), "result": result})
    del OPS["tests.two"]
    first, (memory, _) = placed(bytearray(16), name="first"), closed(np.zeros(4))
    graph = Graph(apply(made(), (first, placed(memory, name="second"))))
    with pytest.raises(gg.BufferUseError, match=r"would write into .*'second'"):
        allocate_graph(graph, HOST).check(graph)


def test_empty_tensors_may_lie_anywhere(stream: Backend) -> None:
    graph = copy_into(placed(HOST.wrap(b""), 4, 0))
    stream.compute(graph, allocate_graph(graph, HOST))


WEIGHTS = """
import sys
import numpy as np
import ggplug as gg
from ggplug.gguf import load
from ggplug.host import HOST
from ggplug_testing import ReferenceDevice

device = ReferenceDevice() if sys.argv[2] == "walking" else gg.device(sys.argv[2])
context, _ = load(sys.argv[1], device)
w = context["w"]
ones, ids = gg.tensor(np.ones(64, np.float32)), gg.tensor([1, 0])
for written in (
    gg.cpy(ones, w), gg.cpy(gg.tensor([5.0]), gg.view(w, 1, offset=40)),
    gg.set_rows(gg.reshape(w, 32, 2), gg.reshape(ones, 32, 2), ids),
):
    try:
        gg.compute(written, backends=[device])
    except gg.BufferUseError as error:
        assert "would write into" in str(error) and "load it into memory that may be written" in str(error), error
    else:
        raise AssertionError(written)
try:
    w.set(0)
except gg.BufferUseError as error:
    assert "is read-only" in str(error), error
assert w.numpy().tolist() == list(range(64))
copied, _ = load(sys.argv[1], HOST)
gg.compute(gg.cpy(ones, copied["w"]), backends=[device])
assert copied["w"].numpy().sum() == 64
"""


@pytest.mark.parametrize("name", ["walking", "CPU"])
def test_weights_of_a_memory_map_are_not_written(tmp_path: Path, name: str) -> None:
    """In a process of its own, which a write would end."""
    if name == "CPU":
        pytest.importorskip("ggplug_cpu")
    path = tmp_path / "model.gguf"
    with GGUFWriter(path, arch="test") as writer:
        writer.add_tensor("w", np.arange(64, dtype=np.float32))
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", WEIGHTS, str(path), name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == before


# -- devices with memory of their own, and plans of others -----------------------------------------


def test_memory_of_a_device_may_be_read_only_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice(execution="late")
    buffer = fake.buffer_type.alloc(64)
    buffer.clear()
    target = placed(buffer)
    graph = Graph(gg.cpy(gg.new_tensor("f32", 4, "x"), target))
    allocation = GraphAllocator(fake.buffer_type).allocate(graph)
    graph["x"].set(np.ones(4))
    with fake.init() as stream:
        plan = stream.plan(graph)
        stream.compute(graph, allocation)
        stream.synchronize()
        assert target.numpy().tolist() == [1, 1, 1, 1]
        monkeypatch.setattr(FakeBuffer, "is_read_only", property(lambda each: each is buffer))
        target.place(buffer)  # a binding is looked at again when something was placed
        with pytest.raises(gg.BufferUseError, match="would write into"):
            stream.compute(graph, allocation)
        with pytest.raises(gg.BufferUseError, match="would write into"):
            plan.rebind(graph, allocation)
        for write in (
            lambda: stream.set_async(buffer, 0, b"\1"),
            lambda: stream.copy_async(HOST.alloc(4), 0, buffer, 0, 4),
            lambda: buffer.copy_from(HOST.alloc(4), 0, 0, 4),
            lambda: buffer.memset(0, 4, 1),
        ):
            with pytest.raises(gg.BufferUseError, match="is read-only"):
                write()


class Careless(ReferenceDevice):
    """A device whose plans look their places up by themselves, and write wherever those are."""

    def init(self, **params: Any) -> Backend:
        return CarelessStream(self)


class CarelessStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return CarelessPlan()


class CarelessPlan(Plan):
    def __init__(self) -> None:
        self.bound = 0

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        self.bound += 1

    def compute(self) -> None:
        raise AssertionError("what was refused is not computed")


def test_plans_that_ask_for_nothing_are_not_bound_to_read_only_memory() -> None:
    memory, _ = closed(np.zeros(4))
    graph = copy_into(placed(memory))
    device = Careless()
    stream = device.init()
    with pytest.raises(gg.BufferUseError, match="would write into"):
        stream.compute(graph, allocate_graph(graph, HOST))
    with Scheduler([device]) as scheduler, pytest.raises(gg.BufferUseError, match="would write into"):
        scheduler.compute(graph)


def test_plans_that_look_up_single_places_are_refused_those_that_are_written() -> None:
    memory, _ = closed(np.zeros(4))
    target = placed(memory)
    graph = copy_into(target)
    allocation = allocate_graph(graph, HOST)
    assert allocation.place(graph, graph.index[graph.leafs[0]])[1] == 0
    with pytest.raises(gg.BufferUseError, match="would write into"):
        allocation.place(graph, graph.index[target])


def test_a_plan_for_gpus_refuses_read_only_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ggplug_simt")
    from simt_stand_in import StandInDevice

    from ggplug_simt.memory import SimtBuffer

    device = StandInDevice()
    buffer, other = device.buffer_type.alloc(64), device.buffer_type.alloc(64)
    graph = Graph(gg.cpy(gg.new_tensor("f32", 4), placed(buffer)))
    allocation = allocate_graph(graph, device.buffer_type)
    with device.init() as stream:
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        monkeypatch.setattr(SimtBuffer, "is_read_only", property(lambda each: each is buffer))
        graph["target"].place(buffer)
        with pytest.raises(gg.BufferUseError, match="would write into"):
            plan.rebind(graph, allocation)
        for write in (
            lambda: stream.set_async(buffer, 0, b"\1"),
            lambda: stream.copy_async(HOST.alloc(4), 0, buffer, 0, 4),
            lambda: stream.copy_async(other, 0, buffer, 0, 4),
            lambda: buffer.copy_from(HOST.alloc(4), 0, 0, 4),
            lambda: buffer.copy_from(other, 0, 0, 4),
            lambda: buffer.set_2d(0, np.ones(2, np.uint8), 1, 2, 4),
            lambda: buffer.memset(0, 4, 1),
        ):
            with pytest.raises(gg.BufferUseError, match="is read-only"):
                write()


# -- what it costs ---------------------------------------------------------------------------------


class Asked(HostBuffer):
    """Counts how often it is asked whether it may be written."""

    count = 0

    @property
    def is_read_only(self) -> bool:
        self.count += 1
        return False


def test_a_computation_that_is_repeated_asks_nothing(device: Device) -> None:
    buffer = Asked(HOST, np.zeros(16, np.uint8))
    graph = copy_into(placed(buffer))
    with Scheduler([device]) as scheduler:
        scheduler.compute(graph)
        # A walking plan makes arrays of its operands each time, which are read-only where the memory is.
        asked, walks = buffer.count, isinstance(device, ReferenceDevice)
        for _ in range(5):
            scheduler.compute(graph)
        assert buffer.count == asked + 5 * 2 * walks

"""The kit for memory that the host does not see: order, events, errors and draining from one method, ``submit``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from held import Doing, holds, until
from interrupts import interrupted_at

import ggplug as gg
from ggplug import host, types
from ggplug.backend import (
    API_VERSION,
    BLOCK_AXIS,
    Backend,
    Buffer,
    BufferType,
    Bytes,
    Decline,
    Device,
    Group,
    Memory,
    Registration,
    TensorLayout,
    check_parameters,
)
from ggplug.discrete import DiscreteBuffer, DiscreteDevice, Job, QueuedBackend
from ggplug.errors import BufferUseError, ComputeError, DeviceLostError, PluginError
from ggplug.host import HOST
from ggplug.memory import GraphAllocator
from ggplug.ops import Add, GetRows, Op, Relu, Sqr
from ggplug.registry.registry import Registry
from ggplug.types import F32, DeviceKind
from ggplug_testing.conformance import check
from ggplug_testing.contracts import CLAUSES, Clause, run_clause
from ggplug_testing.reporting.rendering import text


class ArrayBuffer(DiscreteBuffer):
    def __init__(self, type: BufferType, device: ArrayDevice, size: int) -> None:
        super().__init__(type, size, device)
        self.array = np.zeros(size, np.uint8)

    def store(self, offset: int, data: Bytes) -> None:
        self.array[offset : offset + data.size] = data

    def fetch(self, offset: int, out: Bytes) -> None:
        out[...] = self.array[offset : offset + out.size]

    def dispose(self) -> None:
        self.array = np.zeros(0, np.uint8)


class ArrayMemory(BufferType):
    def _alloc(self, size: int) -> ArrayBuffer:
        assert isinstance(self.device, ArrayDevice)
        if size > 1 << 32:
            raise gg.OutOfMemoryError("too much", requested=size, device=self.device)
        return ArrayBuffer(self, self.device, size)


class Threaded(QueuedBackend):
    def __init__(self, device: ArrayDevice) -> None:
        super().__init__(device)
        self._executor = ThreadPoolExecutor(1)

    def submit(self, job: Job) -> None:
        self._executor.submit(job)

    def close(self) -> None:
        self._executor.shutdown()


def add(op: Op, dst: Any, a: Any, b: Any) -> None:
    dst[...] = a + np.tile(b, [m // n for m, n in zip(a.shape, b.shape, strict=True)])


def relu(op: Op, dst: Any, x: Any) -> None:
    dst[...] = np.fmax(x, 0)


def get_rows(op: Op, dst: Any, x: Any, ids: Any) -> None:
    for place in np.ndindex(ids.shape[:3]):
        for j, row in enumerate(ids[place]):
            inside = 0 <= row < x.shape[2]
            dst[place[1], place[2], j] = x[place[1], place[2], row] if inside else 0


def fails(op: Op, dst: Any, *src: Any) -> None:
    raise RuntimeError("too hot")


class ArrayDevice(DiscreteDevice):
    name = description = "Array"
    kind = DeviceKind.ACCEL
    kernels: ClassVar = {Add: add, Relu: relu, GetRows: get_rows}

    def __init__(self) -> None:
        super().__init__()
        self._memory = ArrayMemory("Array", self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._memory

    def init(self, **params: Any) -> Threaded:
        check_parameters(self, params)
        return Threaded(self)

    def match(self, group: Group) -> Any:
        if any(tensor is not None and tensor.type not in (F32, types.I32) for tensor in (group.node, *group.node.src)):
            return Decline("only F32")
        return super().match(group)

    def operand(self, tensor: gg.Tensor, buffer: DiscreteBuffer, offset: int) -> Any:
        assert isinstance(buffer, ArrayBuffer)
        layout = TensorLayout.of(tensor)
        return np.ndarray(layout.shape, layout.dtype, buffer.array.data, offset, layout.byte_strides)


class HotDevice(ArrayDevice):
    kernels: ClassVar = {**ArrayDevice.kernels, Sqr: fails}


@pytest.mark.parametrize("clause", CLAUSES, ids=[clause.name for clause in CLAUSES])
def test_a_device_of_a_hundred_lines_keeps_the_contract(clause: Clause) -> None:
    finding = run_clause(ArrayDevice(), clause)
    assert not finding.bad, finding


def test_it_computes_between_guards_and_raises_for_ids_out_of_range() -> None:
    report = check(ArrayDevice(), ops=["add", "relu", "get_rows"], clauses=[], graphs=False, groups=False)
    assert report.ok, text(report)
    assert report.counts()["passed"] > 140


class Held:
    """A stream that does nothing until it is let go."""

    def __init__(self, stream: QueuedBackend) -> None:
        self._gate = threading.Event()
        stream.give(lambda: self._gate.wait(60) and None)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        self._gate.set()


def bytes_of(buffer: DiscreteBuffer) -> list[int]:
    out = np.empty(buffer.size, np.uint8)
    buffer.fetch(0, out)
    return out.tolist()


def test_a_stream_keeps_its_order_and_works_when_its_turn_has_come() -> None:
    device = ArrayDevice()
    buffer = device.buffer_type.alloc(4)
    assert isinstance(buffer, ArrayBuffer)
    out = np.zeros(4, np.uint8)
    with device.init() as stream:
        with Held(stream):
            stream.set_async(buffer, 0, np.full(4, 1, np.uint8))
            stream.get_async(buffer, 0, out)
            stream.set_async(buffer, 2, np.full(2, 2, np.uint8))
            assert bytes_of(buffer) == out.tolist() == [0, 0, 0, 0]
        stream.synchronize()
        assert bytes_of(buffer) == [1, 1, 2, 2]
        assert out.tolist() == [1, 1, 1, 1]


def test_an_event_holds_another_stream_back() -> None:
    device = ArrayDevice()
    source, target = device.buffer_type.alloc(4), device.buffer_type.alloc(4)
    assert isinstance(target, ArrayBuffer)
    with device.init() as first, device.init() as second:
        event = device.event()
        with Held(first):
            first.set_async(source, 0, np.full(4, 7, np.uint8))
            event.record(first)
            first.set_async(source, 0, np.full(2, 8, np.uint8))
            event.wait(second)
            second.copy_async(source, 0, target, 0, 4)
            assert not second.last.done  # type: ignore[union-attr]
        event.synchronize()
        second.synchronize()
        assert bytes_of(target)[2:] == [7, 7]


def test_a_stream_that_was_interrupted_as_it_was_to_wait_for_another_waits_for_nothing_that_it_lacks() -> None:
    device = ArrayDevice()
    first, second = device.init(), device.init()
    event, places = device.event(), []
    while None not in places:
        with Held(first):
            event.record(first)
            with interrupted_at(len(places), lambda: event.wait(second), in_queue) as place:
                places.append(place)
        Doing(second.synchronize).result()
    assert "Threaded.submit" in places
    first.free()
    second.free()


def in_queue(frame: Any) -> bool:
    return frame.f_globals["__name__"] in ("ggplug.discrete.queue", __name__)


def test_a_copy_waits_for_the_stream_that_writes_its_source_also_on_another_device() -> None:
    here, there = ArrayDevice(), ArrayDevice()
    source, target = here.buffer_type.alloc(4), there.buffer_type.alloc(4)
    assert isinstance(target, ArrayBuffer)
    with here.init() as first, there.init() as second:
        with Held(first):
            first.set_async(source, 0, np.full(4, 7, np.uint8))
            second.copy_async(source, 0, target, 0, 4, first)
        second.synchronize()
        assert bytes_of(target) == [7] * 4


def test_synchronous_accesses_and_free_wait_for_every_stream() -> None:
    device = ArrayDevice()
    buffer, other = device.buffer_type.alloc(4), device.buffer_type.alloc(4)
    out = np.zeros(4, np.uint8)
    with device.init() as stream:
        held = Held(stream)
        stream.set_async(buffer, 0, np.full(4, 3, np.uint8))
        stream.get_async(other, 0, out)
        reader = threading.Thread(target=lambda: buffer.get(0, out))
        reader.start()
        held.__exit__()
        reader.join()
        assert out.tolist() == [3] * 4
        with Held(stream):
            stream.set_async(buffer, 0, np.full(4, 4, np.uint8))
            freeing = threading.Thread(target=buffer.free)
            freeing.start()
        freeing.join()
        stream.synchronize()
        assert buffer.freed


@pytest.mark.parametrize("way", ["from", "into"])
def test_a_pending_copy_from_host_memory_waits_for_nobody_who_waits_for_it(way: str) -> None:
    device = ArrayDevice()
    source, target = HOST.alloc(8), device.buffer_type.alloc(8)
    assert isinstance(target, ArrayBuffer)
    source.set(0, np.arange(8, dtype=np.uint8))
    with device.init() as stream:
        with Held(stream):
            stream.copy_async(source, 0, target, 0, 4)
            into, out_of = (source, target) if way == "from" else (target, source)
            copying = Doing(lambda: into.copy_from(out_of, 0, 4, 4))
            until(lambda: holds(copying))  # both buffers; it waits for the stream
        copying.result()
        assert bytes_of(target)[:4] == [0, 1, 2, 3]
        assert (source.bytes(4, 4) if way == "from" else np.array(bytes_of(target)[4:])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["freed", "set"])
def test_what_another_device_was_given_to_copy_is_neither_freed_nor_changed_before(way: str) -> None:
    here, there = ArrayDevice(), ArrayDevice()
    source, target = here.buffer_type.alloc(4), there.buffer_type.alloc(4)
    assert isinstance(target, ArrayBuffer)
    source.set(0, np.full(4, 7, np.uint8))
    with there.init() as stream:
        with Held(stream):
            stream.copy_async(source, 0, target, 0, 4)
            doing = Doing(source.free if way == "freed" else lambda: source.set(0, np.zeros(4, np.uint8)))
            until(lambda: holds(doing))
            assert not source.freed or doing.is_alive()
            assert bytes_of(source) == [7] * 4
        doing.result()
        stream.synchronize()
        assert bytes_of(target) == [7] * 4


@pytest.mark.parametrize("way", ["freed", "set"])
def test_after_an_interrupt_another_devices_copies_are_waited_for_again(way: str) -> None:
    here, there = ArrayDevice(), ArrayDevice()
    source, target = here.buffer_type.alloc(4), there.buffer_type.alloc(4)
    source.set(0, np.full(4, 7, np.uint8))
    take_away = source.free if way == "freed" else lambda: source.set(0, np.zeros(4, np.uint8))
    with there.init() as stream:
        with Held(stream):
            stream.copy_async(source, 0, target, 0, 4)
            with interrupted_at(0, take_away, lambda frame: frame.f_code is Job.wait.__code__) as place:
                assert place == "Job.wait"
            doing = Doing(take_away)
            until(lambda: holds(doing))
            assert bytes_of(source) == [7] * 4
        doing.result()
        stream.synchronize()
        assert bytes_of(target) == [7] * 4


def test_an_interrupt_while_a_copy_is_submitted_leaves_no_copy_that_nobody_waits_for() -> None:
    here, there = ArrayDevice(), ArrayDevice()
    source, target = here.buffer_type.alloc(4), there.buffer_type.alloc(4)
    places: list[str | None] = []
    while None not in places:
        source.set(0, np.full(4, 7, np.uint8))
        target.set(0, np.full(4, 9, np.uint8))
        with there.init() as stream:
            with Held(stream):
                copy = partial(stream.copy_async, source, 0, target, 0, 4)
                with interrupted_at(len(places), copy, in_queue) as place:
                    places.append(place)
                changing = Doing(lambda: source.set(0, np.zeros(4, np.uint8)))
                changing.join(0.01)
            changing.result()
            stream.synchronize()
            assert bytes_of(target) in ([7] * 4, [9] * 4), places[-1]
    assert "Threaded.submit" in places


def test_threads_that_copy_from_one_buffer_at_once_are_all_waited_for() -> None:
    here, there = ArrayDevice(), ArrayDevice()
    source, targets = here.buffer_type.alloc(4), [there.buffer_type.alloc(4) for _ in range(4)]
    streams = [there.init() for _ in targets]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(streams)) as pool:
            for _ in range(300):
                source.set(0, np.full(4, 7, np.uint8))
                with ExitStack() as held:
                    for stream in streams:
                        held.enter_context(Held(stream))
                    together = threading.Barrier(len(streams))

                    def copy(stream: Backend, target: Buffer, together: threading.Barrier = together) -> None:
                        together.wait()
                        stream.copy_async(source, 0, target, 0, 4)

                    list(pool.map(copy, streams, targets))
                    changing = Doing(lambda: source.set(0, np.zeros(4, np.uint8)))
                    held.pop_all().close()
                changing.result()
                assert [bytes_of(target) for target in targets] == [[7] * 4] * 4
    finally:
        sys.setswitchinterval(interval)
    for stream in streams:
        stream.free()


def test_an_error_of_a_kernel_is_raised_once_and_the_rest_of_its_computation_is_dropped() -> None:
    device = HotDevice()
    x = gg.new_tensor("f32", (4,), name="x")
    graph = gg.Graph(gg.relu(gg.sqr(x)))
    with GraphAllocator(device.buffer_type) as allocator, device.init() as stream:
        allocation = allocator.allocate(graph)
        x.set(np.ones(4, np.float32))
        with Held(stream):
            stream.compute(graph, allocation)
        with pytest.raises(ComputeError, match="too hot") as raised:
            stream.synchronize()
        assert isinstance(raised.value.__cause__, RuntimeError)
        assert raised.value.op is graph.nodes[0].op
        stream.synchronize()
        other = gg.Graph(gg.relu(x))
        stream.compute(other, allocator.allocate(other))
        x.set(-np.ones(4, np.float32))
        stream.compute(other, allocator.allocate(other))
        assert other.outputs[0].numpy().tolist() == [0, 0, 0, 0]


def test_a_job_that_the_queue_does_not_take_is_not_waited_for() -> None:
    class Refusing(Threaded):
        def submit(self, job: Job) -> None:
            raise RuntimeError("full")

    device = ArrayDevice()
    with Refusing(device) as stream:
        with pytest.raises(RuntimeError, match="full"):
            stream.set_async(device.buffer_type.alloc(4), 0, np.zeros(4, np.uint8))
        stream.synchronize()


def test_a_freed_stream_takes_no_work() -> None:
    device = ArrayDevice()
    stream, buffer = device.init(), device.buffer_type.alloc(4)
    stream.free()
    for submit in (
        lambda: stream.set_async(buffer, 0, b"1234"),
        lambda: stream.get_async(buffer, 0, np.zeros(4, np.uint8)),
        lambda: stream.copy_async(HOST.alloc(4), 0, buffer, 0, 4),
    ):
        with pytest.raises(gg.FreedError, match="was freed"):
            submit()
    assert bytes_of(buffer) == [0] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork processes")
def test_a_forked_process_does_not_wait_for_its_parents_stream() -> None:
    device = ArrayDevice()
    with device.init() as stream, device.init() as other:
        buffer = device.buffer_type.alloc(4)
        stream.set_async(buffer, 0, b"1234")
        stream.synchronize()
        with Held(other):
            child = os.fork()
            if not child:
                signal.alarm(20)
                seen = []
                for use in (lambda: stream.set_async(buffer, 0, b"5678"), other.synchronize):
                    try:
                        use()
                    except DeviceLostError as error:
                        seen.append("stays with the process" in str(error))
                with device.init() as own:
                    out = np.zeros(4, np.uint8)
                    own.get_async(buffer, 0, out)
                    own.synchronize()
                os._exit(0 if seen == [True, True] and out.tobytes() == b"1234" else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_copy_one_buffer_of_the_host_at_once() -> None:
    device, source = ArrayDevice(), HOST.alloc(1 << 18)
    source.set(0, np.full(source.size, 7, np.uint8))

    def copy(number: int) -> None:
        target = device.buffer_type.alloc(source.size)
        with device.init() as stream:
            for _ in range(50):
                stream.copy_async(source, 0, target, 0, source.size)
        assert np.unique(target.array).tolist() == [7]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(copy, range(4)))


@pytest.mark.parametrize("alignment", [0, 1, 4, 48, "64"])
def test_an_alignment_that_is_none_is_refused(alignment: Any) -> None:
    class Odd(ArrayMemory):
        alignment = None  # type: ignore[assignment]

    memory = Odd("Odd", ArrayDevice())
    memory.alignment = alignment
    with pytest.raises(BufferUseError, match=r"Odd\.alignment must be a power of two, at least 8, got"):
        memory.alloc(64)


def test_memory_of_others_is_refused() -> None:
    device = ArrayDevice()
    with device.init() as stream, pytest.raises(BufferUseError, match="is no memory of Array"):
        stream.set_async(HOST.alloc(4), 0, np.zeros(4, np.uint8))


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (7, 5, 3, 2)])
def test_a_layout_tells_where_numpy_finds_the_elements(shape: tuple[int, ...]) -> None:
    root = gg.new_tensor("f32", shape)
    raw = np.arange(root.size, dtype=np.float32).view(np.uint8)
    for tensor in (root, gg.transpose(root)):
        layout = TensorLayout.of(tensor)
        shown = np.ndarray(layout.shape, layout.dtype, raw.data, 0, layout.byte_strides)
        want = np.arange(root.size).reshape(root.ne[::-1])
        np.testing.assert_array_equal(shown, want if tensor is root else want.swapaxes(2, 3))
        assert (layout.block_size, layout.alignment, layout.nbytes) == (1, 4, tensor.nbytes)


def test_a_layout_counts_blocks_along_one_axis() -> None:
    layout = TensorLayout.of(gg.new_tensor("q8_0", (96, 5)))
    assert layout.dtype.itemsize == 34
    assert layout.shape == (1, 1, 5, 3)
    assert layout.strides == (15, 15, 3, 1)
    assert layout.shape[BLOCK_AXIS] * layout.block_size == 96


class Mistaken(Device):
    """Kernels over host memory, and memory that the host does not see."""

    name = description = "Mistaken"
    kind = DeviceKind.ACCEL
    kernels: ClassVar = {Add: add}

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return ArrayMemory("Mistaken", self)


class WithStream(Mistaken):
    def init(self, **params: Any) -> Backend:
        return Backend(self)


class Mistakes(Registration):
    name, api_version = "Mistaken", API_VERSION

    def __init__(self, device: Device) -> None:
        self._device = device

    def devices(self) -> list[Device]:
        return [self._device]


def test_kernels_over_memory_that_the_host_does_not_see_are_refused_with_the_remedy() -> None:
    registry = Registry(())
    registry.register(Mistakes(Mistaken()))
    with pytest.raises(PluginError, match="memory that the host does not see") as raised:
        registry.device("Mistaken")
    assert "derive it from ggplug.discrete.DiscreteDevice" in str(raised.value)
    with pytest.raises(PluginError, match="derive it from"):
        Registry(()).register_device(Mistaken())


def test_memory_with_a_stream_of_its_own_is_not_refused() -> None:
    assert Registry(()).register_device(WithStream())
    assert Registry(()).register_device(ArrayDevice())


def test_a_plan_keeps_nothing_of_computations_that_nobody_traces() -> None:
    device, context = ArrayDevice(), gg.Context()
    x = context.new_tensor("f32", (4,), "x")
    gg.allocate(context, device)
    x.set(np.ones(4, np.float32))
    graph = gg.Graph(gg.relu(x))
    with device.init() as stream, GraphAllocator(device.buffer_type) as allocator:
        plan = stream.plan(graph)
        plan.rebind(graph, allocator.allocate(graph))
        plan.compute()
        stream.synchronize()
        tracemalloc.start()
        try:
            for _ in range(1000):
                plan.compute()
            stream.synchronize()
            kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/discrete/plan.py")])
        finally:
            tracemalloc.stop()
        assert sum(each.size for each in kept.statistics("filename")) < 20_000  # a thousand times take 77,000
        assert len(plan.compute_traced()) == len(plan.compute_traced()) == 1
    context.free()

"""Places for persistent tensors: one after another, whole contexts, and what goes wrong."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import BufferType, Bytes, Described, Memory
from ggplug.host import HOST, HostBuffer, HostBufferType
from ggplug.memory import (
    GraphAllocator,
    TensorAllocator,
    allocate,
    allocate_graph,
    allocated_size,
    tensor_alloc,
    view_init,
)
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice


class Small(HostBufferType):
    """Host memory in buffers of at most ``limit`` bytes that records the tensors placed in it."""

    def __init__(self, limit: int | None = None, total: int = 1 << 30, pad: int = 0) -> None:
        super().__init__("small")
        self.limit, self.total, self.pad = limit, total, pad
        self.made: list[Noting] = []

    @property
    def max_size(self) -> int | None:
        return self.limit

    def alloc_size(self, tensor: Described) -> int:
        return tensor.nbytes + self.pad

    def _alloc(self, size: int) -> HostBuffer:
        if sum(b.size for b in self.made if not b.freed) + size > self.total:
            raise gg.OutOfMemoryError(f"small: no {size} bytes", requested=size, free=0)
        self.made.append(Noting(self, np.empty(size, np.uint8)))
        return self.made[-1]


class Noting(HostBuffer):
    def __init__(self, type: BufferType, memory: Bytes) -> None:
        super().__init__(type, memory)
        self.initialised: list[gg.Tensor] = []

    def init_tensor(self, tensor: Described) -> None:
        self.initialised.append(tensor)


def context(*sizes: int) -> gg.Context:
    made = gg.Context("weights")
    for number, size in enumerate(sizes):
        made.new_tensor("f32", size, f"w{number}")
    return made


# -- one after another -----------------------------------------------------------------------------


def test_tensors_follow_each_other_at_aligned_offsets() -> None:
    allocator = TensorAllocator(HOST.alloc(256))
    a, b = gg.new_tensor("f32", 3), gg.new_tensor("f32", 20)
    assert (allocator.place(a), allocator.place(b)) == (0, 64)
    assert (b.buffer, b.offset, allocator.used, allocator.free) == (allocator.buffer, 64, 192, 64)


def test_a_full_buffer_says_how_much_was_wanted_and_how_much_is_left() -> None:
    allocator = TensorAllocator(HOST.alloc(128))
    tensor = gg.new_tensor("f32", 40, name="big")
    with pytest.raises(gg.OutOfMemoryError, match=r"big.*takes 192 bytes, .* has 128 bytes left") as caught:
        allocator.place(tensor)
    assert (caught.value.requested, caught.value.free, caught.value.tensor) == (192, 128, tensor)
    assert tensor.buffer is None
    assert allocator.used == 0


def test_a_tensor_is_placed_at_a_given_offset() -> None:
    buffer = HOST.alloc(256)
    tensor = gg.new_tensor("f32", 4)
    tensor_alloc(tensor, buffer, 128)
    assert tensor.set([1, 2, 3, 4]).numpy().tolist() == [1, 2, 3, 4]
    assert buffer.bytes(128, 16).view(np.float32).tolist() == [1, 2, 3, 4]


def test_placing_refuses_views_second_places_misalignment_and_what_leaves_the_buffer() -> None:
    buffer = HOST.alloc(256)
    tensor = gg.new_tensor("f32", 4)
    with pytest.raises(gg.BufferUseError, match="alignment 64"):
        tensor_alloc(tensor, buffer, 4)
    assert tensor.buffer is None
    with pytest.raises(gg.BufferUseError, match="does not have the bytes 256 to 272"):
        tensor_alloc(tensor, buffer, 256)
    with pytest.raises(gg.ParameterError, match="is a view"):
        tensor_alloc(gg.reshape(tensor, 2, 2), buffer, 0)
    tensor_alloc(tensor, buffer, 0)
    with pytest.raises(gg.TensorStateError, match="has a place already"):
        tensor_alloc(tensor, buffer, 64)
    buffer.free()
    with pytest.raises(gg.BufferUseError, match="was freed"):
        tensor_alloc(gg.new_tensor("f32", 4), buffer, 0)


def test_a_view_is_told_to_the_buffer_of_its_root() -> None:
    kind = Small()
    root = gg.new_tensor("f32", 8)
    view = gg.reshape(root, 4, 2)
    with pytest.raises(gg.TensorStateError, match="has no place yet"):
        view_init(view)
    tensor_alloc(root, kind.alloc(64), 0)
    view_init(view)
    assert kind.made[0].initialised == [root, view]
    with pytest.raises(gg.ParameterError, match="is no view"):
        view_init(root)


# -- contexts --------------------------------------------------------------------------------------


def test_a_context_gets_one_buffer_with_the_asked_usage() -> None:
    weights = context(4, 100, 7)
    buffers = gg.allocate(weights, HOST, BufferUsage.WEIGHTS)
    assert buffers == weights.buffers
    assert [b.usage for b in buffers] == [BufferUsage.WEIGHTS]
    assert [t.offset for t in weights] == [0, 64, 512]
    assert buffers[0].size == allocated_size(context(4, 100, 7), HOST) == 576


@pytest.mark.parametrize("where", ["device", "stream"])
def test_a_device_or_a_stream_stands_for_its_default_memory(where: str) -> None:
    device = FakeDevice()
    weights = context(4)
    gg.allocate(weights, device if where == "device" else device.init())
    assert weights["w0"].buffer_type is device.buffer_type


def test_anything_else_is_no_place() -> None:
    with pytest.raises(gg.ParameterError, match="must be a buffer type, a device or a stream"):
        gg.allocate(context(4), "CPU")  # type: ignore[arg-type]


def test_several_buffers_are_taken_where_one_would_be_too_large() -> None:
    kind = Small(limit=256)
    weights = context(30, 30, 30, 64, 1)
    buffers = gg.allocate(weights, kind)
    assert [b.size for b in buffers] == [256, 128, 256, 64]
    assert [weights.buffers.index(t.buffer) for t in weights] == [0, 0, 1, 2, 3]
    for number, tensor in enumerate(weights):
        tensor.set(np.full(tensor.shape, number))
    assert [t.numpy()[0] for t in weights] == [0, 1, 2, 3, 4]


def test_padding_of_the_memory_counts() -> None:
    kind = Small(pad=100)
    weights = context(4, 4)
    gg.allocate(weights, kind)
    assert [t.offset for t in weights] == [0, 128]


def test_a_failure_in_the_middle_leaves_nothing_placed_and_nothing_allocated() -> None:
    kind = Small(limit=256, total=600)
    weights = context(60, 60, 60, 60)
    with pytest.raises(gg.OutOfMemoryError):
        gg.allocate(weights, kind)
    assert [t.buffer for t in weights] == [None] * 4
    assert weights.buffers == []
    assert all(b.freed for b in kind.made)
    gg.allocate(weights, HOST)  # the context can still be placed in other memory


def test_a_tensor_larger_than_the_largest_buffer_is_named() -> None:
    with pytest.raises(
        gg.OutOfMemoryError, match=r"w1.* 512 bytes, more than the largest buffer of small, 256 bytes"
    ) as caught:
        gg.allocate(context(4, 128), Small(limit=256))
    assert (caught.value.requested, caught.value.free) == (512, 256)


def test_tensors_that_have_a_place_keep_it_and_views_need_none() -> None:
    weights = context(4, 4)
    other = HOST.alloc(64)
    weights["w0"].place(other)
    weights.add(gg.reshape(weights["w1"], 2, 2, name="view"))
    kind = Small()
    gg.allocate(weights, kind)
    assert weights["w0"].buffer is other
    assert kind.made[0].initialised == [weights["w1"], weights["view"]]


def test_nothing_to_place_takes_no_buffer() -> None:
    assert gg.allocate(gg.Context(), HOST) == []


# -- graphs ----------------------------------------------------------------------------------------


def chain(length: int, n: int = 64) -> tuple[gg.Tensor, gg.Graph]:
    x = gg.new_tensor("f32", n, name="x")
    h = x
    for _ in range(length):
        h = gg.cont(h)
    return x, gg.Graph(h)


def test_a_chain_needs_two_results_and_its_input() -> None:
    _, graph = chain(20)
    allocation = allocate_graph(graph, HOST)
    assert sum(b.size for b in allocation.buffers) == 3 * 256
    assert [b.usage for b in allocation.buffers] == [BufferUsage.COMPUTE]


def test_an_op_that_allows_it_is_computed_in_place() -> None:
    x = gg.new_tensor("f32", 64)
    graph = gg.Graph(gg.neg(gg.silu(gg.cont(x))))
    allocation = allocate_graph(graph, HOST)
    assert sum(b.size for b in allocation.buffers) == 2 * 256
    places = {allocation.place(graph, graph.index[node]) for node in graph.nodes}
    assert len(places) == 1


@pytest.mark.parametrize(
    ("case", "in_place"),
    [
        ("last reader", True),
        ("through a reshape", True),
        ("read again", False),
        ("output", False),
        ("input", False),
        ("persistent", False),
        ("read twice by the node", False),
        ("other shape", False),
        ("half of its root", False),
    ],
)
def test_a_source_is_overwritten_only_when_nobody_needs_it(case: str, in_place: bool) -> None:
    leaf = gg.new_tensor("f32", (16, 4))
    source = gg.cont(leaf)
    more = []
    if case == "through a reshape":
        node = gg.silu(gg.reshape(source, 4, 16))
    elif case == "read again":
        node = gg.silu(source)
        more = [gg.neg(gg.cont(source))]
    elif case == "output":
        node = gg.silu(source.set_output())
    elif case == "input":
        source = leaf
        node = gg.silu(leaf)
    elif case == "persistent":
        source.place(HOST.alloc(256))
        node = gg.silu(source)
    elif case == "read twice by the node":
        node = gg.mul(source, source)
    elif case == "other shape":
        source = gg.cont(gg.new_tensor("f32", (16, 1)))
        node = gg.add(gg.cont(leaf).set_output(), source)
    elif case == "half of its root":
        node = gg.silu(gg.view(source, 16, 2, nb=(64,)))
    else:
        node = gg.silu(source)
    graph = gg.Graph(node, *more)
    allocation = allocate_graph(graph, HOST)
    same = allocation.place(graph, graph.index[node]) == allocation.place(graph, graph.index[source])
    assert same == in_place


def test_planning_allocates_nothing() -> None:
    kind = Small()
    _, graph = chain(5)
    allocator = GraphAllocator(kind)
    assert allocator.sizes(allocator.lay_out(graph)) == [768]
    assert kind.made == []
    assert allocator.sizes() == [0]


def test_buffers_grow_only_when_they_must() -> None:
    kind = Small()
    allocator = GraphAllocator(kind)
    assert allocator.reserve(chain(5, 1000)[1]) == [3 * 4032]
    first = kind.made[0]
    allocator.allocate(chain(9, 500)[1])
    assert kind.made == [first]
    allocator.allocate(chain(3, 2000)[1])
    assert first.freed
    assert allocator.sizes() == [3 * 8000]


def test_what_was_computed_in_memory_that_grew_is_gone_and_says_so() -> None:
    stream = ReferenceDevice().init()
    allocator = GraphAllocator(HOST)
    x, graph = chain(2)
    allocation = allocator.allocate(graph)
    x.set(np.ones(64))
    stream.compute(graph, allocation)
    assert graph.node(-1).numpy().sum() == 64
    allocator.reserve(chain(5, 4096)[1])
    with pytest.raises(gg.TensorStateError, match="later computation"):
        graph.node(-1).numpy()
    with pytest.raises(gg.BufferUseError, match="was freed"):
        stream.compute(graph, allocation)


def test_memory_that_somebody_looks_into_survives_growth() -> None:
    allocator = GraphAllocator(HOST)
    x, graph = chain(1)
    allocator.allocate(graph)
    x.set(np.arange(64))
    seen = gg.asarray(x)
    allocator.reserve(chain(5, 4096)[1])
    assert seen.tolist() == list(range(64))
    with pytest.raises(gg.BufferUseError, match="zero-copy"):
        allocator.free()
    del seen
    allocator.free()


def test_growth_that_fails_leaves_an_allocator_that_works() -> None:
    kind = Small(total=4096)
    allocator = GraphAllocator(kind)
    allocator.reserve(chain(3)[1])
    with pytest.raises(gg.OutOfMemoryError):
        allocator.reserve(chain(3, 10_000)[1])
    x, graph = chain(3)
    stream = ReferenceDevice().init()
    allocation = allocator.allocate(graph)
    x.set(np.ones(64))
    stream.compute(graph, allocation)
    assert graph.node(-1).numpy().sum() == 64


def test_graphs_larger_than_a_buffer_are_spread_over_several() -> None:
    kind = Small(limit=1024)
    x = gg.new_tensor("f32", 200, name="x")
    parts = [gg.scale(x, float(n)).set_output() for n in range(6)]
    graph = gg.Graph(*parts)
    allocation = allocate_graph(graph, kind)
    assert len(allocation.buffers) == 7
    x.set(np.ones(200))
    ReferenceDevice().init().compute(graph, allocation)
    assert [part.numpy()[0] for part in parts] == [0, 1, 2, 3, 4, 5]


def test_a_result_larger_than_any_buffer_is_named() -> None:
    _, graph = chain(1, 1000)
    with pytest.raises(gg.OutOfMemoryError, match="more than the largest buffer of small, 1024 bytes"):
        GraphAllocator(Small(limit=1024)).lay_out(graph)


def test_an_assignment_puts_roots_into_the_memory_it_names() -> None:
    a, b = Small(), Small()
    x = gg.new_tensor("f32", 64)
    first, second = gg.cont(x), gg.new_tensor("f32", 8)
    last = gg.reshape(gg.cont(first), 8, 8)
    graph = gg.Graph(last, second)
    number = {x: 0, first: 1, last.root: 0, second: 1}
    allocator = GraphAllocator([a, b])
    allocation = allocator.allocate(graph, {graph.index[t]: n for t, n in number.items()})
    for tensor, memory in number.items():
        assert allocation.place(graph, graph.index[tensor])[0].type is (a, b)[memory]
    assert allocation.place(graph, graph.index[last])[0].type is a
    assert allocator.sizes() == [512, 320]


def test_the_same_type_given_twice_shares_its_memory() -> None:
    kind = Small()
    _, graph = chain(4)
    allocator = GraphAllocator([kind, kind])
    layout = allocator.lay_out(graph, [n % 2 for n in range(len(graph.tensors))])
    assert allocator.sizes(layout) == [768, 768]
    allocator.ensure(layout)
    assert len(kind.made) == 1


def test_empty_tensors_need_no_bytes() -> None:
    x = gg.new_tensor("f32", (4, 0))
    graph = gg.Graph(gg.silu(x))
    allocation = allocate_graph(graph, HOST)
    ReferenceDevice().init().compute(graph, allocation)
    assert graph.node(-1).numpy().shape == (0, 4)


def test_an_allocator_needs_a_buffer_type() -> None:
    with pytest.raises(gg.ParameterError, match="at least one"):
        GraphAllocator([])


def test_only_large_buffers_of_host_memory_ask_the_system_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def memory() -> Memory:
        calls.append(True)
        return Memory(1 << 30, 1 << 31)

    monkeypatch.setattr("ggplug.host.memory", memory)
    HOST.alloc(4096).free()
    assert not calls
    with pytest.raises(gg.OutOfMemoryError, match="the machine has 2147483648") as caught:
        HOST.alloc((1 << 31) + 1)
    assert caught.value.fields["free"] == 1 << 30
    assert len(calls) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads how much memory Linux says the process uses")
def test_tensors_that_are_allocated_as_zeros_have_values_and_take_no_memory_until_they_are_accessed() -> None:
    n = 1 << 26
    context = gg.Context("zeros")
    tensor = context.new_tensor("f32", n, name="x")
    before = _resident()
    allocate(context, HOST, zeroed=True)
    assert _resident() - before < n  # of 4 n bytes
    assert gg.compute(gg.sum(gg.view(tensor, 1000))).item() == 0
    context.free()


def _resident() -> int:
    """Bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def test_a_type_that_makes_its_own_buffers_gets_them_filled_with_zeros() -> None:
    class Mine(HostBufferType):
        def _alloc(self, size: int) -> HostBuffer:
            return HostBuffer(self, np.full(size, 7, np.uint8))

    buffer = Mine("mine").alloc_zeroed(100)
    assert not buffer.bytes(0, 100).any()

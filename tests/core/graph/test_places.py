"""Every tensor lies inside of its memory: places, views and allocations that do not are refused when they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import host, types
from ggplug.backend import BufferType, Described, Device, Memory
from ggplug.graph import Graph
from ggplug.host import HOST, HostBuffer, HostBufferType
from ggplug.memory import Allocation, GraphAllocator, allocate_graph
from ggplug.memory.layout import NOWHERE, PERSISTENT
from ggplug.ops.base import OPS, Op, apply
from ggplug.tensor import MAX_BYTES, Context, Spec, Tensor
from ggplug.types import F32, I64, Q4_0
from ggplug_testing import FakeDevice, ReferenceDevice

HUGE = (2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, 10**30)


def vector(n: int = 4, type: str = "f32") -> Tensor:
    return gg.new_tensor(type, n, "t")


class Padded(HostBufferType):
    """Takes 100 bytes more for every tensor."""

    def alloc_size(self, tensor: Described) -> int:
        return tensor.nbytes + 100


class Stingy(HostBufferType):
    """Says that no tensor takes any bytes."""

    def alloc_size(self, tensor: Described) -> int:
        return 0


# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, -16, -(2**63), 49, 52, 64, 80, *HUGE, *(-n for n in HUGE)])
@pytest.mark.parametrize("kind", [HOST, FakeDevice(alignment=8).buffer_type], ids=["host", "device"])
def test_a_place_that_leaves_its_buffer_is_refused(kind: BufferType, offset: int) -> None:
    tensor, buffer = vector(), kind.alloc(64)
    with pytest.raises(gg.BufferUseError, match="does not have the bytes") as caught:
        tensor.place(buffer, offset)
    assert (caught.value.tensor, caught.value.got, caught.value.wanted) == (tensor, offset, 48)
    assert tensor.buffer is None


@pytest.mark.parametrize("offset", [0, 4, 48, np.int64(16), np.uint8(32)])
def test_a_place_inside_is_taken_as_a_plain_integer(offset: int) -> None:
    tensor, buffer = vector(), HOST.alloc(64)
    tensor.place(buffer, offset)
    assert (type(tensor.offset), tensor.offset) == (int, offset)
    assert tensor.set([1, 2, 3, 4]).numpy().tolist() == [1, 2, 3, 4]
    assert buffer.bytes(int(offset), 16).view(np.float32).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("offset", [0.0, 16.0, True, False, np.True_, "16", None, [16], np.float32(16), np.zeros(2)])
def test_an_offset_is_an_integer(offset: Any) -> None:
    tensor = vector()
    with pytest.raises(gg.TypeMismatchError, match="must be an integer"):
        tensor.place(HOST.alloc(64), offset)
    assert tensor.buffer is None


@pytest.mark.parametrize("where", [b"0" * 64, np.zeros(64), HOST, 0, object()], ids=lambda where: type(where).__name__)
def test_tensors_are_placed_in_buffers_only(where: Any) -> None:
    with pytest.raises(gg.TypeMismatchError, match="only be placed in a Buffer"):
        vector().place(where)


def test_a_freed_buffer_takes_no_tensor() -> None:
    tensor, buffer = vector(), HOST.alloc(64)
    buffer.free()
    with pytest.raises(gg.BufferUseError, match="was freed"):
        tensor.place(buffer)


def test_a_tensor_that_was_refused_keeps_its_place() -> None:
    tensor, first = vector(), HOST.alloc(64)
    tensor.place(first, 16)
    for bad in (HOST.alloc(8), HOST.alloc(0)):
        with pytest.raises(gg.BufferUseError):
            tensor.place(bad)
    assert (tensor.buffer, tensor.offset) == (first, 16)
    tensor.place(None, 48)
    assert (tensor.buffer, tensor.buffer_type, tensor.offset) == (None, None, 0)


@pytest.mark.parametrize("type", types.TYPES, ids=lambda type: type.name)
def test_in_host_memory_blocks_lie_at_multiples_of_their_alignment(type: types.Type) -> None:
    """Whatever the offset: what counts is the address, and that of memory of the caller may be odd."""
    raw = np.empty(4096, np.uint8)
    shift = -raw.ctypes.data % 64
    tensor = Tensor(Spec(type, (type.block_size, 1, 1, 1), 1))
    assert type.block_bytes % type.alignment == 0
    assert max(np.dtype(field.dtype).itemsize for field in type.fields) <= type.alignment
    for begin in (0, 1, 2, 4):
        buffer = HOST.wrap(raw[shift + begin : shift + begin + 2048])
        for offset in (0, 1, 2, 3, 4, 8, 12):
            if (begin + offset) % type.alignment:
                with pytest.raises(gg.BufferUseError, match=f"must be a multiple of {type.alignment}"):
                    tensor.place(buffer, offset)
            else:
                tensor.place(buffer, offset)
                assert tensor.locate() == (buffer, offset)


def test_in_memory_of_a_device_offsets_are_multiples_of_its_alignment() -> None:
    kind = FakeDevice(alignment=32).buffer_type
    buffer = kind.alloc(128)
    for offset in (4, 16, 31, 33, 48):
        with pytest.raises(gg.BufferUseError, match="must be a multiple of 32"):
            vector().place(buffer, offset)
    vector().place(buffer, 96)


def test_padding_that_the_memory_asks_for_has_to_fit_too() -> None:
    tensor = vector()
    with pytest.raises(gg.BufferUseError, match="bytes 0 to 116"):
        tensor.place(Padded("padded").alloc(64))
    tensor.place(Padded("padded").alloc(116))
    with pytest.raises(gg.BufferUseError, match="bytes 0 to 16"):
        tensor.place(Stingy("stingy").alloc(8))


def test_a_shared_array_has_to_be_aligned() -> None:
    raw = bytearray(64)
    for dtype in (np.float32, np.float16, np.int64):
        with pytest.raises(gg.BufferUseError, match="must be a multiple of"):
            gg.tensor(np.frombuffer(raw, dtype, 4, offset=1), copy=False)
        assert gg.tensor(np.frombuffer(raw, dtype, 4, offset=1)).numpy().tolist() == [0, 0, 0, 0]
        assert gg.tensor(np.frombuffer(raw, dtype, 4, offset=8), copy=False).numpy().tolist() == [0, 0, 0, 0]


def test_a_buffer_type_that_gives_less_than_it_was_asked_for_is_found_out() -> None:
    class Short(HostBufferType):
        def _alloc(self, size: int) -> HostBuffer:
            return HOST.alloc(size // 2)

    with pytest.raises(gg.BufferUseError, match="returned a buffer of 32 bytes instead of 64"):
        Short("short").alloc(64)
    context = Context()
    context.new_tensor("f32", 100)
    with pytest.raises(gg.BufferUseError, match="returned a buffer of"):
        gg.allocate(context, Short("short"))
    with pytest.raises(gg.BufferUseError, match="returned a buffer of"):
        allocate_graph(Graph(gg.neg(vector(100))), Short("short"))


def test_a_context_takes_a_tensor_once() -> None:
    context, tensor = Context("c"), gg.new_tensor("f32", 4)
    context.add(tensor)
    with pytest.raises(gg.ParameterError, match="already has"):
        context.add(tensor)
    assert len(context) == 1


def test_a_tensor_of_two_contexts_lies_where_the_first_one_put_it() -> None:
    one, two, tensor = Context("one"), Context("two"), gg.new_tensor("f32", 4)
    one.add(tensor), two.add(tensor)
    gg.allocate(one, HOST)
    assert gg.allocate(two, HOST) == []
    tensor.set([1, 2, 3, 4])
    two.free()
    assert tensor.numpy().tolist() == [1, 2, 3, 4]
    one.free()
    with pytest.raises(gg.TensorStateError, match="no bytes"):
        tensor.numpy()


# -- descriptions of tensors -----------------------------------------------------------------------

NE = (4, 2, 1, 1)


@pytest.mark.parametrize(
    ("what", "spec"),
    [
        ("strides must be non-negative", Spec(F32, NE, 2, (4, -16, 32, 32))),
        ("strides must be non-negative", Spec(F32, NE, 2, (-4, 16, 32, 32))),
        ("strides must be non-negative", Spec(F32, NE, 2, (4.5, 16, 32, 32))),  # type: ignore[arg-type]
        ("4 strides", Spec(F32, NE, 2, (4, 16))),  # type: ignore[arg-type]
        ("must be tuples", Spec(F32, NE, 2, [4, 16, 32, 32])),  # type: ignore[arg-type]
        ("multiples of 4 bytes", Spec(F32, NE, 2, (4, 18, 32, 32))),
        ("multiples of 8 bytes", Spec(I64, NE, 2, (4, 16, 32, 32))),
        ("multiples of 2 bytes", Spec(Q4_0, (64, 2, 1, 1), 2, (18, 37, 74, 74))),
        ("must be contiguous", Spec(Q4_0, (64, 2, 1, 1), 2, (36, 72, 144, 144))),
        ("more than", Spec(F32, NE, 2, (4, 2**62, 2**62, 2**62))),
        ("more than", Spec(F32, (4, 2**40, 1, 1), 2, (4, 2**40, 2**40, 2**40))),
        ("must be at most", Spec(F32, (4, 2, 1, 1), 2, (4, 16, 2**70, 2**70))),
        ("extents must be non-negative", Spec(F32, (4, -2, 1, 1), 2)),
        ("extents must be non-negative", Spec(F32, (4.5, 2, 1, 1), 2)),  # type: ignore[arg-type]
        ("4 extents", Spec(F32, (4, 2), 2)),  # type: ignore[arg-type]
        ("must be tuples", Spec(F32, [4, 2, 1, 1], 2)),  # type: ignore[arg-type]
        ("must be less than", Spec(F32, (2**62, 1, 1, 1), 1)),
        ("must be less than", Spec(F32, (2**20, 2**20, 2**20, 2**20), 4)),
        ("more than", Spec(F32, (2**20, 2**31, 1, 1), 2)),
        ("must be less than", Spec(F32, (0, 2**62, 1, 1), 2)),
        ("whole number of q4_0 blocks", Spec(Q4_0, (33, 1, 1, 1), 1)),
        ("rank 1", Spec(F32, NE, 1)),
        ("rank 5", Spec(F32, NE, 5)),
    ],
)
def test_extents_and_strides_that_no_tensor_can_have_are_refused(what: str, spec: Spec) -> None:
    with pytest.raises(gg.ShapeError, match=what):
        Tensor(spec)


def test_a_type_is_a_type() -> None:
    with pytest.raises(gg.TypeMismatchError, match=r"must be a ggplug\.types\.Type"):
        Tensor(Spec("f32", NE, 2))  # type: ignore[arg-type]


def test_the_largest_tensor_can_be_described_but_not_allocated() -> None:
    tensor = gg.new_tensor("f32", (2**24, 2**24))
    assert tensor.nbytes == MAX_BYTES
    with pytest.raises(gg.OutOfMemoryError):
        HOST.alloc(tensor.nbytes)
    with pytest.raises(gg.OutOfMemoryError):
        allocate_graph(Graph(tensor), HOST)


@pytest.mark.parametrize("known", [True, False])
def test_memory_beyond_all_addresses_is_not_there(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the system reports its memory."""
    if not known:
        monkeypatch.setattr(host, "memory", lambda: Memory(None, None))
    for size in (2**56, *HUGE[1:]):
        with pytest.raises(gg.OutOfMemoryError):
            HOST.alloc(size)


@pytest.mark.parametrize(
    ("what", "spec"),
    [
        ("spans bytes 4 to 36", lambda root: Spec(F32, (8, 1, 1, 1), 1, None, root, 4)),
        ("spans bytes -4 to 28", lambda root: Spec(F32, (8, 1, 1, 1), 1, None, root, -4)),
        ("spans bytes 0 to 36", lambda root: Spec(F32, (9, 1, 1, 1), 1, None, root)),
        ("spans bytes 0 to 48", lambda root: Spec(F32, (4, 2, 1, 1), 2, (4, 32, 64, 64), root)),
        ("begins at byte 2", lambda root: Spec(F32, (4, 1, 1, 1), 1, None, root, 2)),
        ("spans bytes 36 to 36", lambda root: Spec(F32, (0, 1, 1, 1), 1, None, root, 36)),
        ("spans bytes 20 to 36", lambda root: Spec(F32, (4, 1, 1, 1), 1, None, gg.view(root, 7, offset=4), 16)),
    ],
)
def test_a_view_that_leaves_its_root_is_refused(what: str, spec: Callable[[Tensor], Spec]) -> None:
    with pytest.raises(gg.ShapeError, match=what):
        Tensor(spec(gg.new_tensor("f32", 8, "root")))


def test_a_view_may_be_anywhere_inside_of_its_root() -> None:
    root = gg.new_tensor("f32", 8)
    Tensor(Spec(F32, (8, 1, 1, 1), 1, None, root))
    Tensor(Spec(F32, (0, 1, 1, 1), 1, None, root, 32))
    Tensor(Spec(F32, (4, 1000, 1, 1), 2, (4, 0, 0, 0), root, 16))
    assert Tensor(Spec(F32, (4, 1, 1, 1), 1, None, gg.view(root, 7, offset=4), 12)).view_offset == 16


def test_views_begin_at_whole_elements_and_blocks() -> None:
    plain, blocks = gg.new_tensor("f32", (8, 4)), gg.new_tensor("q8_0", (64, 4))
    for bad in (
        lambda: gg.view(plain, 4, offset=2),
        lambda: gg.view(plain, 4, 2, nb=(18,)),
        lambda: gg.view(blocks, 32, offset=2),
        lambda: gg.view(blocks, 32, 2, nb=(36,)),
    ):
        with pytest.raises(gg.ShapeError, match="must be multiples of"):
            bad()
    gg.view(blocks, 32, 2, nb=(68,), offset=34)


def test_blocks_of_a_quantised_type_stay_side_by_side() -> None:
    blocks = gg.new_tensor("q8_0", (64, 4, 2))
    assert gg.permute(blocks, 0, 2, 1).nb == (34, 272, 68, 544)
    for bad in (lambda: gg.transpose(blocks), lambda: gg.permute(blocks, 1, 0)):
        with pytest.raises(gg.ShapeError, match="blocks of q8_0 are contiguous"):
            bad()


def test_an_op_of_somebody_else_is_checked_as_well() -> None:
    def behind(self: Op, x: Tensor) -> Spec:
        return Spec(x.type, x.ne, x.rank, x.nb, x, x.nbytes)

    made: type[Op] = type("Behind", (Op,), {"name": "tests.behind", "result": behind, "is_view": True})
    del OPS["tests.behind"]
    with pytest.raises(gg.ShapeError, match="spans bytes 16 to 32"):
        apply(made(), (vector(),))


# -- allocations made by hand ----------------------------------------------------------------------


def halves() -> Graph:
    """A leaf of 32 bytes, a view of its second half, and the result of 16 bytes."""
    x = gg.new_tensor("f32", 8, "x")
    return Graph(gg.neg(gg.view(x, 4, offset=16, name="half"), name="y"))


def test_an_allocation_by_hand_is_taken_if_all_lies_inside() -> None:
    graph = halves()
    assert [tensor.name for tensor in graph.tensors] == ["x", "half", "y"]
    allocation = Allocation(graph, [HOST.alloc(48)], [0, 0, 0], [0, 16, 32])
    assert [int(offset) for offset in allocation.addresses(graph) - allocation.buffers[0].address] == [0, 16, 32]
    with pytest.raises(ValueError, match="read-only"):
        allocation.offsets[0] = 1000


@pytest.mark.parametrize(
    ("what", "slots", "offsets"),
    [
        ("bytes 33 to 49", (0, 0, 0), (0, 16, 33)),
        ("bytes 36 to 52", (0, 0, 0), (0, 16, 36)),
        ("bytes -4 to 28", (0, 0, 0), (-4, 16, 32)),
        ("bytes 1000000 to 1000016", (0, 0, 0), (0, 16, 10**6)),
        ("bytes 9223372036854775807 to", (0, 0, 0), (0, 16, 2**63 - 1)),
        ("bytes -9223372036854775808 to", (0, 0, 0), (0, 16, -(2**63))),
        ("must lie at a multiple of 4", (0, 0, 0), (0, 16, 30)),
        ("the slot 1 of .* is not one of the 1 buffers", (0, 0, 1), (0, 16, 32)),
        ("the slot -3 of", (0, 0, -3), (0, 16, 32)),
        ("bytes 20 to 36 of .*'x'", (PERSISTENT, PERSISTENT, 0), (0, 20, 32)),
        ("bytes 4 to 36 of .*'x'", (PERSISTENT, PERSISTENT, 0), (4, 16, 32)),
    ],
)
def test_an_allocation_by_hand_that_leaves_its_memory_is_refused(
    what: str, slots: tuple[int, ...], offsets: tuple[int, ...]
) -> None:
    graph = halves()
    graph["x"].place(HOST.alloc(32))
    with pytest.raises(gg.BufferUseError, match=what):
        Allocation(graph, [HOST.alloc(48)], slots, offsets)


@pytest.mark.parametrize(
    ("error", "slots", "offsets"),
    [
        (gg.ShapeError, (0, 0), (0, 16, 32)),
        (gg.ShapeError, (0, 0, 0), (0, 16)),
        (gg.ShapeError, [(0, 0, 0)], (0, 16, 32)),
        (gg.TypeMismatchError, (0, 0, 0.5), (0, 16, 32)),
        (gg.TypeMismatchError, (0, 0, 0), (0, 16, 32.0)),
        (gg.TypeMismatchError, (0, 0, 0), (0, 16, 2**70)),
        (gg.TypeMismatchError, (0, 0, 0), (0, 16, "32")),
        (gg.TypeMismatchError, (0, 0, 0), (0, 16, (32, 1))),
        (gg.BufferUseError, (0, 0, 0), np.array((0, 16, 2**63 + 8), np.uint64)),
    ],
)
def test_slots_and_offsets_are_one_integer_for_each_tensor(error: type[Exception], slots: Any, offsets: Any) -> None:
    with pytest.raises(error):
        Allocation(halves(), [HOST.alloc(48)], slots, offsets)


def test_an_allocation_is_made_of_buffers() -> None:
    with pytest.raises(gg.TypeMismatchError, match="must hold Buffer objects"):
        Allocation(halves(), [np.zeros(48, np.uint8)], [0, 0, 0], [0, 16, 32])  # type: ignore[list-item]


def test_an_allocation_by_hand_leaves_space_for_padding() -> None:
    graph = Graph(gg.neg(vector()))
    with pytest.raises(gg.BufferUseError, match="bytes 64 to 180"):
        Allocation(graph, [Padded("padded").alloc(128)], [0, 0], [0, 64])


def test_the_start_of_an_allocation_by_hand_is_an_address() -> None:
    raw = np.empty(256, np.uint8)
    odd = HOST.wrap(raw[1 - raw.ctypes.data % 2 :][:64])
    with pytest.raises(gg.BufferUseError, match="must lie at a multiple of 4"):
        Allocation(halves(), [odd], [0, 0, 0], [0, 16, 32])


def test_what_is_not_kept_is_not_computed() -> None:
    graph = halves()
    allocation = Allocation(graph, [HOST.alloc(48)], [0, 0, NOWHERE], [0, 16, 0])
    for use in (allocation.check, allocation.addresses, allocation.places):
        with pytest.raises(gg.TensorStateError, match="were not kept"):
            use(graph)
    with pytest.raises(gg.TensorStateError, match="were not kept"):
        allocation.place(graph, 2)


# -- binding ---------------------------------------------------------------------------------------


def streams() -> list[Any]:
    def cpu() -> Device:
        pytest.importorskip("ggplug_cpu")
        return gg.device("CPU")

    def gpu() -> Device:
        pytest.importorskip("ggplug_simt")
        from simt_stand_in import StandInDevice

        return StandInDevice()

    return [
        pytest.param(ReferenceDevice, id="walking"),
        pytest.param(cpu, id="CPU"),
        pytest.param(gpu, id="GPU"),
        pytest.param(FakeDevice, id="fake"),
    ]


@pytest.fixture(params=streams())
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = request.param()
    return made


def chain(n: int, length: int = 2) -> Graph:
    y = gg.new_tensor("f32", n, "x")
    for _ in range(length):
        y = gg.neg(y)
    return Graph(y)


def test_a_plan_is_bound_to_equal_graphs_only(device: Device) -> None:
    """The same number of tensors is not enough: kernels were chosen for the extents of the first graph."""
    small, large = chain(16), chain(4096)
    with device.init() as stream:
        plan = stream.plan(large)
        for graph, allocation in (
            (small, allocate_graph(small, device.buffer_type)),
            (large, allocate_graph(small, device.buffer_type)),
            (small, allocate_graph(large, device.buffer_type)),
        ):
            with pytest.raises(gg.GraphError, match="made for another graph, which is not equal"):
                plan.rebind(graph, allocation)
        twin = chain(4096)
        plan.rebind(twin, allocate_graph(large, device.buffer_type))


def test_a_graph_is_not_computed_in_the_places_of_another_one(device: Device) -> None:
    small, large = chain(16), chain(4096)
    with device.init() as stream, pytest.raises(gg.GraphError, match="the allocation was made for another graph"):
        stream.compute(large, allocate_graph(small, device.buffer_type))


def test_a_graph_that_grew_needs_another_allocation(device: Device) -> None:
    graph = chain(16)
    allocation = allocate_graph(graph, device.buffer_type)
    graph["x"].set(np.ones(16))
    with device.init() as stream:
        stream.compute(graph, allocation)
        result = graph.node(-1)
        graph.expand(gg.neg(result))
        assert result.numpy().shape == (16,)
        with pytest.raises(gg.TensorStateError, match="was added to its graph after"):
            graph.node(-1).numpy()
        with pytest.raises(gg.GraphError, match="the allocation was made for another graph"):
            stream.compute(graph, allocation)


def test_a_layout_of_another_allocator_is_refused_or_fits() -> None:
    small, large = chain(16), chain(4096)
    allocator = GraphAllocator(HOST)
    with pytest.raises(gg.BufferUseError, match="would lie at"):
        allocator.bind(allocator.lay_out(small), large)
    with pytest.raises(gg.ShapeError, match="must have one integer for each"):
        allocator.bind(allocator.lay_out(small), chain(16, 3))
    other = GraphAllocator([HOST, HostBufferType("other")])
    with pytest.raises(gg.ParameterError, match="more memories than the 1 of"):
        allocator.bind(other.lay_out(small, [1] * 3), small)


def test_a_place_that_was_changed_behind_the_tensors_back_is_found_when_it_is_bound(device: Device) -> None:
    graph = chain(16)
    graph["x"].place(device.buffer_type.alloc(64))
    allocation = allocate_graph(graph, device.buffer_type)
    with device.init() as stream:
        plan = stream.plan(graph)
        for offset in (4, -4, 10**6, -(10**6)):
            graph["x"].offset = offset
            with pytest.raises(gg.BufferUseError, match="cannot be placed"):
                plan.rebind(graph, allocation)
        graph["x"].offset = 0
        plan.rebind(graph, allocation)


def test_reading_stays_inside_of_the_buffer_whatever_a_tensor_says() -> None:
    tensor, buffer = vector(), HOST.alloc(16)
    tensor.place(buffer)
    tensor.offset = 8
    for use in (tensor.numpy, tensor.tobytes, lambda: gg.asarray(tensor), lambda: tensor.set(0)):
        with pytest.raises(gg.BufferUseError, match="outside of"):
            use()
    buffer.free()  # nothing was exported


def test_buffers_of_other_devices_are_refused() -> None:
    graph = chain(16)
    allocation = allocate_graph(graph, FakeDevice().buffer_type)
    for made in streams():
        device: Device = made.values[0]()
        with device.init() as stream:
            plan = stream.plan(graph)
            try:
                plan.rebind(graph, allocation)
                plan.compute()
            except gg.BufferUseError:
                continue
        pytest.fail(f"{device!r} computes in memory of another device")

"""Transfers take what they are given at its word only after a look at it: offsets, sizes, strides, arrays."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug.backend import Backend, Buffer, Device
from ggplug.host import HOST, HostBuffer
from ggplug.memory import allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import Spec, Tensor
from ggplug_testing import FakeDevice, ReferenceDevice

SIZE = 256
HUGE = (SIZE + 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, np.int64(2**63 - 1), np.uint8(255) * np.uint64(2))


def devices() -> list[Any]:
    def gpu() -> Device:
        pytest.importorskip("ggplug_simt")
        from simt_stand_in import StandInDevice

        return StandInDevice()

    def opencl() -> Device:
        pytest.importorskip("ggplug_opencl")
        try:
            return gg.device("OpenCL0")
        except gg.GGPlugError as error:
            pytest.skip(str(error))

    return [
        pytest.param(ReferenceDevice, id="host"),
        pytest.param(lambda: FakeDevice(execution="late"), id="fake"),
        pytest.param(gpu, id="GPU"),
        pytest.param(opencl, id="OpenCL"),
    ]


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = request.param()
    return made


@pytest.fixture
def buffer(device: Device) -> Iterator[Buffer]:
    with device.buffer_type.alloc(SIZE) as made:
        made.set(0, CONTENT)
        yield made


@pytest.fixture
def stream(device: Device) -> Iterator[Backend]:
    with device.init() as made:
        yield made


CONTENT = np.arange(SIZE, dtype=np.uint8)


def content(buffer: Buffer) -> np.ndarray[Any, Any]:
    out = np.empty(SIZE, np.uint8)
    buffer.get(0, out)
    return out


def refused(errors: tuple[type[Exception], ...], attempts: dict[str, Callable[[], object]], buffer: Buffer) -> None:
    for what, attempt in attempts.items():
        try:
            attempt()
        except errors:
            pass
        else:
            pytest.fail(f"{what} raised nothing")
    np.testing.assert_array_equal(content(buffer), CONTENT)


# -- offsets and sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [*HUGE, -1, np.int8(-128), -(2**63), -(2**64)])
def test_no_offset_leaves_the_buffer(buffer: Buffer, stream: Backend, offset: Any) -> None:
    """NumPy's integers wrap around where they are added; so they are made Python's first."""
    piece, other = np.ones(16, np.uint8), HOST.alloc(SIZE)
    refused(
        (gg.BufferUseError,),
        {
            "set": lambda: buffer.set(offset, piece),
            "get": lambda: buffer.get(offset, piece),
            "memset": lambda: buffer.memset(offset, 16, 1),
            "copy_from": lambda: buffer.copy_from(other, 0, offset, 16),
            "copy_from the other": lambda: buffer.copy_from(other, offset, 0, 16),
            "copy_from within": lambda: buffer.copy_from(buffer, offset, 0, 16),
            "set_2d": lambda: buffer.set_2d(offset, piece, 4, 4, 8),
            "get_2d": lambda: buffer.get_2d(offset, piece, 4, 4, 8),
            "set_async": lambda: stream.set_async(buffer, offset, piece),
            "get_async": lambda: stream.get_async(buffer, offset, piece),
            "copy_async to": lambda: stream.copy_async(other, 0, buffer, offset, 16),
            "copy_async from": lambda: stream.copy_async(other, offset, buffer, 0, 16),
            "bytes": lambda: buffer.bytes(offset, 16),
        },
        buffer,
    )


@pytest.mark.parametrize("size", [*HUGE, -1, -(2**63)])
def test_no_size_leaves_the_buffer(buffer: Buffer, stream: Backend, size: Any) -> None:
    other = HOST.alloc(SIZE)
    refused(
        (gg.BufferUseError, gg.ShapeError),
        {
            "memset": lambda: buffer.memset(0, size, 1),
            "copy_from": lambda: buffer.copy_from(other, 0, 0, size),
            "copy_async": lambda: stream.copy_async(other, 0, buffer, 0, size),
            "bytes": lambda: buffer.bytes(0, size),
            "rows of so many bytes": lambda: buffer.set_2d(0, np.ones(16, np.uint8), size, 1, 1),
            "so many rows": lambda: buffer.set_2d(0, np.ones(16, np.uint8), 1, size, 1),
            "so far apart": lambda: buffer.set_2d(0, np.ones(16, np.uint8), 8, 2, size),
            "fetched rows of so many bytes": lambda: buffer.get_2d(0, np.ones(16, np.uint8), size, 1, 1),
            "so many fetched rows": lambda: buffer.get_2d(0, np.ones(16, np.uint8), 1, size, 1),
            "fetched from so far apart": lambda: buffer.get_2d(0, np.ones(16, np.uint8), 8, 2, size),
        },
        buffer,
    )


@pytest.mark.parametrize("number", [0.0, 1.5, True, None, "0", np.float32(0), np.zeros(2, int)], ids=repr)
def test_offsets_and_sizes_are_integers(buffer: Buffer, stream: Backend, number: Any) -> None:
    piece = np.ones(1, np.uint8)
    refused(
        (gg.TypeMismatchError,),
        {
            "set": lambda: buffer.set(number, piece),
            "get": lambda: buffer.get(number, piece),
            "memset at": lambda: buffer.memset(number, 1, 1),
            "memset of": lambda: buffer.memset(0, number, 1),
            "memset with": lambda: buffer.memset(0, 1, number),
            "copy_from": lambda: buffer.copy_from(HOST.alloc(1), 0, 0, number),
            "set_2d": lambda: buffer.set_2d(0, piece, 1, 1, number),
            "get_2d": lambda: buffer.get_2d(0, piece, number, 1, 1),
            "set_async": lambda: stream.set_async(buffer, number, piece),
            "get_async": lambda: stream.get_async(buffer, number, piece),
            "alloc": lambda: buffer.type.alloc(number),
        },
        buffer,
    )


@pytest.mark.parametrize("value", [-1, 256, 10**30])
def test_a_byte_is_0_to_255(buffer: Buffer, value: int) -> None:
    refused(
        (gg.ParameterError,),
        {
            "memset": lambda: buffer.memset(0, 1, value),
            "clear": lambda: buffer.clear(value),
        },
        buffer,
    )


def test_rows_and_their_bytes_are_as_many_as_the_array_has(buffer: Buffer) -> None:
    for row, rows in ((4, 3), (5, 4), (0, 4), (4, 0), (16, 2)):
        refused(
            (gg.ShapeError,),
            {
                "set_2d": lambda row=row, rows=rows: buffer.set_2d(0, np.ones(16, np.uint8), row, rows, 16),
                "get_2d": lambda row=row, rows=rows: buffer.get_2d(0, np.ones(16, np.uint8), row, rows, 16),
            },
            buffer,
        )


def test_integers_of_any_kind_are_offsets(buffer: Buffer) -> None:
    """Also such as would wrap around: 200 + 100 in eight bits."""
    if buffer.size != SIZE:
        pytest.skip("a device of notes")
    out = np.empty(50, np.uint8)
    buffer.get(np.uint8(200), out)
    if content(buffer).any():  # the stand-in for a GPU keeps no bytes
        np.testing.assert_array_equal(out, CONTENT[200:250])


# -- arrays ----------------------------------------------------------------------------------------


def test_bytes_are_fetched_into_contiguous_arrays_of_bytes_only(buffer: Buffer, stream: Backend) -> None:
    whole = np.zeros((8, 8), np.uint8)
    targets: list[Any] = [
        whole[:, ::2],
        whole[::-1],
        whole.T[1:],
        np.zeros(64, np.int8),
        np.zeros(16, np.float32),
        np.zeros(64, bool),
        [0] * 64,
        bytearray(64),
        memoryview(bytearray(64)),
        None,
        np.zeros(4, object),
    ]
    for target in targets:
        refused(
            (gg.BufferUseError, gg.TypeMismatchError),
            {
                "get": lambda target=target: buffer.get(0, target),
                "get_2d": lambda target=target: buffer.get_2d(0, target, 32, 2, 32),
                "get_async": lambda target=target: stream.get_async(buffer, 0, target),
            },
            buffer,
        )
    assert not whole.any()
    for fetch in (buffer.get, lambda offset, out: stream.get_async(buffer, offset, out)):
        fetch(8, whole)
        stream.synchronize()
        if content(buffer).any():  # the stand-in for a GPU keeps no bytes
            np.testing.assert_array_equal(whole.reshape(-1), CONTENT[8:72])


def test_the_target_of_a_fetched_result_has_its_size() -> None:
    with Scheduler([ReferenceDevice()]) as scheduler:
        y = gg.neg(gg.tensor([1.0, 2.0])).set_output()
        graph = gg.Graph(y)
        scheduler.compute_async(graph)
        for size in (0, 7, 9, 64):
            with pytest.raises(gg.ShapeError, match="out must have the 8 bytes of"):
                scheduler.get_async(y, graph, np.zeros(size, np.uint8))
        with pytest.raises(gg.TypeMismatchError, match="array of uint8"):
            scheduler.get_async(y, graph, np.zeros(2, np.float32))  # type: ignore[arg-type]
        out = np.zeros(8, np.uint8)
        scheduler.get_async(y, graph, out).synchronize()
        assert out.view(np.float32).tolist() == [-1, -2]


def test_what_is_stored_may_be_any_memory(buffer: Buffer, stream: Backend) -> None:
    square = np.arange(16, dtype=np.uint8).reshape(4, 4)
    for data, want in (
        (b"ab", b"ab"),
        (bytearray(b"cd"), b"cd"),
        (memoryview(b"e-f-g")[::2], b"efg"),
        (square[:, 1], b"\1\5\t\r"),
        (square.view(np.matrix)[:1, 1:3], b"\1\2"),
        (np.float32(1), np.float32(1).tobytes()),
        ((ctypes.c_uint8 * 2)(3, 4), b"\3\4"),
    ):
        for store in (buffer.set, lambda offset, data: stream.set_async(buffer, offset, data)):
            store(8, data)
            stream.synchronize()
            got = content(buffer)
            if got.any():
                assert got[8 : 8 + len(want)].tobytes() == want


def test_masked_values_are_no_values() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for store in (gg.tensor, gg.new_tensor("f32", 2).set):
        with pytest.raises(gg.TypeMismatchError, match="some values are masked"):
            store(masked)
    assert gg.tensor(np.ma.masked_array([1.0, 2.0], False)).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("call", ["numpy", "tobytes", "compute"])
def test_memory_that_numpy_lacks_is_an_error_of_ggplug(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gg.tensor([1.0, 2.0])
    doubled = gg.scale(x, 2.0)
    with monkeypatch.context() as full:
        full.setattr(np, "empty", lambda *_: np.zeros(1 << 62, np.uint8))
        with pytest.raises(gg.OutOfMemoryError, match=r"too little free memory: Unable to allocate|there is no memory"):
            gg.compute(doubled) if call == "compute" else getattr(x, call)()
    assert gg.compute(doubled).numpy().tolist() == [2, 4]


def test_arrays_of_objects_have_no_bytes(buffer: Buffer, stream: Backend) -> None:
    """Their bytes are addresses of Python objects."""
    objects = np.array([object()])
    for data in (objects, memoryview(objects), np.zeros(1, [("a", "f4"), ("b", object)]), [object()], "text", None):
        if isinstance(data, str):
            continue
        refused(
            (gg.TypeMismatchError,),
            {
                "set": lambda data=data: buffer.set(0, data),
                "set_2d": lambda data=data: buffer.set_2d(0, data, 8, 1, 8),
                "set_async": lambda data=data: stream.set_async(buffer, 0, data),
                "a tensor": lambda data=data: gg.tensor([1.0]).set(data),
                "wrap": lambda data=data: HOST.wrap(data),
            },
            buffer,
        )


# -- memory of the caller --------------------------------------------------------------------------


class Foreign:
    """An array of another device, as DLPack shows it."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("the array is on device CUDA:0")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Wrong:
    """An array interface that makes no sense."""

    def __init__(self, **fields: Any) -> None:
        self.__array_interface__ = {"shape": (4,), "typestr": "<f4", "version": 3, **fields}


def test_memory_that_cannot_be_read_is_refused_with_the_reason() -> None:
    released, closed = memoryview(b"abcd"), mmap.mmap(-1, 64)
    released.release()
    closed.close()
    for values in (Foreign(), Wrong(), Wrong(data="here"), Wrong(typestr="?!"), Wrong(shape=-1), released):
        for use in (gg.tensor, HOST.wrap, gg.tensor([1.0]).set):
            with pytest.raises((gg.TypeMismatchError, gg.ShapeError)):
                use(values)
    for values in (closed, [1, 2], "text", None, 5, {}, object()):
        with pytest.raises(gg.TypeMismatchError, match="no memory that can be used in place"):
            HOST.wrap(values)


@pytest.mark.parametrize(
    "values",
    [np.zeros((4, 4))[:, 1], np.zeros(8)[::-1], np.zeros(8)[::2], np.zeros((3, 4)).T, memoryview(b"abcdef")[::2]],
    ids=["column", "backwards", "every other", "transposed", "view"],
)
def test_memory_with_gaps_is_not_used_in_place(values: Any) -> None:
    with pytest.raises(gg.ParameterError, match="only contiguous memory"):
        HOST.wrap(values)


def test_a_host_buffer_is_made_of_contiguous_bytes() -> None:
    whole = np.zeros(64, np.uint8)
    for memory in (whole[::2], whole[::-1], whole.reshape(8, 8)):
        with pytest.raises(gg.ParameterError, match="only contiguous memory"):
            HostBuffer(HOST, memory)
    for wrong in (whole.view(np.float32), bytearray(64), None):
        with pytest.raises(gg.TypeMismatchError, match="array of uint8"):
            HostBuffer(HOST, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        np.arange(4, dtype=np.float32),
        np.arange(4, dtype=np.float32).reshape(2, 2).view(np.matrix),
        (ctypes.c_float * 4)(0, 1, 2, 3),
        bytearray(np.arange(4, dtype=np.float32)),
        np.ma.masked_array(np.arange(4, dtype=np.float32), [0, 1, 0, 0]),
    ],
    ids=lambda values: type(values).__name__,
)
def test_memory_of_every_kind_is_shared(values: Any) -> None:
    buffer = HOST.wrap(values)
    tensor = gg.new_tensor("f32", 4)
    tensor.place(buffer)
    assert tensor.numpy().tolist() == [0, 1, 2, 3]
    tensor.set([4, 5, 6, 7])
    now = np.frombuffer(values, np.float32) if isinstance(values, bytearray) else np.asarray(values)
    assert now.reshape(-1).tolist() == [4, 5, 6, 7]


def test_nothing_is_memory_too() -> None:
    for values in (b"", bytearray(), np.empty(0), np.empty((0, 4)), np.empty((4, 0)).T):
        buffer = HOST.wrap(values)
        assert buffer.size == 0
        buffer.get(0, np.empty(0, np.uint8))
        gg.new_tensor("f32", 0).place(buffer)
        with pytest.raises(gg.BufferUseError):
            gg.new_tensor("f32", 1).place(buffer)


def test_memory_in_use_cannot_be_taken_away(tmp_path: Path) -> None:
    """Python and NumPy refuse, because the buffer holds on to it, or take away only the caller's view of it."""
    (tmp_path / "file").write_bytes(bytes(4096))
    array, view = np.zeros(4, np.float32), memoryview(bytearray(16))
    grown = bytearray(16)
    with (tmp_path / "file").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    attempts: list[tuple[Any, Callable[[], object]]] = [
        (array, lambda: array.resize(10**6)),
        (view, view.release),
        (grown, lambda: grown.extend(bytes(10**6))),
        (mapped, mapped.close),
        (mapped, lambda: mapped.resize(8192)),
    ]
    for memory, attempt in attempts:
        tensor = gg.new_tensor("f32", 4)
        tensor.place(HOST.wrap(memory))
        with contextlib.suppress(ValueError, BufferError):
            attempt()
        tensor.set([1, 2, 3, 4])
        graph = gg.Graph(gg.neg(tensor))
        ReferenceDevice().init().compute(graph, allocate_graph(graph, HOST))
        assert graph.node(0).numpy().tolist() == [-1, -2, -3, -4]


TURNED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": gg.transpose,
    "permuted": lambda x: gg.permute(x, 2, 0, 3, 1),
    "permuted in a window": lambda x: gg.permute(gg.view(x, 3, 2, nb=(x.nb[1], x.nb[2]), offset=4), 1, 0, 2, 3),
    "reshaped and transposed": lambda x: gg.transpose(gg.reshape(x, x.size // 2, 2)),
}


@pytest.mark.parametrize("where", ["HOST", "CPU", "OpenCL0"])
@pytest.mark.parametrize("turned", TURNED)
def test_values_are_stored_in_the_order_of_the_tensor_and_not_of_its_bytes(turned: str, where: str) -> None:
    buffer_type = HOST if where == "HOST" else device_or_skip(where).buffer_type
    root = gg.new_tensor("f32", (4, 3, 2))
    root.place(buffer_type.alloc(root.nbytes))
    before = np.zeros((2, 3, 4), np.float32)
    root.set(before)
    view = TURNED[turned](root)
    values = np.arange(1, view.size + 1, dtype=np.float32).reshape(view.shape)
    view.set(values)
    np.testing.assert_array_equal(view.numpy(), values)
    assert np.count_nonzero(root.numpy()) == view.size


def test_rows_of_blocks_are_stored_in_the_order_of_the_tensor() -> None:
    root = gg.tensor(np.zeros((2, 3, 32), np.float32), "q8_0")
    values = 127.0 * np.arange(6).reshape(3, 2, 1) * np.ones(32)  # which blocks hold exactly
    view = gg.permute(root, 0, 2, 1, 3)
    np.testing.assert_array_equal(view.set(values).numpy(), values)
    np.testing.assert_array_equal(root.numpy(), values.transpose(1, 0, 2))


def test_a_leaf_with_strides_of_its_own_has_the_values_that_were_set() -> None:
    leaf = Tensor(Spec(gg.F32, (2, 3, 1, 1), 2, (12, 4, 24, 24)))
    leaf.place(HOST.alloc(leaf.nbytes))
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(leaf.set(values).numpy(), values)

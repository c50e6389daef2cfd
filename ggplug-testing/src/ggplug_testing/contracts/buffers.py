"""The contract of buffers and buffer types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug import types
from ggplug.backend import Buffer
from ggplug.errors import BufferUseError, OutOfMemoryError, ParameterError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.memory import GraphAllocator
from ggplug.memory.layout import aligned
from ggplug.ops.copy import cont
from ggplug.ops.elementwise import add
from ggplug.ops.unary import neg, relu
from ggplug.ops.views import view
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import BufferUsage
from ggplug.values.arrays import as_bytes
from ggplug_testing.contracts.clause import (
    NotOffered,
    alloc_for,
    expect,
    expect_all_raise,
    expect_bytes,
    expect_equal,
    expect_raises,
    pattern,
    read,
    step_between,
)
from ggplug_testing.contracts.given import NEW, OLD, OTHER, SIZE, Given, clause
from ggplug_testing.contracts.holding import held
from ggplug_testing.contracts.sample import first_supported
from ggplug_testing.fake import FakeDevice

MANY = (1 << 24) + 3
"""Bytes that take more than one transfer where a unit, a counter or a staging buffer has a limit."""


class _Shadowed:
    """A buffer, and in ``bytes`` what it has to hold."""

    def __init__(self, buffer: Buffer, seed: int = 0) -> None:
        self.buffer, self.bytes = buffer, pattern(buffer.size, seed)

    def check(self, what: str, offset: int = 0, new: Any = ()) -> None:
        """Raises ContractError unless the buffer holds its bytes, and ``new`` ones from ``offset`` on."""
        self.bytes[offset : offset + len(new)] = new
        expect_equal(read(self.buffer), self.bytes, what)


@clause
def bytes_come_back_as_they_were_stored(given: Given) -> None:
    """``set`` stores and ``get`` fetches any range, at any offset, and touches nothing else."""
    buffer = given.buffer(0)
    shadow = _Shadowed(buffer)
    for i, (offset, size) in enumerate([(0, 1), (1, 1), (3, 7), (63, 130), (1000, 1001), (4095, 1), (0, SIZE)]):
        piece = pattern(size, i + 1)
        buffer.set(offset, piece)
        expect_equal(read(buffer, offset, size), piece, f"{size} bytes at {offset}")
        shadow.check(f"the buffer after setting {size} bytes at {offset}", offset, piece)


@clause
def nothing_can_be_transferred(given: Given) -> None:
    """Transfers of no bytes (``set``, ``get``, ``memset``, ``set_2d``), and buffers of few bytes, are allowed."""
    buffer, nothing = given.buffer(size=64), np.empty(0, np.uint8)
    buffer.set(64, nothing)
    buffer.get(64, nothing)
    buffer.memset(64, 0, 1)
    buffer.set_2d(0, nothing, 16, 0, 32)
    empty = given.buffer(size=0)
    expect(empty.size == 0, f"a buffer of no bytes has size {empty.size}")
    empty.clear()


def _large(given: Given, size: int) -> Buffer:
    """A buffer of so many bytes.  Raises NotOffered if there is no memory for it."""
    try:
        return given.buffer(size=size)
    except OutOfMemoryError as error:
        raise NotOffered(f"there is no memory for {size:,} bytes") from error


@clause
def many_bytes_are_transferred_whole(given: Given) -> None:
    """Transfers (``set``, ``copy_from``, ``memset``, ``set_async``, ``copy_async``) of more than 16 MiB, a number of
    bytes that no unit divides, are as whole as those of few."""
    size = min(MANY, given.kind.max_size or MANY)
    wanted, out = pattern(size), np.empty(size, np.uint8)
    first, second, stream = _large(given, size), _large(given, size), given.stream()
    first.set(0, wanted)
    expect_equal(read(first), wanted, f"{size:,} bytes that were stored and fetched")
    second.clear()
    second.copy_from(first, 0, 0, size)
    expect_equal(read(second), wanted, f"{size:,} bytes that were copied")
    first.memset(1, size - 1, 0x5A)
    expect(np.array_equal(read(first)[1:], np.full(size - 1, 0x5A, np.uint8)), f"{size:,} bytes that were filled")
    stream.set_async(first, 0, wanted)
    second.clear()
    stream.copy_async(first, 0, second, 0, size)
    stream.get_async(second, 0, out)
    stream.synchronize()
    expect_equal(out, wanted, f"{size:,} bytes that a stream stored, copied and fetched")


@clause
def operands_behind_many_bytes_are_read_where_they_lie(given: Given) -> None:
    """``compute`` reads a tensor that lies more than 16 MiB into its buffer as it reads one at the beginning."""
    kind = given.kind
    offset = aligned(MANY, kind.alignment)
    x = new_tensor("f32", (64, 3))
    node = first_supported(given.device, neg(x), cont(x), add(x, x), relu(x))
    if kind.max_size is not None and offset + kind.alloc_size(x) > kind.max_size:
        raise NotOffered(f"no buffer has {offset + kind.alloc_size(x):,} bytes")
    values = np.random.default_rng(7).standard_normal((3, 64), np.float32)
    results = []
    for start in (0, offset):
        with Given(given.device) as own:
            buffer, stream, graph = _large(own, start + kind.alloc_size(x)), own.stream(), Graph(node)
            buffer.clear(0x41)
            x.place(buffer, start)
            x.set(values)
            stream.compute(graph, own.use(GraphAllocator(kind)).allocate(graph))
            stream.synchronize()
            results.append(node.numpy().copy())
            x.place(None)
    expect_equal(results[1], results[0], f"{node!r} of a tensor that lies {offset:,} bytes into its buffer")


@clause
def memset_fills_a_range(given: Given) -> None:
    """``memset`` fills a range with a byte, ``clear`` all; nothing else changes.  ``alloc_zeroed`` gives zeros."""
    buffer = given.buffer(0)
    shadow = _Shadowed(buffer)
    for offset, size, value in ((0, 5, 1), (17, 33, 0xAB), (4000, 96, 0xFF), (100, 0, 7)):
        buffer.memset(offset, size, value)
        shadow.check(f"the buffer after memset({offset}, {size})", offset, [value] * size)
    buffer.clear(0x5A)
    shadow.check("the buffer after clear", 0, [0x5A] * SIZE)
    buffer.clear()
    expect(not read(buffer).any(), "clear() fills with zeros")
    fresh = given.use(given.kind.alloc_zeroed(SIZE))
    expect(not read(fresh).any(), "alloc_zeroed() gives zeros")
    fresh.memset(0, SIZE, 0x5A)
    expect_equal(read(fresh), np.full(SIZE, 0x5A, np.uint8), "a buffer that was allocated with zeros, filled")


@clause
def rows_are_transferred_with_a_stride(given: Given) -> None:
    """``set_2d`` spreads packed rows, ``get_2d`` packs rows that are apart; bytes between them stay."""
    _transfer_rows(given, (0, 16, 5, 16), (7, 13, 9, 40), (64, 1, 20, 3), (5, 200, 1, 999))


@clause
def rows_that_overlap_are_stored_in_order(given: Given) -> None:
    """``set_2d`` with a stride of less than a row leaves of each row what no later one covers; ``get_2d`` reads all."""
    _transfer_rows(given, (100, 16, 5, 8), (100, 33, 7, 1), (100, 64, 3, 0))


def _transfer_rows(given: Given, *ways: tuple[int, int, int, int]) -> None:
    """Stores and fetches rows; ``ways``: offset, bytes of a row, how many rows, and how far they are apart."""
    buffer = given.buffer(0)
    shadow = _Shadowed(buffer)
    for offset, row, rows, stride in ways:
        packed, out, what = pattern(row * rows, row), np.empty(row * rows, np.uint8), f"{rows} rows of {row} bytes"
        starts = [offset + number * stride for number in range(rows)]
        buffer.set_2d(offset, packed, row, rows, stride)
        for start, piece in zip(starts, packed.reshape(rows, row), strict=True):
            shadow.bytes[start : start + row] = piece
        shadow.check(f"{what}, {stride} apart")
        buffer.get_2d(offset, out, row, rows, stride)
        want = np.concatenate([shadow.bytes[start : start + row] for start in starts])
        expect_equal(out, want, f"{what}, {stride} apart, fetched")


@clause
def buffers_copy_from_each_other(given: Given) -> None:
    """``copy_from`` copies from host memory, from the same device and within a buffer; and the host from the device."""
    first, second, host = given.buffer(1), given.buffer(2), given.host(3)
    shadow = _Shadowed(first, 1)
    for source, start, offset, size, what in (
        (second, 100, 33, 517, "a copy from the same device"),
        (host, 5, 2000, 71, "a copy from the host"),
        (first, 33, 3000, 500, "a copy within a buffer"),
        (first, 33, 50, 500, "a copy of 500 bytes at 33 to 50 of the same buffer"),
        (first, 900, 850, 500, "a copy of 500 bytes at 900 to 850 of the same buffer"),
    ):
        new = read(source, start, size)
        first.copy_from(source, start, offset, size)
        shadow.check(what, offset, new)
    host.copy_from(first, 33, 1, 600)
    expect_equal(read(host, 1, 600), shadow.bytes[33:633], "a copy to the host")
    expect_bytes(second, 2, "the source of a copy")


@clause
def a_copy_waits_for_the_streams_of_another_device(given: Given) -> None:
    """``Buffer.copy_from`` reads what was submitted to the source's device before."""
    target, other = given.buffer(0), given.use(Given(FakeDevice("another", execution="late")))
    source = other.buffer()
    other.stream().set_async(source, 0, pattern(SIZE, 1))
    target.copy_from(source, 0, 0, SIZE)
    expect_bytes(target, 1, "copied from a device with pending work")


@clause
def a_write_changes_nothing_that_another_device_copies(given: Given) -> None:
    """``Buffer.set`` changes nothing that a stream of another device was to copy (``copy_async``) before."""
    other = given.use(Given(FakeDevice("another", execution="late")))
    written_while_copied(given.buffer(OLD), other.buffer(OTHER), other)


def written_while_copied(source: Buffer, target: Buffer, copying: Given) -> None:
    """A source is written after a held stream was to copy it to a target in its device's memory."""
    stream = copying.stream()
    moment = copying.moment(stream)
    with held(stream, moment) as aside:
        calls = [aside(lambda: stream.copy_async(source, 0, target, 0, SIZE))]
        if calls[0].returned(moment):  # it need not: a stream may wait, and copy then
            calls.append(aside(lambda: source.set(0, pattern(SIZE, NEW))))
            calls[1].returned(moment)
    for each in calls:
        each.join("a copy from another device, or a write to its source")
    stream.synchronize()
    expect_bytes(target, OLD, "copied from another device")
    expect_bytes(source, NEW if len(calls) > 1 else OLD, "the source of the copy")


@clause
def accesses_out_of_bounds_raise(given: Given) -> None:
    """Whatever leaves a buffer (``set``, ``get``, ``memset``, ``copy_from``, ``set_2d``, ``get_2d``) raises
    BufferUseError, and changes nothing."""
    piece, far, buffer, host = np.zeros(16, np.uint8), np.int64(2**63 - 8), given.buffer(0), given.host(size=64)
    attempts: dict[str, Callable[[], object]] = {
        "set behind the end": lambda: buffer.set(SIZE - 15, piece),
        "set before the beginning": lambda: buffer.set(-1, piece),
        "get behind the end": lambda: buffer.get(SIZE - 15, piece),
        "memset behind the end": lambda: buffer.memset(SIZE - 1, 2, 0),
        "memset of a negative size": lambda: buffer.memset(0, -1, 0),
        "copy to behind the end": lambda: buffer.copy_from(host, 0, SIZE - 1, 2),
        "copy from behind the end": lambda: buffer.copy_from(host, 63, 0, 2),
        "set_2d behind the end": lambda: buffer.set_2d(SIZE - 40, piece, 8, 2, 33),
        "get_2d behind the end": lambda: buffer.get_2d(SIZE - 40, piece, 8, 2, 33),
        "set_2d backwards": lambda: buffer.set_2d(16, piece, 8, 2, -8),
        "get_2d backwards": lambda: buffer.get_2d(16, piece, 8, 2, -8),
        "set at an offset that wraps around": lambda: buffer.set(far, piece),  # type: ignore[arg-type]
        "get at an offset that wraps around": lambda: buffer.get(far, piece),  # type: ignore[arg-type]
    }
    expect_all_raise(BufferUseError, attempts, lambda what: expect_bytes(buffer, 0, f"the buffer after {what}"))


@clause
def bytes_are_fetched_into_writable_arrays_of_bytes(given: Given) -> None:
    """A target of ``get``, ``get_2d`` or ``get_async`` that is read-only or has gaps raises BufferUseError, one of
    other elements TypeMismatchError."""
    buffer, stream, memory = given.buffer(0), given.stream(), pattern(64, 1)

    def unchanged(what: str) -> None:
        stream.synchronize()
        expect_equal(memory, pattern(64, 1), f"the target after {what}")

    for what, out, error in (
        ("a read-only array", np.frombuffer(memory.data.toreadonly(), np.uint8), BufferUseError),
        ("every other element of an array", memory[::2], BufferUseError),
        ("an array backwards", memory[::-1], BufferUseError),
        ("an array of floats", memory.view(np.float32), TypeMismatchError),
    ):
        target: Any = out
        attempts: dict[str, Callable[[], object]] = {
            f"get into {what}": lambda target=target: buffer.get(0, target),  # type: ignore[misc]
            f"get_2d into {what}": lambda target=target: buffer.get_2d(0, target, target.size // 2, 2, 128),  # type: ignore[misc]
            f"get_async into {what}": lambda target=target: stream.get_async(buffer, 0, target),  # type: ignore[misc]
        }
        expect_all_raise(error, attempts, unchanged)


@clause
def places_are_inside_of_their_buffer(given: Given) -> None:
    """A tensor that would leave its buffer, or lie where its memory does not let it, cannot be placed there."""
    tensor, kind = new_tensor("f32", (8, 4)), given.kind
    step, size = kind.alignment, step_between(kind, tensor)
    buffer = given.buffer(size=2 * size)
    for offset in (-step, 2 * size, 2 * size - 4, 2 * size + step, 2**63, 2**64, -(2**64), 2):
        with expect_raises(BufferUseError, f"a place at byte {offset} of {2 * size}"):
            tensor.place(buffer, offset)
        expect(tensor.buffer is None, f"a tensor that could not be placed at byte {offset} has no place")
    tensor.place(buffer, size)
    tensor.place(None)
    buffer.free()
    with expect_raises(BufferUseError, "a place in a freed buffer"):
        tensor.place(buffer)


@clause
def a_freed_buffer_refuses_use(given: Given) -> None:
    """Freeing (``free``) twice is harmless; using a freed buffer raises BufferUseError; other buffers live on."""
    other, buffer, byte = given.buffer(5), given.buffer(0), np.empty(1, np.uint8)
    buffer.free()
    buffer.free()
    expect(buffer.freed, "a freed buffer says so")
    attempts: dict[str, Callable[[], object]] = {
        "get from a freed buffer": lambda: buffer.get(0, byte),
        "set into a freed buffer": lambda: buffer.set(0, byte),
        "copying from a freed buffer": lambda: other.copy_from(buffer, 0, 0, 1),
    }
    expect_all_raise(BufferUseError, attempts, lambda what: expect_bytes(other, 5, "another buffer"))


@clause
def an_exported_buffer_refuses_to_be_freed(given: Given) -> None:
    """While zero-copy views of a buffer exist, ``free`` raises BufferUseError and the buffer stays usable."""
    buffer = given.buffer(0)
    buffer.export()
    with expect_raises(BufferUseError, "freeing an exported buffer"):
        buffer.free()
    expect_bytes(buffer, 0, "the exported buffer")
    buffer.release()


@clause
def buffer_types_describe_their_memory(given: Given) -> None:
    """Types are the same objects each time; ``alignment`` is a power of two, at least 8, and kept; ``alloc_size`` is
    enough; names differ."""
    device, kind = given.device, given.kind
    expect(device.buffer_type is kind, "the default buffer type is always the same object")
    expect(kind.device is device, "the default buffer type belongs to its device")
    every = [kind, *device.extra_buffer_types, *filter(None, [device.host_buffer_type])]
    names = [each.name for each in every]
    expect(len(set(names)) == len(names), f"names of buffer types are unique, got {names}")
    for each in every:
        alignment = each.alignment
        expect(alignment >= 8 and alignment & (alignment - 1) == 0, f"alignment {alignment} of {each.name}")
        expect(each.max_size is None or each.max_size > 0, f"max_size {each.max_size} of {each.name}")
        for type in types.TYPES:
            tensor = new_tensor(type, (type.block_size * 3, 5))
            expect(each.alloc_size(tensor) >= tensor.nbytes, f"alloc_size of {tensor!r} in {each.name}")
        with each.alloc(1000) as buffer:
            expect(buffer.size >= 1000, f"{each.name} allocated {buffer.size} bytes for 1000")
            expect(buffer.type is each, f"a buffer of {each.name} says that it is of {buffer.type!r}")
            if each.is_host:
                expect(buffer.address is not None, f"{each.name} is host memory, so its buffers have addresses")
                expect((buffer.address or 0) % alignment == 0, f"{each.name} is not aligned to {alignment}")


@clause
def host_memory_is_what_the_host_sees(given: Given) -> None:
    """In host buffer types, ``bytes`` shows and changes what ``get`` and ``set`` do; in others it raises."""
    buffer = given.buffer(0)
    if buffer.address is None:
        with expect_raises(BufferUseError, "a zero-copy view of memory that is not the host's"):
            buffer.bytes(0, 1)
        return
    seen = buffer.bytes(10, 100)
    expect_equal(seen, pattern(SIZE)[10:110], "what the host sees")
    seen[3] ^= 0xFF
    expect(read(buffer, 13, 1)[0] == seen[3], "what the host writes is in the buffer")
    shadow = _Shadowed(buffer)
    shadow.bytes[13] = seen[3]
    for source, target in ((0, 50), (900, 850)):
        new = read(buffer, source, 500)
        buffer.set(target, buffer.bytes(source, 500))
        shadow.check(f"bytes {source} of a buffer, set at {target}", target, new)
        new = read(buffer, target, 500)
        buffer.get(target, buffer.bytes(source, 500))
        shadow.check(f"bytes {target} of a buffer, fetched to {source}", source, new)


@clause
def too_much_memory_raises(given: Given) -> None:
    """``alloc`` of more memory than there is raises OutOfMemoryError with ``requested``; the device stays usable."""
    wanted = max(1 << 52, 4 * (given.device.memory().total or 0))
    buffer = given.buffer(0)
    try:
        given.kind.alloc(wanted).free()
    except OutOfMemoryError as error:
        expect(error.requested is not None, "OutOfMemoryError says how much was requested")
        expect(error.free is None or error.free >= 0, f"OutOfMemoryError says that {error.free} bytes are free")
    else:
        expect(False, f"an allocation of {wanted} bytes must raise OutOfMemoryError")
    expect_bytes(buffer, 0, "a buffer after another one could not be allocated")
    given.buffer(1).free()


@clause
def impossible_sizes_raise(given: Given) -> None:
    """``alloc`` of a negative size raises ParameterError, beyond ``max_size`` OutOfMemoryError; the device stays
    usable."""
    kind = given.kind
    with expect_raises(ParameterError, "a buffer of -1 bytes"):
        kind.alloc(-1)
    if kind.max_size is not None:
        with expect_raises(OutOfMemoryError, "a buffer larger than max_size"):
            kind.alloc(kind.max_size + 1)
    given.buffer(1).free()


@clause
def usage_is_only_a_mark(given: Given) -> None:
    """A buffer's ``usage`` can be set at any time and changes no bytes."""
    buffer = given.buffer(0)
    expect(buffer.usage is BufferUsage.ANY, f"the usage of a new buffer is ANY, got {buffer.usage}")
    for usage in BufferUsage:
        buffer.usage = usage
        expect(buffer.usage is usage, f"the usage {usage} is kept")
        expect_bytes(buffer, 0, f"the buffer with usage {usage.name}")


@clause
def tensors_keep_their_values(given: Given) -> None:
    """A tensor in a buffer returns (``get_tensor``) the bytes that it was set to (``set_tensor``), for every type;
    neighbours stay."""
    for type in types.TYPES:
        made = [new_tensor(type, (type.block_size * 2, 3)) for _ in range(2)]
        with alloc_for(given.kind, made[0], 2) as buffer:
            keep_values(made, buffer, type.name)


def keep_values(tensors: list[Tensor], buffer: Buffer, where: str) -> None:
    """Raises ContractError unless tensors in a buffer keep what they were set to, the second time as well."""
    for number, tensor in enumerate(tensors):
        tensor.place(buffer, number * step_between(buffer.type, tensor))
        buffer.init_tensor(tensor)
    for seed in (1, 2):
        for number, tensor in enumerate(tensors):
            tensor.set_bytes(pattern(tensor.nbytes, seed + number))
        for number, tensor in enumerate(tensors):
            what = f"tensor {number} of {len(tensors)}, {tensor!r} in {where}"
            expect_equal(as_bytes(tensor.tobytes()), pattern(tensor.nbytes, seed + number), what)
    for tensor in tensors:
        tensor.place(None)


@clause
def views_of_tensors_are_set_in_place(given: Given) -> None:
    """Setting a strided view (``set_tensor``) stores its elements and leaves what lies between them."""
    root = new_tensor("f32", (8, 4))
    root.place(given.use(alloc_for(given.kind, root)))
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    root.set(values)
    window = view(root, 3, 2, nb=(2 * root.nb[1],), offset=root.nb[1] + 8)
    expect_equal(window.numpy(), values[1::2, 2:5], "a view")
    window.set(-np.arange(6, dtype=np.float32).reshape(2, 3))
    values[1::2, 2:5] = -np.arange(6).reshape(2, 3)
    expect_equal(root.numpy(), values, "the root after setting a view")
    root.place(None)


@clause
def memory_of_the_host_is_used_in_place(given: Given) -> None:
    """``buffer_from_host`` uses the caller's memory itself, where ``capabilities`` say so; otherwise it raises."""
    device, memory = given.device, pattern(8192)
    if not device.capabilities.buffer_from_host:
        with expect_raises(BufferUseError, "buffer_from_host of a device that does not offer it"):
            device.buffer_from_host(memory)
        raise NotOffered("capabilities.buffer_from_host is false")
    with device.buffer_from_host(memory, usage=BufferUsage.WEIGHTS) as buffer:
        expect(buffer.usage is BufferUsage.WEIGHTS, "the usage is kept")
        expect_equal(read(buffer, 0, 8192), memory, "the caller's memory")
        memory[100] ^= 0xFF
        expect(read(buffer, 100, 1)[0] == memory[100], "a change by the caller shows in the buffer")
    before, zeros, other = memory.copy(), np.zeros(8, np.uint8), given.host(size=8)
    closed = given.use(device.buffer_from_host(memory.data.toreadonly()))
    expect(closed.is_read_only, "a buffer over read-only memory says so")
    expect_equal(read(closed, 0, 8192), before, "read-only memory")
    writes: dict[str, Callable[[], object]] = {
        "set into read-only memory": lambda: closed.set(0, zeros),
        "memset into read-only memory": lambda: closed.memset(0, 8, 1),
        "clear of read-only memory": lambda: closed.clear(1),
        "set_2d into read-only memory": lambda: closed.set_2d(0, zeros, 4, 2, 8),
        "copy_from into read-only memory": lambda: closed.copy_from(other, 0, 0, 8),
    }
    expect_all_raise(BufferUseError, writes, lambda what: expect_equal(memory, before, f"the bytes after {what}"))


@clause
def pinned_memory_is_host_memory(given: Given) -> None:
    """A ``host_buffer_type`` is there just where ``capabilities`` say so, and is host memory."""
    device, kind, buffer = given.device, given.device.host_buffer_type, given.buffer(0)
    expect((kind is not None) == device.capabilities.host_buffer, "capabilities.host_buffer says whether there is one")
    if kind is None:
        raise NotOffered("capabilities.host_buffer is false")
    expect(kind.is_host, f"{kind.name} is host memory")
    with kind.alloc(SIZE) as pinned:
        pinned.set(0, pattern(SIZE, 9))
        buffer.copy_from(pinned, 0, 0, SIZE)
        expect_bytes(buffer, 9, "a copy out of pinned memory")

"""The contract of buffers and buffer types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from ggplug import types
from ggplug.backend import Buffer, Device
from ggplug.errors import BufferUseError, OutOfMemoryError, ParameterError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import allocate_graph
from ggplug.memory.layout import aligned
from ggplug.ops.copy import cont
from ggplug.ops.elementwise import add
from ggplug.ops.unary import neg, relu
from ggplug.ops.views import view
from ggplug.tensor import Spec, Tensor, extents, new_tensor
from ggplug.types import BufferUsage
from ggplug.values.arrays import as_bytes
from ggplug_testing.contracts.clause import (
    NotOffered,
    alloc_for,
    clause,
    expect,
    expect_equal,
    expect_raises,
    pattern,
    read,
    step_between,
)
from ggplug_testing.fake import FakeDevice

_SIZE = 4096

MANY = (1 << 24) + 3
"""Bytes that take more than one transfer where a unit, a counter or a staging buffer has a limit."""


def _filled(device: Device, seed: int = 0, size: int = _SIZE) -> Buffer:
    buffer = device.buffer_type.alloc(size)
    buffer.set(0, pattern(size, seed))
    return buffer


@clause
def bytes_come_back_as_they_were_stored(device: Device) -> None:
    """``set`` stores and ``get`` fetches any range, at any offset, and touches nothing else."""
    with _filled(device) as buffer:
        shadow = pattern(_SIZE)
        for i, (offset, size) in enumerate([(0, 1), (1, 1), (3, 7), (63, 130), (1000, 1001), (4095, 1), (0, _SIZE)]):
            piece = pattern(size, i + 1)
            buffer.set(offset, piece)
            shadow[offset : offset + size] = piece
            expect_equal(read(buffer, offset, size), piece, f"{size} bytes at {offset}")
            expect_equal(read(buffer), shadow, f"the buffer after setting {size} bytes at {offset}")


@clause
def nothing_can_be_transferred(device: Device) -> None:
    """Transfers of no bytes, and buffers of few bytes, are allowed."""
    with device.buffer_type.alloc(64) as buffer:
        buffer.set(64, np.empty(0, np.uint8))
        buffer.get(64, np.empty(0, np.uint8))
        buffer.memset(64, 0, 1)
        buffer.set_2d(0, np.empty(0, np.uint8), 16, 0, 32)
    with device.buffer_type.alloc(0) as empty:
        expect(empty.size == 0, f"a buffer of no bytes has size {empty.size}")
        empty.clear()


def _large(device: Device, size: int) -> Buffer:
    """A buffer of so many bytes.  Raises NotOffered if there is no memory for it."""
    try:
        return device.buffer_type.alloc(size)
    except OutOfMemoryError as error:
        raise NotOffered(f"there is no memory for {size:,} bytes") from error


@clause
def many_bytes_are_transferred_whole(device: Device) -> None:
    """Transfers of more than 16 MiB, a number of bytes that no unit divides, are as whole as those of few."""
    size = min(MANY, device.buffer_type.max_size or MANY)
    wanted, out = pattern(size), np.empty(size, np.uint8)
    with ExitStack() as ending:
        first, second = (ending.enter_context(_large(device, size)) for _ in range(2))
        stream = ending.enter_context(device.init())
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
def operands_behind_many_bytes_are_read_where_they_lie(device: Device) -> None:
    """A tensor that lies more than 16 MiB into its buffer is computed with as one at the beginning is."""
    kind = device.buffer_type
    offset = aligned(MANY, kind.alignment)
    x = new_tensor("f32", (64, 3))
    node = next((each for each in (neg(x), cont(x), add(x, x), relu(x)) if device.supports_op(each)), None)
    if node is None:
        raise NotOffered("no op that the clause knows is supported")
    if kind.max_size is not None and offset + kind.alloc_size(x) > kind.max_size:
        raise NotOffered(f"no buffer has {offset + kind.alloc_size(x):,} bytes")
    values = np.random.default_rng(7).standard_normal((3, 64), np.float32)
    results = []
    for start in (0, offset):
        with _large(device, start + kind.alloc_size(x)) as buffer, device.init() as stream:
            buffer.clear(0x41)
            x.place(buffer, start)
            x.set(values)
            graph = Graph(node)
            stream.compute(graph, allocate_graph(graph, kind))
            stream.synchronize()
            results.append(node.numpy().copy())
            x.place(None)
    expect_equal(results[1], results[0], f"{node!r} of a tensor that lies {offset:,} bytes into its buffer")


@clause
def memset_fills_a_range(device: Device) -> None:
    """``memset`` fills a range with a byte, ``clear`` all; nothing else changes."""
    with _filled(device) as buffer:
        shadow = pattern(_SIZE)
        for offset, size, value in ((0, 5, 1), (17, 33, 0xAB), (4000, 96, 0xFF), (100, 0, 7)):
            buffer.memset(offset, size, value)
            shadow[offset : offset + size] = value
            expect_equal(read(buffer), shadow, f"the buffer after memset({offset}, {size})")
        buffer.clear(0x5A)
        expect_equal(read(buffer), np.full(_SIZE, 0x5A, np.uint8), "the buffer after clear")
        buffer.clear()
        expect(not read(buffer).any(), "clear() fills with zeros")


@clause
def rows_are_transferred_with_a_stride(device: Device) -> None:
    """``set_2d`` spreads packed rows, ``get_2d`` packs rows that are apart; bytes between them stay."""
    with _filled(device) as buffer:
        for offset, row, rows, stride in ((0, 16, 5, 16), (7, 13, 9, 40), (64, 1, 20, 3), (5, 200, 1, 999)):
            packed = pattern(row * rows, row)
            shadow = read(buffer)
            buffer.set_2d(offset, packed, row, rows, stride)
            for i in range(rows):
                shadow[offset + i * stride : offset + i * stride + row] = packed[i * row : (i + 1) * row]
            expect_equal(read(buffer), shadow, f"{rows} rows of {row} bytes, {stride} apart")
            out = np.empty(row * rows, np.uint8)
            buffer.get_2d(offset, out, row, rows, stride)
            expect_equal(out, packed, f"{rows} rows of {row} bytes fetched")


@clause
def rows_that_overlap_are_stored_in_order(device: Device) -> None:
    """``set_2d`` with a stride of less than a row leaves of each row what no later one covers; ``get_2d`` reads all."""
    with _filled(device) as buffer:
        for row, stride, rows in ((16, 8, 5), (33, 1, 7), (64, 0, 3)):
            packed, out = pattern(row * rows, row), np.empty(row * rows, np.uint8)
            shadow = read(buffer)
            buffer.set_2d(100, packed, row, rows, stride)
            for number in range(rows):
                shadow[100 + number * stride :][:row] = packed[number * row :][:row]
            expect_equal(read(buffer), shadow, f"{rows} rows of {row} bytes, {stride} apart")
            buffer.get_2d(100, out, row, rows, stride)
            want = np.concatenate([shadow[100 + number * stride :][:row] for number in range(rows)])
            expect_equal(out, want, f"{rows} rows of {row} bytes, {stride} apart, fetched")


@clause
def buffers_copy_from_each_other(device: Device) -> None:
    """``copy_from`` copies from host memory, from the same device and within a buffer; and the host from the device."""
    with _filled(device, 1) as first, _filled(device, 2) as second, HOST.alloc(_SIZE) as host:
        host.set(0, pattern(_SIZE, 3))
        shadow = pattern(_SIZE, 1)
        first.copy_from(second, 100, 33, 517)
        shadow[33:550] = pattern(_SIZE, 2)[100:617]
        expect_equal(read(first), shadow, "a copy from the same device")
        first.copy_from(host, 5, 2000, 71)
        shadow[2000:2071] = pattern(_SIZE, 3)[5:76]
        expect_equal(read(first), shadow, "a copy from the host")
        first.copy_from(first, 33, 3000, 500)
        shadow[3000:3500] = shadow[33:533].copy()
        expect_equal(read(first), shadow, "a copy within a buffer")
        for source, target in ((33, 50), (900, 850)):
            first.copy_from(first, source, target, 500)
            shadow[target : target + 500] = shadow[source : source + 500].copy()
            expect_equal(read(first), shadow, f"a copy of 500 bytes at {source} to {target} of the same buffer")
        host.copy_from(first, 33, 1, 600)
        expect_equal(read(host, 1, 600), shadow[33:633], "a copy to the host")
        expect_equal(read(second), pattern(_SIZE, 2), "the source of a copy")


@clause
def a_copy_waits_for_the_streams_of_another_device(device: Device) -> None:
    """``Buffer.copy_from`` reads what was given to the source's device before."""
    other = FakeDevice("another", execution="late")
    with other.buffer_type.alloc(_SIZE) as source, _filled(device) as target, other.init() as stream:
        stream.set_async(source, 0, pattern(_SIZE, 1))
        target.copy_from(source, 0, 0, _SIZE)
        expect_equal(read(target), pattern(_SIZE, 1), "copied from a device with pending work")


@clause
def accesses_out_of_bounds_raise(device: Device) -> None:
    """Whatever leaves a buffer raises BufferUseError, and changes nothing."""
    piece = np.zeros(16, np.uint8)
    with _filled(device) as buffer, HOST.alloc(64) as host:
        attempts: dict[str, Callable[[], object]] = {
            "set behind the end": lambda: buffer.set(_SIZE - 15, piece),
            "set before the beginning": lambda: buffer.set(-1, piece),
            "get behind the end": lambda: buffer.get(_SIZE - 15, piece),
            "memset behind the end": lambda: buffer.memset(_SIZE - 1, 2, 0),
            "memset of a negative size": lambda: buffer.memset(0, -1, 0),
            "copy to behind the end": lambda: buffer.copy_from(host, 0, _SIZE - 1, 2),
            "copy from behind the end": lambda: buffer.copy_from(host, 63, 0, 2),
            "set_2d behind the end": lambda: buffer.set_2d(_SIZE - 40, piece, 8, 2, 33),
            "get_2d behind the end": lambda: buffer.get_2d(_SIZE - 40, piece, 8, 2, 33),
            "set_2d backwards": lambda: buffer.set_2d(16, piece, 8, 2, -8),
            "get_2d backwards": lambda: buffer.get_2d(16, piece, 8, 2, -8),
            "set at an offset that wraps around": lambda: buffer.set(np.int64(2**63 - 8), piece),  # type: ignore[arg-type]
            "get at an offset that wraps around": lambda: buffer.get(np.int64(2**63 - 8), piece),  # type: ignore[arg-type]
        }
        for what, attempt in attempts.items():
            with expect_raises(BufferUseError, what):
                attempt()
            expect_equal(read(buffer), pattern(_SIZE), f"the buffer after {what}")


@clause
def bytes_are_fetched_into_writable_arrays_of_bytes(device: Device) -> None:
    """A target that is read-only or has gaps raises BufferUseError, one of other elements TypeMismatchError."""
    memory = pattern(64, 1)
    closed = np.frombuffer(memory.data.toreadonly(), np.uint8)
    before = memory.copy()
    with _filled(device) as buffer, device.init() as stream:
        for what, target, error in (
            ("a read-only array", closed, BufferUseError),
            ("every other element of an array", memory[::2], BufferUseError),
            ("an array backwards", memory[::-1], BufferUseError),
            ("an array of floats", memory.view(np.float32), TypeMismatchError),
        ):
            fetches: dict[str, Callable[[Any], object]] = {
                "get": lambda out: buffer.get(0, out),
                "get_2d": lambda out: buffer.get_2d(0, out, out.size // 2, 2, 128),
                "get_async": lambda out: stream.get_async(buffer, 0, out),
            }
            for how, fetch in fetches.items():
                with expect_raises(error, f"{how} into {what}"):
                    fetch(target)
                stream.synchronize()
                expect_equal(memory, before, f"the target after {how} into {what}")


@clause
def places_are_inside_of_their_buffer(device: Device) -> None:
    """A tensor that would leave its buffer, or lie where its memory does not let it, cannot be placed there."""
    tensor = Tensor(Spec(types.F32, (8, 4, 1, 1), 2))
    kind = device.buffer_type
    step, room = kind.alignment, step_between(kind, tensor)
    with kind.alloc(2 * room) as buffer:
        for offset in (-step, 2 * room, 2 * room - 4, 2 * room + step, 2**63, 2**64, -(2**64), 2):
            with expect_raises(BufferUseError, f"a place at byte {offset} of {2 * room}"):
                tensor.place(buffer, offset)
            expect(tensor.buffer is None, f"a tensor that could not be placed at byte {offset} has no place")
        tensor.place(buffer, room)
        tensor.place(None)
        buffer.free()
        with expect_raises(BufferUseError, "a place in a freed buffer"):
            tensor.place(buffer)


@clause
def a_freed_buffer_refuses_use(device: Device) -> None:
    """Freeing twice is harmless; using a freed buffer raises BufferUseError; other buffers live on."""
    other = _filled(device, 5)
    buffer = _filled(device)
    buffer.free()
    buffer.free()
    expect(buffer.freed, "a freed buffer says so")
    with expect_raises(BufferUseError, "get from a freed buffer"):
        buffer.get(0, np.empty(1, np.uint8))
    with expect_raises(BufferUseError, "set into a freed buffer"):
        buffer.set(0, np.empty(1, np.uint8))
    with expect_raises(BufferUseError, "copying from a freed buffer"):
        other.copy_from(buffer, 0, 0, 1)
    expect_equal(read(other), pattern(_SIZE, 5), "another buffer")
    other.free()


@clause
def an_exported_buffer_refuses_to_be_freed(device: Device) -> None:
    """While zero-copy views of a buffer exist, ``free`` raises BufferUseError and the buffer stays usable."""
    buffer = _filled(device)
    buffer.export()
    with expect_raises(BufferUseError, "freeing an exported buffer"):
        buffer.free()
    expect_equal(read(buffer), pattern(_SIZE), "the exported buffer")
    buffer.release()
    buffer.free()


@clause
def buffer_types_describe_their_memory(device: Device) -> None:
    """Types are the same objects each time; alignment is a power of two, at least 8, and kept; sizes suffice; names
    differ."""
    kind = device.buffer_type
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
            ne, rank = extents((type.block_size * 3, 5))
            tensor = Tensor(Spec(type, ne, rank))
            expect(each.alloc_size(tensor) >= tensor.nbytes, f"alloc_size of {tensor!r} in {each.name}")
        with each.alloc(1000) as buffer:
            expect(buffer.size >= 1000, f"{each.name} allocated {buffer.size} bytes for 1000")
            expect(buffer.type is each, f"a buffer of {each.name} says that it is of {buffer.type!r}")
            if each.is_host:
                expect(buffer.address is not None, f"{each.name} is host memory, so its buffers have addresses")
                expect((buffer.address or 0) % alignment == 0, f"{each.name} is not aligned to {alignment}")


@clause
def host_memory_is_what_the_host_sees(device: Device) -> None:
    """In host buffer types, ``bytes`` shows and changes what ``get`` and ``set`` do; elsewhere it raises."""
    with _filled(device) as buffer:
        if buffer.address is None:
            with expect_raises(BufferUseError, "a zero-copy view of memory that is not the host's"):
                buffer.bytes(0, 1)
            return
        seen = buffer.bytes(10, 100)
        expect_equal(seen, pattern(_SIZE)[10:110], "what the host sees")
        seen[3] ^= 0xFF
        expect(read(buffer, 13, 1)[0] == seen[3], "what the host writes is in the buffer")
        shadow = read(buffer)
        for source, target in ((0, 50), (900, 850)):
            buffer.set(target, buffer.bytes(source, 500))
            shadow[target : target + 500] = shadow[source : source + 500].copy()
            expect_equal(read(buffer), shadow, f"bytes {source} of a buffer, set at {target}")
            buffer.get(target, buffer.bytes(source, 500))
            shadow[source : source + 500] = shadow[target : target + 500].copy()
            expect_equal(read(buffer), shadow, f"bytes {target} of a buffer, fetched to {source}")


@clause
def too_much_memory_raises(device: Device) -> None:
    """More memory than there is raises OutOfMemoryError with ``requested``; the device goes on."""
    total = device.memory().total
    wanted = max(1 << 52, 4 * (total or 0))
    with _filled(device) as buffer:
        try:
            device.buffer_type.alloc(wanted).free()
        except OutOfMemoryError as error:
            expect(error.requested is not None, "OutOfMemoryError tells how much was requested")
            expect(error.free is None or error.free >= 0, f"OutOfMemoryError tells that {error.free} bytes are free")
        else:
            expect(False, f"an allocation of {wanted} bytes must raise OutOfMemoryError")
        expect_equal(read(buffer), pattern(_SIZE), "a buffer after another one could not be allocated")
        _filled(device, 1).free()


@clause
def impossible_sizes_raise(device: Device) -> None:
    """A negative size raises ParameterError, one beyond ``max_size`` OutOfMemoryError; the device goes on."""
    kind = device.buffer_type
    with expect_raises(ParameterError, "a buffer of -1 bytes"):
        kind.alloc(-1)
    if kind.max_size is not None:
        with expect_raises(OutOfMemoryError, "a buffer larger than max_size"):
            kind.alloc(kind.max_size + 1)
    _filled(device, 1).free()


@clause
def usage_is_only_a_mark(device: Device) -> None:
    """A buffer's usage can be set at any time and changes no bytes."""
    with _filled(device) as buffer:
        expect(buffer.usage is BufferUsage.ANY, f"the usage of a new buffer is ANY, got {buffer.usage}")
        for usage in BufferUsage:
            buffer.usage = usage
            expect(buffer.usage is usage, f"the usage {usage} is kept")
            expect_equal(read(buffer), pattern(_SIZE), f"the buffer with usage {usage.name}")


@clause
def tensors_keep_their_values(device: Device) -> None:
    """A tensor placed in a buffer gives back the bytes it was set to, of every type; neighbours stay."""
    kind = device.buffer_type
    for type in types.TYPES:
        ne, rank = extents((type.block_size * 2, 3))
        first, second = Tensor(Spec(type, ne, rank)), Tensor(Spec(type, ne, rank))
        step = step_between(kind, first)
        with alloc_for(kind, first, 2) as buffer:
            for tensor, offset in ((first, 0), (second, step)):
                tensor.place(buffer, offset)
                buffer.init_tensor(tensor)
            first.set_bytes(pattern(first.nbytes, 1))
            second.set_bytes(pattern(second.nbytes, 2))
            expect_equal(as_bytes(first.tobytes()), pattern(first.nbytes, 1), f"a tensor of {type.name}")
            expect_equal(as_bytes(second.tobytes()), pattern(first.nbytes, 2), f"its neighbour of {type.name}")
            first.place(None)
            second.place(None)


@clause
def views_of_tensors_are_set_in_place(device: Device) -> None:
    """Setting a strided view stores its elements and leaves what lies between them."""
    root = Tensor(Spec(types.F32, (8, 4, 1, 1), 2))
    with alloc_for(device.buffer_type, root) as buffer:
        root.place(buffer)
        values = np.arange(32, dtype=np.float32).reshape(4, 8)
        root.set(values)
        window = view(root, 3, 2, nb=(2 * root.nb[1],), offset=root.nb[1] + 8)
        expect_equal(window.numpy(), values[1::2, 2:5], "a view")
        window.set(-np.arange(6, dtype=np.float32).reshape(2, 3))
        values[1::2, 2:5] = -np.arange(6).reshape(2, 3)
        expect_equal(root.numpy(), values, "the root after setting a view")
        root.place(None)


@clause
def memory_of_the_host_is_used_in_place(device: Device) -> None:
    """``buffer_from_host`` uses the caller's memory itself, where ``capabilities`` say so; elsewhere it raises."""
    memory = pattern(8192)
    if not device.capabilities.buffer_from_host:
        with expect_raises(BufferUseError, "buffer_from_host of a device that does not offer it"):
            device.buffer_from_host(memory)
        raise NotOffered("capabilities.buffer_from_host is false")
    buffer = device.buffer_from_host(memory, usage=BufferUsage.WEIGHTS)
    expect(buffer.usage is BufferUsage.WEIGHTS, "the usage is kept")
    expect_equal(read(buffer, 0, 8192), memory, "the caller's memory")
    memory[100] ^= 0xFF
    expect(read(buffer, 100, 1)[0] == memory[100], "a change by the caller shows in the buffer")
    buffer.free()
    before = memory.copy()
    buffer = device.buffer_from_host(memory.data.toreadonly())
    expect(buffer.is_read_only, "a buffer over read-only memory says so")
    expect_equal(read(buffer, 0, 8192), before, "read-only memory")
    with HOST.alloc(8) as other:
        writes: dict[str, Callable[[], object]] = {
            "set": lambda: buffer.set(0, np.zeros(8, np.uint8)),
            "memset": lambda: buffer.memset(0, 8, 1),
            "clear": lambda: buffer.clear(1),
            "set_2d": lambda: buffer.set_2d(0, np.zeros(8, np.uint8), 4, 2, 8),
            "copy_from": lambda: buffer.copy_from(other, 0, 0, 8),
        }
        for what, write in writes.items():
            with expect_raises(BufferUseError, f"{what} into read-only memory"):
                write()
            expect_equal(memory, before, f"read-only memory after {what}")
    buffer.free()


@clause
def pinned_memory_is_host_memory(device: Device) -> None:
    """A ``host_buffer_type`` is there just where ``capabilities`` say so, and is host memory."""
    kind = device.host_buffer_type
    expect((kind is not None) == device.capabilities.host_buffer, "capabilities.host_buffer tells whether there is one")
    if kind is None:
        raise NotOffered("capabilities.host_buffer is false")
    expect(kind.is_host, f"{kind.name} is host memory")
    with kind.alloc(_SIZE) as pinned, _filled(device) as buffer:
        pinned.set(0, pattern(_SIZE, 9))
        buffer.copy_from(pinned, 0, 0, _SIZE)
        expect_equal(read(buffer), pattern(_SIZE, 9), "a copy out of pinned memory")

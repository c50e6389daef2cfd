"""The contract of streams and events: order, asynchrony, errors, threads."""

from __future__ import annotations

import threading

import numpy as np

from ggplug.backend import Backend, Buffer, Device
from ggplug.errors import BufferUseError
from ggplug.host import HOST
from ggplug.ops.base import Array
from ggplug_testing.contracts.clause import clause, expect, expect_equal, expect_raises, pattern, read
from ggplug_testing.contracts.sample import Sample, steps_of
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.running.placement import Placement

_SIZE = 4096


def _place(placement: Placement, sample: Sample) -> tuple[Buffer, int]:
    number, offset = placement.region(sample.y)
    return placement.buffers[number], offset


@clause
def asynchronous_transfers_arrive(device: Device) -> None:
    """What ``set_async`` stores and ``get_async`` fetches is there after ``synchronize``, in the order given."""
    with device.buffer_type.alloc(_SIZE) as buffer, device.init() as stream:
        first, second = pattern(_SIZE, 1), pattern(1000, 2)
        before, after = np.empty(_SIZE, np.uint8), np.empty(_SIZE, np.uint8)
        stream.set_async(buffer, 0, first)
        stream.get_async(buffer, 0, before)
        stream.set_async(buffer, 500, second)
        stream.get_async(buffer, 0, after)
        stream.synchronize()
        expect_equal(before, first, "fetched before the second store")
        shadow = first.copy()
        shadow[500:1500] = second
        expect_equal(after, shadow, "fetched after the second store")
        expect_equal(read(buffer), shadow, "read synchronously")


@clause
def a_stream_keeps_its_order(device: Device) -> None:
    """Store, compute and fetch given to one stream happen in that order without waiting in between."""
    sample = Sample(device, 3)
    with sample.place(device, 1) as placement, device.init() as stream:
        buffer, offset = _place(placement, sample)
        number, start = placement.region(sample.x)
        results = []
        for seed in (2, 3, 4):
            values = sample.inputs(1) | {sample.x: sample.inputs(seed)[sample.x]}
            stream.set_async(placement.buffers[number], start, values[sample.x])
            stream.compute(sample.graph, placement.allocation)
            out = np.empty(sample.y.nbytes, np.uint8)
            stream.get_async(buffer, offset, out)
            results.append((seed, values, out))
        stream.synchronize()
        for seed, values, out in results:
            alone = Sample(device, 3)
            with Placement(alone.graph, device.buffer_type) as again, device.init() as other:
                for tensor, array in zip((alone.x, alone.w), (values[sample.x], values.get(sample.w)), strict=True):
                    if array is not None:
                        again.write(tensor, array)
                other.compute(alone.graph, again.allocation)
                other.synchronize()
                expect_equal(out, again.read_bytes(alone.y), f"the result for input {seed}")


@clause
def synchronous_reads_wait(device: Device) -> None:
    """``Buffer.get`` waits for everything given before to any stream of the device."""
    sample = Sample(device, 20)
    with sample.place(device, 1) as placement, device.init() as stream:
        stream.compute(sample.graph, placement.allocation)
        sample.check(placement.read(sample.y), 1, "read without synchronizing")


@clause
def synchronous_writes_wait(device: Device) -> None:
    """``Buffer.set`` waits for pending work, so that it cannot change what that work reads."""
    sample = Sample(device, 20)
    with sample.place(device, 1) as placement, device.init() as stream:
        stream.compute(sample.graph, placement.allocation)
        placement.write(sample.x, np.full(sample.x.nbytes, 0xFF, np.uint8))
        stream.synchronize()
        sample.check(placement.read(sample.y), 1, "computed from an input that was overwritten afterwards")


@clause
def copies_follow_the_stream_that_writes_their_source(device: Device) -> None:
    """``copy_async`` with ``source_stream`` comes after what was given to that stream, and in the order of its own."""
    sample = Sample(device, 10)
    with (
        sample.place(device, 1) as placement,
        device.buffer_type.alloc(_SIZE + 64) as target,
        device.init() as first,
        device.init() as second,
    ):
        buffer, offset = _place(placement, sample)
        size = sample.y.nbytes
        first.compute(sample.graph, placement.allocation)
        second.copy_async(buffer, offset, target, 64, size, first)
        out = np.empty(size, np.uint8)
        second.get_async(target, 64, out)
        second.synchronize()
        sample.check(out.view(np.float32), 1, "copied from another stream")


@clause
def copies_follow_a_stream_of_another_kind(device: Device) -> None:
    """``copy_async`` takes any stream as ``source_stream``, also one that it can only wait for by synchronizing it."""
    with HOST.alloc(_SIZE) as source, device.buffer_type.alloc(_SIZE) as target, device.init() as stream:
        source.set(0, pattern(_SIZE, 1))

        class Foreign(Backend):
            def synchronize(self) -> None:
                source.set(0, pattern(_SIZE, 2))

        stream.copy_async(source, 0, target, 0, _SIZE, Foreign(ReferenceDevice()))
        stream.synchronize()
        expect_equal(read(target), pattern(_SIZE, 2), "copied from a stream of another kind")


@clause
def copies_come_from_the_host(device: Device) -> None:
    """``copy_async`` takes host memory as its source."""
    with HOST.alloc(_SIZE) as host, device.buffer_type.alloc(_SIZE) as target, device.init() as stream:
        host.set(0, pattern(_SIZE, 7))
        target.clear()
        stream.copy_async(host, 11, target, 100, 2000)
        stream.synchronize()
        shadow = np.zeros(_SIZE, np.uint8)
        shadow[100:2100] = pattern(_SIZE, 7)[11:2011]
        expect_equal(read(target), shadow, "a copy from the host")


@clause
def copies_that_overlap_keep_their_source(device: Device) -> None:
    """``copy_async`` within a buffer stores what the source had before, also where the two overlap."""
    with device.buffer_type.alloc(_WIDE) as buffer, device.init() as stream, device.init() as other:
        buffer.set(0, pattern(_WIDE, 1))
        shadow = pattern(_WIDE, 1)
        for number, (source, target, size) in enumerate(_OVERLAPS):
            for source_stream in (None, stream, other):
                stream.copy_async(buffer, source, buffer, target, size, source_stream)
                shadow[target : target + size] = shadow[source : source + size].copy()
            out = np.empty(_WIDE, np.uint8)
            stream.get_async(buffer, 0, out)
            stream.synchronize()
            expect_equal(out, shadow, f"copy {number}, of {size} bytes at {source} to {target} of the same buffer")


_WIDE = 48 << 10
"""Bytes of a buffer in which copies overlap by many of the pieces that a device may copy at a time."""

_OVERLAPS = (
    (0, 1, 4095),
    (1, 0, 4095),
    (7, 7, 1000),
    (0, 2048, 2048),
    (100, 164, 3000),
    (164, 100, 3000),
    (8, 2056, 2040),
    (5, 1024, 1021),
    (1024, 5, 1021),
    (0, 1000, 0),
    (0, 1000, _WIDE - 1000),
    (1000, 0, _WIDE - 1000),
)
"""Source, target and bytes of copies within a buffer: some overlap by all but a byte, others meet, or coincide."""


@clause
def events_order_streams(device: Device) -> None:
    """A stream that waits for an event goes on after what was given before the event was recorded."""
    sample = Sample(device, 10)
    with (
        sample.place(device, 1) as placement,
        device.buffer_type.alloc(_SIZE) as target,
        device.init() as first,
        device.init() as second,
    ):
        buffer, offset = _place(placement, sample)
        size = sample.y.nbytes
        event = device.event()
        first.compute(sample.graph, placement.allocation)
        event.record(first)
        event.wait(second)
        second.copy_async(buffer, offset, target, 0, size)
        second.synchronize()
        sample.check(read(target, 0, size).view(np.float32), 1, "copied after an event")
        # And back: the second stream's work before the first goes on.
        event.record(second)
        event.wait(first)
        first.set_async(buffer, offset, np.zeros(size, np.uint8))
        first.synchronize()
        sample.check(read(target, 0, size).view(np.float32), 1, "the copy after its source was overwritten")
        event.free()


@clause
def events_can_be_waited_for_by_the_host(device: Device) -> None:
    """``synchronize`` of an event returns when it was passed; one never recorded does not wait; all can be reused."""
    sample = Sample(device, 5)
    event = device.event()
    expect(event.device is device, "an event knows its device")
    event.synchronize()
    with sample.place(device, 1) as placement, device.init() as stream:
        event.wait(stream)
        buffer, offset = _place(placement, sample)
        for _ in range(2):
            out = np.empty(sample.y.nbytes, np.uint8)
            stream.compute(sample.graph, placement.allocation)
            stream.get_async(buffer, offset, out)
            event.record(stream)
            event.synchronize()
            sample.check(out.view(np.float32), 1, "fetched before the event")
    event.free()


@clause
def streams_do_not_disturb_each_other(device: Device) -> None:
    """Two streams compute different things on their own buffers, given in turns, and both are right."""
    for step in steps_of(device):
        samples = [Sample(device, 4, step), Sample(device, 7, step)]
        wanted = [sample.alone(device, seed) for seed, sample in enumerate(samples)]
        with (
            samples[0].place(device, 0) as first,
            samples[1].place(device, 1) as second,
            device.init() as stream,
            device.init() as other,
        ):
            for _ in range(3):
                stream.compute(samples[0].graph, first.allocation)
                other.compute(samples[1].graph, second.allocation)
            other.synchronize()
            samples[1].check(second.read(samples[1].y), 1, "the second stream", wanted[1])
            stream.synchronize()
            samples[0].check(first.read(samples[0].y), 0, "the first stream", wanted[0])


@clause
def a_write_comes_before_or_after_the_computations_of_other_threads(device: Device) -> None:
    """``Buffer.set`` in one thread while another one computes: each computation reads the old bytes or the new ones."""
    sample = Sample(device, 20)
    changed = sample.w if sample.w in sample.graph else sample.x
    inputs = [sample.inputs(1), sample.inputs(1) | {changed: sample.inputs(2)[changed]}]
    wanted = [evaluate(sample.graph, each)[sample.y] for each in inputs]
    results: list[Array] = []
    failures: list[BaseException] = []
    with sample.place(device, 1) as placement, device.init() as stream:
        stream.compute(sample.graph, placement.allocation)
        stream.synchronize()

        def work() -> None:
            try:
                for _ in range(10):
                    stream.compute(sample.graph, placement.allocation)
                    results.append(placement.read(sample.y))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            for values in reversed(inputs):
                placement.write(changed, values[changed])
        thread.join()
    if failures:
        raise failures[0]
    for got in results:
        found = [compare(got.astype(np.float64).reshape(want.shape), want, 1e-6) for want in wanted]
        expect(any(found), f"computed while an input was written: {found[0].reason}")


@clause
def asynchronous_transfers_check_bounds(device: Device) -> None:
    """A transfer that leaves its buffer raises BufferUseError, at once or when synchronized; the stream goes on."""
    with device.buffer_type.alloc(64) as buffer, device.init() as stream:
        with expect_raises(BufferUseError, "set_async behind the end"):
            stream.set_async(buffer, 60, np.zeros(8, np.uint8))
            stream.synchronize()
        with expect_raises(BufferUseError, "get_async behind the end"):
            stream.get_async(buffer, 60, np.zeros(8, np.uint8))
            stream.synchronize()
        stream.set_async(buffer, 0, pattern(64))
        stream.synchronize()
        expect_equal(read(buffer), pattern(64), "a transfer after one that failed")


@clause
def memory_of_others_is_refused_or_reached(device: Device) -> None:
    """``set_async`` into memory of the host, or of another device, arrives there or raises BufferUseError."""
    other = FakeDevice("another")
    with device.init() as stream:
        for kind in (HOST, other.buffer_type):
            with kind.alloc(64) as buffer:
                try:
                    stream.set_async(buffer, 0, pattern(64))
                    stream.synchronize()
                except BufferUseError:
                    continue
                expect_equal(read(buffer), pattern(64), f"stored in {kind.name}")


@clause
def freeing_waits(device: Device) -> None:
    """Streams and buffers can be freed while work is pending: that is finished first.  Freeing twice is allowed."""
    sample = Sample(device, 10)
    placement = sample.place(device, 1)
    stream = device.init()
    out = np.empty(sample.y.nbytes, np.uint8)
    buffer, offset = _place(placement, sample)
    stream.compute(sample.graph, placement.allocation)
    stream.get_async(buffer, offset, out)
    stream.free()
    sample.check(out.view(np.float32), 1, "fetched by a stream that was freed")
    expect(stream.freed, "a stream knows that it was freed")
    stream.free()
    other = device.init()
    other.compute(sample.graph, placement.allocation)
    placement.free()
    other.free()


@clause
def an_idle_stream_synchronizes(device: Device) -> None:
    """``synchronize`` without pending work returns, any number of times."""
    with device.init() as stream:
        expect(stream.device is device, "a stream knows its device")
        for _ in range(3):
            stream.synchronize()

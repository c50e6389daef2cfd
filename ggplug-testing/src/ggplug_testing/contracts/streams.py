"""The contract of streams and events: order, asynchrony, errors, threads."""

from __future__ import annotations

import threading

import numpy as np

from ggplug.backend import Backend, Buffer
from ggplug.errors import BufferUseError
from ggplug.ops.base import Array
from ggplug_testing.contracts.clause import expect, expect_bytes, expect_equal, expect_raises, pattern, read
from ggplug_testing.contracts.given import SIZE, Given, clause
from ggplug_testing.contracts.sample import Placed, Sample, steps_of
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.oracle import evaluate


@clause
def asynchronous_transfers_arrive(given: Given) -> None:
    """What ``set_async`` stores and ``get_async`` fetches is there after ``synchronize``, in the order of the calls."""
    buffer, stream = given.buffer(), given.stream()
    first, second = pattern(SIZE, 1), pattern(1000, 2)
    before, after = np.empty(SIZE, np.uint8), np.empty(SIZE, np.uint8)
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
def a_stream_keeps_its_order(given: Given) -> None:
    """Store (``set_async``), ``compute`` and fetch (``get_async``) submitted to one stream happen in that order without
    waiting in between."""
    placed, stream = given.sample(3), given.stream()
    x = placed.sample.x
    buffer, start, _ = placed.region(x)
    results = []
    for seed in (2, 3, 4):
        values = placed.sample.inputs(seed)[x]
        stream.set_async(buffer, start, values)
        placed.compute(stream)
        results.append((seed, values, placed.fetch(stream)))
    stream.synchronize()
    for seed, values, out in results:
        again, other = given.sample(3), given.stream()
        again.write(again.sample.x, values)
        again.compute(other)
        other.synchronize()
        expect_equal(out, again.read_bytes(again.sample.y), f"the result for input {seed}")


@clause
def synchronous_reads_wait(given: Given) -> None:
    """``Buffer.get`` waits for everything submitted before to any stream of the device."""
    placed, stream = given.sample(20), given.stream()
    placed.compute(stream)
    placed.check("read without synchronizing")


@clause
def synchronous_writes_wait(given: Given) -> None:
    """``Buffer.set`` waits for pending work, so that it cannot change what that work reads."""
    placed, stream = given.sample(20), given.stream()
    placed.compute(stream)
    placed.clear(placed.sample.x)
    stream.synchronize()
    placed.check("computed from an input that was overwritten afterwards")


@clause
def copies_follow_the_stream_that_writes_their_source(given: Given) -> None:
    """``copy_async`` with ``source_stream`` comes after earlier work of that stream, and in the order of its own."""
    placed, target, first, second = given.sample(10), given.buffer(size=SIZE + 64), given.stream(), given.stream()
    buffer, offset, size = placed.result
    out = np.empty(size, np.uint8)
    placed.compute(first)
    second.copy_async(buffer, offset, target, 64, size, first)
    second.get_async(target, 64, out)
    second.synchronize()
    placed.sample.check(out, 1, "copied from another stream")


@clause
def copies_follow_a_stream_of_another_kind(given: Given) -> None:
    """``copy_async`` takes any stream as ``source_stream``, also one that it can only wait for by synchronizing it."""
    source, target, stream = given.host(1), given.buffer(), given.stream()

    class Foreign(Backend):
        def synchronize(self) -> None:
            source.set(0, pattern(SIZE, 2))

    stream.copy_async(source, 0, target, 0, SIZE, Foreign(ReferenceDevice()))
    stream.synchronize()
    expect_bytes(target, 2, "copied from a stream of another kind")


@clause
def copies_come_from_the_host(given: Given) -> None:
    """``copy_async`` takes host memory as its source."""
    target, stream = given.buffer(), given.stream()
    target.clear()
    stream.copy_async(given.host(7), 11, target, 100, 2000)
    stream.synchronize()
    shadow = np.zeros(SIZE, np.uint8)
    shadow[100:2100] = pattern(SIZE, 7)[11:2011]
    expect_equal(read(target), shadow, "a copy from the host")


@clause
def copies_that_overlap_keep_their_source(given: Given) -> None:
    """``copy_async`` within a buffer stores what the source had before, also where the two overlap."""
    buffer, stream, other = given.buffer(1, _WIDE), given.stream(), given.stream()
    shadow, out = pattern(_WIDE, 1), np.empty(_WIDE, np.uint8)
    for number, (source, target, size) in enumerate(_OVERLAPS):
        for source_stream in (None, stream, other):
            stream.copy_async(buffer, source, buffer, target, size, source_stream)
            shadow[target : target + size] = shadow[source : source + size].copy()
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
def events_order_streams(given: Given) -> None:
    """A stream that waits for an event (``Event.wait``) goes on after work that was submitted before its recording."""
    placed, target, first, second = given.sample(10), given.buffer(), given.stream(), given.stream()
    buffer, offset, size = placed.result
    event = given.event()
    placed.compute(first)
    event.record(first)
    event.wait(second)
    second.copy_async(buffer, offset, target, 0, size)
    second.synchronize()
    placed.sample.check(read(target, 0, size), 1, "copied after an event")
    # And back: the second stream's work before the first goes on.
    event.record(second)
    event.wait(first)
    first.set_async(buffer, offset, np.zeros(size, np.uint8))
    first.synchronize()
    placed.sample.check(read(target, 0, size), 1, "the copy after its source was overwritten")


@clause
def events_can_be_waited_for_by_the_host(given: Given) -> None:
    """``synchronize`` of an event returns when it was passed; one never recorded does not wait; all can be reused."""
    event = given.event()
    expect(event.device is given.device, "an event knows its device")
    event.synchronize()
    placed, stream = given.sample(5), given.stream()
    event.wait(stream)
    for _ in range(2):
        placed.compute(stream)
        out = placed.fetch(stream)
        event.record(stream)
        event.synchronize()
        placed.sample.check(out, 1, "fetched before the event")


@clause
def streams_do_not_disturb_each_other(given: Given) -> None:
    """Two streams ``compute`` different things on their own buffers, submitted alternately, and both are right."""
    for step in steps_of(given.device):
        with Given(given.device) as own:
            places = [own.sample(length, step=step, seed=seed) for seed, length in enumerate((4, 7))]
            wanted = [placed.sample.computed_alone(given.device, placed.seed) for placed in places]
            streams = own.streams(2)
            for _ in range(3):
                for stream, placed in zip(streams, places, strict=True):
                    placed.compute(stream)
            for number in (1, 0):
                streams[number].synchronize()
                places[number].check(f"the {('first', 'second')[number]} stream", want=wanted[number])


@clause
def a_write_comes_before_or_after_the_computations_of_other_threads(given: Given) -> None:
    """``Buffer.set`` in one thread while another one computes: each computation reads the old bytes or the new ones."""
    placed, stream = given.sample(20), given.stream()
    sample = placed.sample
    changed = sample.w if sample.w in sample.graph else sample.x
    inputs = [sample.inputs(1), sample.inputs(1) | {changed: sample.inputs(2)[changed]}]
    wanted = [evaluate(sample.graph, each)[sample.y] for each in inputs]
    results: list[Array] = []
    failures: list[BaseException] = []
    placed.compute(stream)
    stream.synchronize()

    def work() -> None:
        try:
            for _ in range(10):
                placed.compute(stream)
                results.append(placed.read(sample.y))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        for values in reversed(inputs):
            placed.write(changed, values[changed])
    thread.join()
    if failures:
        raise failures[0]
    for got in results:
        found = [compare(got.astype(np.float64).reshape(want.shape), want, 1e-6) for want in wanted]
        expect(any(found), f"computed while an input was written: {found[0].reason}")


@clause
def asynchronous_transfers_check_bounds(given: Given) -> None:
    """A transfer (``set_async``, ``get_async``) that leaves its buffer raises BufferUseError, at once or when
    synchronized; the stream stays usable."""
    buffer, stream = given.buffer(size=64), given.stream()
    for what, transfer in (("set_async", stream.set_async), ("get_async", stream.get_async)):
        with expect_raises(BufferUseError, f"{what} behind the end"):
            transfer(buffer, 60, np.zeros(8, np.uint8))
            stream.synchronize()
    stream.set_async(buffer, 0, pattern(64))
    stream.synchronize()
    expect_bytes(buffer, 0, "a transfer after one that failed")


@clause
def memory_of_others_is_refused_or_reached(given: Given) -> None:
    """``set_async`` into memory of the host, or of another device, arrives there or raises BufferUseError."""
    stream = given.stream()
    for buffer in (given.host(size=64), Given(FakeDevice("another")).buffer(size=64)):
        _expect_refused_or_reached(stream, buffer)


def _expect_refused_or_reached(stream: Backend, buffer: Buffer) -> None:
    try:
        stream.set_async(buffer, 0, pattern(64))
        stream.synchronize()
    except BufferUseError:
        return
    expect_bytes(buffer, 0, f"stored in {buffer.type.name}")


@clause
def freeing_waits(given: Given) -> None:
    """Streams and buffers can be freed (``free``) while work is pending: that is finished first.  Freeing twice is
    allowed."""
    placed = Placed(Sample(given.device, 10), given.device, 1)
    stream = given.device.init()
    placed.compute(stream)
    out = placed.fetch(stream)
    stream.free()
    placed.sample.check(out, 1, "fetched by a stream that was freed")
    expect(stream.freed, "a stream knows that it was freed")
    stream.free()
    other = given.device.init()
    placed.compute(other)
    placed.free()
    other.free()


@clause
def an_idle_stream_synchronizes(given: Given) -> None:
    """``synchronize`` without pending work returns, any number of times."""
    stream = given.stream()
    expect(stream.device is given.device, "a stream knows its device")
    for _ in range(3):
        stream.synchronize()

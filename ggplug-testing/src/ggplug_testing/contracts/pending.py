"""The contract of pending work, proven by holding a stream where a fault would show, and by failing on purpose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import numpy as np

from ggplug.backend import Backend, Buffer, Device, Event
from ggplug.errors import ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug_testing.contracts.clause import NotOffered, clause, expect, expect_equal, expect_raises, pattern, read
from ggplug_testing.contracts.holding import failing_node, held, patience, require_pending
from ggplug_testing.contracts.sample import Sample, steps_of
from ggplug_testing.running.placement import Placement

_SIZE = 4096
OLD, NEW = 1, 2
"""Seeds of the bytes before and after."""
SURELY = 5.0
"""Seconds in which a call that has nothing to wait for returns, however busy the machine is."""


def _buffer(device: Device, seed: int) -> Buffer:
    buffer = device.buffer_type.alloc(_SIZE)
    buffer.set(0, pattern(_SIZE, seed))
    return buffer


def _moment(stream: Backend) -> float:
    """How long to wait for a call that has nothing to wait for: it transfers, and synchronizes."""
    with _buffer(stream.device, OLD) as one, _buffer(stream.device, NEW) as other:
        out = np.empty(_SIZE, np.uint8)

        def transfers() -> None:
            stream.copy_async(one, 0, other, 0, _SIZE)
            stream.get_async(other, 0, out)
            stream.synchronize()
            other.get(0, out)

        transfers()
        return patience(transfers)


def _behind(
    stream: Backend, give: Callable[[], object], call: Callable[[], object], what: str, early: str = ""
) -> None:
    """Calls ``call`` when a held stream was given what ``give`` gives it, and waits for its end behind that.

    ``early``: what is wrong if the call returns while the stream is held; empty where it may.
    """
    moment = _moment(stream)
    with held(stream, moment) as aside:
        give()
        waiting = aside(call)
        expect(not waiting.returned(moment) or not early, early)
    waiting.join(what)


@clause
def a_held_stream_holds_those_that_wait_for_its_event(device: Device) -> None:
    """A stream that waits for an event does nothing before the event's stream gets there."""
    _copy_behind_an_event(device, "an event", free=False)


def _copy_behind_an_event(device: Device, what: str, *, free: bool) -> None:
    """A stream waits for the event of a held one, which is freed at once or in the end, and copies what that writes."""
    with _buffer(device, OLD) as source, _buffer(device, 3) as target, device.init() as first, device.init() as second:
        event = device.event()

        def store() -> None:
            first.set_async(source, 0, pattern(_SIZE, NEW))
            event.record(first)

        def copy() -> None:
            event.wait(second)  # a device whose streams wait for each other through the host waits here
            if free:
                event.free()
            second.copy_async(source, 0, target, 0, _SIZE)
            second.synchronize()

        early = f"a stream passed {what} whose stream is held before it"
        _behind(first, store, copy, f"a stream that waited for {what}", early)
        expect_equal(read(target), pattern(_SIZE, NEW), f"copied behind {what}")
        if not free:
            event.free()


@clause
def a_held_stream_holds_copies_of_what_it_writes(device: Device) -> None:
    """``copy_async`` with ``source_stream`` reads its source when that stream has done what it was given before."""
    with _buffer(device, OLD) as source, _buffer(device, 3) as target, device.init() as first, device.init() as second:

        def copy() -> None:
            second.copy_async(source, 0, target, 0, _SIZE, first)
            second.synchronize()

        early = "a copy did not wait for the stream that writes its source"
        store = partial(first.set_async, source, 0, pattern(_SIZE, NEW))
        _behind(first, store, copy, "a copy from another stream", early)
        expect_equal(read(target), pattern(_SIZE, NEW), "copied from another stream")


@clause
def the_host_waits_for_the_event_of_a_held_stream(device: Device) -> None:
    """``Event.synchronize`` returns when what was given before the event is done."""
    with _buffer(device, OLD) as buffer, device.init() as stream:
        event = device.event()

        def store() -> None:
            stream.set_async(buffer, 0, pattern(_SIZE, NEW))
            event.record(stream)

        early = "an event was passed while its stream is held before it"
        _behind(stream, store, event.synchronize, "waiting for an event", early)
        event.free()
        expect_equal(read(buffer), pattern(_SIZE, NEW), "stored before the event")


@clause
def the_host_waits_for_a_held_stream(device: Device) -> None:
    """``Backend.synchronize`` returns when everything given is done."""
    out = np.empty(_SIZE, np.uint8)
    with _buffer(device, OLD) as buffer, device.init() as stream:
        fetch, early = partial(stream.get_async, buffer, 0, out), "a stream that is held was synchronized"
        _behind(stream, fetch, stream.synchronize, "synchronizing", early)
    expect_equal(out, pattern(_SIZE, OLD), "fetched before")


@clause
def a_read_waits_for_held_streams(device: Device) -> None:
    """``Buffer.get`` waits for everything given before to any stream of the device."""
    out = np.empty(_SIZE, np.uint8)
    with _buffer(device, OLD) as buffer, device.init(), device.init() as stream, device.init():
        store = partial(stream.set_async, buffer, 0, pattern(_SIZE, NEW))
        early = "a read did not wait for a stream that is held before it writes"
        _behind(stream, store, partial(buffer.get, 0, out), "a read", early)
        expect_equal(out, pattern(_SIZE, NEW), "read behind pending work")


@clause
def a_write_waits_for_held_streams(device: Device) -> None:
    """``Buffer.set`` waits for everything given before, so that it changes nothing that pending work reads."""
    out = np.empty(_SIZE, np.uint8)
    with _buffer(device, OLD) as buffer, device.init() as stream:
        fetch, write = partial(stream.get_async, buffer, 0, out), partial(buffer.set, 0, pattern(_SIZE, NEW))
        _behind(stream, fetch, write, "a write")
        stream.synchronize()
        expect_equal(out, pattern(_SIZE, OLD), "fetched before a write that was given later")
        expect_equal(read(buffer), pattern(_SIZE, NEW), "written behind pending work")


@clause
def a_copy_waits_for_held_streams(device: Device) -> None:
    """``Buffer.copy_from`` and ``clear`` wait for everything given before, as ``get`` and ``set`` do."""
    out = np.empty(_SIZE, np.uint8)
    with _buffer(device, OLD) as buffer, _buffer(device, 3) as other, device.init() as stream:
        for what, change, after in (
            ("a copy into it", partial(buffer.copy_from, other, 0, 0, _SIZE), pattern(_SIZE, 3)),
            ("clear", buffer.clear, np.zeros(_SIZE, np.uint8)),
        ):
            buffer.set(0, pattern(_SIZE, OLD))
            _behind(stream, partial(stream.get_async, buffer, 0, out), change, what)
            stream.synchronize()
            expect_equal(out, pattern(_SIZE, OLD), f"fetched from a buffer before {what}")
            expect_equal(read(buffer), after, f"{what} behind pending work")
        store = partial(stream.set_async, buffer, 0, pattern(_SIZE, NEW))
        _behind(stream, store, partial(other.copy_from, buffer, 0, 0, _SIZE), "a copy out of it")
        expect_equal(read(other), pattern(_SIZE, NEW), "copied out of a buffer behind pending work")


@clause
def an_event_holds_every_stream_until_what_it_was_recorded_for_last(device: Device) -> None:
    """An event that is recorded again marks the later work, for each of the streams that wait for it."""
    require_pending(device)
    targets = [device.buffer_type.alloc(_SIZE) for _ in range(2)]
    streams = [device.init() for _ in targets]
    with _buffer(device, OLD) as source, device.init() as first:
        event = device.event()
        first.set_async(source, 0, pattern(_SIZE, OLD))
        event.record(first)
        first.synchronize()

        def store() -> None:
            first.set_async(source, 0, pattern(_SIZE, NEW))
            event.record(first)

        def copy() -> None:
            for stream in streams:
                event.wait(stream)
            for stream, target in zip(streams, targets, strict=True):
                stream.copy_async(source, 0, target, 0, _SIZE)
                stream.synchronize()

        early = "a stream passed an event that was recorded again, before its mark"
        _behind(first, store, copy, "streams that waited for an event", early)
        event.free()
    for stream, target in zip(streams, targets, strict=True):
        expect_equal(read(target), pattern(_SIZE, NEW), "copied behind an event that was recorded again")
        stream.free()
        target.free()


@clause
def a_second_stream_waits_for_an_event_too(device: Device) -> None:
    """That a stream waits for an event changes nothing for the next one."""
    require_pending(device)
    with _buffer(device, OLD) as source, _buffer(device, 3) as target:
        with device.init() as first, device.init() as second, device.init() as third:
            moment = _moment(third)
            event = device.event()
            with held(first, moment) as aside:
                first.set_async(source, 0, pattern(_SIZE, NEW))
                event.record(first)
                before = aside(lambda: event.wait(second))
                before.returned(moment)

                def copy() -> None:
                    event.wait(third)
                    third.copy_async(source, 0, target, 0, _SIZE)
                    third.synchronize()

                waiting = aside(copy)
                expect(not waiting.returned(moment), "the second stream that waits for an event passed it")
            before.join("a stream that waited for an event")
            waiting.join("another stream that waited for an event")
            event.free()
        expect_equal(read(target), pattern(_SIZE, NEW), "copied behind an event for which another stream waits, too")


@clause
def streams_wait_for_events_without_the_host(device: Device) -> None:
    """Where ``capabilities.events`` say so, ``Event.wait`` returns while the stream that it waits for is held."""
    require_pending(device)
    with device.init() as first, device.init() as second:
        event = device.event()
        with held(first) as aside:
            if not device.capabilities.events:
                raise NotOffered("capabilities.events is false")
            event.record(first)
            waiting = aside(lambda: event.wait(second))
            returned = waiting.returned(SURELY)
        waiting.join("a stream that waited for an event")
        second.synchronize()
        event.free()
    expect(returned, "a stream was made to wait for another one, and the host waited")


@clause
def a_buffer_that_a_held_stream_uses_is_freed_afterwards(device: Device) -> None:
    """``Buffer.free`` waits for the pending work that uses the buffer."""
    out = np.empty(_SIZE, np.uint8)
    buffer = _buffer(device, OLD)
    with device.init() as stream:
        moment = _moment(stream)
        with held(stream, moment) as aside:
            stream.get_async(buffer, 0, out)
            freeing = aside(buffer.free)
            freeing.returned(moment)
            # What a freed buffer leaves may be given to the next one.
            again = None if not buffer.freed else aside(lambda: _buffer(device, NEW).free())
            if again is not None:
                again.returned(moment)
        freeing.join("freeing a buffer")
        if again is not None:
            again.join("another buffer")
        stream.synchronize()
    expect_equal(out, pattern(_SIZE, OLD), "fetched from a buffer that was freed afterwards")


@clause
def a_held_stream_is_freed_afterwards(device: Device) -> None:
    """``Backend.free`` waits until everything that the stream was given is done; it cancels none of it."""
    out = np.empty(_SIZE, np.uint8)
    with _buffer(device, OLD) as buffer:
        stream = device.init()

        def give() -> None:
            stream.set_async(buffer, 0, pattern(_SIZE, NEW))
            stream.get_async(buffer, 0, out)

        early = "a stream that is held before its work was freed"
        _behind(stream, give, stream.free, "freeing a stream", early)
        expect_equal(out, pattern(_SIZE, NEW), "fetched by a stream that was freed with work pending")
        expect_equal(read(buffer), pattern(_SIZE, NEW), "stored by a stream that was freed with work pending")


@clause
def work_of_a_held_stream_outlives_its_plan(device: Device) -> None:
    """``Plan.free`` cancels no computation that was given: it waits for it, or leaves it what it needs."""
    sample = Sample(device, 2)
    with sample.place(device, 1) as placement, device.init() as stream:
        plan = stream.plan(sample.graph)
        plan.rebind(sample.graph, placement.allocation)
        _behind(stream, plan.compute, plan.free, "freeing a plan")
        stream.synchronize()
        sample.check(placement.read(sample.y), 1, "computed by a plan that was freed with the computation pending")


@clause
def an_event_that_a_stream_waits_for_can_be_freed(device: Device) -> None:
    """``Event.free`` changes nothing for streams that were told to wait for the event."""
    require_pending(device)
    _copy_behind_an_event(device, "an event that was freed", free=True)


@clause
def a_held_stream_keeps_its_order(device: Device) -> None:
    """What is given to a stream waits for its turn, however it is done."""
    with _buffer(device, OLD) as buffer, _buffer(device, 3) as target, device.init() as stream:
        outs = [np.zeros(_SIZE, np.uint8) for _ in range(3)]
        with held(stream):
            stream.get_async(buffer, 0, outs[0])
            stream.set_async(buffer, 0, pattern(_SIZE, NEW))
            stream.get_async(buffer, 0, outs[1])
            stream.copy_async(buffer, 0, target, 0, _SIZE)
            stream.set_async(buffer, 0, pattern(_SIZE, 4))
            stream.get_async(target, 0, outs[2])
        stream.synchronize()
        for out, seed, what in zip(outs, (OLD, NEW, NEW), ("before", "after", "from a copy"), strict=True):
            expect_equal(out, pattern(_SIZE, seed), f"fetched {what} a store was given")


@clause
def work_of_a_held_stream_keeps_its_places(device: Device) -> None:
    """A computation that was given goes on with its places and values when its plan is bound elsewhere meanwhile."""
    sample = Sample(device, 2)
    with sample.place(device, 1) as first, sample.place(device, 2, 512) as second, device.init() as stream:
        plan = stream.plan(sample.graph)
        plan.rebind(sample.graph, first.allocation)
        plan.compute()
        stream.synchronize()
        first.write(sample.y, np.full(sample.y.nbytes, 0xFF, np.uint8))

        def twice() -> None:
            for placement in (first, second):
                plan.rebind(sample.graph, placement.allocation)
                plan.compute()

        # A plan that cannot be bound elsewhere meanwhile waits.
        _behind(stream, lambda: None, twice, "giving work to a held stream")
        stream.synchronize()
        sample.check(first.read(sample.y), 1, "given to a held stream before the plan was bound elsewhere")
        sample.check(second.read(sample.y), 2, "given to a held stream afterwards")
        plan.free()


@clause
def a_trace_tells_of_its_own_computation_only(device: Device) -> None:
    """``compute_traced`` tells when its own nodes ran, not those of a computation of the same plan that was pending."""
    require_pending(device)
    sample = Sample(device, 3)
    with sample.place(device, 1) as placement, device.init() as stream:
        plan = stream.plan(sample.graph)
        plan.rebind(sample.graph, placement.allocation)
        alone = [time.node for time in plan.compute_traced()]
        found: list[int] = []

        def trace() -> None:
            found.extend(time.node for time in plan.compute_traced())

        _behind(stream, plan.compute, trace, "a traced computation")
        sample.check(placement.read(sample.y), 1, "traced behind a computation that was pending")
        expect(found == alone, f"traced behind a computation that was pending: nodes {found}, and alone {alone}")
        plan.free()


@clause
def held_streams_share_nothing(device: Device) -> None:
    """What a stream was given is not changed by what another one is given meanwhile: they share no staging memory."""
    require_pending(device)
    with ExitStack() as ending:
        streams = [ending.enter_context(device.init()) for _ in range(2)]
        given = []
        for step in steps_of(device):
            for seed, stream in enumerate(streams):
                sample = Sample(device, 2 + seed, step)
                want = sample.alone(device, seed)
                given.append((seed, stream, sample, ending.enter_context(sample.place(device, seed)), want))
        buffers = [ending.enter_context(_buffer(device, OLD)) for _ in streams]
        outs = [np.empty(_SIZE, np.uint8) for _ in streams]

        def give() -> None:
            for _, stream, sample, placement, _ in given:
                stream.compute(sample.graph, placement.allocation)
            for stream, buffer, out, seed in zip(streams, buffers, outs, (5, 6), strict=True):
                stream.set_async(buffer, 0, pattern(_SIZE, seed))
                stream.get_async(buffer, 0, out)

        # A device may have one queue for all streams.
        _behind(streams[0], give, streams[1].synchronize, "synchronizing")
        streams[0].synchronize()
        for seed, _, sample, placement, want in given:
            what = "computed meanwhile by another one" if seed else "computed by a stream that was held"
            sample.check(placement.read(sample.y), seed, what, want)
        expect_equal(outs[0], pattern(_SIZE, 5), "stored by a stream that was held")
        expect_equal(outs[1], pattern(_SIZE, 6), "stored meanwhile by another one")


def _fail(device: Device, stream: Backend) -> Placement:
    node, values = failing_node(device)
    graph = Graph(node)
    placement = Placement(graph, device.buffer_type)
    for leaf, array in values.items():
        placement.write(leaf, array)
    stream.compute(graph, placement.allocation)
    return placement


def _raised(waited: Backend | Event) -> GGPlugError | None:
    try:
        waited.synchronize()
    except GGPlugError as error:
        return error
    return None


@clause
def a_failure_is_raised_by_the_next_synchronize_and_only_once(device: Device) -> None:
    """A computation that fails on the device raises a ComputeError when its stream is synchronized, once."""
    require_pending(device)
    with device.init() as stream:
        for turn in ("first", "second"):
            with _fail(device, stream):
                error = _raised(stream)
                expect(isinstance(error, ComputeError), f"the {turn} computation that failed raised {error!r}")
                again = _raised(stream)
                expect(again is None, f"what went wrong in the {turn} computation was raised twice: {again!r}")
        sample = Sample(device, 2)
        with sample.place(device, 1) as placement:
            sample.check(sample.compute(stream, placement), 1, "computed by a stream after a failure")


@clause
def a_failure_waits_for_synchronize_and_harms_nothing_else(device: Device) -> None:
    """After a failed computation the stream goes on; neither it nor an event raises before ``synchronize`` does.

    Where ``capabilities.events`` is false an event may wait by synchronizing the stream, and raise what that raises.
    """
    require_pending(device)
    with _buffer(device, OLD) as buffer, device.init() as stream, _fail(device, stream):
        expect_equal(read(buffer), pattern(_SIZE, OLD), "read behind a computation that failed")
        event = device.event()
        stream.set_async(buffer, 0, pattern(_SIZE, NEW))
        event.record(stream)
        error = _raised(event)
        expect(error is None or not device.capabilities.events, f"an event raised {error!r}")
        expect_equal(read(buffer), pattern(_SIZE, NEW), "stored by a stream after a failure")
        later = _raised(stream)
        expect(error is None or later is None, f"what an event raised was raised by its stream, too: {later!r}")
        error = error or later
        expect(isinstance(error, ComputeError), f"the stream in which a computation failed raised {error!r}")
        event.free()


@clause
def a_failure_stays_with_its_stream(device: Device) -> None:
    """What went wrong in one stream is not raised by another one, nor by reading a buffer."""
    require_pending(device)
    sample = Sample(device, 2)
    with (
        sample.place(device, 1) as placement,
        device.init() as stream,
        device.init() as other,
        _fail(device, stream),
    ):
        other.compute(sample.graph, placement.allocation)
        elsewhere = _raised(other)
        expect(elsewhere is None, f"another stream raised {elsewhere!r}")
        sample.check(placement.read(sample.y), 1, "computed by another stream")
        error = _raised(stream)
        expect(isinstance(error, ComputeError), f"the stream in which a computation failed raised {error!r}")


@clause
def a_failure_does_not_keep_its_stream_from_being_freed(device: Device) -> None:
    """``Backend.free`` raises what went wrong in pending work, and frees the stream; freeing it again does nothing."""
    require_pending(device)
    stream = device.init()
    with _fail(device, stream):
        with expect_raises(ComputeError, "freeing a stream in which a computation failed"):
            stream.free()
        expect(stream.freed, "a stream in which a computation failed is not freed when free has raised that")
        stream.free()

"""The contract of pending work, proven by holding a stream where a fault would show, and by failing on purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ggplug.backend import Backend, Buffer, Event
from ggplug.discrete import DiscreteBuffer
from ggplug.errors import ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug_testing.contracts.buffers import written_while_copied
from ggplug_testing.contracts.clause import NotOffered, NotProven, expect, expect_bytes, expect_raises, pattern
from ggplug_testing.contracts.given import NEW, OLD, OTHER, SIZE, Given, clause
from ggplug_testing.contracts.holding import SURELY, failing_node, held, require_pending
from ggplug_testing.contracts.sample import Sample, steps_of
from ggplug_testing.fake import FakeDevice
from ggplug_testing.running.placement import Bytes


def _storing(stream: Backend, buffer: Buffer) -> Callable[[], None]:
    """Ways to submit a store of the new bytes."""
    return lambda: stream.set_async(buffer, 0, pattern(SIZE, NEW))


def _fetching(stream: Backend, buffer: Buffer) -> tuple[Callable[[], None], Bytes]:
    """Ways to submit a fetch, each with the array that it fills."""
    out = np.empty(SIZE, np.uint8)
    return lambda: stream.get_async(buffer, 0, out), out


def _copying(stream: Backend, source: Buffer, target: Buffer, source_stream: Backend | None = None) -> None:
    """Has a stream copy, and waits for it."""
    stream.copy_async(source, 0, target, 0, SIZE, source_stream)
    stream.synchronize()


@clause
def a_held_stream_holds_those_that_wait_for_its_event(given: Given) -> None:
    """A stream that waits for an event (``Event.wait``) does nothing before the event's stream gets there."""
    _copy_behind_an_event(given, "an event", free=False)


def _copy_behind_an_event(given: Given, what: str, *, free: bool) -> None:
    """A stream waits for the event of a held one, which is freed at once or in the end, and copies what that writes."""
    source, target = given.buffer(OLD), given.buffer(OTHER)
    first, second, event = given.stream(), given.stream(), given.event()

    def store() -> None:
        _storing(first, source)()
        event.record(first)

    def copy() -> None:
        event.wait(second)  # a device whose streams wait for each other through the host waits here
        if free:
            event.free()
        _copying(second, source, target)

    early = f"a stream passed {what} whose stream is held before it"
    given.behind(first, store, copy, f"a stream that waited for {what}", early)
    expect_bytes(target, NEW, f"copied behind {what}")


@clause
def a_held_stream_holds_copies_of_what_it_writes(given: Given) -> None:
    """``copy_async`` with ``source_stream`` reads its source when that stream has done its earlier work."""
    source, target, first, second = given.buffer(OLD), given.buffer(OTHER), given.stream(), given.stream()
    copy, early = partial(_copying, second, source, target, first), "a copy did not wait for the stream of its source"
    given.behind(first, _storing(first, source), copy, "a copy from another stream", early)
    expect_bytes(target, NEW, "copied from another stream")


@clause
def the_host_waits_for_the_event_of_a_held_stream(given: Given) -> None:
    """``Event.synchronize`` returns when what was submitted before the event is done."""
    buffer, stream, event = given.buffer(OLD), given.stream(), given.event()

    def store() -> None:
        _storing(stream, buffer)()
        event.record(stream)

    early = "an event was passed while its stream is held before it"
    given.behind(stream, store, event.synchronize, "waiting for an event", early)
    expect_bytes(buffer, NEW, "stored before the event")


@clause
def an_event_is_reached_after_the_work_submitted_last_before_it(given: Given) -> None:
    """``Event.record`` marks the end of the work that was submitted last, not of the work before that."""
    stream, event = given.stream(), given.event()
    early = "an event was passed while the work submitted last before it was held"
    given.behind(stream, lambda: event.record(stream), event.synchronize, "waiting for an event", early)


@clause
def the_host_waits_for_a_held_stream(given: Given) -> None:
    """``Backend.synchronize`` returns when everything submitted is done."""
    buffer, stream = given.buffer(OLD), given.stream()
    fetch, out = _fetching(stream, buffer)
    given.behind(stream, fetch, stream.synchronize, "synchronizing", "a stream that is held was synchronized")
    expect_bytes(out, OLD, "fetched before")


@clause
def a_read_waits_for_held_streams(given: Given) -> None:
    """``Buffer.get`` waits for everything submitted before to any stream of the device."""
    buffer, (_, stream, _), out = given.buffer(OLD), given.streams(3), np.empty(SIZE, np.uint8)
    early = "a read did not wait for a stream that is held before it writes"
    given.behind(stream, _storing(stream, buffer), partial(buffer.get, 0, out), "a read", early)
    expect_bytes(out, NEW, "read behind pending work")


@clause
def a_write_waits_for_held_streams(given: Given) -> None:
    """``Buffer.set`` waits for everything submitted before, so that it changes nothing that pending work reads."""
    buffer, stream = given.buffer(OLD), given.stream()
    fetch, out = _fetching(stream, buffer)
    given.behind(stream, fetch, partial(buffer.set, 0, pattern(SIZE, NEW)), "a write")
    stream.synchronize()
    expect_bytes(out, OLD, "fetched before a write that was submitted later")
    expect_bytes(buffer, NEW, "written behind pending work")


@clause
def a_copy_waits_for_held_streams(given: Given) -> None:
    """``Buffer.copy_from`` and ``clear`` wait for everything submitted before, as ``get`` and ``set`` do."""
    buffer, other, stream = given.buffer(OLD), given.buffer(OTHER), given.stream()
    fetch, out = _fetching(stream, buffer)
    for what, change, after in (
        ("a copy into it", partial(buffer.copy_from, other, 0, 0, SIZE), OTHER),
        ("clear", buffer.clear, None),
    ):
        buffer.set(0, pattern(SIZE, OLD))
        given.behind(stream, fetch, change, what)
        stream.synchronize()
        expect_bytes(out, OLD, f"fetched from a buffer before {what}")
        expect_bytes(buffer, after, f"{what} behind pending work")
    given.behind(stream, _storing(stream, buffer), partial(other.copy_from, buffer, 0, 0, SIZE), "a copy out of it")
    expect_bytes(other, NEW, "copied out of a buffer behind pending work")


@clause
def a_write_to_another_device_changes_nothing_that_a_stream_copies(given: Given) -> None:
    """``copy_async`` reads another device's memory as it is now, or has a later ``Buffer.set`` of it wait."""
    require_pending(given.device)
    other = given.use(Given(FakeDevice("another", execution="late")))
    written_while_copied(other.buffer(OLD), given.buffer(OTHER), given)


@clause
def an_event_holds_every_stream_until_what_it_was_recorded_for_last(given: Given) -> None:
    """An event that is recorded again (``Event.record``) marks the later work, for each stream that waits for it
    (``Event.wait``)."""
    require_pending(given.device)
    streams, targets = given.streams(2), [given.buffer(), given.buffer()]
    source, first, event = given.buffer(OLD), given.stream(), given.event()
    first.set_async(source, 0, pattern(SIZE, OLD))
    event.record(first)
    first.synchronize()

    def store() -> None:
        _storing(first, source)()
        event.record(first)

    def copy() -> None:
        for stream in streams:
            event.wait(stream)
        for stream, target in zip(streams, targets, strict=True):
            _copying(stream, source, target)

    early = "a stream passed an event that was recorded again, before its mark"
    given.behind(first, store, copy, "streams that waited for an event", early)
    for target in targets:
        expect_bytes(target, NEW, "copied behind an event that was recorded again")


@clause
def a_second_stream_waits_for_an_event_too(given: Given) -> None:
    """That a stream waits for an event (``Event.wait``) changes nothing for the next one."""
    require_pending(given.device)
    source, target, (first, second, third) = given.buffer(OLD), given.buffer(OTHER), given.streams(3)
    moment, event = given.moment(third), given.event()
    with held(first, moment) as aside:
        _storing(first, source)()
        event.record(first)
        before = aside(lambda: event.wait(second))
        before.returned(moment)

        def copy() -> None:
            event.wait(third)
            _copying(third, source, target)

        waiting = aside(copy)
        expect(not waiting.returned(moment), "the second stream that waits for an event passed it")
    before.join("a stream that waited for an event")
    waiting.join("another stream that waited for an event")
    expect_bytes(target, NEW, "copied behind an event for which another stream waits, too")


@clause
def streams_wait_for_events_without_the_host(given: Given) -> None:
    """Where ``capabilities.events`` say so, ``Event.wait`` returns while the stream that it waits for is held."""
    require_pending(given.device)
    first, second, event = given.stream(), given.stream(), given.event()
    with held(first) as aside:
        if not given.device.capabilities.events:
            raise NotOffered("capabilities.events is false")
        event.record(first)
        waiting = aside(lambda: event.wait(second))
        returned = waiting.returned(SURELY)
    waiting.join("a stream that waited for an event")
    second.synchronize()
    expect(returned, "a stream was made to wait for another one, and the host waited")


@clause
def a_buffer_that_a_held_stream_uses_is_freed_afterwards(given: Given) -> None:
    """``Buffer.free`` waits for the pending work that uses the buffer."""
    buffer, stream = given.buffer(OLD), given.stream()
    fetch, out = _fetching(stream, buffer)
    moment = given.moment(stream)
    with held(stream, moment) as aside:
        fetch()
        freeing = [aside(buffer.free)]
        freeing[0].returned(moment)
        if buffer.freed:  # What it leaves may be given to the next one.
            freeing.append(aside(lambda: given.buffer(NEW).free()))
            freeing[1].returned(moment)
    for each in freeing:
        each.join("freeing a buffer")
    stream.synchronize()
    expect_bytes(out, OLD, "fetched from a buffer that was freed afterwards")


@clause
def a_held_stream_is_freed_afterwards(given: Given) -> None:
    """``Backend.free`` waits until everything that was submitted to the stream is done; it cancels none of it."""
    buffer, stream = given.buffer(OLD), given.stream()
    fetch, out = _fetching(stream, buffer)

    def give() -> None:
        _storing(stream, buffer)()
        fetch()

    given.behind(stream, give, stream.free, "freeing a stream", "a stream that is held before its work was freed")
    expect_bytes(out, NEW, "fetched by a stream that was freed with work pending")
    expect_bytes(buffer, NEW, "stored by a stream that was freed with work pending")


@clause
def work_of_a_held_stream_outlives_its_plan(given: Given) -> None:
    """``Plan.free`` cancels no computation that was submitted: it waits for it, or leaves it what it needs."""
    placed, stream = given.sample(2), given.stream()
    plan = given.bound(stream, placed)
    given.behind(stream, plan.compute, plan.free, "freeing a plan")
    stream.synchronize()
    placed.check("computed by a plan that was freed with the computation pending")


@clause
def an_event_that_a_stream_waits_for_can_be_freed(given: Given) -> None:
    """``Event.free`` changes nothing for streams that already wait for the event."""
    require_pending(given.device)
    _copy_behind_an_event(given, "an event that was freed", free=True)


@clause
def a_held_stream_keeps_its_order(given: Given) -> None:
    """What ``set_async``, ``get_async`` and ``copy_async`` submit to a stream is done in order, however it is done."""
    buffer, target, stream = given.buffer(OLD), given.buffer(OTHER), given.stream()
    outs = [np.zeros(SIZE, np.uint8) for _ in range(3)]
    with held(stream):
        stream.get_async(buffer, 0, outs[0])
        stream.set_async(buffer, 0, pattern(SIZE, NEW))
        stream.get_async(buffer, 0, outs[1])
        stream.copy_async(buffer, 0, target, 0, SIZE)
        stream.set_async(buffer, 0, pattern(SIZE, 4))
        stream.get_async(target, 0, outs[2])
    stream.synchronize()
    for out, seed, what in zip(outs, (OLD, NEW, NEW), ("before", "after", "from a copy"), strict=True):
        expect_bytes(out, seed, f"fetched {what} a store was submitted")


@clause
def work_of_a_held_stream_keeps_its_places(given: Given) -> None:
    """A computation that was submitted keeps its places and values when ``rebind`` binds its plan to other memory."""
    first, second, stream = given.sample(2), given.sample(2, seed=2, shift=512), given.stream()
    plan = given.bound(stream, first)
    plan.compute()
    stream.synchronize()
    first.clear_result()

    def twice() -> None:
        for placed in (first, second):
            plan.rebind(placed.graph, placed.allocation)
            plan.compute()

    # A plan that cannot be bound to other memory meanwhile waits.
    given.behind(stream, lambda: None, twice, "submitting work to a held stream")
    stream.synchronize()
    first.check("submitted to a held stream before the plan was bound to other memory")
    second.check("submitted to a held stream afterwards")


@clause
def a_trace_reports_its_own_computation_only(given: Given) -> None:
    """``compute_traced`` reports when its own nodes ran, not those of a pending computation of the same plan."""
    require_pending(given.device)
    placed, stream = given.sample(3), given.stream()
    plan = given.bound(stream, placed)
    single = [time.node for time in plan.compute_traced()]
    found: list[int] = []

    def trace() -> None:
        found.extend(time.node for time in plan.compute_traced())

    given.behind(stream, plan.compute, trace, "a traced computation")
    placed.check("traced behind a computation that was pending")
    expect(found == single, f"traced behind a computation that was pending: nodes {found}, and by itself {single}")


@clause
def held_streams_share_nothing(given: Given) -> None:
    """What was submitted to a stream (``set_async``, ``compute``, ``get_async``) is not changed by what is submitted to
    another one meanwhile: they share no staging memory."""
    device = given.device
    require_pending(device)
    streams, places = given.streams(2), []
    for step in steps_of(device):
        for seed, stream in enumerate(streams):
            want = Sample(device, 2 + seed, step).computed_alone(device, seed)
            places.append((stream, given.sample(2 + seed, step=step, seed=seed), want))
    buffers = [given.buffer(OLD) for _ in streams]
    outs = [np.empty(SIZE, np.uint8) for _ in streams]

    def give() -> None:
        for stream, placed, _ in places:
            placed.compute(stream)
        for stream, buffer, out, seed in zip(streams, buffers, outs, (5, 6), strict=True):
            stream.set_async(buffer, 0, pattern(SIZE, seed))
            stream.get_async(buffer, 0, out)

    # A device may have one queue for all streams.
    given.behind(streams[0], give, streams[1].synchronize, "synchronizing")
    streams[0].synchronize()
    for _, placed, want in places:
        held_or_not = "computed meanwhile by another one" if placed.seed else "computed by a stream that was held"
        placed.check(held_or_not, want=want)
    expect_bytes(outs[0], 5, "stored by a stream that was held")
    expect_bytes(outs[1], 6, "stored meanwhile by another one")


def _failed(given: Given, stream: Backend) -> None:
    """Gives a stream a computation that fails."""
    node, values = failing_node(given.device)
    graph = Graph(node)
    placement = given.placement(graph)
    placement.write_all(values)
    stream.compute(graph, placement.allocation)


def _raised(waited: Backend | Event) -> GGPlugError | None:
    try:
        waited.synchronize()
    except GGPlugError as error:
        return error
    return None


@clause
def a_failure_is_raised_by_the_next_synchronize_and_only_once(given: Given) -> None:
    """A computation that fails on the device raises a ComputeError at the next ``synchronize`` of its stream, once."""
    require_pending(given.device)
    stream = given.stream()
    for nth in ("first", "second"):
        _failed(given, stream)
        error = _raised(stream)
        expect(isinstance(error, ComputeError), f"the {nth} computation that failed raised {error!r}")
        again = _raised(stream)
        expect(again is None, f"what went wrong in the {nth} computation was raised twice: {again!r}")
    placed = given.sample(2)
    placed.compute(stream)
    stream.synchronize()
    placed.check("computed by a stream after a failure")


@clause
def a_failure_waits_for_synchronize_and_harms_nothing_else(given: Given) -> None:
    """After a failed computation the stream stays usable; neither it nor an event raises before ``synchronize`` does.

    Where ``capabilities.events`` is false an event may wait by synchronizing the stream, and raise what that raises.
    """
    require_pending(given.device)
    buffer, event = given.buffer(OLD), given.event()
    stream = given.stream()
    _failed(given, stream)
    expect_bytes(buffer, OLD, "read behind a computation that failed")
    _storing(stream, buffer)()
    event.record(stream)
    error = _raised(event)
    expect(error is None or not given.device.capabilities.events, f"an event raised {error!r}")
    expect_bytes(buffer, NEW, "stored by a stream after a failure")
    later = _raised(stream)
    expect(error is None or later is None, f"what an event raised was raised by its stream, too: {later!r}")
    _expect_failure(error or later)


def _expect_failure(error: GGPlugError | None) -> None:
    expect(isinstance(error, ComputeError), f"the stream in which a computation failed raised {error!r}")


@clause
def a_failure_stays_with_its_stream(given: Given) -> None:
    """What went wrong in one stream is not raised by ``synchronize`` of another one, nor by reading a buffer."""
    require_pending(given.device)
    placed, stream, other = given.sample(2), given.stream(), given.stream()
    _failed(given, stream)
    placed.compute(other)
    raised = _raised(other)
    expect(raised is None, f"another stream raised {raised!r}")
    placed.check("computed by another stream")
    _expect_failure(_raised(stream))


@clause
def a_failure_does_not_keep_its_stream_from_being_freed(given: Given) -> None:
    """``Backend.free`` raises what went wrong in pending work, and frees the stream; freeing it again does nothing."""
    require_pending(given.device)
    stream = given.device.init()
    _failed(given, stream)
    with expect_raises(ComputeError, "freeing a stream in which a computation failed"):
        stream.free()
    expect(stream.freed, "a stream in which a computation failed is not freed when free has raised that")
    stream.free()


@clause
def a_failure_without_a_type_gets_one(given: Given) -> None:
    """Whatever the device's own code raises in work of a stream, ``synchronize`` raises a GGPlugError, once."""
    require_pending(given.device)
    buffer, stream = given.buffer(OLD), given.stream()
    if not isinstance(buffer, DiscreteBuffer):
        raise NotProven(f"nothing makes code of {given.device.name} itself raise what it does not foresee")

    def fails(offset: int, out: Bytes) -> None:
        raise ZeroDivisionError("made to fail")

    vars(buffer)["fetch"] = fails
    try:
        _fetching(stream, buffer)[0]()
        error = _raised(stream)
    finally:
        del vars(buffer)["fetch"]
    _expect_failure(error)
    expect_bytes(buffer, OLD, "read after a fetch that failed")
    again = _raised(stream)
    expect(again is None, f"what went wrong in a fetch was raised twice: {again!r}")

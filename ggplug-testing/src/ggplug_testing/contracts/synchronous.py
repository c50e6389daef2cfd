"""The contract of devices that say that they are synchronous: what they are given is done when the call returns.

The scheduler takes them at their word: it does not wait for them.  So does this chapter: right behind a call that takes
long, with nothing waited for, it looks at what the call should have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np

from ggplug.backend import Backend, Buffer, Device, host_bytes
from ggplug.graph import Graph
from ggplug.memory.allocation import Allocation
from ggplug_testing.contracts.clause import NotApplicable, affordable, clause, expect, pattern
from ggplug_testing.contracts.holding import MOMENT, Aside, stopped
from ggplug_testing.contracts.loading import Work, arrived, longest_step
from ggplug_testing.contracts.sample import square, supported_steps
from ggplug_testing.running.placement import Bytes, Placement

_TIMES = 4
"""How many computations, each of which takes long, are behind a call when it is looked at what they did."""

_LARGE = 8 << 20
"""Bytes of a transfer that takes long."""

_END = 4096
"""So many bytes at the end of a transfer are looked at."""


def _require_synchronous(device: Device) -> None:
    if device.capabilities.asynchronous:
        raise NotApplicable(f"{device.name} says that it is asynchronous: calls may return before the work is done")


def _seen(other: Backend, buffer: Buffer, offset: int, size: int) -> Iterator[tuple[str, Bytes]]:
    """What bytes are now for those who do not wait: the host, where it sees them, and another stream."""
    if buffer.address is not None:
        yield "the host", host_bytes(buffer.address + offset, size).copy()
    out = np.full(size, 0xFF, np.uint8)
    other.get_async(buffer, offset, out)
    yield "another stream", out.copy()


@clause
def transfers_of_a_synchronous_device_are_done_when_they_return(device: Device) -> None:
    """Where ``capabilities.asynchronous`` is false, what the ``async`` methods were given is done when they return."""
    _require_synchronous(device)
    with ExitStack() as ending:
        other = ending.enter_context(device.init())
        _expect_to_wait(device, ending)
        size = affordable(device, _LARGE, 2)
        data, out, end = pattern(size, 1), np.zeros(size, np.uint8), size - _END
        stream = ending.enter_context(device.init())
        buffer, copied = (ending.enter_context(device.buffer_type.alloc(size)) for _ in range(2))
        buffer.set(0, data)
        copied.clear()
        for _ in range(_TIMES - 1):
            stream.get_async(buffer, 0, np.empty(size, np.uint8))
        stream.get_async(buffer, 0, out)
        expect(np.array_equal(out[end:], data[end:]), "get_async returned before all bytes were fetched")
        for _ in range(_TIMES - 1):
            stream.copy_async(buffer, 0, copied, 0, end)
        stream.copy_async(buffer, 0, copied, 0, size)
        _expect_stored("copy_async", _seen(other, copied, end, _END), data[end:])
        buffer.clear()
        for _ in range(_TIMES - 1):
            stream.set_async(buffer, 0, data[:end])
        stream.set_async(buffer, 0, data)
        _expect_stored("set_async", _seen(other, buffer, end, _END), data[end:])


def _expect_to_wait(device: Device, ending: ExitStack) -> None:
    """Raises ContractError if a call returns while its stream is held, where streams can be held."""
    buffer, copied = (ending.enter_context(device.buffer_type.alloc(_END)) for _ in range(2))
    data, out = pattern(_END), np.empty(_END, np.uint8)
    calls: dict[str, Callable[[Backend], object]] = {
        "set_async": lambda stream: stream.set_async(buffer, 0, data),
        "get_async": lambda stream: stream.get_async(buffer, 0, out),
        "copy_async": lambda stream: stream.copy_async(buffer, 0, copied, 0, _END),
    }
    for what, call in calls.items():
        stream = ending.enter_context(device.init())
        with stopped(stream) as is_held:
            calling = Aside(lambda: call(stream)) if is_held else None  # noqa: B023
            returned = calling is not None and calling.returned(MOMENT)
        if calling is not None:
            calling.join(what)
        expect(not returned, f"{what} returned while its stream is held")


def _expect_stored(what: str, seen: Iterator[tuple[str, Bytes]], want: Bytes) -> None:
    for who, got in seen:
        expect(np.array_equal(got, want), f"{what} returned before {who} sees what it stored")


@clause
def computations_of_a_synchronous_device_are_done_when_they_return(device: Device) -> None:
    """Where ``capabilities.asynchronous`` is false, ``compute`` returns when its results are there for everybody."""
    _require_synchronous(device)
    with device.init() as stream, device.init() as other:
        step, extent = longest_step(stream)
        load, work = Work(stream, step, extent), Work(stream, step, extent)
        try:
            work.clear()
            for each, count in ((load, _TIMES), (work, 1)):
                each.compute(count)
            for who, got in _seen(other, *work.last_row):
                expect(arrived(got.view(np.float32)), f"compute returned before {who} sees its result")
            with _Following(other, work, extent) as following:
                work.clear()
                for each, count in ((load, _TIMES), (work, 1)):
                    each.compute(count)
                expect(following.is_right(), "compute returned before another stream can compute from its result")
        finally:
            stream.synchronize()
            load.free()
            work.free()


class _Following:
    """A computation on another stream, from the result of work."""

    def __init__(self, stream: Backend, work: Work, extent: int) -> None:
        x, w = square("x", extent), square("w", extent)
        step = next(supported_steps(stream.device, x, w))
        y = step(x, w).set_output()
        graph = Graph(y)
        self._placement = Placement(graph, stream.device.buffer_type)
        self._stream, self._y = stream, y
        buffer, offset, _ = work.result
        places = self._placement.allocation
        leafs = np.array([tensor.op is None for tensor in graph.tensors])
        slots, offsets = np.where(leafs, len(places.buffers), places.slots), np.where(leafs, offset, places.offsets)
        self._allocation = Allocation(graph, [*places.buffers, buffer], slots, offsets)
        self._plan = stream.plan(graph)
        self._plan.rebind(graph, self._allocation)

    def is_right(self) -> bool:
        """Computes now."""
        self._plan.compute()
        self._stream.synchronize()
        return arrived(self._placement.read(self._y))

    def __enter__(self) -> _Following:
        return self

    def __exit__(self, *exc: object) -> None:
        self._plan.free()
        self._placement.free()

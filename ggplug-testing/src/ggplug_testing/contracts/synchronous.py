"""The contract of devices that say that they are synchronous: what is submitted to them is done when the call returns.

The scheduler relies on this and does not wait for such devices.  These clauses do not wait either: right after a call
that takes long, they check its results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ggplug.backend import Backend, Buffer, Device, host_bytes
from ggplug_testing.contracts.clause import NotApplicable, affordable, expect, pattern
from ggplug_testing.contracts.given import SIZE, Given, clause
from ggplug_testing.contracts.holding import MOMENT, Aside, stopped
from ggplug_testing.contracts.loading import Computation, arrived, longest_step
from ggplug_testing.running.placement import Bytes

_TIMES = 2
"""How many computations, each of which takes long, are behind a call when it is looked at what they did."""

_LARGE = 8 << 20
"""Bytes of a transfer that takes long; of which ``SIZE`` at the end are looked at."""


def _require_synchronous(device: Device) -> None:
    if device.capabilities.asynchronous:
        raise NotApplicable(f"{device.name} says that it is asynchronous: calls may return before the work is done")


def _expect_seen(
    what: str, other: Backend, buffer: Buffer, offset: int, size: int, right: Callable[[Bytes], bool]
) -> None:
    """Raises ContractError unless bytes are ``right`` for who does not wait: the host, if it sees them; a stream."""
    if buffer.address is not None:
        expect(right(host_bytes(buffer.address + offset, size).copy()), f"{what} before the host sees it")
    out = np.full(size, 0xFF, np.uint8)
    other.get_async(buffer, offset, out)
    expect(right(out), f"{what} before another stream sees it")


@clause
def transfers_of_a_synchronous_device_are_done_when_they_return(given: Given) -> None:
    """Where ``capabilities.asynchronous`` is false, what ``set_async``, ``get_async`` and ``copy_async`` submit is
    done when they return."""
    _require_synchronous(given.device)
    other, stream = given.stream(), given.stream()
    size = affordable(given.device, _LARGE, 2)
    data, out, end = pattern(size, 1), np.zeros(size, np.uint8), size - SIZE
    buffer, copied = given.buffer(size=size), given.buffer(size=size)
    _expect_to_wait(given, "set_async", lambda stream: stream.set_async(buffer, 0, data[:SIZE]))
    _expect_to_wait(given, "get_async", lambda stream: stream.get_async(buffer, 0, out[:SIZE]))
    _expect_to_wait(given, "copy_async", lambda stream: stream.copy_async(buffer, 0, copied, 0, SIZE))
    buffer.set(0, data)
    copied.clear()

    def right(got: Bytes) -> bool:
        return np.array_equal(got, data[end:])

    for target in [np.empty(size, np.uint8) for _ in range(_TIMES - 1)] + [out]:
        stream.get_async(buffer, 0, target)
    expect(right(out[end:]), "get_async returned before all bytes were fetched")
    for part in [end] * (_TIMES - 1) + [size]:
        stream.copy_async(buffer, 0, copied, 0, part)
    _expect_seen("copy_async returned", other, copied, end, SIZE, right)
    buffer.clear()
    for part in [end] * (_TIMES - 1) + [size]:
        stream.set_async(buffer, 0, data[:part])
    _expect_seen("set_async returned", other, buffer, end, SIZE, right)


def _expect_to_wait(given: Given, what: str, call: Callable[[Backend], object]) -> None:
    """Raises ContractError if a call returns while its stream is held, where streams can be held."""
    stream = given.stream()
    with stopped(stream) as is_held:
        calling = Aside(lambda: call(stream)) if is_held else None
        returned = calling is not None and calling.returned(MOMENT)
    if calling is not None:
        calling.join(what)
    expect(not returned, f"{what} returned while its stream is held")


@clause
def computations_of_a_synchronous_device_are_done_when_they_return(given: Given) -> None:
    """Where ``capabilities.asynchronous`` is false, ``compute`` returns when its results are there for everybody."""
    _require_synchronous(given.device)
    stream, other = given.stream(), given.stream()
    step, extent = longest_step(stream)
    load, work = given.use(Computation(stream, step, extent)), given.use(Computation(stream, step, extent))
    following = given.use(Computation(other, step, extent, source=work))

    def compute() -> None:
        work.clear(work.result)
        load.compute(_TIMES)
        work.compute(1)

    compute()
    buffer, offset, size = work.region(work.result)
    row = work.out.nbytes  # the last one
    seen = other, buffer, offset + size - row, row
    _expect_seen("compute returned", *seen, lambda got: arrived(got.view(np.float32)))
    compute()
    following.compute(1)
    other.synchronize()
    expect(following.is_right(), "compute returned before another stream can compute from its result")
    stream.synchronize()

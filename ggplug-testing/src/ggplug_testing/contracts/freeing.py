"""The contract of freeing: no thread frees a buffer while another one works with it.

Work on a buffer first checks that it was not freed: by ``check_there``, which ``check_read``, ``check_write`` and the
like call.  The clauses let another thread free the buffer during this check.  Either the free waits until the operation
has ended, because the operation holds a claim; or the operation detects the free, and raises BufferUseError.  For
a computation that does not call ``check_there``, the clauses free the buffer at each step instead (:mod:`.stepping`).
Nothing depends on timing: core knows which threads wait for a claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ggplug import types
from ggplug.backend import Backend, Buffer, BufferType, Device
from ggplug.errors import BufferUseError
from ggplug.tensor import Tensor, new_tensor
from ggplug_testing.contracts.clause import NotOffered, NotProven, alloc_for, expect, pattern
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.holding import Aside
from ggplug_testing.contracts.stepping import PATIENCE, chosen_steps, count_steps, freed_at

_SIZE = 256


class _BufferUse(NamedTuple):
    """A call that works with a buffer."""

    buffer: Buffer
    call: Callable[[], object]


Make = Callable[[Given], _BufferUse]
"""What makes the work on new memory; ``Given`` frees what the work does not."""


class _Freed:
    """Has another thread free a buffer when the ``number``-th check, from 0, asks whether it is there.

    ``calls``: how often the check ran.  ``waited``: whether the free had to wait.
    """

    def __init__(self, buffer: Buffer, number: int) -> None:
        self._buffer = buffer
        self._number = number
        self._freeing: Aside | None = None
        self.calls = 0
        self.waited = False

    def __enter__(self) -> _Freed:
        vars(self._buffer)["check_there"] = self._check
        return self

    def __exit__(self, *exc: object) -> None:
        vars(self._buffer).pop("check_there", None)
        if self._freeing is not None:
            self._freeing.join("freeing a buffer")

    def _check(self) -> None:
        check = type(self._buffer).check_there
        check(self._buffer)
        self.calls += 1
        if self.calls == self._number + 1:
            self._freeing = Aside(self._buffer.free)
            self.waited = not self._freeing.settled(PATIENCE)
            if not self.waited:
                check(self._buffer)  # raises: it is not there any more


def _prove(device: Device, every: Mapping[str, Make]) -> None:
    """Raises ContractError for the first work whose buffer is freed during it, NotProven if one never checks it."""
    _require(device, [what for what, make in every.items() if not _is_proven(device, what, make)])


def _require(device: Device, silent: list[str]) -> None:
    if silent:
        raise NotProven(f"{device.name} does not check whether the buffer was freed (check_there): {', '.join(silent)}")


def _is_proven(device: Device, what: str, make: Make) -> bool:
    """Whether work checks that its buffer exists.

    If it checks several times, the free has to wait after one of the checks; after the others the work has to raise.
    """
    for number in itertools.count():
        noticed = False
        with Given(device) as own:
            work = make(own)
            with _Freed(work.buffer, number) as freed:
                try:
                    work.call()
                except BufferUseError:
                    noticed = freed.calls > number
                    if not noticed:
                        raise
            work.buffer.free()
        if freed.waited:
            return True
        if freed.calls <= number:
            expect(not number, f"{what}: another thread frees the buffer under it")
            return False
        expect(noticed, f"{what}: another thread frees the buffer under it, and nothing is raised")
    raise AssertionError


def _is_proven_by_steps(device: Device, what: str, make: Make) -> bool:
    """Whether a free that comes at some step of the work waits for its end.

    One that comes at another step has to be noticed, or the work on the buffer is done.
    """
    with Given(device) as own:
        make(own).call()  # what is imported and compiled at first is no part of it
        count = count_steps(make(own).call)
    waited = False
    for step in chosen_steps(count):
        with Given(device) as own:
            work = make(own)
            seen = freed_at(step, work.buffer, work.call)
        expect(seen != "used", f"{what}: another thread frees the buffer under it, and it goes on in what was freed")
        waited = waited or seen == "waited"
    return waited


def _submit(stream: Backend, give: Callable[[], object]) -> None:
    """Submits work to a stream; waits where that is refused."""
    try:
        give()
    except BufferUseError:
        with suppress(BufferUseError):
            stream.synchronize()
        raise


_DATA, _OUT = pattern(64, 1), np.empty(64, np.uint8)

Way = Callable[[Buffer, Buffer, Buffer], object]
"""Work on a buffer, with another one of the device and one of the host."""

_ACCESSES: dict[str, Way] = {
    "set": lambda buffer, other, host: buffer.set(0, _DATA),
    "get": lambda buffer, other, host: buffer.get(0, _OUT),
    "memset": lambda buffer, other, host: buffer.memset(0, 64, 1),
    "set_2d": lambda buffer, other, host: buffer.set_2d(0, _DATA, 16, 4, 32),
    "get_2d": lambda buffer, other, host: buffer.get_2d(0, _OUT, 16, 4, 32),
    "copy_from, into it": lambda buffer, other, host: buffer.copy_from(other, 0, 64, 64),
    "copy_from, out of it": lambda buffer, other, host: other.copy_from(buffer, 0, 64, 64),
    "copy_from the host": lambda buffer, other, host: buffer.copy_from(host, 0, 64, 64),
    "copy_from within it": lambda buffer, other, host: buffer.copy_from(buffer, 0, 64, 64),
}
_TRANSFERS: dict[str, Callable[[Backend, Buffer, Buffer], object]] = {
    "set_async": lambda stream, buffer, other: stream.set_async(buffer, 0, _DATA),
    "get_async": lambda stream, buffer, other: stream.get_async(buffer, 0, _OUT),
    "copy_async, into it": lambda stream, buffer, other: stream.copy_async(other, 0, buffer, 64, 64),
    "copy_async, out of it": lambda stream, buffer, other: stream.copy_async(buffer, 0, other, 64, 64),
    "copy_async within it": lambda stream, buffer, other: stream.copy_async(buffer, 0, buffer, 64, 64),
}


@clause
def a_buffer_that_is_accessed_is_not_freed_meanwhile(given: Given) -> None:
    """What ``set``, ``get``, ``memset``, ``copy_from``, ``set_2d`` and ``get_2d`` reach is freed before, and then they
    raise BufferUseError, or afterwards."""

    _prove(given.device, {what: partial(_on_new_memory, way=way) for what, way in _ACCESSES.items()})


def _on_new_memory(own: Given, way: Way) -> _BufferUse:
    buffer, other, host = own.buffer(0, _SIZE), own.buffer(1, _SIZE), own.host(size=_SIZE)
    return _BufferUse(buffer, lambda: way(buffer, other, host))


@clause
def extra_memory_that_is_accessed_is_not_freed_meanwhile(given: Given) -> None:
    """So is memory with a layout of its own, whose tensors are set and read as a whole: ``set_tensor`` and
    ``get_tensor``."""
    taken: dict[BufferType, Tensor] = {}
    for kind, type in itertools.product(given.device.extra_buffer_types, types.TYPES):
        tensor = new_tensor(type, (256, 8))
        if kind.refusal(tensor) is None:
            taken.setdefault(kind, tensor)
    if not taken:
        raise NotOffered(f"{given.device.name} has no extra buffer types")

    def access(kind: BufferType, tensor: Tensor, name: str) -> Make:
        def make(own: Given) -> _BufferUse:
            buffer = own.use(alloc_for(kind, tensor))
            tensor.place(buffer)
            own.callback(tensor.place, None)
            buffer.init_tensor(tensor)
            data: Any = pattern(tensor.nbytes)
            buffer.set_tensor(tensor, data, 0)
            return _BufferUse(buffer, lambda: getattr(buffer, name)(tensor, data, 0))

        return make

    ways = itertools.product(taken.items(), ("set_tensor", "get_tensor"))
    _prove(given.device, {f"{name} of {kind.name}": access(kind, tensor, name) for (kind, tensor), name in ways})


@clause
def a_buffer_that_a_stream_is_given_work_on_is_not_freed_meanwhile(given: Given) -> None:
    """What ``set_async``, ``get_async`` and ``copy_async`` reach is freed after the work is done, or before
    it is submitted; then they raise BufferUseError."""
    stream = given.stream()

    def submitted(way: Callable[[Backend, Buffer, Buffer], object]) -> Way:
        return lambda buffer, other, host: _submit(stream, lambda: way(stream, buffer, other))

    ways = {what: submitted(way) for what, way in _TRANSFERS.items()}
    _prove(given.device, {what: partial(_on_new_memory, way=way) for what, way in ways.items()})


@clause
def memory_that_is_computed_in_is_not_freed_meanwhile(given: Given) -> None:
    """``free`` of a plan's buffer comes before ``compute``, which then raises BufferUseError, or waits for it."""
    device, stream = given.device, given.stream()

    def make(own: Given, name: str) -> _BufferUse:
        placed = own.sample(2)
        plan = own.bound(stream, placed)
        return _BufferUse(placed.result[0], lambda: _submit(stream, getattr(plan, name)))

    ways: dict[str, Make] = {name: partial(make, name=name) for name in ("compute", "compute_traced")}
    silent = {what: way for what, way in ways.items() if not _is_proven(device, what, way)}
    if device.capabilities.asynchronous:
        _require(device, list(silent))
    unheld = [what for what, way in silent.items() if not _is_proven_by_steps(device, what, way)]
    if unheld:
        raise NotProven(f"{device.name} never makes Buffer.free wait: {', '.join(unheld)}")
    stream.synchronize()

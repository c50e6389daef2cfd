"""The contract of freeing: what one thread works with, another one does not free meanwhile.

Whatever is about to work with a buffer asks core whether it is there: ``check_there``, which ``check_read``,
``check_write`` and the like call.  From inside of that question another thread frees the buffer.  The free has to wait
until the operation is over, as it does for those that hold a claim; or the operation has to notice, and raises
BufferUseError.  A computation need not ask, where it finds out otherwise: it is taken step by step instead
(:mod:`.stepping`).  Nobody has to be quick, and nobody sleeps: core knows which threads wait for a claim.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from ggplug import types
from ggplug.backend import Backend, Buffer, BufferType, Device
from ggplug.errors import BufferUseError
from ggplug.host import HOST
from ggplug.sharing import waits
from ggplug.tensor import Tensor, new_tensor
from ggplug_testing.contracts.clause import NotOffered, NotProven, alloc_for, clause, expect, pattern
from ggplug_testing.contracts.holding import Aside
from ggplug_testing.contracts.sample import Sample
from ggplug_testing.contracts.stepping import chosen_steps, count_steps, freed_at

_SIZE = 256
_PATIENCE = 0.25
"""Seconds after which a free that has not returned waits for something else than a claim."""


class _Work(NamedTuple):
    """A call that works with a buffer."""

    buffer: Buffer
    call: Callable[[], object]


Make = Callable[[ExitStack], _Work]
"""What makes the work on new memory; ``ExitStack`` frees what the work does not."""


class _Freed:
    """Has another thread free a buffer when it is asked for the ``number``-th time whether it is there, from 0.

    ``asked``: how often it was.  ``waited``: whether the free had to wait.
    """

    def __init__(self, buffer: Buffer, number: int) -> None:
        self._buffer = buffer
        self._number = number
        self._freeing: Aside | None = None
        self.asked = 0
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
        self.asked += 1
        if self.asked == self._number + 1:
            self._freeing = Aside(self._buffer.free)
            self.waited = not _returned(self._freeing)
            if not self.waited:
                check(self._buffer)  # raises: it is not there any more


def _returned(freeing: Aside) -> bool | None:
    """Whether a free has returned, or waits for a claim; None if it does neither."""
    end = time.monotonic() + _PATIENCE
    while not freeing.returned(0.0005):
        if waits(freeing.ident):
            return freeing.returned(0)
        if time.monotonic() > end:
            return freeing.returned(0) or None
    return True


def _prove(device: Device, every: Mapping[str, Make]) -> None:
    """Raises ContractError for the first of these under which a buffer is freed, NotProven if one never asks for it."""
    silent = [what for what, make in every.items() if not _is_proven(what, make)]
    if silent:
        raise NotProven(f"{device.name} does not ask core whether the buffer is there: {', '.join(silent)}")


def _is_proven(what: str, make: Make) -> bool:
    """Whether work asks for its buffer.

    Where it asks several times, one of them has to be when the free waits, and what comes after the others raises.
    """
    for number in itertools.count():
        noticed = False
        with ExitStack() as ending:
            work = make(ending)
            with _Freed(work.buffer, number) as freed:
                try:
                    work.call()
                except BufferUseError:
                    noticed = freed.asked > number
                    if not noticed:
                        raise
            work.buffer.free()
        if freed.waited:
            return True
        if freed.asked <= number:
            expect(not number, f"{what}: another thread frees the buffer under it")
            return False
        expect(noticed, f"{what}: another thread frees the buffer under it, and nothing is raised")
    raise AssertionError


def _is_proven_by_steps(what: str, make: Make) -> bool:
    """Whether a free that comes at some step of the work waits for its end.

    One that comes at another step has to be noticed, or the work on the buffer is done.
    """
    with ExitStack() as ending:
        make(ending).call()  # what is imported and compiled at first is no part of it
        count = count_steps(make(ending).call)
    waited = False
    for step in chosen_steps(count):
        with ExitStack() as ending:
            work = make(ending)
            seen = freed_at(step, work.buffer, work.call, _returned)
        expect(seen != "used", f"{what}: another thread frees the buffer under it, and it goes on in what was freed")
        waited = waited or seen == "waited"
    return waited


def _alloc(device: Device, ending: ExitStack, seed: int = 0) -> Buffer:
    buffer = device.buffer_type.alloc(_SIZE)
    ending.callback(buffer.free)
    buffer.set(0, pattern(_SIZE, seed))
    return buffer


@clause
def a_buffer_that_is_accessed_is_not_freed_meanwhile(device: Device) -> None:
    """What ``set``, ``get``, ``memset``, ``copy_from``, ``set_2d`` and ``get_2d`` reach is freed before, and then they
    raise BufferUseError, or afterwards."""
    data, out = pattern(64, 1), np.empty(64, np.uint8)
    ways: dict[str, Callable[[Buffer, Buffer, Buffer], object]] = {
        "set": lambda buffer, other, host: buffer.set(0, data),
        "get": lambda buffer, other, host: buffer.get(0, out),
        "memset": lambda buffer, other, host: buffer.memset(0, 64, 1),
        "set_2d": lambda buffer, other, host: buffer.set_2d(0, data, 16, 4, 32),
        "get_2d": lambda buffer, other, host: buffer.get_2d(0, out, 16, 4, 32),
        "copy_from, into it": lambda buffer, other, host: buffer.copy_from(other, 0, 64, 64),
        "copy_from, out of it": lambda buffer, other, host: other.copy_from(buffer, 0, 64, 64),
        "copy_from the host": lambda buffer, other, host: buffer.copy_from(host, 0, 64, 64),
        "copy_from within it": lambda buffer, other, host: buffer.copy_from(buffer, 0, 64, 64),
    }

    def make(ending: ExitStack, way: Callable[[Buffer, Buffer, Buffer], object]) -> _Work:
        buffer, other, host = _alloc(device, ending), _alloc(device, ending, 1), HOST.alloc(_SIZE)
        return _Work(buffer, lambda: way(buffer, other, host))

    _prove(device, {what: partial(make, way=way) for what, way in ways.items()})


@clause
def extra_memory_that_is_accessed_is_not_freed_meanwhile(device: Device) -> None:
    """So is memory with a layout of its own, whose tensors are set and read as a whole."""
    taken: dict[BufferType, Tensor] = {}
    for kind, type in itertools.product(device.extra_buffer_types, types.TYPES):
        tensor = new_tensor(type, (256, 8))
        if kind.refusal(tensor) is None:
            taken.setdefault(kind, tensor)
    if not taken:
        raise NotOffered(f"{device.name} has no extra memory")

    def make(ending: ExitStack, kind: BufferType, tensor: Tensor, reads: bool) -> _Work:
        buffer = alloc_for(kind, tensor)
        ending.callback(buffer.free)
        tensor.place(buffer)
        ending.callback(tensor.place, None)
        buffer.init_tensor(tensor)
        data = pattern(tensor.nbytes)
        buffer.set_tensor(tensor, data, 0)
        if reads:
            return _Work(buffer, lambda: buffer.get_tensor(tensor, np.empty(tensor.nbytes, np.uint8), 0))
        return _Work(buffer, lambda: buffer.set_tensor(tensor, data, 0))

    _prove(
        device,
        {
            f"{name}_tensor of {kind.name}": partial(make, kind=kind, tensor=tensor, reads=name == "get")
            for kind, tensor in taken.items()
            for name in ("set", "get")
        },
    )


@clause
def a_buffer_that_a_stream_is_given_work_on_is_not_freed_meanwhile(device: Device) -> None:
    """What ``set_async``, ``get_async`` and ``copy_async`` reach is freed before the work is given, and then they raise
    BufferUseError, or after it is done."""
    data, out = pattern(64, 1), np.empty(64, np.uint8)
    ways: dict[str, Callable[[Backend, Buffer, Buffer], object]] = {
        "set_async": lambda stream, buffer, other: stream.set_async(buffer, 0, data),
        "get_async": lambda stream, buffer, other: stream.get_async(buffer, 0, out),
        "copy_async, into it": lambda stream, buffer, other: stream.copy_async(other, 0, buffer, 64, 64),
        "copy_async, out of it": lambda stream, buffer, other: stream.copy_async(buffer, 0, other, 64, 64),
        "copy_async within it": lambda stream, buffer, other: stream.copy_async(buffer, 0, buffer, 64, 64),
    }
    with device.init() as stream:

        def make(ending: ExitStack, way: Callable[[Backend, Buffer, Buffer], object]) -> _Work:
            buffer, other = _alloc(device, ending), _alloc(device, ending, 1)
            return _Work(buffer, lambda: _given(stream, lambda: way(stream, buffer, other)))

        _prove(device, {what: partial(make, way=way) for what, way in ways.items()})


def _given(stream: Backend, give: Callable[[], object]) -> None:
    """Gives work to a stream; what was not given is not pending either."""
    try:
        give()
    except BufferUseError:
        with suppress(BufferUseError):
            stream.synchronize()
        raise


@clause
def memory_that_is_computed_in_is_not_freed_meanwhile(device: Device) -> None:
    """What a plan computes in is freed before ``compute``, and then that raises BufferUseError, or after it is done."""
    sample = Sample(device, 2)
    with device.init() as stream:

        def make(ending: ExitStack, traced: bool) -> _Work:
            placement = ending.enter_context(sample.place(device, 1))
            plan = stream.plan(sample.graph)
            ending.callback(plan.free)
            plan.rebind(sample.graph, placement.allocation)
            number, _ = placement.region(sample.y)
            compute = plan.compute_traced if traced else plan.compute
            return _Work(placement.buffers[number], lambda: _given(stream, compute))

        ways = {"compute": partial(make, traced=False), "compute_traced": partial(make, traced=True)}
        silent = {what: way for what, way in ways.items() if not _is_proven(what, way)}
        if silent and device.capabilities.asynchronous:
            raise NotProven(f"{device.name} does not ask core whether the buffer is there: {', '.join(silent)}")
        unheld = [what for what, way in silent.items() if not _is_proven_by_steps(what, way)]
        if unheld:
            raise NotProven(f"{device.name} never lets a free wait: {', '.join(unheld)}")
        stream.synchronize()

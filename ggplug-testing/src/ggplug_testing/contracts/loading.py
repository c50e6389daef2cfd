"""A load: work that keeps a stream busy for a while, for devices whose streams cannot be held.

How much work that is follows from measuring the device.  What comes behind a load is pending for as long as the load's
own result has not arrived at the host: so whoever races against a load learns whether there was a race at all.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ggplug.backend import Backend, Device
from ggplug.graph import Graph
from ggplug.memory.allocation import Allocation
from ggplug.ops.base import Array
from ggplug_testing.contracts.clause import NotOffered, NotProven, NotYetProven, affordable, expect
from ggplug_testing.contracts.sample import BinaryOp, Bound, numbers, square, supported_steps

TIMES = 4
"""How many times longer than what is raced against it a load takes."""

LONGEST_LOAD = 4.0
"""Seconds that a load takes at most, as it was measured."""

_SMALLEST, _LARGEST = 64, 2048
"""Extents of the square tensors that a load computes on: 3 x 4 bytes x 2048^2 are 48 MiB."""

_TENSORS, _WORKS = 3, 3
"""Tensors in a work, and how many works there are at once at most: there has to be memory for all of them."""

_UNIT = 0.005
"""Seconds that one computation of a load takes, if tensors of the largest extent take as long."""

_MOST = 4096
"""Computations in a load."""


class Unit(NamedTuple):
    """A computation that loads are made of.

    ``step``: its op.  ``extent``: of its tensors.  ``giving``, ``seconds``: until it is submitted and until it is done.
    """

    step: BinaryOp
    extent: int
    giving: float
    seconds: float

    @property
    def runs_on(self) -> bool:
        """Whether most of it is done while the host may do something else."""
        return self.giving <= self.seconds / 2


def arrived(values: Array) -> bool:
    """Whether these are results of work: with sources between 0.1 and 0.3 no step has a smaller one than 0.01."""
    return bool((values > 0.001).all())


class Computation(Bound):
    """A step on square tensors of one extent, in memory of the device and bound to a stream.

    ``source``: work on perhaps another stream whose result it is computed from, in the place of all of its sources.
    """

    def __init__(self, stream: Backend, step: BinaryOp, extent: int, source: Computation | None = None) -> None:
        graph = Graph(step(square("x", extent), square("w", extent)).set_output())
        super().__init__(stream, graph)
        if source is None:
            random = np.random.default_rng(extent)
            self.write_all({leaf: numbers(random, leaf, 0.1, 0.3) for leaf in graph.leafs})
        else:
            places, (buffer, offset, _) = self.allocation, source.region(source.result)
            leafs = np.array([tensor.op is None for tensor in graph.tensors])
            slots = np.where(leafs, len(places.buffers), places.slots)
            offsets = np.where(leafs, offset, places.offsets)
            self.allocation = Allocation(graph, [*places.buffers, buffer], slots, offsets)
            self.plan.rebind(graph, self.allocation)
        self.out = np.full(extent, np.nan, np.float32)
        """Where the last row of the result arrives; NaN until then, or whatever the device leaves there meanwhile."""

    def is_right(self) -> bool:
        """Whether the result is there."""
        return arrived(self.read(self.result))

    def compute(self, count: int) -> None:
        """Gives the stream that many computations."""
        for _ in range(count):
            self.plan.compute()

    def give(self, count: int) -> None:
        """Submits ``count`` computations to the stream, then a fetch of the last row of the result to ``out``."""
        self.out[...] = np.nan
        self.compute(count)
        self.fetch(self.out.view(np.uint8))

    def measure(self) -> tuple[float, float]:
        """Seconds until one computation and its fetch are submitted, and until they are done."""
        start = time.perf_counter()
        self.give(1)
        given = time.perf_counter()
        self.stream.synchronize()
        done = time.perf_counter()
        expect(self.arrived, "after synchronize a result that was fetched had not arrived")
        return given - start, done - start

    @property
    def arrived(self) -> bool:
        """Whether the fetch is done."""
        return arrived(self.out)


_UNITS: WeakKeyDictionary[Device, Unit] = WeakKeyDictionary()


def unit_of(device: Device) -> Unit:
    """What loads of a device are made of, measured once.

    Raises NotProven if it supports no op that they could be made of, ContractError if it does not compute them.
    """
    known = _UNITS.get(device)
    if known is None:
        known = _UNITS[device] = _measured(device)
    return known


def _measured(device: Device) -> Unit:
    found: Unit | None = None
    with device.init() as stream:
        # Some ops may be computed while they are submitted, others not.
        for step in supported_steps(device, square(), square(), heavy=True):
            found = _measured_step(stream, step)
            if found.runs_on:
                return found
    if found is None:
        raise NotProven(f"{device.name} supports none of the ops that the suite uses to keep a stream busy")
    return found


def longest_step(stream: Backend) -> tuple[BinaryOp, int]:
    """The step, on tensors of that extent, which a stream computes longest.  Raises NotOffered if it supports none."""
    step = next(supported_steps(stream.device, square(), square(), heavy=True), None)
    if step is None:
        raise NotOffered(f"{stream.device.name} supports none of the ops that the suite computes as samples")
    return step, _measured_step(stream, step).extent


def _measured_step(stream: Backend, step: BinaryOp) -> Unit:
    extent = _SMALLEST
    while True:
        with Computation(stream, step, extent) as work:
            # The least of a few: where other programs disturb, a load must not be too short.
            giving, seconds = map(min, zip(*(work.measure() for _ in range(3)), strict=True))
        unit = Unit(step, extent, giving, seconds)
        extent *= 2
        wanted = _TENSORS * square(extent=extent).nbytes
        if seconds >= _UNIT or extent > _LARGEST or affordable(stream.device, wanted, _WORKS) < wanted:
            return unit


class Load:
    """Work in front of everything that is submitted to a stream from now on, for ``seconds`` or longer.

    Raises NotProven if the device cannot be kept busy for so long, NotYetProven if it is not busy once the work
    was submitted.
    """

    def __init__(self, stream: Backend, seconds: float) -> None:
        unit = unit_of(stream.device)
        if not unit.runs_on:
            raise NotProven(f"{stream.device.name} computes while work is submitted, so the suite cannot keep it busy")
        count = math.ceil(min(seconds, LONGEST_LOAD) / unit.seconds)
        if count > _MOST:
            raise NotProven(f"{stream.device.name} is too fast: it cannot be kept busy for {seconds:.2g} seconds")
        self._device = stream.device
        self._work = Computation(stream, unit.step, unit.extent)
        try:
            self._work.give(count)
            self.require_pending()
        except BaseException:
            self._work.free()
            raise

    @property
    def is_pending(self) -> bool:
        """Whether the load is not done yet, and so nothing of what was submitted behind it."""
        return not self._work.arrived

    def require_pending(self) -> None:
        """Raises NotYetProven if the load is done; the next one is twice as long."""
        if not self.is_pending:
            unit = unit_of(self._device)
            _UNITS[self._device] = unit._replace(giving=unit.giving / 2, seconds=unit.seconds / 2)
            raise NotYetProven(f"the work that keeps {self._device.name} busy ended before the check did")

    def free(self) -> None:
        """Waits for the work that keeps the stream busy, and frees its memory."""
        self._work.free()

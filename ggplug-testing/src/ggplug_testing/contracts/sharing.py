"""The contract of streams that compute at the same time: they share no scratch, whatever they compute."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ggplug import sharing
from ggplug.backend import Backend, Device
from ggplug.tensor import Tensor
from ggplug_testing.contracts.clause import NotOffered, alloc_for, expect, expect_equal, pattern
from ggplug_testing.contracts.given import SIZE, Given, clause
from ggplug_testing.contracts.holding import Aside
from ggplug_testing.contracts.racing import Race, races_of
from ggplug_testing.contracts.sample import BinaryOp, steps_of
from ggplug_testing.contracts.stepping import at_step, chosen_steps, count_steps
from ggplug_testing.running.placement import Bytes

_THREADS = 3
_ROUNDS = 5
"""How often each thread computes a sample."""


@contextmanager
def _switching() -> Iterator[None]:
    """Python goes over from thread to thread as often as it can: scratch that is shared is used by two then."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _at_once(works: Sequence[Callable[[], object]]) -> None:
    """Calls each on a thread of its own, all at the same time, and raises what the first of them that failed raised."""
    begin = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        with suppress(threading.BrokenBarrierError):  # another one could not even begin
            begin.wait(30)
            work()

    with _switching(), ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(run, work) for work in works]
    for each in running:
        each.result()


@clause
def streams_work_on_different_threads(given: Given) -> None:
    """Streams of one device may be used by different threads at once, whatever they ``compute`` and copy
    (``copy_async``)."""
    for step in steps_of(given.device):
        with Given(given.device) as own:
            _at_once([_computing(own, step, seed) for seed in range(_THREADS)])


def _computing(own: Given, step: BinaryOp, seed: int) -> Callable[[], None]:
    """What one thread does, again and again: computes a sample, copies its result, and looks at both."""
    placed = own.sample(2 + seed, step=step, seed=seed)
    want = placed.sample.computed_alone(own.device, seed)
    copied, stream = own.use(alloc_for(own.kind, placed.sample.y)), own.stream()
    buffer, offset, size = placed.result
    out = np.empty(size, np.uint8)

    def work() -> None:
        for _ in range(_ROUNDS):
            placed.compute(stream)
            stream.copy_async(buffer, offset, copied, 0, size)
            stream.get_async(copied, 0, out)
            stream.synchronize()
            placed.check(f"thread {seed}", want=want)
            expect_equal(out, placed.read_bytes(placed.sample.y), f"what thread {seed} copied")

    return work


@clause
def streams_are_made_and_freed_while_the_host_waits_for_others(given: Given) -> None:
    """``Device.init`` and ``Backend.free`` may be called on other threads between any two steps of a call that waits
    for the device's streams, such as ``Buffer.get``."""
    buffer, out = given.buffer(1), np.empty(SIZE, np.uint8)
    given.streams(2)  # to wait for
    read = partial(buffer.get, 0, out)
    making: list[Aside] = []

    def make_one() -> None:
        making.append(Aside(lambda: given.device.init().free()))
        making[0].settled(_A_WHILE)

    for step in chosen_steps(count_steps(read)):
        out[...] = 0
        at_step(step, read, make_one)
        while making:
            making.pop().join("making and freeing a stream")
        expect_equal(out, pattern(SIZE, 1), "read while another thread made and freed a stream")


_A_WHILE = 0.02
"""Seconds in which a stream is made, unless it waits for what the call holds."""

_PATIENCE = 0.1
"""Seconds after which a computation that is neither done nor waits for a claim waits for something else."""

_BLOCKED = 6
"""After so many of these a device is taken to compute one thing after the other."""

_SKIPPED = (*(str(Path(file).parent) for file in (threading.__file__, np.__file__, __file__)), sharing.__file__)
"""Where no kernel is: the libraries of Python and NumPy, the contract, core's claims."""


_Line = tuple[CodeType, int]
_Step = tuple[_Line | None, _Line]
"""Two lines that a thread runs one after the other: what one has left in scratch the other may read."""


class _Between:
    """Does something before a line of Python that is run for a stream, by its caller or by a thread of its own.

    ``steps``: how often each step was done in the last call.
    """

    def __init__(self) -> None:
        self.steps: Counter[_Step] = Counter()
        self._last: dict[int, _Line] = {}
        self._follows = False
        self._place: tuple[_Step, int] | None = None
        self._at: Callable[[], object] | None = None

    @contextmanager
    def stream(self, device: Device) -> Iterator[Backend]:
        """A stream whose threads are followed: those that it starts until it has done something."""
        before = threading.gettrace()
        threading.settrace(self._called)
        try:
            stream = device.init()
            with device.buffer_type.alloc(8) as buffer:
                stream.set_async(buffer, 0, np.zeros(8, np.uint8))
                stream.synchronize()
        finally:
            threading.settrace(before)
        with stream:
            yield stream

    def during(
        self, call: Callable[[], object], place: tuple[_Step, int] | None = None, at: Callable[[], object] | None = None
    ) -> None:
        """Calls ``call``; and ``at`` within the step ``place[0]``, the ``place[1]``-th time that it is done, from 0."""
        self.steps.clear()
        self._last.clear()
        self._place, self._at = place, at
        before = sys.gettrace()
        self._follows = True
        sys.settrace(self._called)
        try:
            call()
        finally:
            sys.settrace(before)
            self._follows = False

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        skipped = not self._follows or frame.f_code.co_filename.startswith(_SKIPPED)
        return None if skipped else self._ran

    def _ran(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and self._follows:
            line, thread = (frame.f_code, frame.f_lineno), threading.get_ident()
            step = self._last.get(thread), line
            self._last[thread] = line
            times, self.steps[step] = self.steps[step], self.steps[step] + 1
            if self._place == (step, times) and self._at is not None:
                at, self._at = self._at, None
                at()
        return self._ran


class _Proof:
    """Two computations of one op from different values, the second one between any two lines of the first.

    A step is tried with the first op that does it: the first time that it is done, and the last.
    """

    def __init__(self, between: _Between) -> None:
        self._between = between
        self._tried: set[_Step] = set()
        self._blocked = 0

    def of(self, one: _Operation, other: _Operation) -> None:
        """Raises ContractError if one changes what becomes of the other."""
        one.prepare()
        other.prepare()
        self._between.during(one.do)
        steps = {step: times for step, times in self._between.steps.items() if step not in self._tried}
        self._tried.update(steps)
        for step, times in steps.items():
            for number in {0, times - 1}:
                if self._blocked < _BLOCKED:
                    self._at(one, other, (step, number))

    def _at(self, one: _Operation, other: _Operation, place: tuple[_Step, int]) -> None:
        asides: list[Aside] = []

        def meanwhile() -> None:
            asides.append(Aside(other.do))
            self._blocked += asides[0].settled(_PATIENCE) is None

        one.prepare()
        self._between.during(one.do, place, meanwhile)
        for each in asides:
            each.join(f"{other.what} on another stream")
            other.check()
        one.check()


class _Computation:
    """A race's op, computed from these sources, with ``want`` as the result."""

    def __init__(self, race: Race, values: dict[Tensor, Bytes], want: Bytes) -> None:
        self.what = str(race.case)
        self.do = race.compute
        self._race, self._values, self._want = race, values, want

    def prepare(self) -> None:
        self._race.write_all(self._values)

    def check(self) -> None:
        found = self._race.agree(self._race.out, self._want)
        expect(found, f"{self.what} between two steps of it on another stream: {found.reason}")


class _Transfer:
    """Bytes that a stream stores, copies and fetches."""

    what = "transfers"

    def __init__(self, given: Given, stream: Backend, seed: int) -> None:
        self._stream = stream
        self._data = pattern(SIZE, seed)
        self._buffers = given.buffer(), given.buffer()
        self._out = np.zeros(SIZE, np.uint8)

    def prepare(self) -> None:
        self._out[...] = 0

    def do(self) -> None:
        first, second = self._buffers  # nothing synchronous: that would wait for the other stream
        self._stream.set_async(first, 0, self._data)
        self._stream.copy_async(first, 0, second, 0, SIZE)
        self._stream.get_async(second, 0, self._out)
        self._stream.synchronize()

    def check(self) -> None:
        expect_equal(self._out, self._data, "transferred between two steps of transfers on another stream")


_Operation = _Computation | _Transfer


@clause
def transfers_share_no_scratch(given: Given) -> None:
    """``set_async``, ``copy_async`` and ``get_async`` transfer the same bytes as by themselves, whatever another stream
    transfers between two steps."""
    between = _Between()
    one, other = given.use(between.stream(given.device)), given.stream()
    _Proof(between).of(_Transfer(given, one, 1), _Transfer(given, other, 2))


@clause
def computations_share_no_scratch(given: Given) -> None:
    """A computation (``compute``) of every op and group has the same result as by itself, whatever another stream
    computes between two steps of it."""
    between, proven = _Between(), 0
    one, other = given.use(between.stream(given.device)), given.stream()
    proof = _Proof(between)
    for race in races_of(one):
        with race, Race(other, race.case, race.groups) as twin:
            proof.of(_Computation(race, race.values, race.right), _Computation(twin, twin.zeros, race.wrong))
        proven += 1
    if not proven:
        raise NotOffered(f"{given.device.name} computes no op whose result shows what it was computed from")

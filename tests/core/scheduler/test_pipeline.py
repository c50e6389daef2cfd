"""Computations that are under way at the same time, each by its own scheduler, give what one after the other does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Backend
from ggplug.errors import ComputeAborted, ComputeError, ParameterError
from ggplug.host import HOST
from ggplug.scheduler import Pipeline, Scheduler
from ggplug.tensor import Tensor
from ggplug.types import BufferUsage
from ggplug_cpu.device import CpuDevice
from ggplug_testing import FakeDevice, ReferenceDevice

Function = Callable[[np.ndarray], np.ndarray]


def first_half_on_the_first(node: Tensor, streams: Sequence[Backend]) -> Backend:
    return streams[0 if node.name == "first" else 1]


def halves(first: Function, second: Function) -> tuple[Tensor, Tensor, gg.Graph]:
    """The input, the result and the graph of ``second(first(x))``, whose halves are for two devices."""

    def node(x: Tensor, function: Function, name: str) -> Tensor:
        def write(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
            dst[...] = function(a)

        return gg.map_custom1(x, write, name=name)

    x = gg.new_tensor("f32", (4,)).set_input()
    y = node(node(x, first, "first"), second, "second").set_output()
    return x, y, gg.Graph(y)


class Halves:
    """Jobs of a pipeline over two host devices: each computes two halves, which functions of the job's number make."""

    def __init__(self, first: Callable[[int], Function], second: Callable[[int], Function]) -> None:
        self.first, self.second = first, second
        self.scheduler = Scheduler([ReferenceDevice("a"), ReferenceDevice("b")], policy=first_half_on_the_first)
        self.pipeline = Pipeline(self.scheduler)
        self.prepared: list[int] = []
        self.results: dict[int, list[float]] = {}

    def job(self, number: int) -> Callable[[int], Callable[[], None]]:
        def prepare(copy: int) -> Callable[[], None]:
            self.prepared.append(number)
            scheduler = self.pipeline.schedulers[copy]
            x, y, graph = halves(self.first(number), self.second(number))
            scheduler.allocate(graph)
            x.set(np.full(4, number, np.float32))

            def compute() -> None:
                scheduler.compute(graph)
                self.results[number] = y.numpy().tolist()

            return compute

        return prepare

    def compute(self, count: int, n_copies: int) -> None:
        self.pipeline.compute([self.job(number) for number in range(count)], n_copies)

    def __enter__(self) -> Halves:
        return self

    def __exit__(self, *exc: object) -> None:
        self.pipeline.free()
        self.scheduler.free()


def plus_one(number: int) -> Function:
    return lambda x: x + 1


def doubled(number: int) -> Function:
    return lambda x: 2 * x


@pytest.mark.parametrize("n_copies", [2, 3])
def test_the_first_half_of_a_computation_meets_the_second_half_of_the_one_before(n_copies: int) -> None:
    meeting = threading.Barrier(2)

    def first(number: int) -> Function:
        def half(x: np.ndarray) -> np.ndarray:
            if number:
                meeting.wait(20)
            return x + 1

        return half

    def second(number: int) -> Function:
        def half(x: np.ndarray) -> np.ndarray:
            if number < 5:
                meeting.wait(20)
            return 2 * x

        return half

    with Halves(first, second) as jobs:
        jobs.compute(6, n_copies)
        assert jobs.results == {number: [2.0 * number + 2] * 4 for number in range(6)}
        assert jobs.prepared == [*range(6)]


def test_no_device_computes_two_splits_at_the_same_time() -> None:
    inside, most = {"first": 0, "second": 0}, {"first": 0, "second": 0}

    def counted(name: str) -> Callable[[int], Function]:
        def half(x: np.ndarray) -> np.ndarray:
            inside[name] += 1
            most[name] = max(most[name], inside[name])
            time.sleep(0.002)
            inside[name] -= 1
            return x

        return lambda number: half

    with Halves(counted("first"), counted("second")) as jobs:
        jobs.compute(12, 4)
    assert most == {"first": 1, "second": 1}


@pytest.mark.parametrize("execution", ["now", "late", "thread"])
@pytest.mark.parametrize("seed", range(6))
def test_computations_that_write_the_same_memory_keep_their_order(seed: int, execution: Any) -> None:
    rng = random.Random(seed)
    gpus = [FakeDevice(f"gpu{n}", execution=execution, order="shuffled", seed=seed + n) for n in range(2)]
    weights = []
    for gpu in gpus:
        weight = gg.new_tensor("f32", (8,))
        buffer = gpu.buffer_type.alloc(256)
        buffer.usage = BufferUsage.WEIGHTS
        weight.place(buffer)
        weights.append(weight.set(np.full(8, 0.5, np.float32)))
    state = gg.new_tensor("f32", (8,))
    state.place(gpus[0].buffer_type.alloc(256))
    state.set(np.zeros(8, np.float32))
    scheduler = Scheduler([*gpus, ReferenceDevice("cpu")])
    pipeline = Pipeline(scheduler)
    found: dict[int, float] = {}

    def job(number: int) -> Callable[[int], Callable[[], None]]:
        def prepare(copy: int) -> Callable[[], None]:
            x = gg.new_tensor("f32", (8,)).set_input()
            stored = gg.cpy(gg.add(gg.mul(state, weights[0]), x), state)
            # The second device reads a copy of the state itself, before the next computation writes it.
            y = gg.mul(stored, weights[1]).set_output()
            graph = gg.Graph(y)
            pipeline.schedulers[copy].allocate(graph)
            x.set(np.full(8, number, np.float32))
            pause = rng.choice((0, 0, 0.003))

            def compute() -> None:
                time.sleep(pause)
                pipeline.schedulers[copy].compute(graph)
                found[number] = float(y.numpy()[0])

            return compute

        return prepare

    pipeline.compute([job(number) for number in range(8)], rng.choice((2, 3)))
    wanted, now = {}, 0.0
    for number in range(8):
        now = now / 2 + number
        wanted[number] = now / 2
    assert found == wanted
    assert state.numpy()[0] == now
    pipeline.free()
    scheduler.free()


def test_computations_that_write_the_same_host_memory_keep_their_order() -> None:
    """Each has a buffer of its own over the memory, and each second one is computed by another device."""
    values = np.ones(1 << 16, np.float32)

    def state() -> gg.Tensor:
        tensor = gg.new_tensor("f32", values.size)
        tensor.place(HOST.wrap(values))
        return tensor

    scheduler = Scheduler([FakeDevice("gpu"), ReferenceDevice("cpu")])
    pipeline = Pipeline(scheduler)

    def job(number: int) -> Callable[[int], Callable[[], None]]:
        x = gg.tensor(np.full(values.size, number, np.float32))
        new = gg.add(gg.scale(state(), 2.0), x)
        graph = gg.Graph(gg.cpy(new, state()).set_output())

        def prepare(copy: int) -> Callable[[], None]:
            own = pipeline.schedulers[copy]
            own.pin(new, own.backends[number % 2])
            return lambda: own.compute(graph)

        return prepare

    pipeline.compute([job(number) for number in range(6)], 3)
    assert (values == 121).all()
    pipeline.free()
    scheduler.free()


@pytest.mark.parametrize("fails", range(4))
def test_the_error_of_the_first_job_that_fails_is_raised_and_no_more_are_prepared(fails: int) -> None:
    def failing(number: int) -> Function:
        def half(x: np.ndarray) -> np.ndarray:
            if number >= fails:
                raise ValueError(f"job {number}")
            return x

        return half

    with Halves(plus_one, failing) as jobs:
        with pytest.raises(ComputeError, match=f"job {fails}"):
            jobs.compute(9, 2)
        assert max(jobs.prepared) <= fails + 2
        assert sorted(jobs.results) == [*range(fails)]
        jobs.second = doubled
        jobs.compute(3, 2)
        assert [jobs.results[number][0] for number in range(3)] == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("interrupted", [0, 1, 2, 3])
def test_an_interrupt_ends_all_and_leaves_no_thread(interrupted: int) -> None:
    def first(number: int) -> Function:
        def half(x: np.ndarray) -> np.ndarray:
            if number == interrupted:
                raise KeyboardInterrupt
            return x

        return half

    with Halves(first, doubled) as jobs:
        with pytest.raises(KeyboardInterrupt):
            jobs.compute(9, 2)
        assert not any(thread.name.startswith("ggplug-pipeline") for thread in threading.enumerate())
        assert set(jobs.results) <= {*range(interrupted)}
        jobs.first = plus_one
        jobs.compute(2, 2)
        assert jobs.results[1] == [4.0] * 4


def test_all_schedulers_have_the_time_limit_and_the_abort_callback_of_the_first() -> None:
    cpu = CpuDevice()
    with Scheduler([cpu]) as scheduler:
        pipeline = Pipeline(scheduler)
        scheduler.set_time_limit(7.0)
        scheduler.backends[0].set_abort_callback(lambda: True)  # type: ignore[attr-defined]
        x = gg.new_tensor("f32", (1 << 10, 1 << 10))
        context = gg.Context("test")
        context.add(x)
        gg.allocate(context, cpu.buffer_type)
        x.set(np.ones((1 << 10, 1 << 10), np.float32))
        raised = []

        def prepare(copy: int) -> Callable[[], None]:
            y = x
            for _ in range(200):
                y = gg.mul_mat(x, y)
            graph = gg.Graph(y.set_output())

            def compute() -> None:
                try:
                    pipeline.schedulers[copy].compute(graph)
                except ComputeAborted as error:
                    raised.append(error)
                    raise

            return compute

        with pytest.raises(ComputeAborted):
            pipeline.compute([prepare, prepare], 2)
        assert raised
        assert [each.backends[0].time_limit for each in pipeline.schedulers] == [7.0, 7.0]
        pipeline.free()
        context.free()


def test_a_pipeline_computes_at_least_one_at_a_time() -> None:
    with Halves(plus_one, doubled) as jobs, pytest.raises(ParameterError, match="n_copies must be at least 1, got 0"):
        jobs.compute(1, 0)

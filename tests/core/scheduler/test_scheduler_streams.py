"""Streams that run on by themselves, late and in any order that is allowed, give the same results."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from random_graphs import compute_apart, random_case

import ggplug as gg
from ggplug.scheduler import Scheduler
from ggplug.types import BufferUsage
from ggplug.values.arrays import decode
from ggplug_testing import FakeDevice, ReferenceDevice

OPS = ("silu", "mul_mat", "set_rows", "cpy", "add", "rms_norm", "concat", "cont", "sum_rows", "soft_max")


def fakes(seed: int, execution: str, count: int) -> list[FakeDevice]:
    """Discrete devices that each lack some ops."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        lacking = rng.sample(OPS, 3)
        made.append(
            FakeDevice(
                f"gpu{number}",
                execution=execution,  # type: ignore[arg-type]
                order="shuffled",
                seed=seed + number,
                declines=lambda node, lacking=lacking: "not built in" if node.op.name in lacking else "",
            )
        )
    return made


def check(seed: int) -> bool:
    """A random graph on fake devices and a host device gives what plain computation gives; False if it is refused."""
    rng = random.Random(seed)
    gpus = fakes(seed, rng.choice(("now", "late", "thread")), rng.choice((1, 2, 2)))
    devices = [*gpus, ReferenceDevice("cpu")]
    case = random_case(seed, [device.buffer_type for device in devices], size=40)
    wanted = compute_apart(case)
    scheduler = Scheduler(devices, n_copies=rng.choice((1, 1, 2, 3)), poison=rng.random() < 0.2)
    try:
        scheduler.split(case.graph)
    except gg.PlacementError as refusal:
        # Everything but a write can be done over copies on the host.
        if "the scheduler does not write into copies" in str(refusal) or "then write into" in str(refusal):
            return False
        raise
    for _ in range(2):
        case.restore()
        if case.inputs:
            scheduler.allocate(case.graph)
            case.set_inputs()
        (scheduler.compute if rng.random() < 0.5 else scheduler.compute_async)(case.graph)
        if rng.random() < 0.5:
            scheduler.synchronize()
        outputs = [tensor.numpy().tobytes() for tensor in case.outputs]
        scheduler.synchronize()
        assert outputs + [tensor.tobytes() for tensor in case.persistent] == wanted, f"seed {seed}"
    scheduler.free()
    return True


@pytest.mark.parametrize("seed", range(120))
def test_random_graphs_on_several_devices_change_no_bit(seed: int) -> None:
    check(seed)


@pytest.mark.long
def test_2000_random_graphs_on_several_devices_change_no_bit() -> None:
    assert sum(map(check, range(2000))) > 1000


@pytest.mark.parametrize("seed", range(30))
def test_steps_given_one_after_the_other_without_waiting_see_each_others_writes(seed: int) -> None:
    rng = random.Random(seed)
    execution = rng.choice(("late", "thread"))
    gpus = [FakeDevice(f"gpu{n}", execution=execution, order="shuffled", seed=seed + n) for n in range(2)]
    devices = [*gpus, ReferenceDevice("cpu")]
    case = random_case(seed, [device.buffer_type for device in devices])
    scheduler = Scheduler(devices, n_copies=rng.choice((1, 2, 3)))
    numbers = np.random.default_rng(seed)
    given = []
    for _ in range(5):
        for tensor in case.inputs:
            if tensor.type is not gg.I64:
                case.values[tensor] = numbers.standard_normal(tensor.shape).astype(tensor.type.dtype).tobytes()
        wanted = compute_apart(case)
        # The next step begins with what this one leaves in the persistent tensors.
        case.values.update(zip(case.persistent, wanted[len(case.outputs) :], strict=True))
        scheduler.allocate(case.graph)
        case.set_inputs()
        scheduler.compute_async(case.graph)
        fetched = [np.empty(tensor.nbytes, np.uint8) for tensor in case.outputs]
        for tensor, raw in zip(case.outputs, fetched, strict=True):
            scheduler.get_async(tensor, case.graph, raw)
        given.append((wanted, fetched))
    scheduler.synchronize()
    for wanted, fetched in given:
        for tensor, raw, bytes_wanted in zip(case.outputs, fetched, wanted, strict=False):
            assert np.ascontiguousarray(decode(raw, tensor)).tobytes() == bytes_wanted, f"seed {seed}"
    assert [tensor.tobytes() for tensor in case.persistent] == given[-1][0][len(case.outputs) :]
    scheduler.free()


# -- a pipeline ------------------------------------------------------------------------------------


class Pipeline:
    """Two discrete devices, each with half of the layers, and the host."""

    def __init__(self, n_copies: int, execution: str = "late", seed: int = 0) -> None:
        self.gpus = [
            FakeDevice(f"gpu{n}", execution=execution, order="shuffled", seed=seed + n)  # type: ignore[arg-type]
            for n in range(2)
        ]
        self.cpu = ReferenceDevice("cpu")
        self.scheduler = Scheduler([*self.gpus, self.cpu], n_copies=n_copies)
        rng = np.random.default_rng(seed)
        self.weights = []
        for gpu in self.gpus:
            for _ in range(2):
                tensor = gg.new_tensor("f32", (8, 8))
                buffer = gpu.buffer_type.alloc(256)
                buffer.usage = BufferUsage.WEIGHTS
                tensor.place(buffer)
                self.weights.append(tensor.set(rng.standard_normal((8, 8)) / 3))

    def graph(self) -> tuple[gg.Tensor, gg.Tensor, gg.Graph]:
        x = gg.new_tensor("f32", (8, 3)).set_input()
        h = x
        for w in self.weights:
            h = gg.add(gg.silu(gg.mul_mat(w, h)), h)
        h.set_output()
        return x, h, gg.Graph(h)

    def wanted(self, values: np.ndarray) -> np.ndarray:
        h = values.astype(np.float64)
        for w in self.weights:
            y = (h @ w.numpy().T.astype(np.float64)).astype(np.float32).astype(np.float64)
            y = (y / (1 + np.exp(-y))).astype(np.float32).astype(np.float64)
            h = (y + h).astype(np.float32).astype(np.float64)
        return h.astype(np.float32)


def batch(step: int) -> np.ndarray:
    return np.random.default_rng(100 + step).standard_normal((3, 8)).astype(np.float32)


@pytest.mark.parametrize("n_copies", [1, 2, 3, 5])
@pytest.mark.parametrize("execution", ["late", "thread"])
@pytest.mark.parametrize("new_graphs", [False, True])
def test_computations_under_way_at_the_same_time_do_not_disturb_each_other(
    n_copies: int, execution: str, new_graphs: bool
) -> None:
    for seed in range(5):
        line = Pipeline(n_copies, execution, seed)
        x, h, graph = line.graph()
        fetched = []
        for step in range(8):
            if new_graphs:
                x, h, graph = line.graph()
            line.scheduler.allocate(graph)
            x.set(batch(step))
            line.scheduler.compute_async(graph)
            fetched.append(np.empty(h.nbytes, np.uint8))
            line.scheduler.get_async(h, graph, fetched[-1])
        line.scheduler.synchronize()
        for step, raw in enumerate(fetched):
            np.testing.assert_array_equal(raw.view(np.float32).reshape(3, 8), line.wanted(batch(step)))
        line.scheduler.free()


def test_with_several_copies_the_first_device_begins_the_next_computation_before_the_second_has_ended() -> None:
    def pending_when_the_third_was_given(n_copies: int) -> int:
        line = Pipeline(n_copies)
        x, _, graph = line.graph()
        for step in range(3):
            line.scheduler.allocate(graph)
            x.set(batch(step))
            line.scheduler.compute_async(graph)
        return sum(gpu.queue.pending for gpu in line.gpus)

    assert pending_when_the_third_was_given(3) > pending_when_the_third_was_given(1)


def test_setting_an_input_waits_for_those_that_still_read_it() -> None:
    line = Pipeline(1)
    x, h, graph = line.graph()
    line.scheduler.allocate(graph)
    x.set(batch(0))
    line.scheduler.compute_async(graph)
    x.set(batch(1))
    np.testing.assert_array_equal(h.numpy(), line.wanted(batch(0)))
    line.scheduler.compute(graph)
    np.testing.assert_array_equal(h.numpy(), line.wanted(batch(1)))


def test_reading_a_result_waits_for_it() -> None:
    line = Pipeline(1)
    x, h, graph = line.graph()
    line.scheduler.allocate(graph)
    x.set(batch(0))
    line.scheduler.compute_async(graph)
    assert sum(gpu.queue.pending for gpu in line.gpus) > 0
    np.testing.assert_array_equal(h.numpy(), line.wanted(batch(0)))


@pytest.mark.parametrize("placed", [False, True])
def test_a_result_is_copied_after_it_was_computed_wherever_it_lies(placed: bool) -> None:
    """Also one that the caller gave a place: its device writes there, and does not only read."""
    first = FakeDevice("first", execution="late", declines=lambda node: "" if node.op.name == "neg" else "only neg")  # type: ignore[union-attr]
    second = FakeDevice("second", execution="late", declines=lambda node: "" if node.op.name == "sqr" else "only sqr")  # type: ignore[union-attr]
    x = gg.new_tensor("f32", 4)
    x.place(first.buffer_type.alloc(16))
    x.set([1, 2, 3, 4])
    negated = gg.neg(x)
    if placed:
        negated.place(first.buffer_type.alloc(16))
    result = gg.sqr(negated).set_output()
    # The second device's stream is waited for first, and does all that it may do by then.
    with Scheduler([second, first]) as scheduler:
        scheduler.compute(gg.Graph(result))
        assert result.numpy().tolist() == [1, 4, 9, 16]


def test_another_structure_waits_for_the_one_before() -> None:
    line = Pipeline(2)
    x, h, graph = line.graph()
    line.scheduler.allocate(graph)
    x.set(batch(0))
    line.scheduler.compute_async(graph)
    raw = np.empty(h.nbytes, np.uint8)
    line.scheduler.get_async(h, graph, raw)
    other = gg.Graph(gg.silu(line.weights[0]))
    line.scheduler.compute_async(other)
    np.testing.assert_array_equal(raw.view(np.float32).reshape(3, 8), line.wanted(batch(0)))
    line.scheduler.synchronize()


def test_fetching_needs_a_computed_graph() -> None:
    line = Pipeline(1)
    _, h, graph = line.graph()
    with pytest.raises(gg.TensorStateError, match="was not computed by this scheduler"):
        line.scheduler.get_async(h, graph, np.empty(h.nbytes, np.uint8))


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", ["now", "late"])
@pytest.mark.parametrize("kind", ["kernel", "receive", "compute"])
def test_a_failure_on_a_device_is_raised_and_the_next_computation_works(execution: str, kind: Any) -> None:
    line = Pipeline(1, execution)
    x, h, graph = line.graph()
    line.scheduler.allocate(graph)
    x.set(batch(0))
    line.gpus[0].fail(kind)
    with pytest.raises(gg.ComputeError, match="gpu0 failed"):
        line.scheduler.compute(graph)
    with pytest.raises(gg.TensorStateError):
        h.numpy()
    line.scheduler.allocate(graph)
    x.set(batch(1))
    line.scheduler.compute(graph)
    np.testing.assert_array_equal(h.numpy(), line.wanted(batch(1)))


def test_a_late_failure_is_raised_by_whoever_reads_the_result() -> None:
    line = Pipeline(1)
    x, h, graph = line.graph()
    line.scheduler.allocate(graph)
    x.set(batch(0))
    line.gpus[1].fail("kernel")
    line.scheduler.compute_async(graph)
    with pytest.raises(gg.ComputeError, match="gpu1 failed"):
        h.numpy()
    with pytest.raises(gg.TensorStateError):
        h.numpy()


def test_a_lost_device_is_named() -> None:
    line = Pipeline(1, "now")
    x, _, graph = line.graph()
    line.scheduler.allocate(graph)
    x.set(batch(0))
    line.gpus[1].lose()
    with pytest.raises(gg.DeviceLostError, match="gpu1 was lost"):
        line.scheduler.compute(graph)

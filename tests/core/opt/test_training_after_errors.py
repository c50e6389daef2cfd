"""Training after errors: a batch is learned from and counted, or nothing has changed, and the training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ggplug as gg
from ggplug import opt
from ggplug.errors import ComputeError, GGUFError, ModelError
from ggplug_testing import FakeDevice
from tests.support.interrupts import interrupted_everywhere

Array = npt.NDArray[Any]

RANDOM = np.random.default_rng(0)
DATA = RANDOM.standard_normal((4, 4, 3)).astype(np.float32)
LABELS = RANDOM.standard_normal((4, 4, 2)).astype(np.float32)
PARAMETERS = {"a": RANDOM.standard_normal((5, 3)), "b": np.zeros(5), "c": RANDOM.standard_normal((2, 5))}


def outputs(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
    return gg.mul_mat(p["c"], gg.tanh(gg.add(gg.mul_mat(p["a"], x), p["b"])))


def made(period: int, optimiser: opt.Optimiser | None = None, **options: Any) -> opt.Training:
    optimiser = opt.AdamW(0.1) if optimiser is None else optimiser
    return opt.Training(outputs, PARAMETERS, opt.mean_squared_error, optimiser, period=period, **options)


def state(training: opt.Training) -> list[Array]:
    """All that a checkpoint holds."""
    counts = np.array([training.steps, training._batches])
    return [counts, *(tensor.numpy() for tensor in training._written())]


def same(one: list[Array], other: list[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("period", "before"), [(1, 1), (2, 2), (2, 3)])
def test_an_interrupted_step_is_learned_from_and_counted_or_changes_nothing(
    period: int, before: int, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoint.gguf"
    with made(period) as training:
        for number in range(before):
            training.step(DATA[number], LABELS[number])
        training.save(file)
        undone = state(training)
        training.step(DATA[before], LABELS[before])
        done = state(training)
        training.load(file)
        ends = set()
        for place in interrupted_everywhere(lambda: training.step(DATA[before], LABELS[before])):
            found = state(training)
            assert same(found, done) or same(found, undone), place
            ends.add(same(found, done))
            training.load(file)
        assert ends == {False, True}
        training.load(file)
        training.step(DATA[before], LABELS[before])
        assert same(state(training), done)


def test_a_step_goes_on_after_an_interrupt_that_hides_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with made(2) as training, made(2) as twin:
        for number in range(2):
            twin.step(DATA[number], LABELS[number])
        training.step(DATA[0], LABELS[0])
        with monkeypatch.context() as patched:
            patched.setattr(training, "_count", interrupt)
            patched.setattr(training, "_settle", settle_once(training))
            with pytest.raises(KeyboardInterrupt):
                training.step(DATA[1], LABELS[1])
        for number in range(2, 4):
            training.step(DATA[number], LABELS[number])
            twin.step(DATA[number], LABELS[number])
        assert same(state(training), state(twin))


def interrupt() -> None:
    raise KeyboardInterrupt


def settle_once(training: opt.Training) -> Any:
    calls = iter([training._settle])
    return lambda: next(calls, interrupt)()


@pytest.mark.parametrize(
    ("period", "before", "execution", "elsewhere"),
    [
        *((*each, execution, "") for each in [(1, 0), (2, 0), (2, 1)] for execution in ("now", "late")),
        (1, 0, "late", "c"),
        (2, 1, "late", "a"),
    ],
)
def test_a_step_of_which_a_device_computed_a_part_counts_or_the_period_begins_anew(
    period: int, before: int, execution: Any, elsewhere: str
) -> None:
    """Also if a parameter lies on another device, which does not fail."""
    cases, cpu = set(), gg.device("CPU")
    for node in range(1, 200):
        device = FakeDevice(execution=execution)
        placement = {elsewhere: cpu} if elsewhere else {}
        with made(period, backends=[device, cpu], placement=placement) as training:
            for number in range(before):
                training.step(DATA[number], LABELS[number])
            start = state(training)
            device.fail("kernel", node)
            try:
                training.step(DATA[before], LABELS[before])
            except ComputeError:
                found = state(training)
                changed = not same(found, start)
                cases.add(changed)
                if changed:
                    assert (training.steps, training._batches) == (1 if before + 1 == period else 0, 0)
                    assert all(not each.numpy().any() for each in training._accumulators.values())
            else:
                break
            steps, missing = training.steps, period - training._batches
            for _ in range(missing):
                assert training.steps == steps
                training.step(DATA[0], LABELS[0])
            assert training.steps == steps + 1
    # Without gradients of batches before, a period that begins anew is as it was.
    assert cases == ({False} if before + 1 < period else {False, True})


def changes_tensors(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).name in ("training.py", "tensor.py")


@pytest.mark.parametrize("period", [1, 2])
def test_an_interrupted_load_changes_nothing(period: int, tmp_path: Path) -> None:
    with made(period) as training:
        training.step(DATA[0], LABELS[0])
        training.save(tmp_path / "first.gguf")
        first = state(training)
        training.step(DATA[1], LABELS[1])
        training.save(tmp_path / "second.gguf")
        second = state(training)
        for place in interrupted_everywhere(lambda: training.load(tmp_path / "first.gguf"), changes_tensors):
            if not same(state(training), second):
                assert same(state(training), first), place
                training.load(tmp_path / "second.gguf")
        assert same(state(training), first)


@pytest.mark.parametrize(("saved", "loaded"), [(4, 2), (4, 1), (1, 4), (2, 3)])
def test_a_period_begins_anew_from_a_checkpoint_of_another_period(saved: int, loaded: int, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.gguf"
    with made(saved) as training:
        for number in range(3):
            training.step(DATA[number], LABELS[number])
        training.save(file)
        parameters = {name: tensor.numpy() for name, tensor in training.parameters.items()}
        steps = training.steps
    with made(loaded) as training:
        training.step(DATA[3], LABELS[3])
        training.load(file)
        for number in range(loaded):
            assert training.steps == steps
            for name, values in parameters.items():
                np.testing.assert_array_equal(training.parameters[name].numpy(), values)
            training.step(DATA[number], LABELS[number])
        assert training.steps == steps + 1
        assert (training.parameters["c"].numpy() != parameters["c"]).any()


def test_a_file_that_is_no_checkpoint_changes_nothing(tmp_path: Path) -> None:
    file, damaged = tmp_path / "checkpoint.gguf", tmp_path / "damaged.gguf"
    dataset = opt.Dataset(DATA.reshape(16, 3), LABELS.reshape(16, 2))
    with made(2) as training:
        opt.fit(training, dataset, 2, batch=4, validation=dataset, checkpoint=file)
        whole = file.read_bytes()
        training.step(DATA[0], LABELS[0])
        before = state(training)
        names = ["training.steps", "training.batches", *(f"training.epochs.{name}" for name in opt.Epoch._fields)]
        for name in (*names, "a.m"):
            position = whole.index(name.encode()) + len(name) - 1
            damaged.write_bytes(whole[:position] + b"?" + whole[position + 1 :])
            with pytest.raises((ModelError, GGUFError)):
                training.load(damaged)
            assert same(state(training), before), name
            assert len(training.epochs) == 2
        for length in (10, len(whole) // 2, len(whole) - 40):
            damaged.write_bytes(whole[:length])
            with pytest.raises(GGUFError):
                training.load(damaged)
            assert same(state(training), before)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"training.steps": 3},
        {"training.steps": "three", "training.batches": 0},
        {"training.steps": -1, "training.batches": 0},
        {"training.steps": True, "training.batches": 0},
        {"training.steps": [3], "training.batches": 0},
        {"training.steps": 3, "training.batches": 0.0},
        {"training.steps": 3, "training.batches": 0, "training.period": "2"},
        {"training.steps": 3, "training.batches": 0, "training.epochs.number": [1.0]},
        {
            "training.steps": 3,
            "training.batches": 0,
            **{f"training.epochs.{name}": ["1"] for name in opt.Epoch._fields},
        },
        {"training.steps": 3, "training.batches": 0, **{f"training.epochs.{name}": "1" for name in opt.Epoch._fields}},
        {
            "training.steps": 3,
            "training.batches": 0,
            **{f"training.epochs.{name}": [float("nan")] for name in opt.Epoch._fields},
        },
    ],
)
def test_weights_with_other_metadata_than_a_checkpoint_are_refused(metadata: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    with gg.gguf.GGUFWriter(file, arch="any") as writer:
        for key, value in metadata.items():
            writer.add(key, value)
        for name, values in PARAMETERS.items():
            writer.add_tensor(name, values.astype(np.float32) + 1)
    with made(1, opt.SGD(0.1)) as training:
        before = state(training)
        with pytest.raises(ModelError, match=r"training\."):
            training.load(file)
        assert same(state(training), before)

"""What cannot be trained is refused before anything changes, and what has no labels or no value is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ggplug as gg
from ggplug import opt
from ggplug.errors import BusyError, ModelError, ParameterError, ShapeError, TrainingError, TypeMismatchError
from ggplug_testing import FakeDevice

Array = npt.NDArray[Any]

RANDOM = np.random.default_rng(0)
DATA = RANDOM.standard_normal((12, 3)).astype(np.float32)
TARGETS = DATA @ np.array([[1.0], [2.0], [3.0]], np.float32)
WEIGHTS = np.ones((1, 3))


def linear(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
    return gg.mul_mat(p["w"], x)


def flat(outputs: gg.Tensor, labels: gg.Tensor | None) -> gg.Tensor:
    """A loss of rank 1 with one element."""
    assert labels is not None
    return gg.mean(gg.reshape(gg.sqr(gg.sub(outputs, labels)), outputs.size))


# -- checkpoints -----------------------------------------------------------------------------------


def test_values_that_are_no_longer_finite_do_not_replace_a_checkpoint(tmp_path: Path) -> None:
    # The gradient of sqrt at 0 is infinite, while the loss is 0.
    def root(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
        return gg.sqrt(gg.relu(gg.mul(x, p["w"])))

    data, kept = opt.Dataset(np.ones((4, 1), np.float32)), tmp_path / "kept.gguf"
    with opt.Training(root, {"w": [4.0]}, opt.sum, opt.SGD(0.01)) as training:
        opt.fit(training, data, 1, batch=4, checkpoint=kept, silent=True)
        before = kept.read_bytes()
        training.parameters["w"].set([0.0])
        with pytest.raises(TrainingError, match="'w' has values that are NaN or infinite after step 2"):
            opt.fit(training, data, 2, batch=4, checkpoint=kept, silent=True)
    assert kept.read_bytes() == before


def test_a_checkpoint_of_more_parameters_or_of_another_identity_is_refused(tmp_path: Path) -> None:
    class Named(opt.Training):
        identity = "a"

    with Named(linear, {"w": WEIGHTS, "v": WEIGHTS}) as training:
        training.save(tmp_path / "more.gguf")
    with Named(linear, {"w": WEIGHTS}) as training:
        with pytest.raises(ModelError, match="has 'v', which is no parameter of this training"):
            training.load(tmp_path / "more.gguf")
        training.save(tmp_path / "kept.gguf")
        training.load(tmp_path / "kept.gguf")
        Named.identity = "b"
        with pytest.raises(ModelError, match="a checkpoint of another training: 'a', not 'b'"):
            training.load(tmp_path / "kept.gguf")


# -- losses ----------------------------------------------------------------------------------------


def test_a_loss_may_be_one_number_of_any_rank() -> None:
    found = []
    for loss in (opt.mean_squared_error, flat):
        with opt.Training(linear, {"w": WEIGHTS}, loss, opt.SGD(0.1)) as training:
            evaluated = training.evaluate(opt.Dataset(DATA, TARGETS)).loss
            assert evaluated == training.step(DATA, TARGETS)
            assert training.steps == 1
            found.append((evaluated, training.parameters["w"].numpy()))
    assert found[1][0] == pytest.approx(found[0][0])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6)


def test_a_loss_of_several_numbers_is_refused_before_anything_changes() -> None:
    with opt.Training(linear, {"w": WEIGHTS}, lambda outputs, labels: outputs, opt.SGD(0.1)) as training:
        for call in (lambda: training.step(DATA), lambda: training.evaluate(opt.Dataset(DATA))):
            with pytest.raises(ShapeError, match="a loss must be one number"):
                call()
        np.testing.assert_array_equal(training.parameters["w"].numpy(), WEIGHTS)
        assert training.steps == 0


@pytest.mark.parametrize("loss", [lambda w: w, lambda w: gg.reshape(w, 1)])
def test_a_loss_that_lies_in_a_parameter_is_that_before_the_step(loss: Any) -> None:
    with opt.Training(lambda p, x: loss(p["w"]), {"w": np.array([[5.0]])}, lambda y, _: y, opt.SGD(0.5)) as training:
        assert [training.step(DATA) for _ in range(3)] == [5.0, 4.5, 4.0]


@pytest.mark.parametrize("loss", [opt.cross_entropy, opt.mean_squared_error])
def test_a_loss_that_needs_labels_says_so(loss: opt.losses.Loss) -> None:
    with opt.Training(linear, {"w": WEIGHTS}, loss) as training:
        for call in (lambda: training.step(DATA), lambda: training.evaluate(opt.Dataset(DATA))):
            with pytest.raises(ParameterError, match="labels, but there are none"):
                call()


def test_rows_without_labels_do_not_count_for_the_accuracy() -> None:
    labels = np.zeros((12, 4))
    labels[:4] = np.eye(4)[[0, 1, 0, 0]]
    with opt.Training(linear, {"w": np.zeros((4, 3))}) as training:  # it predicts class 0
        assert training.evaluate(opt.Dataset(DATA, labels), batch=5).accuracy == 0.75
        assert training.evaluate(opt.Dataset(DATA[4:], labels[4:])).accuracy is None


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({}, ParameterError, "needs a parameter or more"),
        ({"w": WEIGHTS, "w.m": WEIGHTS}, ParameterError, "'w' and 'w.m' both need the name 'w.m'"),
        ({"w.grad": WEIGHTS, "w": WEIGHTS}, ParameterError, "'w.grad' and 'w' both need the name 'w.grad'"),
        ({"x" * 62: WEIGHTS}, ParameterError, "the parameter 'x+': 'x+.m' is longer than 63 bytes"),
        ({"x" * 100: WEIGHTS}, ParameterError, "the parameter 'x+': 'x+' is longer than 63 bytes"),
        ({"\ud800": WEIGHTS}, ParameterError, "ud800"),
        ({"w": WEIGHTS, "b": 2.0}, ShapeError, r"'b' must have 1 to 4 extents, got the shape \(\)"),
        ({"w": np.ones((1, 1, 1, 1, 2))}, ShapeError, "'w' must have 1 to 4 extents"),
        ({"w": [[1.0], [2.0, 3.0]]}, ShapeError, "the parameter 'w'"),
        ({"w": "text"}, TypeMismatchError, "the parameter 'w'"),
    ],
)
def test_parameters_that_cannot_be_trained_are_named(
    parameters: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opt.Training(linear, parameters, period=2)


@pytest.mark.parametrize("name", ["settings", "mark", "x" * 58, "é" * 29])
def test_parameters_of_any_other_name_are_trained_and_saved(name: str, tmp_path: Path) -> None:
    def function(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
        return gg.mul_mat(p[name], x)

    with opt.Training(function, {name: WEIGHTS}, opt.mean_squared_error, period=2) as training:
        for _ in range(2):
            training.step(DATA, TARGETS)
        training.save(tmp_path / "checkpoint.gguf")
        learned = training.parameters[name].numpy()
    with opt.Training(function, {name: WEIGHTS}, opt.mean_squared_error, period=2) as training:
        training.load(tmp_path / "checkpoint.gguf")
        np.testing.assert_array_equal(training.parameters[name].numpy(), learned)


def test_a_period_is_a_whole_number() -> None:
    with pytest.raises(TypeMismatchError, match="period must be an integer"):
        opt.Training(linear, {"w": WEIGHTS}, period=2.5)  # type: ignore[arg-type]


# -- datasets, epochs, threads ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_integers_of_a_dataset_fit_or_are_refused(dtype: Any) -> None:
    assert opt.Dataset(np.array([[2**31 - 1]], dtype)).data.dtype == np.int32
    with pytest.raises(ParameterError, match="must fit into int32, got 2147483649"):
        opt.Dataset(np.array([[5, 2**31 + 1]], dtype))
    with pytest.raises(ParameterError, match="must fit into int32"):
        opt.Dataset(np.zeros((1, 2)), np.array([2**31], dtype))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1 + 2j]], "real numbers, got complex128"),
        ([["a"]], "real numbers, got <U1"),
        (np.ma.masked_array([[1.0, 2.0]], [[False, True]]), "got masked values"),
        ([[1e300]], "must fit into float32, got 1e[+]300"),
    ],
)
def test_values_of_a_dataset_are_numbers_that_float32_holds(values: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        opt.Dataset(values)
    assert np.isinf(opt.Dataset([[np.inf]]).data).all()


@pytest.mark.parametrize(
    ("optimiser", "settings"),
    [
        (opt.AdamW, {"alpha": -1.0}),
        (opt.AdamW, {"alpha": "1e-3"}),
        (opt.AdamW, {"alpha": None}),
        (opt.AdamW, {"beta1": 1.0}),
        (opt.AdamW, {"beta2": 1.5}),
        (opt.AdamW, {"eps": math.nan}),
        (opt.AdamW, {"wd": math.nan}),
        (opt.SGD, {"alpha": math.inf}),
        (opt.SGD, {"wd": -0.1}),
    ],
)
def test_settings_of_an_optimiser_are_checked_before_anything_is_computed(
    optimiser: Any, settings: dict[str, Any]
) -> None:
    (name,) = settings
    with pytest.raises(ParameterError, match=f"{name} must be a"):
        optimiser(**settings)


@pytest.mark.parametrize("alpha", [math.nan, None, -1.0])
def test_a_schedule_gives_numbers(alpha: Any) -> None:
    schedule = opt.SGD(lambda step: alpha if step else 0.1)
    with opt.Training(linear, {"w": WEIGHTS}, opt.mean_squared_error, schedule) as training:
        training.step(DATA, TARGETS)
        before = training.values(training.parameters["w"]).copy()
        with pytest.raises(ParameterError, match="alpha of step 1 must be"):
            training.step(DATA, TARGETS)
        np.testing.assert_array_equal(training.values(training.parameters["w"]), before)


def test_epochs_need_a_batch_and_a_seed() -> None:
    with opt.Training(linear, {"w": WEIGHTS}, opt.mean_squared_error) as training:
        for how in ({"batch": 0}, {"seed": -1}):
            with pytest.raises(ParameterError, match="batch must be at least 1, and seed at least 0"):
                opt.fit(training, opt.Dataset(DATA, TARGETS), 1, **how)  # type: ignore[arg-type]


def test_patience_needs_a_validation_dataset() -> None:
    with opt.Training(linear, {"w": WEIGHTS}, opt.mean_squared_error) as training:
        for patience in (2, -1):
            with pytest.raises(ParameterError, match="patience must be 0, or positive with a validation dataset"):
                opt.fit(training, opt.Dataset(DATA, TARGETS), 10, patience=patience)
        assert training.steps == 0


@pytest.mark.parametrize("number", [0, 1])
def test_a_validation_loss_that_is_nan_is_no_progress(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    losses[number] = math.nan
    dataset = opt.Dataset(DATA, TARGETS)
    with opt.Training(linear, {"w": WEIGHTS}, opt.mean_squared_error) as training:
        monkeypatch.setattr(training, "evaluate", lambda *_: opt.Result(losses[len(training.epochs)], None))
        assert len(opt.fit(training, dataset, 7, validation=dataset, patience=2)) == (4 if number == 0 else 3)


def test_losses_that_are_not_finite_are_not_drawn(tmp_path: Path) -> None:
    losses = [(math.inf, None), (2.0, math.nan), (1.0, 4.0), (math.nan, -math.inf), (1.0, 2.0)]
    opt.draw_curves([opt.Epoch(n, *each, None, 0.1) for n, each in enumerate(losses, 1)], tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert "inf" not in text
    assert "nan" not in text
    assert 'points="184.0,180.0 320.0,246.0 592.0,246.0"' in text
    assert 'points="320.0,48.0 592.0,180.0"' in text


def test_a_training_in_a_step_is_busy() -> None:
    def function(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
        training.step(DATA)
        return linear(p, x)

    with opt.Training(function, {"w": WEIGHTS}, opt.mean) as training, pytest.raises(BusyError):
        training.step(DATA)


# -- placement -------------------------------------------------------------------------------------


def test_parameters_lie_where_the_first_pattern_says_and_are_trained_alike() -> None:
    def outputs(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
        return gg.mul_mat(p["b.w"], gg.tanh(gg.add(gg.mul_mat(p["a.w"], x), p["a.b"])))

    values = {"a.w": np.ones((4, 3)), "a.b": np.zeros(4), "b.w": np.full((1, 4), 0.5)}
    found = []
    for placed in ({}, {"a.b": 0, "a.*": 1}, {"*": 1}):
        devices = [FakeDevice("Fake0"), FakeDevice("Fake1", execution="late"), gg.device("CPU")]
        placement = {pattern: devices[number] for pattern, number in placed.items()}
        how: dict[str, Any] = {"backends": devices, "placement": placement, "clip": 1.0}
        with opt.Training(outputs, values, opt.mean_squared_error, opt.SGD(0.1), **how) as training:
            where = {name: tensor.buffer.type.device for name, tensor in training.parameters.items() if tensor.buffer}
            losses = [training.step(DATA, TARGETS) for _ in range(3)]
        found.append(([devices.index(where[name]) for name in values], losses))
    assert [places for places, _ in found] == [[0, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert found[0][1] == found[1][1] == found[2][1]


def test_a_placement_that_no_parameter_or_no_backend_has_is_refused() -> None:
    cpu, other = gg.device("CPU"), FakeDevice()
    for placement, wrong in (
        ({"w": other}, "none of the backends"),
        ({"v*": cpu}, "'v\\*' is the first pattern of no parameter"),
        ({"*": cpu, "w": cpu}, "'w' is the first pattern of no parameter"),
    ):
        with pytest.raises(ParameterError, match=wrong):
            opt.Training(linear, {"w": WEIGHTS}, backends=[cpu], placement=placement)

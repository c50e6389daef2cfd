"""Training: steps, accumulation, clipping, schedules, datasets, epochs, and checkpoints from which it goes on."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ggplug as gg
from ggplug import opt
from ggplug.errors import ModelError, ParameterError, ShapeError, TrainingError
from ggplug.opt.training import GRAPHS

Array = npt.NDArray[Any]

RANDOM = np.random.default_rng(0)
DATA = RANDOM.standard_normal((96, 6)).astype(np.float32)
CLASSES = (DATA @ RANDOM.standard_normal((6, 3))).argmax(axis=1)
LABELS = np.eye(3, dtype=np.float32)[CLASSES]


def parameters(seed: int = 1) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {"a": random.standard_normal((8, 6)), "b": np.zeros(8), "c": random.standard_normal((3, 8)) / 3}


def logits(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
    return gg.mul_mat(p["c"], gg.tanh(gg.add(gg.mul_mat(p["a"], x), p["b"])))


@pytest.fixture
def training() -> Iterator[opt.Training]:
    with opt.Training(logits, parameters(), optimiser=opt.AdamW(2e-2)) as made:
        yield made


def weights(training: opt.Training) -> dict[str, Array]:
    return {name: tensor.numpy() for name, tensor in training.parameters.items()}


def linear_loss(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
    return gg.mul_mat(p["w"], x)


# -- steps -----------------------------------------------------------------------------------------


def test_a_step_of_sgd_follows_the_gradient() -> None:
    w, x = np.array([[1.0, -2.0]]), np.array([[3.0, 4.0], [1.0, 0.0]])
    with opt.Training(linear_loss, {"w": w}, opt.sum, opt.SGD(0.5)) as training:
        assert training.step(x) == pytest.approx((x @ w.T).sum())
        np.testing.assert_allclose(training.parameters["w"].numpy(), w - 0.5 * x.sum(axis=0))
        assert training.steps == 1


def test_a_step_of_adamw_is_that_of_the_paper() -> None:
    w, x, alpha, wd = np.array([[1.0, -2.0]]), np.array([[3.0, 4.0]]), 0.1, 0.01
    m, v, expected = np.zeros_like(w), np.zeros_like(w), w.copy()
    with opt.Training(linear_loss, {"w": w}, opt.sum, opt.AdamW(alpha, wd=wd)) as training:
        for t in (1, 2, 3):
            training.step(x)
            m, v = 0.9 * m + 0.1 * x, 0.999 * v + 0.001 * x * x
            moved = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            expected = expected * (1 - alpha * wd) - alpha * moved
            np.testing.assert_allclose(training.parameters["w"].numpy(), expected, rtol=1e-5)


def test_gradients_of_a_period_are_those_of_one_large_batch() -> None:
    found = []
    for period, size in ((1, 32), (4, 8)):
        with opt.Training(logits, parameters(), optimiser=opt.SGD(0.1), period=period) as training:
            for start in range(0, 64, size):
                training.step(DATA[start : start + size], LABELS[start : start + size])
            assert training.steps == 2
            found.append(weights(training))
    for name, whole in found[0].items():
        np.testing.assert_allclose(found[1][name], whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("period", [1, 2])
def test_clipping_limits_the_norm_of_all_gradients_together(period: int) -> None:
    values = {"w": np.zeros((1, 2)), "v": np.zeros((1, 2))}

    def both(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
        return gg.add(gg.mul_mat(p["w"], x), gg.mul_mat(p["v"], gg.scale(x, 2)))

    for size, wanted in ((1.0, 1.0), (0.01, 0.01 * 5**0.5 * 5)):
        with opt.Training(both, values, opt.sum, opt.SGD(1.0), period=period, clip=1.0) as training:
            for _ in range(period):
                training.step(np.array([[3.0, 4.0]]) * size)
            moved = np.concatenate([each.reshape(-1) for each in weights(training).values()])
            assert np.linalg.norm(moved) == pytest.approx(wanted, rel=1e-5)
            np.testing.assert_allclose(moved[2:], 2 * moved[:2], rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (opt.mean, lambda y, t: y.mean()),
        (opt.sum, lambda y, t: y.sum()),
        (opt.mean_squared_error, lambda y, t: ((y - t) ** 2).mean()),
        (opt.cross_entropy, lambda y, t: -(t * np.log(np.exp(y) / np.exp(y).sum(1, keepdims=True))).sum(1).mean()),
    ],
)
def test_losses(loss: Any, wanted: Any) -> None:
    with opt.Training(logits, parameters(), loss) as training:
        outputs = training.predict(DATA)
        found = training.evaluate(opt.Dataset(DATA, LABELS), batch=40).loss
        assert found == pytest.approx(wanted(outputs.astype(np.float64), LABELS), rel=1e-4) or loss is opt.sum
        assert training.step(DATA, LABELS) == pytest.approx(wanted(outputs.astype(np.float64), LABELS), rel=1e-4)


def test_rows_without_labels_teach_nothing() -> None:
    masked = LABELS.copy()
    masked[40:] = 0
    found = []
    for data, labels, scale in ((DATA, masked, 96 / 40), (DATA[:40], LABELS[:40], 1.0)):
        with opt.Training(logits, parameters(), optimiser=opt.SGD(0.1 * scale)) as training:
            training.step(data, labels)
            found.append(weights(training))
    for name, alone in found[1].items():
        np.testing.assert_allclose(found[0][name], alone, rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_not_finite_ends_the_training(training: opt.Training) -> None:
    with pytest.raises(TrainingError, match="the loss is nan in step 1"):
        training.step(np.full((2, 6), np.nan), LABELS[:2])


# -- schedules and datasets ------------------------------------------------------------------------


def test_schedules_rise_and_fall() -> None:
    cosine = opt.cosine(1.0, 110, warmup=10, last=0.1)
    assert [round(cosine(step), 3) for step in (0, 4, 10, 60, 110, 500)] == [0.091, 0.455, 1.0, 0.55, 0.1, 0.1]
    line = opt.linear(2.0, 4)
    assert [line(step) for step in range(6)] == [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]
    assert opt.AdamW(line).settings(1)[0] == 1.5


def test_a_dataset_is_shuffled_by_shards() -> None:
    dataset = opt.Dataset(np.arange(12), np.arange(12), shard=3)
    order = dataset.order(seed=5, epoch=2)
    assert sorted(order) == list(range(12))
    assert (order.reshape(4, 3) == order[::3, None] + np.arange(3)).all()
    assert (order == dataset.order(5, 2)).all()
    assert (order != dataset.order(5, 3)).any()
    batches = list(dataset.batches(5, order))
    assert [len(each.data) for each in batches] == [5, 5, 2]
    assert (np.concatenate([each.labels for each in batches]) == order).all()


def test_datasets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="a label for each datapoint"):
        opt.Dataset(np.zeros((4, 2)), np.zeros(3))
    with pytest.raises(ParameterError, match="4 datapoints are no whole number of shards of 3"):
        opt.Dataset(np.zeros((4, 2)), shard=3)
    with pytest.raises(ParameterError, match="1 datapoint or more"):
        next(opt.Dataset(np.zeros((4, 2))).batches(0))


# -- epochs ----------------------------------------------------------------------------------------


def test_fit_learns_and_evaluates(training: opt.Training) -> None:
    train, validation = opt.Dataset(DATA, LABELS).split(80)
    seen: list[opt.Epoch] = []
    epochs = opt.fit(training, train, 12, batch=16, validation=validation, callbacks=[lambda _, e: seen.append(e)])
    assert seen == epochs
    assert [each.number for each in epochs] == list(range(1, 13))
    assert epochs[-1].loss < 0.5 * epochs[0].loss
    assert (epochs[-1].accuracy or 0) > 0.8
    assert training.steps == 12 * 5


def test_training_ends_where_nothing_gets_better_or_a_callback_says_so(training: opt.Training) -> None:
    dataset = opt.Dataset(DATA, LABELS)
    assert len(opt.fit(training, dataset, 9, callbacks=[lambda _, e: e.number == 3])) == 3
    with opt.Training(logits, parameters(), optimiser=opt.SGD(0.0)) as still:
        assert len(opt.fit(still, dataset, 9, validation=dataset, patience=2)) == 3


@pytest.mark.parametrize("period", [1, 2])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(period: int, tmp_path: Path) -> None:
    dataset, file = opt.Dataset(DATA, LABELS), tmp_path / "checkpoint.gguf"
    with opt.Training(logits, parameters(), period=period) as whole:
        opt.fit(whole, dataset, 3, batch=32, validation=dataset)
        opt.fit(whole, dataset, 6, batch=32, validation=dataset)
        with opt.Training(logits, parameters(), period=period) as first:
            opt.fit(first, dataset, 3, batch=32, validation=dataset, checkpoint=file)
        with opt.Training(logits, parameters(seed=7), period=period) as second:
            second.load(file)
            assert [each.number for each in second.epochs] == [1, 2, 3]
            opt.fit(second, dataset, 6, batch=32, validation=dataset)
            assert [each.loss for each in second.epochs] == [each.loss for each in whole.epochs]
            for name, values in weights(whole).items():
                np.testing.assert_array_equal(weights(second)[name], values)
            np.testing.assert_array_equal(second.predict(DATA), whole.predict(DATA))


def test_a_checkpoint_of_another_model_is_refused(training: opt.Training, tmp_path: Path) -> None:
    training.save(tmp_path / "checkpoint.gguf")
    with (
        opt.Training(linear_loss, {"w": np.zeros((1, 2))}, opt.sum) as other,
        pytest.raises(ModelError, match="no 'w'"),
    ):
        other.load(tmp_path / "checkpoint.gguf")


def test_losses_are_drawn(tmp_path: Path) -> None:
    epochs = [opt.Epoch(1, 2.0, 3.0, None, 0.1), opt.Epoch(2, 1.0, 1.5, None, 0.1)]
    opt.draw_curves(epochs, tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert text.count("<polyline") == 2
    assert "48.0,136.0 592.0,224.0" in text


# -- progress --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_fit_draws_epochs_batches_and_losses_on_a_terminal(
    training: opt.Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = opt.Dataset(DATA, LABELS)
    for silent, drawn in ((True, False), (False, True)):
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        (epoch,) = opt.fit(training, dataset, 1, silent=silent)
        training.epochs.clear()
        text = terminal.getvalue()
        assert (f"epoch 1/1, loss {epoch.loss:.4f}" in text, "3/3" in text) == (drawn, drawn)
        assert bool(text) == drawn


def test_graphs_of_batches_of_any_size_do_not_pile_up() -> None:
    w = np.array([[1.0, -2.0]])
    graphs: list[weakref.ref[gg.Tensor]] = []

    def seen(p: Mapping[str, gg.Tensor], x: gg.Tensor) -> gg.Tensor:
        graphs.append(weakref.ref(x))
        return linear_loss(p, x)

    with opt.Training(seen, {"w": w}, opt.sum, opt.SGD(0.0)) as training:
        for size in (*range(1, 60), 59):
            x = np.ones((size, 2))
            np.testing.assert_array_equal(training.predict(x), x @ w.T)
        assert len(graphs) == 59
        gc.collect()
        assert [graph() is not None for graph in graphs] == [False] * (59 - GRAPHS) + [True] * GRAPHS

"""Gradients are precise for large numbers, and next to large numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

import ggplug as gg


def gradient(function: Callable[[gg.Tensor], gg.Tensor], at: Sequence[float]) -> npt.NDArray[np.float32]:
    found = gg.compute(gg.grad(lambda x: gg.sum(function(x)))(gg.tensor(np.array(at, np.float32))))
    return np.asarray(found.numpy())


def test_a_cumulative_sum_does_not_subtract_sums() -> None:
    factors = gg.tensor(np.array([[1, 1e8, 1, 1], [1, 2, 3, 4]], np.float32))
    x = gg.tensor(np.ones((2, 4), np.float32))
    found = gg.compute(gg.grad(lambda x: gg.sum(gg.mul(gg.cumsum(x), factors)))(x)).numpy()
    np.testing.assert_array_equal(found, np.array([[1e8 + 3, 1e8 + 2, 2, 1], [10, 9, 7, 4]], np.float32))


def test_labels_have_the_logarithm_of_a_probability_that_f32_does_not_hold() -> None:
    logits = gg.tensor(np.array([[0, 200, 1], [1, 1, 1], [-1e4, 0, 0]], np.float32))
    labels = gg.tensor(np.full((3, 3), 1 / 3, np.float32))
    found = gg.compute(gg.grad(lambda x: gg.cross_entropy_loss(logits, x))(labels)).numpy()
    wanted = [[200, 0, 199], np.full(3, np.log(3)), [1e4 + np.log(2), np.log(2), np.log(2)]]
    np.testing.assert_allclose(found, np.array(wanted) / 3, rtol=1e-6)


def test_without_logits_labels_have_no_gradient_to_compute() -> None:
    logits, labels = (gg.tensor(np.zeros((2, 0), np.float32)) for _ in range(2))
    found = gg.compute(gg.grad(lambda x: gg.cross_entropy_loss(logits, x))(labels)).numpy()
    assert found.shape == (2, 0)


@pytest.mark.parametrize("gelu", [gg.gelu, lambda x: gg.geglu(x, gg.tensor(np.ones(8, np.float32)))])
def test_gelu_is_flat_or_a_line_far_from_zero(gelu: Callable[[gg.Tensor], gg.Tensor]) -> None:
    found = gradient(gelu, [20, 100, 1000, 1e20, -20, -100, -1000, -1e20])
    np.testing.assert_array_equal(found, [1, 1, 1, 1, 0, 0, 0, 0])


def test_gelu_has_small_slopes_where_it_is_nearly_flat() -> None:
    x = np.array([-6, -5, -4, -1, 0, 1, 4], np.float64)
    u = np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
    p = 1 / (1 + np.exp(-u))
    wanted = p + x * p / (1 + np.exp(u)) * np.sqrt(8 / np.pi) * (1 + 3 * 0.044715 * x**2)
    np.testing.assert_allclose(gradient(gg.gelu, x.tolist()), wanted, rtol=2e-5)


def test_the_slopes_of_clamp_and_leaky_relu_do_not_depend_on_how_large_their_parameters_are() -> None:
    assert gradient(lambda x: gg.clamp(x, -1e10, 2), [-2e10, -1, 1, 3]).tolist() == [0, 1, 1, 0]
    assert gradient(lambda x: gg.clamp(x, -np.inf, np.inf), [-1e30, 1]).tolist() == [1, 1]
    assert gradient(lambda x: gg.leaky_relu(x, 1e8), [-1, 1]).tolist() == [1e8, 1]

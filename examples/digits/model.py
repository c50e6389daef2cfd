"""A network with one hidden layer for images of 8 by 8 pixels: its parameters and its outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import opt

PIXELS, HIDDEN, DIGITS = 64, 128, 10


def parameters(seed: int = 0) -> dict[str, npt.NDArray[np.float64]]:
    """Random weights, and biases of zero."""
    random = np.random.default_rng(seed)
    return {
        "hidden.weight": random.standard_normal((HIDDEN, PIXELS)) * (2 / PIXELS) ** 0.5,
        "hidden.bias": np.zeros(HIDDEN),
        "output.weight": random.standard_normal((DIGITS, HIDDEN)) * (1 / HIDDEN) ** 0.5,
        "output.bias": np.zeros(DIGITS),
    }


def logits(p: Mapping[str, gg.Tensor], images: gg.Tensor) -> gg.Tensor:
    """For each image, a number for each digit."""
    hidden = gg.relu(gg.add(gg.mul_mat(p["hidden.weight"], images), p["hidden.bias"]))
    return gg.add(gg.mul_mat(p["output.weight"], hidden), p["output.bias"])


def datasets() -> tuple[opt.Dataset, opt.Dataset]:
    """1,437 images to learn from and 360 to test, with probabilities of the digits."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return opt.Dataset(images[order] / 16, np.eye(DIGITS)[digits[order]]).split(1437)

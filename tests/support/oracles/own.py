"""Models that ``transformers`` has not, in NumPy: their weights are named as in the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class OwnModel:
    """``weights`` by the file's names; subclasses compute rows for tokens."""

    config: Any
    weights: dict[str, Array]

    def state(self) -> dict[str, Array]:
        return self.weights

    def parameters(self) -> list[str]:
        return list(self.weights)

    @contextmanager
    def changed(self, name: str) -> Iterator[None]:
        kept = self.weights[name]
        self.weights[name] = np.flip(kept)
        try:
            yield
        finally:
            self.weights[name] = kept

    def noisy(self, rows: Array, noise: float) -> Array:
        return rows * (1 + noise * np.random.default_rng(len(rows)).standard_normal(rows.shape))


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))

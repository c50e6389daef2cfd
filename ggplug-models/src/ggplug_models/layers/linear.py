"""Linear layers: a matrix, and a bias where the file has one."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.weights.weights import Weights


def linear(weights: Weights, name: str, x: Tensor, n_out: int) -> Tensor:
    """W x + b, [n_out, ...] of x [n, ...]: ``name.weight`` [n, n_out], and ``name.bias`` [n_out] if there is one."""
    y = gg.mul_mat(weights(f"{name}.weight", x.ne[0], n_out), x, name=weights.prefix + name)
    bias = weights.optional(f"{name}.bias", n_out)
    return y if bias is None else y + bias


def rows(weights: Weights, name: str, n: int, ids: Tensor) -> Tensor:
    """The rows of a table of embeddings that ``ids`` ask for, [n, T]: ``name.weight`` [n, any]."""
    return gg.get_rows(weights(f"{name}.weight", n, -1), ids)

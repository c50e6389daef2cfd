"""Linear layers: a matrix, and a scale and a bias if the file has them."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.weights.weights import Weights

LINEAR_BIASES = ("attn_output.bias", "ffn_up.bias", "ffn_down.bias")
"""Of products that all dense architectures have."""


def linear(weights: Weights, name: str, x: Tensor, n_out: int) -> Tensor:
    """W x + b, [n_out, ...] for x [n, ...]; W is ``name.weight`` [n, n_out], b ``name.bias`` [n_out], if any.

    ``name.scale`` [1], of some files with ternary weights, multiplies W x.
    """
    y = gg.mul_mat(weights(f"{name}.weight", x.ne[0], n_out), x)
    scale = weights.optional(f"{name}.scale", 1)
    y = y if scale is None else y * scale
    bias = weights.optional(f"{name}.bias", n_out)
    return weights.named(name, y if bias is None else y + bias)


def output(weights: Weights, x: Tensor, n_vocab: int) -> Tensor:
    """The logits [n_vocab, ...] of vectors x; a model without an output matrix uses its token embeddings."""
    return linear(weights, "output" if "output.weight" in weights else "token_embd", x, n_vocab)


def capped(y: Tensor, limit: float) -> Tensor:
    """Numbers that approach ``limit`` and -``limit`` (soft-capping, arXiv:2408.00118); 0: as they are."""
    return gg.scale(gg.tanh(gg.scale(y, 1 / limit)), limit) if limit else y


def rows(weights: Weights, name: str, n: int, ids: Tensor) -> Tensor:
    """The rows ``ids`` of the table of embeddings ``name.weight`` [n, any]: [n, T]."""
    return weights.named(name, gg.get_rows(weights(f"{name}.weight", n, -1), ids))

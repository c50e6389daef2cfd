"""Feed-forward networks: an activation between two products, with or without a gate."""

from __future__ import annotations

from collections.abc import Callable

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.linear import linear
from ggplug_models.weights.weights import Weights

Activation = Callable[[Tensor], Tensor]
Gate = Callable[[Tensor, Tensor], Tensor]
"""A function ``gate(x, up)`` that returns f(x) * up, such as gg.swiglu (arXiv:2002.05202)."""


def gated(weights: Weights, x: Tensor, n_ff: int, gate: Gate = gg.swiglu, of: str = "") -> Tensor:
    """A gated network: W_down (f(W_gate x) * W_up x).  ``of``: suffix of the tensors' names, as in ``ffn_up_shexp``."""
    a, b = linear(weights, f"ffn_gate{of}", x, n_ff), linear(weights, f"ffn_up{of}", x, n_ff)
    return linear(weights, f"ffn_down{of}", activated(weights, gate(a, b), of=of), x.ne[0])


def activated(weights: Weights, x: Tensor, kind: str = "", of: str = "") -> Tensor:
    """The result of an activation or a gate, which gets a name with its op, such as ``ffn_swiglu``."""
    assert x.op is not None
    return weights.named(f"ffn_{kind}{x.op.name}{of}", x)


def gated_together(weights: Weights, x: Tensor, n_ff: int, gate: Callable[..., Tensor] = gg.swiglu) -> Tensor:
    """As :func:`gated`, for a file in which ``ffn_up`` holds both matrices, that of the gate first."""
    return linear(weights, "ffn_down", activated(weights, gate(linear(weights, "ffn_up", x, 2 * n_ff))), x.ne[0])


def plain(weights: Weights, x: Tensor, n_ff: int, activation: Activation = gg.gelu, of: str = "") -> Tensor:
    """A network without a gate: W_down f(W_up x).  ``of``: see :func:`gated`."""
    h = activation(linear(weights, f"ffn_up{of}", x, n_ff))
    return linear(weights, f"ffn_down{of}", activated(weights, h, of=of), x.ne[0])


def relu_squared(x: Tensor) -> Tensor:
    """The square of ReLU (arXiv:2109.08668)."""
    return gg.sqr(gg.relu(x))

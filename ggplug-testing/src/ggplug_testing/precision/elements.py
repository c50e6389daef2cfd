"""Rooms of ops whose elements are computed one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.ops.base import Array
from ggplug.ops.elementwise import tile
from ggplug.ops.unary import Gelu, GeluErf, GeluQuick, Silu
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_testing.precision.rule import UNIT, Room


def scale(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    return np.asarray(3 * (np.abs(op.s * x) + abs(op.bias)))


def hardsigmoid(node: Tensor, exact: Array, x: Array) -> Array:
    return 8 * (np.minimum(np.abs(x), 3) + 3) / 6


def hardswish(node: Tensor, exact: Array, x: Array) -> Array:
    return np.where(np.abs(x) < 3.001, np.abs(x) * hardsigmoid(node, exact, x), 0) + np.abs(exact)


def softplus(node: Tensor, exact: Array, x: Array) -> Array:
    return 8 + 6 * np.abs(exact)


def xielu(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    below = np.minimum(x, op.eps)
    negative = abs(op.alpha_n) * (np.abs(np.expm1(below)) + np.abs(x))
    return np.asarray(np.where(x > 0, 5 * np.abs(op.alpha_p * x * x), 12 * negative) + 5 * np.abs(op.beta * x))


_ACTIVATIONS: dict[Any, Callable[[Array, Array], Array]] = {
    Gelu: lambda x, y: 8 * np.abs(x) + np.abs(y),
    GeluErf: lambda x, y: 18 * np.abs(x) + np.abs(y),
    GeluQuick: lambda x, y: (14 + 4 * np.abs(x)) * np.abs(y),
    Silu: lambda x, y: 14 * np.abs(y),
}
"""The room of activations, which gated units have too, from x and y = f(x)."""


def activation(of: Any) -> Room:
    return lambda node, exact, x: _ACTIVATIONS[of](x, exact)


def gated(node: Tensor, exact: Array, x: Array, gate: Array | None = None) -> Array:
    op: Any = node.op
    x, gate = _halves(node, x, gate)
    y = op.activation.formula(x)
    return np.asarray(_ACTIVATIONS[op.activation](x, y) * np.abs(gate) + 2 * np.abs(exact))


def swiglu_oai(node: Tensor, exact: Array, x: Array, gate: Array | None = None) -> Array:
    op: Any = node.op
    x, gate = _halves(node, x, gate)
    u = np.minimum(x, op.limit)
    opened = 1 + np.minimum(np.abs(gate), op.limit)
    return np.asarray(np.abs(u / (1 + np.exp(-op.alpha * u))) * opened * (18 + 3 * np.abs(op.alpha * u)))


def _halves(node: Tensor, x: Array, gate: Array | None) -> tuple[Array, Array]:
    """What a gated unit activates, and its gate: two sources, or the halves of one."""
    op: Any = node.op
    if gate is not None:
        return x, gate
    n = x.shape[-1] // 2
    first, second = x[..., :n], x[..., n : 2 * n]
    return (second, first) if op.swapped else (first, second)


def silu_back(node: Tensor, exact: Array, dy: Array, x: Array) -> Array:
    x = tile(x, dy.shape)
    return np.asarray(16 * np.abs(dy) / (1 + np.exp(-x)) * (2 + np.abs(x)) + np.abs(exact))


def rope(node: Tensor, exact: Array, x: Array, pos: Array, factors: Array | None = None) -> Array:
    op: Any = node.op
    pair = np.arange(op.pairs)
    normal = op.mode == RopeMode.NORMAL
    first = op.n_offs + (2 * pair if normal else pair)
    second = first + (1 if normal else op.pairs)
    roundings = 16 * (1 + UNIT * np.abs(op.angles(pos, factors)))[:, np.newaxis, :] * abs(op.magnitude)
    room = np.zeros_like(exact)
    room[..., first] = room[..., second] = roundings * np.hypot(x[..., first], x[..., second])
    return room


def arange(node: Tensor, exact: Array) -> Array:
    op: Any = node.op
    return np.asarray(4 * (np.abs(exact) + abs(op.start)))


def timestep_embedding(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    half = op.dim // 2
    around = (12 + 4 * math.log(op.max_period)) * np.abs(x.reshape(-1, 1) * op.frequencies)
    room = np.zeros(exact.shape)
    room[..., :half] = room[..., half : 2 * half] = around
    return room + 8


def adamw(node: Tensor, exact: Array, w: Array, grad: Array, m: Array, v: Array, params: Array) -> Array:
    alpha, beta1, beta2, eps, _, beta1h, beta2h = params.reshape(-1)
    kept, added = beta2 * beta2h * v, (1 - beta2) * beta2h * grad * grad
    root = np.sqrt(kept + added)
    moved = alpha * beta1h * (np.abs(beta1 * m) + np.abs((1 - beta1) * grad)) / (root + eps)
    # where v is negative, which it should not be, little may be left of the sum under the root
    return np.asarray(8 * np.abs(w) + (16 + 8 * (np.abs(kept) + added) / (root * (root + eps))) * np.abs(moved))


def sgd(node: Tensor, exact: Array, w: Array, grad: Array, params: Array) -> Array:
    return np.asarray(8 * (np.abs(w) + np.abs(params.reshape(-1)[0] * grad)))

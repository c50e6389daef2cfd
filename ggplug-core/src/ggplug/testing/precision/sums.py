"""Rooms of sums, and of norms, softmax, losses and gradients, which are made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array
from ggplug.ops.elementwise import tile
from ggplug.tensor import Tensor
from ggplug.testing.precision.rule import SUMMED, UNIT


def added(x: Array) -> Array:
    """The roundings of adding up rows, [..., 1]."""
    total = np.abs(np.sum(x, axis=-1, keepdims=True))
    size = np.maximum(total, 2 * np.sqrt(np.sum(x * x, axis=-1, keepdims=True)))
    return np.asarray(summed(x) * size)


def summed(x: Array) -> float:
    """``SUMMED sqrt(n)`` for rows of n."""
    return SUMMED * math.sqrt(max(1, x.shape[-1]))


def sum_rows(node: Tensor, exact: Array, x: Array) -> Array:
    return added(x)


def sum_all(node: Tensor, exact: Array, x: Array) -> Array:
    return added(x.reshape(1, 1, 1, -1))


def mean(node: Tensor, exact: Array, x: Array) -> Array:
    return np.asarray(added(x) / max(1, x.shape[-1]) + 6 * np.abs(exact))


def cumsum(node: Tensor, exact: Array, x: Array) -> Array:
    count = np.arange(1, x.shape[-1] + 1)
    size = np.maximum(np.abs(exact), 2 * np.sqrt(np.cumsum(x * x, axis=-1)))
    return np.asarray(SUMMED * np.sqrt(count) * size + np.abs(exact))


def repeat_back(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    size = np.maximum(np.abs(exact), 2 * np.sqrt(op.reference(x * x)))
    return np.asarray(SUMMED * math.sqrt(max(1, x.size // max(1, exact.size))) * size)


def get_rows_back(node: Tensor, exact: Array, dy: Array, ids: Array) -> Array:
    op: Any = node.op
    size = np.maximum(np.abs(exact), 2 * np.sqrt(op.reference(dy * dy, ids)).reshape(exact.shape))
    return np.asarray(SUMMED * math.sqrt(max(1, ids.size)) * size)


def scaled_row(node: Tensor, exact: Array, x: Array) -> Array:
    return (16 + summed(x) / 2) * np.abs(exact)


def norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    n = max(1, x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / n
    deviation = np.sqrt(np.sum((x - mean) ** 2, axis=-1, keepdims=True) / n + op.eps)
    moved = (added(x) / n + 6 * np.abs(mean)) / deviation
    return np.asarray(moved + (16 + summed(x) / 2 + np.minimum(UNIT * moved, 1) * moved) * np.abs(exact))


def group_norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    channels = -(-x.shape[1] // op.n_groups)
    room = np.zeros_like(exact)
    for start in range(0, x.shape[1], max(1, channels)):
        part = slice(start, start + channels)
        flat = (x.shape[0], 1, 1, x[:1, part].size)
        found = norm(node, exact[:, part].reshape(flat), x[:, part].reshape(flat))
        room[:, part] = found.reshape(exact[:, part].shape)
    return room


def rms_norm_back(node: Tensor, exact: Array, dy: Array, x: Array) -> Array:
    op: Any = node.op
    n = max(1, x.shape[-1])
    root = 1 / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) / n + op.eps)
    mean = np.abs(np.sum(x * dy, axis=-1, keepdims=True)) / n
    second = root**3 * np.abs(x)
    return np.asarray((24 + 2 * summed(x)) * (root * np.abs(dy) + second * mean) + second * added(x * dy) / n)


def soft_max(node: Tensor, exact: Array, x: Array, mask: Array | None = None, sinks: Array | None = None) -> Array:
    op: Any = node.op
    logits = op.scale * x
    off = 3 * np.abs(logits)
    if mask is not None:
        slopes = alibi_slopes(x.shape[1], op.max_bias)[:, np.newaxis, np.newaxis]
        masked = slopes * tile(mask[:, :, : x.shape[2]], x.shape)
        logits = logits + masked
        off = off + (34 if op.max_bias else 1) * np.abs(masked) + np.abs(logits)
    highest = np.max(np.where(np.isnan(logits), -np.inf, logits), axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        highest = np.fmax(highest, sinks.reshape(1, -1, 1, 1))
    off = np.where(exact > 0, off + np.abs(logits - highest), 0)
    shared = np.sum(exact * off, axis=-1, keepdims=True)
    return np.asarray(exact * (off + shared + 2 * np.abs(highest) + 12 + summed(x)))


def soft_max_back(node: Tensor, exact: Array, dy: Array, y: Array) -> Array:
    op: Any = node.op
    dot = np.abs(np.sum(y * dy, axis=-1, keepdims=True))
    return np.asarray(np.abs(op.scale * y) * (8 * (np.abs(dy) + dot) + added(y * dy)))


def _shares(logits: Array) -> tuple[Array, Array]:
    """The softmax of rows, and the roundings of it: of the differences to the largest, powers, a sum, a quotient."""
    away = logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(away)
    shares = powers / powers.sum(axis=-1, keepdims=True)
    off = np.where(shares > 0, np.abs(away), 0)
    return shares, shares * (16 + summed(logits) + 2 * off + 2 * np.sum(shares * off, axis=-1, keepdims=True))


def cross_entropy_loss(node: Tensor, exact: Array, logits: Array, labels: Array) -> Array:
    rows = max(1, logits.size // max(1, logits.shape[-1]))
    away = np.abs(logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf))
    shares, _ = _shares(logits)
    of_sum = 16 + summed(logits) + 2 * np.sum(shares * away, axis=-1, keepdims=True)
    terms = np.abs(labels) * (of_sum + 4 * away)
    return np.asarray(np.sum(terms) / rows * (2 + SUMMED * math.sqrt(max(1, logits.size)) / 8) + 8 * np.abs(exact))


def cross_entropy_loss_back(node: Tensor, exact: Array, dy: Array, logits: Array, labels: Array) -> Array:
    rows = max(1, logits.size // max(1, logits.shape[-1]))
    shares, off = _shares(logits)
    return np.asarray(np.abs(dy / rows) * (off + 8 * (shares + np.abs(labels))))

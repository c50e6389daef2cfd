"""Rooms of sums, and of norms, softmax, losses and gradients, which are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array
from ggplug.ops.elementwise import tile
from ggplug.tensor import Tensor
from ggplug_testing.precision.rule import FLUSHED, LARGEST, SUMMED, UNIT


def added(x: Array) -> Array:
    """The roundings of adding up rows, [..., 1]; infinite where a sum may overflow on the way."""
    total = np.abs(np.sum(x, axis=-1, keepdims=True))
    size = np.maximum(total, 2 * np.sqrt(np.sum(x * x, axis=-1, keepdims=True)))
    return np.where(overflows(np.sum(np.abs(x), axis=-1, keepdims=True)), np.inf, summed(x) * size)


def overflows(magnitudes: Array) -> Array:
    """Where the magnitudes of a sum's terms come to more than float32 holds, and none of them is infinite itself."""
    return np.isfinite(magnitudes) & (magnitudes > LARGEST)


def lost(squares: Array, count: int, eps: float, rooted: Callable[[Array, float], Array]) -> Array:
    """How far 1 / sqrt(rooted(squares, eps)) is off, in roundings, by what float32 does not hold of sums of squares.

    ``count`` squares, their mean and ``eps`` may be flushed to zero; infinite where nothing is left, or where the sum
    may overflow.
    """
    kept = rooted(np.maximum(squares - 2 * count * FLUSHED, 0), eps if eps >= FLUSHED else 0.0)
    return np.where(overflows(squares), np.inf, (np.sqrt(rooted(squares, eps) / kept) - 1) / UNIT)


def of_rows(exact: Array, roundings: Array) -> Array:
    """So many roundings of results; of a row of which float32 keeps nothing also where the result is 0."""
    return np.where(np.isposinf(roundings), np.inf, roundings * np.abs(exact))


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
    roundings = SUMMED * np.sqrt(count) * size + np.abs(exact)
    return np.where(overflows(np.cumsum(np.abs(x), axis=-1)), np.inf, roundings)


def repeat_back(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    size = np.maximum(np.abs(exact), 2 * np.sqrt(op.reference(x * x)))
    return np.asarray(SUMMED * math.sqrt(max(1, x.size // max(1, exact.size))) * size)


def get_rows_back(node: Tensor, exact: Array, dy: Array, ids: Array) -> Array:
    op: Any = node.op
    size = np.maximum(np.abs(exact), 2 * np.sqrt(op.reference(dy * dy, ids)).reshape(exact.shape))
    return np.asarray(SUMMED * math.sqrt(max(1, ids.size)) * size)


def rms_norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    n = max(1, x.shape[-1])
    squares = np.sum(x * x, axis=-1, keepdims=True)
    off = lost(squares, n, op.eps, lambda total, eps: total / n + eps)
    return of_rows(exact, 16 + summed(x) / 2 + off)


def l2_norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    squares = np.sum(x * x, axis=-1, keepdims=True)
    off = lost(squares, x.shape[-1], op.eps, lambda total, eps: np.fmax(total, eps * eps))
    return of_rows(exact, 16 + summed(x) / 2 + off)


def norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    n = max(1, x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / n
    squares = np.sum((x - mean) ** 2, axis=-1, keepdims=True)
    moved = (added(x) / n + 6 * np.abs(mean)) / np.sqrt(squares / n + op.eps)
    off = lost(squares, n, op.eps, lambda total, eps: total / n + eps)
    return np.asarray(moved + of_rows(exact, 16 + summed(x) / 2 + np.minimum(UNIT * moved, 1) * moved + off))


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

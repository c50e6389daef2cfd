"""Rooms of ops that go on from token to token, or from one iteration to the next."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug_testing.precision.rule import FLUSHED
from ggplug_testing.precision.sums import summed


def of_tokens(node: Tensor, exact: Array, *sources: Array) -> Array:
    op: Any = node.op
    count = 6 * sources[0].shape[1] + 8 + summed(sources[0])
    return np.asarray(count * np.asarray(op.reference(*map(np.abs, sources))))


def scanned(node: Tensor, exact: Array, s: Array, x: Array, dt: Array, a: Array, *others: Array) -> Array:
    op: Any = node.op
    b, c, ids = others
    step = np.logaddexp(0, dt)
    off = (8 + 6 * step) * (np.abs(a).max(initial=0) + 1 / np.maximum(step, FLUSHED)) + 4 * np.abs(step)
    count = (x.shape[1] + 1) * (16 + off.max(initial=0)) + summed(s)
    return np.asarray(count * np.asarray(op.reference(np.abs(s), np.abs(x), dt, a, np.abs(b), np.abs(c), ids)))


def delta(node: Tensor, exact: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> Array:
    def longest(x: Array) -> float:
        return float(np.sqrt((x * x).sum(axis=-1)).max(initial=0))

    size, tokens = v.shape[3], v.shape[1]
    one = 1 + np.abs(beta).max(initial=0) * longest(k) ** 2
    held = longest(state) + tokens * np.abs(beta).max(initial=0) * longest(k) * np.abs(v).max(initial=0)
    factor = (64 + 16 * tokens + summed(v)) * one**tokens * held * np.exp(np.maximum(g, 0).sum())
    return np.full_like(exact, factor * max(1.0, longest(q) / math.sqrt(size)))


def balanced(node: Tensor, exact: Array, mixes: Array, scale: Array, base: Array) -> Array:
    op: Any = node.op
    scaled = np.abs(mixes[..., 8:] * scale[..., 2:3])
    e = (5 * scaled + 3 * np.abs(base[..., 8:])).max(axis=3, initial=0).reshape(1, -1, 1, 1)
    return np.asarray(2 * np.abs(exact) * (24 + 4 * e + 16 * op.n_iter))


def mixed(node: Tensor, exact: Array, *sources: Array) -> Array:
    op: Any = node.op
    streams = sources[len(sources) // 4].shape[2]  # of x, or of the residual
    return np.asarray((streams + 3) * op.reference(*map(np.abs, sources)))

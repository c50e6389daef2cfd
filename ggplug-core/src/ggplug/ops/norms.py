"""Normalisation of rows, and of groups of channels.  Any strides; the result has the source's type and shape.

A NaN in a row makes the whole row NaN, except in :class:`L2Norm`.  If a sum or a square overflows float32, the result
depends on the device: one that accumulates in float32 does not compute the row correctly.
"""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, require_float
from ggplug.ops.reduce import mean_of
from ggplug.tensor import Spec, Tensor
from ggplug.types import FLOATS

__all__ = ["GroupNorm", "L2Norm", "Norm", "RmsNorm", "RowNorm", "group_norm", "l2_norm", "norm", "rms_norm"]


class RowNorm(Op, abstract=True):
    """Base of norms that scale each row by a number computed from it."""

    eps: float = 1e-6

    def validate(self) -> None:
        if not self.eps >= 0:
            raise ParameterError(f"{self.name}: eps must not be negative, got {self.eps}", op=self, got=self.eps)

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, x.ne, x.rank)

    def cost(self, node: Tensor) -> Cost:
        return Cost(4 * node.size, super().cost(node).bytes)


class Norm(RowNorm):
    """y = (x - mean(x)) / sqrt(var(x) + eps), over ne0  (ggml_norm; arXiv:1607.06450)."""

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            centred = x - mean_of(x)
            return centred / np.sqrt(mean_of(centred * centred) + self.eps)


class RmsNorm(RowNorm):
    """y = x / sqrt(mean(x**2) + eps), over ne0  (ggml_rms_norm; arXiv:1910.07467).

    In a row with an infinity, infinities become NaN and finite numbers 0.
    """

    inplace = (0,)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return x / np.sqrt(mean_of(x * x) + self.eps)


class GroupNorm(Op):
    """y = (x - mean) / sqrt(var + eps) over groups of channels: ne0, ne1 and a part of ne2  (ggml_group_norm).

    x: F32 or another float [n0, n1, C, B], any strides.  Each of ``n_groups`` groups has ceil(C / n_groups) channels,
    the last ones fewer where that is no divisor of C.  arXiv:1803.08494.
    """

    n_groups: int
    eps: float = 1e-6

    def validate(self) -> None:
        if self.n_groups < 1:
            raise ParameterError(
                f"group_norm: n_groups must be positive, got {self.n_groups}", op=self, got=self.n_groups
            )
        if not self.eps >= 0:
            raise ParameterError(f"group_norm: eps must not be negative, got {self.eps}", op=self, got=self.eps)

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(x.type, x.ne, x.rank)

    def channels(self, x: Tensor) -> int:
        """The number of channels of a group."""
        return -(-x.ne[2] // self.n_groups)

    def reference(self, x: Array) -> Array:
        channels = -(-x.shape[1] // self.n_groups)
        out = np.empty(x.shape)
        for start in range(0, x.shape[1], max(1, channels)):
            group = x[:, start : start + channels]
            flat = group.reshape(x.shape[0], 1, 1, group[:1].size)
            with np.errstate(all="ignore"):
                centred = flat - mean_of(flat)
                normed = centred / np.sqrt(mean_of(centred * centred) + self.eps)
            out[:, start : start + channels] = normed.reshape(group.shape)
        return out

    def cost(self, node: Tensor) -> Cost:
        return Cost(4 * node.size, super().cost(node).bytes)


class L2Norm(RowNorm):
    """y = x / max(sqrt(sum(x**2)), eps), over ne0  (ggml_l2_norm).

    In a row with a NaN the maximum is eps, so the NaN stays and the other numbers are divided by eps.  In a row with an
    infinity, infinities become NaN and finite numbers 0.
    """

    name = "l2_norm"

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return x / np.fmax(np.sqrt((x * x).sum(axis=-1, keepdims=True)), self.eps)


norm = builder(Norm)
rms_norm = builder(RmsNorm)
l2_norm = builder(L2Norm)
group_norm = builder(GroupNorm)

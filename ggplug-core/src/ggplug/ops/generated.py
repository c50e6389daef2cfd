"""Values computed from positions: ranges, embeddings of time steps."""

from __future__ import annotations

import math

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, misfit, mismatch
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32

__all__ = ["Arange", "TimestepEmbedding", "arange", "timestep_embedding"]

_MOST = 1 << 40
"""A range must have fewer numbers than this."""


class Arange(Op):
    """y = start, start + step, ... below ``stop``: F32 [ceil((stop - start) / step)]  (ggml_arange).

    The number of elements is computed in float32, as in ggml.  Raises ParameterError unless stop > start and step > 0.
    """

    start: float
    stop: float
    step: float = 1.0

    def validate(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.stop) and self.start < self.stop and self.step > 0):
            raise ParameterError(
                f"arange: start must be less than stop and step positive, got {self.start}, {self.stop}, {self.step}",
                op=self,
                got=(self.start, self.stop, self.step),
            )
        if not self.count < _MOST:
            raise ParameterError(f"arange: {self.start} to {self.stop} by {self.step} has too many elements", op=self)

    @property
    def count(self) -> float:
        """The number of elements."""
        with np.errstate(all="ignore"):
            count = np.ceil((np.float32(self.stop) - np.float32(self.start)) / np.float32(self.step))
        return float(count)

    def result(self) -> Spec:
        return Spec(F32, (int(self.count), 1, 1, 1), 1)

    def reference(self) -> Array:
        return self.start + self.step * np.arange(int(self.count))


class TimestepEmbedding(Op):
    """y[i, t] = cos(a[i, t]), and behind these sin(a[i, t]), a = x[t] ``max_period``**(-i / h), h = floor(``dim`` / 2).

    x: F32 [T].  Result: F32 [dim, T]; of an odd ``dim`` the last element is 0.  (ggml_timestep_embedding, of diffusion
    models; arXiv:2006.11239.)
    """

    dim: int
    max_period: int = 10000

    def validate(self) -> None:
        if self.dim < 1 or self.max_period < 1:
            raise ParameterError(
                f"timestep_embedding: dim and max_period must be positive, got {self.dim} and {self.max_period}",
                op=self,
                got=(self.dim, self.max_period),
            )

    def result(self, x: Tensor) -> Spec:
        if x.type is not F32:
            mismatch(self, "x must be f32", x)
        if x.ne[1:] != (1, 1, 1):
            misfit(self, "x must be a vector", x)
        return Spec(F32, (self.dim, x.ne[0], 1, 1), 2)

    def reference(self, x: Array) -> Array:
        half = self.dim // 2
        angles = x.reshape(-1, 1) * self.frequencies
        return np.concatenate([np.cos(angles), np.sin(angles), np.zeros((x.size, self.dim - 2 * half))], axis=1)

    @property
    def frequencies(self) -> Array:
        """The factor of the time step for each of the first h elements."""
        half = self.dim // 2
        return np.exp(-math.log(self.max_period) * np.arange(half) / max(1, half))


arange = builder(Arange)
timestep_embedding = builder(TimestepEmbedding)

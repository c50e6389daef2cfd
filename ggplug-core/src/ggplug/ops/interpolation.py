"""Resizes images."""

from __future__ import annotations

import enum

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, explained_by, mismatch, require
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32

__all__ = ["Interpolate", "ScaleMode", "interpolate", "upscale"]


class ScaleMode(enum.IntFlag):
    """The interpolation between pixels (GGML_SCALE_MODE_*), and flags that may be added (GGML_SCALE_FLAG_*)."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2
    ALIGN_CORNERS = 256
    ANTIALIAS = 512


_METHOD = 255


class Interpolate(Op):
    """y = x resized to the extents ``ne``  (ggml_interpolate, ggml_upscale).

    x: F32, any strides.  Result: F32 with the extents ``ne``.
    ``mode``: a :class:`ScaleMode`.  Along an axis of m old and n new pixels, new pixel i lies at (i + 1/2) m / n - 1/2;
    with ALIGN_CORNERS at i (m - 1) / (n - 1), so that the first and last pixels keep their place.  NEAREST takes the
    pixel at i m / n, rounded down.  BILINEAR uses two pixels per axis, BICUBIC four (with a = -0.75, as in PyTorch);
    beyond the ends the last pixel is repeated.  ANTIALIAS, only for BILINEAR, averages all pixels that a new one
    covers. Along ne2 and ne3 all modes are NEAREST.
    """

    ne: tuple[int, ...]
    mode: int = 0

    def validate(self) -> None:
        method, flags = self.mode & _METHOD, self.mode & ~_METHOD
        known = ScaleMode.ALIGN_CORNERS | ScaleMode.ANTIALIAS
        if method > ScaleMode.BICUBIC or flags & ~known or self.mode < 0:
            raise ParameterError(f"{self.name}: no mode {self.mode}; see ScaleMode", op=self, got=self.mode)
        if flags & ScaleMode.ANTIALIAS and method != ScaleMode.BILINEAR:
            raise ParameterError(f"{self.name}: ANTIALIAS is only for BILINEAR", op=self, got=self.mode)

    def result(self, x: Tensor) -> Spec:
        if x.type is not F32:
            mismatch(self, "x must be f32", x)
        require(0 < len(self.ne) <= 4 and min(self.ne) >= 0, self, f"ne must be four extents, got {self.ne}", x)
        ne = (*self.ne, *(1,) * (4 - len(self.ne)))
        require(all(old or not new for new, old in zip(ne, x.ne, strict=True)), self, "x has no pixels", x)
        return Spec(F32, ne, len(self.ne))  # type: ignore[arg-type]

    def taps(self, dim: int, extent: int) -> tuple[Array, Array]:
        """The old pixels of each new one along ``dim`` (ne order), where x has ``extent`` pixels.

        Returns positions and weights, both [new pixels, taps].  Coordinates are float32, as in ggml, because the
        rounding can decide which pixel is the nearest.
        """
        new = self.ne[dim] if dim < len(self.ne) else 1
        if not new:
            return np.zeros((0, 1), np.int64), np.zeros((0, 1))
        one = np.float32(1)
        scale, centre = np.float32(new) / np.float32(extent), np.float32(0.5)
        if self.mode & ScaleMode.ALIGN_CORNERS:
            centre = np.float32(0)
            if dim < 2 and new > 1 and extent > 1:
                scale = np.float32(new - 1) / np.float32(extent - 1)
        i = np.arange(new, dtype=np.float32)
        method = self.mode & _METHOD
        if method == ScaleMode.NEAREST or dim > 1:
            if dim > 1:
                scale = np.float32(new) / np.float32(extent)
            at = np.minimum((i / scale).astype(np.int64), extent - 1)
            return at[:, np.newaxis], np.ones((new, 1))
        if self.mode & ScaleMode.ANTIALIAS:
            support = np.maximum(one, one / scale)
            x = (i + centre) / scale
            first = np.maximum((x - support + centre).astype(np.int64), 0)
            end = np.minimum((x + support + centre).astype(np.int64), extent)
            at = first[:, np.newaxis] + np.arange(max(1, int((end - first).max(initial=0))))
            weights = np.maximum(1 - np.abs(at - x[:, np.newaxis] + centre) / support, 0).astype(np.float64)
            weights = np.where(at < end[:, np.newaxis], weights, 0)
            total = weights.sum(axis=1, keepdims=True)
            return np.minimum(at, extent - 1), weights / np.where(total > 0, total, 1)
        x = (i + centre) / scale - centre
        below = np.floor(x)
        if method == ScaleMode.BILINEAR:
            at = np.clip(below.astype(np.int64)[:, np.newaxis] + np.arange(2), 0, extent - 1)
            part = np.clip((x - at[:, 0]).astype(np.float64), 0, 1)
            return at, np.stack([1 - part, part], axis=1)
        at = np.clip(below.astype(np.int64)[:, np.newaxis] + np.arange(-1, 3), 0, extent - 1)
        part = (x - below).astype(np.float64)
        return at, np.stack([_outer(part + 1), _inner(part), _inner(1 - part), _outer(2 - part)], axis=1)

    def reference(self, x: Array) -> Array:
        for dim in range(4):
            at, weights = self.taps(dim, x.shape[3 - dim])
            x = np.moveaxis(x, 3 - dim, -1)
            with np.errstate(all="ignore"):
                x = np.moveaxis((x[..., at] * weights).sum(axis=-1), -1, 3 - dim)
        return x

    def cost(self, node: Tensor) -> Cost:
        return Cost(8 * node.size, super().cost(node).bytes)


def _inner(x: Array) -> Array:
    """The weight of a pixel at a distance of up to 1, in the cubic convolution of Keys (1981) with a = -0.75."""
    return (1.25 * x - 2.25) * x * x + 1


def _outer(x: Array) -> Array:
    """The weight of a pixel at a distance of 1 to 2."""
    return ((-0.75 * x + 3.75) * x - 6) * x + 3


interpolate = builder(Interpolate)


@explained_by(Interpolate)
def upscale(x: Tensor, factor: int, mode: int = 0, *, name: str = "") -> Tensor:
    """x with ne0 and ne1 multiplied by ``factor``  (ggml_upscale)."""
    return interpolate(x, (x.ne[0] * factor, x.ne[1] * factor, x.ne[2], x.ne[3]), mode, name=name)

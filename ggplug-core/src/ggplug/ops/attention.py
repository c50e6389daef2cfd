"""The softmax of attention, with mask, ALiBi slopes and sinks."""

from __future__ import annotations

import math

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, is_multiple, misfit, mismatch, require_float
from ggplug.ops.elementwise import tile
from ggplug.tensor import Spec, Tensor
from ggplug.types import F16, F32, FLOATS

__all__ = ["SoftMax", "alibi_slopes", "soft_max"]

_LARGEST = float(np.finfo(np.float32).max)


class SoftMax(Op):
    """y = softmax over ne0 of (scale x + slope mask), a sink in the sum  (ggml_soft_max_ext, ggml_soft_max_add_sinks).

    x: [n, r, H, B], contiguous.
    mask: F32 or F16 [n, r' >= r, M2, M3], contiguous, H a multiple of M2 and B of M3; added to the logits.
    sinks: F32 [H], one more logit per head: its exponential is added to the sum, and it has no element in the result.
    ``max_bias`` > 0: head h multiplies the mask with an ALiBi slope (:func:`alibi_slopes`), else the slope is 1.
    All elements of a row are NaN if one of its logits is NaN or +inf, if all of them are -inf, or if its sink is NaN
    or +inf.  If all logits are -inf and the sink is finite, they are zeros.  Logits beyond the range of float32 count
    as infinite.
    """

    inplace = (0,)

    scale: float = 1.0
    max_bias: float = 0.0

    def validate(self) -> None:
        if not 0 <= self.max_bias < math.inf:
            raise ParameterError(
                f"soft_max: max_bias must be finite and not negative, got {self.max_bias}", op=self, got=self.max_bias
            )

    def result(self, x: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if not x.is_contiguous():
            misfit(self, "x must be contiguous (use gg.cont first)", x, mask, sinks)
        if mask is not None:
            if mask.type is not F32 and mask.type is not F16:
                mismatch(self, "the mask must be f32 or f16", x, mask, sinks)
            nx, nm = x.ne, mask.ne
            if nx[0] != nm[0] or nm[1] < nx[1]:
                misfit(self, "the mask must have x's ne0 and at least its ne1", x, mask, sinks)
            if not (is_multiple(nx[2], nm[2]) and is_multiple(nx[3], nm[3])):
                misfit(self, "ne2 and ne3 of x must be multiples of the mask's", x, mask, sinks)
            if not mask.is_contiguous():
                misfit(self, "the mask must be contiguous (use gg.cont first)", x, mask, sinks)
        elif self.max_bias > 0:
            raise ParameterError("soft_max: max_bias scales the mask, so the op needs a mask", op=self)
        if sinks is not None:
            if sinks.type is not F32:
                mismatch(self, "the sinks must be f32", x, mask, sinks)
            if sinks.ne != (x.ne[2], 1, 1, 1):
                misfit(self, "there must be one sink for each head (ne0 of sinks is ne2 of x)", x, mask, sinks)
        return Spec(x.type, x.ne, x.rank)

    def reference(self, x: Array, mask: Array | None = None, sinks: Array | None = None) -> Array:
        heads = x.shape[1]
        logits = x * self.scale
        with np.errstate(invalid="ignore"):
            if mask is not None:
                bias = tile(mask[:, :, : x.shape[2]], x.shape)
                logits = logits + alibi_slopes(heads, self.max_bias)[:, np.newaxis, np.newaxis] * bias
            logits = np.where(np.abs(logits) > _LARGEST, np.copysign(np.inf, logits), logits)
            highest = logits.max(axis=-1, keepdims=True, initial=-np.inf)
            if sinks is not None:
                sink = sinks.reshape(1, heads, 1, 1)
                highest = np.maximum(highest, sink)
            weights = np.exp(logits - highest)
            total = weights.sum(axis=-1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sink - highest)
            return weights / total

    def cost(self, node: Tensor) -> Cost:
        return Cost(5 * node.size, super().cost(node).bytes)


def alibi_slopes(heads: int, max_bias: float) -> Array:
    """The ALiBi slope of each of ``heads`` heads; all ones if ``max_bias`` is 0 (arXiv:2108.12409).

    If the number of heads is no power of two, the remaining heads get the slopes halfway between, as in ggml.
    No slope is less than the smallest normal float32, because 0 times the -inf of a mask would be NaN.
    """
    if max_bias == 0:
        return np.ones(heads)
    power = 1 << math.floor(math.log2(max(1, heads)))
    h = np.arange(heads)
    first = 2.0 ** (-max_bias / power)
    between = 2.0 ** (-max_bias / 2 / power)
    with np.errstate(under="ignore"):
        slopes = np.where(h < power, first ** (h + 1.0), between ** np.maximum(2.0 * (h - power) + 1, 1))
    return np.maximum(slopes, np.finfo(np.float32).tiny)


soft_max = builder(SoftMax)

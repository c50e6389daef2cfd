"""Attention as one op: products with keys, their softmax, and the values mixed by it, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array, Cost, Op, builder, is_multiple, misfit, mismatch
from ggplug.ops.elementwise import tile
from ggplug.ops.matrix import check_precision
from ggplug.tensor import Spec, Tensor
from ggplug.types import F16, F32, KERNEL_FLOATS

_LARGEST = float(np.finfo(np.float32).max)


class Attending(Op, abstract=True):
    """What attention and its gradient have in common: the logits, and the rules for queries, keys and values."""

    scale: float = 1.0
    max_bias: float = 0.0
    logit_softcap: float = 0.0

    def validate(self) -> None:
        for name in ("max_bias", "logit_softcap"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ParameterError(
                    f"{self.name}: {name} must be finite and not negative, got {value}", op=self, got=value
                )

    def _check(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, *others: Tensor
    ) -> None:
        """Raises ShapeError, TypeMismatchError or ParameterError unless the sources fit each other."""
        given = (q, k, v, *others, mask, sinks)
        if q.type is not F32:
            mismatch(self, "q must be f32 (use gg.cast)", *given)
        if k.ne[0] != q.ne[0] or v.ne[1] != k.ne[1]:
            misfit(self, "q must be [dk, n, h, b], k [dk, m, g, b] and v [dv, m, g, b]", *given)
        if k.ne[2] != v.ne[2] or not is_multiple(q.ne[2], k.ne[2]):
            misfit(self, "k and v must have as many heads, ne2, and those of q must be a multiple", *given)
        if not q.ne[3] == k.ne[3] == v.ne[3]:
            misfit(self, "q, k and v must have the same ne3", *given)
        for name, source in zip(self.sources, (q, k, v), strict=False):
            if source.ne[0] > 1 and source.nb[0] != source.type.block_bytes:
                misfit(self, f"rows of {name} must be contiguous (use gg.cont first)", *given)
        if mask is not None:
            if mask.type is not F16:
                mismatch(self, "the mask must be f16 (use gg.cast)", *given)
            if mask.ne[0] != k.ne[1] or mask.ne[1] < q.ne[1]:
                misfit(self, "the mask's ne0 must be k's ne1, and its ne1 at least q's", *given)
            if not (is_multiple(q.ne[2], mask.ne[2]) and is_multiple(q.ne[3], mask.ne[3])):
                misfit(self, "ne2 and ne3 of q must be multiples of the mask's", *given)
            if not mask.is_contiguous():
                misfit(self, "the mask must be contiguous (use gg.cont first)", *given)
        elif self.max_bias > 0:
            raise ParameterError(f"{self.name}: max_bias scales the mask, so it needs one", op=self)
        if sinks is not None:
            if sinks.type is not F32:
                mismatch(self, "the sinks must be f32", *given)
            if sinks.ne != (q.ne[2], 1, 1, 1):
                misfit(self, "there must be one sink for each head (ne0 of sinks is ne2 of q)", *given)

    def logits(self, q: Array, k: Array, mask: Array | None) -> tuple[Array, Array]:
        """What the softmax is of, [b, h, n, m], and which of them the mask hides."""
        k = np.repeat(k, q.shape[1] // max(1, k.shape[1]), axis=1)
        logits = _in_range(_in_range(q @ k.swapaxes(-1, -2)) * self.scale)
        if self.logit_softcap:
            logits = self.logit_softcap * np.tanh(logits / self.logit_softcap)
        if mask is None:
            return logits, np.zeros(logits.shape, bool)
        slopes = alibi_slopes(q.shape[1], self.max_bias)[:, np.newaxis, np.newaxis]
        shown = slopes * tile(mask[:, :, : q.shape[2]], logits.shape)
        hidden = shown == -np.inf
        return np.where(hidden, -np.inf, _in_range(logits + shown)), hidden


def _in_range(x: Array) -> Array:
    return np.where(np.abs(x) > _LARGEST, np.copysign(np.inf, x), x)


def shares_of(logits: Array, sinks: Array | None) -> Array:
    """The softmax of rows with a sink in the sum; zeros where all logits are -inf."""
    highest = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = sinks.reshape(1, -1, 1, 1)
        highest = np.maximum(highest, sink)
    highest = np.where(highest == -np.inf, 0, highest)
    powers = np.exp(logits - highest)
    total = powers.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - highest)
    return powers / np.where(total == 0, 1, total)


class FlashAttnExt(Attending):
    """y = v softmax(scale k q + slope mask), a sink in the sum  (ggml_flash_attn_ext, ggml_flash_attn_ext_add_sinks).

    q: F32 [dk, n, h, b].  k: [dk, m, g, b], v: [dv, m, g, b], each F32, F16, BF16 or a quantised type; h a multiple of
    g: a head of k and v serves h/g consecutive ones of q.  Rows of these are contiguous, the other strides are free.
    mask: F16 [m, n' >= n, M2, M3], contiguous, h a multiple of M2 and b of M3; added to the logits.
    sinks: F32 [h], one more logit a head that takes its share and mixes no value.
    Result: F32 [dv, h, n, b], so heads lie beside each other.

    ``logit_softcap`` c > 0: c tanh(logit / c) takes the place of a logit before the mask is added.  ``max_bias`` > 0:
    head h multiplies the mask with an ALiBi slope (:func:`alibi_slopes`), else the slope is 1.  ``precision``: a
    :class:`~ggplug.types.Precision`; where k or v is BF16 and it is not F32, queries and shares may be rounded to BF16.

    A key that the mask hides with -inf has no part in a row, whatever k and v hold of it.  Rows for which all logits
    are -inf are zeros, unlike those of :class:`SoftMax`.  A row is NaN as a whole where one of its other logits is NaN
    or +inf, or where its sink is.  Products and logits beyond the range of float32 are infinite.

    Devices need no memory of n by m numbers: the softmax is computed as keys come along (M. Milakov, N. Gimelshein,
    *Online normalizer calculation for softmax*, arXiv:1805.02867; T. Dao et al., *FlashAttention*, arXiv:2205.14135).
    """

    precision: int = 0

    def validate(self) -> None:
        super().validate()
        check_precision(self, self.precision)

    def result(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None
    ) -> Spec:
        for tensor in (k, v):
            if tensor.type not in KERNEL_FLOATS and not tensor.type.is_quantized:
                mismatch(self, "k and v must be f32, f16, bf16 or quantised", q, k, v, mask, sinks)
        self._check(q, k, v, mask, sinks)
        return Spec(F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), max(3, q.rank, k.rank, v.rank))

    def reference(
        self, q: Array, k: Array, v: Array, mask: Array | None = None, sinks: Array | None = None
    ) -> Array:
        with np.errstate(all="ignore"):
            logits, hidden = self.logits(q, k, mask)
            shares = shares_of(logits, sinks)
            v = np.repeat(v, q.shape[1] // max(1, v.shape[1]), axis=1)
            finite = np.isfinite(v)
            mixed = shares @ np.where(finite, v, 0)
            for key in np.flatnonzero(~finite.all(axis=(0, 1, 3))):
                wild = np.where(finite[:, :, key], 0, v[:, :, key])[:, :, np.newaxis]
                mixed = mixed + np.where(hidden[..., key, np.newaxis], 0, shares[..., key, np.newaxis] * wild)
            return mixed.swapaxes(1, 2)

    def cost(self, node: Tensor) -> Cost:
        k, v = node.src[1], node.src[2]
        if k is None or v is None:
            return Cost(0, 0)
        return Cost(2 * node.nrows * k.ne[1] * (k.ne[0] + v.ne[0]), super().cost(node).bytes)


_flash_attn_ext = builder(FlashAttnExt)


def flash_attn_ext(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float = 1.0, max_bias: float = 0.0,
    logit_softcap: float = 0.0, *, sinks: Tensor | None = None, precision: int = 0, name: str = "",
) -> Tensor:  # fmt: skip
    """Attention as one op: ``v softmax(scale k q + mask)``; see :class:`FlashAttnExt`.

    Raises ShapeError, TypeMismatchError, ParameterError.
    """
    return _flash_attn_ext(q, k, v, mask, sinks, scale, max_bias, logit_softcap, precision, name=name)


def flash_attn_ext_add_sinks(a: Tensor, sinks: Tensor | None, *, name: str = "") -> Tensor:
    """The attention ``a`` with ``sinks``, F32 [heads], or with None for none: another node; ``a`` stays as it is.

    Raises TypeMismatchError if ``a`` is no result of :func:`flash_attn_ext`, and what that raises.
    """
    op, (q, k, v, mask, _) = _attention(a, "flash_attn_ext_add_sinks")
    return flash_attn_ext(
        q, k, v, mask, op.scale, op.max_bias, op.logit_softcap, sinks=sinks, precision=op.precision,
        name=name or a.name,
    )  # fmt: skip


def flash_attn_ext_set_prec(a: Tensor, precision: int, *, name: str = "") -> Tensor:
    """The attention ``a`` with another ``precision``: another node; ``a`` stays as it is.

    Raises TypeMismatchError if ``a`` is no result of :func:`flash_attn_ext`, and what that raises.
    """
    op, (q, k, v, mask, sinks) = _attention(a, "flash_attn_ext_set_prec")
    return flash_attn_ext(
        q, k, v, mask, op.scale, op.max_bias, op.logit_softcap, sinks=sinks, precision=precision, name=name or a.name
    )


def _attention(a: Tensor, function: str) -> tuple[FlashAttnExt, tuple[Any, ...]]:
    if not isinstance(a.op, FlashAttnExt):
        raise TypeMismatchError(f"{function}: a must be a result of gg.flash_attn_ext, got {a}", op=a.op, got=a)
    return a.op, a.src

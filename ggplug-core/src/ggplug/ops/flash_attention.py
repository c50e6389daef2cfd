"""Attention as one op (products with keys, their softmax, and the weighted sum of values), and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array, Cost, Op, builder, explained_by, is_multiple, misfit, mismatch
from ggplug.ops.elementwise import tile
from ggplug.ops.matrix import check_precision
from ggplug.ops.views import view
from ggplug.tensor import Spec, Tensor, contiguous_strides
from ggplug.types import F16, F32, KERNEL_FLOATS

__all__ = [
    "FlashAttnBack",
    "FlashAttnExt",
    "flash_attn_back",
    "flash_attn_back_parts",
    "flash_attn_ext",
    "flash_attn_ext_add_sinks",
    "flash_attn_ext_set_prec",
]

_LARGEST = float(np.finfo(np.float32).max)


class Attending(Op, abstract=True):
    """Base of attention and its gradient: the logits, and the rules for queries, keys and values."""

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

    def capped(self) -> tuple[float, float]:
        """``(scale, cap)``: a logit is cap times the tanh of ``scale * product``, or ``scale * product`` if cap is 0.

        Both are in the range of float32, so that a kernel does not multiply a product of 0 by infinity.  A cap below
        float32's smallest normal number is replaced by it: the exponential of such a logit is 1 in both cases.
        """
        if not self.logit_softcap:
            return self.scale, 0.0
        cap = max(self.logit_softcap, float(np.finfo(np.float32).tiny))
        return min(max(self.scale / cap, -_LARGEST), _LARGEST), cap

    def _check(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, *others: Tensor
    ) -> None:
        """Raises ShapeError, TypeMismatchError or ParameterError unless the sources fit each other."""
        sources = (q, k, v, *others, mask, sinks)
        if q.type is not F32:
            mismatch(self, "q must be f32 (use gg.cast)", *sources)
        if k.ne[0] != q.ne[0] or v.ne[1] != k.ne[1]:
            misfit(self, "q must be [dk, n, h, b], k [dk, m, g, b] and v [dv, m, g, b]", *sources)
        if k.ne[2] != v.ne[2] or not is_multiple(q.ne[2], k.ne[2]):
            misfit(self, "k and v must have the same number of heads, ne2, and q a multiple of it", *sources)
        if not q.ne[3] == k.ne[3] == v.ne[3]:
            misfit(self, "q, k and v must have the same ne3", *sources)
        for name, source in zip(self.sources, (q, k, v), strict=False):
            if source.ne[0] > 1 and source.nb[0] != source.type.block_bytes:
                misfit(self, f"rows of {name} must be contiguous (use gg.cont first)", *sources)
        if mask is not None:
            if mask.type is not F16:
                mismatch(self, "the mask must be f16 (use gg.cast)", *sources)
            if mask.ne[0] != k.ne[1] or mask.ne[1] < q.ne[1]:
                misfit(self, "the mask's ne0 must be k's ne1, and its ne1 at least q's", *sources)
            if not (is_multiple(q.ne[2], mask.ne[2]) and is_multiple(q.ne[3], mask.ne[3])):
                misfit(self, "ne2 and ne3 of q must be multiples of the mask's", *sources)
            if not mask.is_contiguous():
                misfit(self, "the mask must be contiguous (use gg.cont first)", *sources)
        elif self.max_bias > 0:
            raise ParameterError(f"{self.name}: max_bias scales the mask, so the op needs a mask", op=self)
        if sinks is not None:
            if sinks.type is not F32:
                mismatch(self, "the sinks must be f32", *sources)
            if sinks.ne != (q.ne[2], 1, 1, 1):
                misfit(self, "there must be one sink for each head (ne0 of sinks is ne2 of q)", *sources)

    def logits(self, q: Array, k: Array, mask: Array | None) -> tuple[Array, Array]:
        """The logits of the softmax, [b, h, n, m], and which of them the mask hides."""
        k = np.repeat(k, q.shape[1] // max(1, k.shape[1]), axis=1)
        logits = _in_range(_in_range(q @ k.swapaxes(-1, -2)) * self.scale)
        if cap := self.capped()[1]:
            logits = cap * np.tanh(logits / cap)
        if mask is None:
            return logits, np.zeros(logits.shape, bool)
        slopes = alibi_slopes(q.shape[1], self.max_bias)[:, np.newaxis, np.newaxis]
        bias = slopes * tile(mask[:, :, : q.shape[2]], logits.shape)
        hidden = bias == -np.inf
        return np.where(hidden, -np.inf, _in_range(logits + bias)), hidden


def _in_range(x: Array) -> Array:
    return np.where(np.abs(x) > _LARGEST, np.copysign(np.inf, x), x)


FAINT = 2.0**-120
"""Probabilities below this one may be zero in float32, so values that are not finite may be left out for them."""


def _weighted_sum(probabilities: Array, rows: Array, hidden: Array) -> Array:
    """``probabilities @ rows``, without the ``hidden`` rows, which may hold NaN."""
    finite = np.isfinite(rows)
    mixed = probabilities @ np.where(finite, rows, 0)
    for j in np.flatnonzero(~finite.all(axis=(0, 1, 3))):
        wild = np.where(finite[:, :, j], 0, rows[:, :, j])[:, :, np.newaxis]
        mixed = mixed + np.where(hidden[..., j, np.newaxis], 0, probabilities[..., j, np.newaxis] * wild)
    return mixed


def probabilities_of(logits: Array, sinks: Array | None) -> Array:
    """The softmax of rows, with the exponential of a sink in the sum; zeros where all logits are -inf."""
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
    sinks: F32 [h], one more logit per head: its exponential is added to the sum, and it has no value.
    Result: F32 [dv, h, n, b]: the heads of a query are contiguous.

    ``logit_softcap`` c > 0: c tanh(logit / c) takes the place of a logit before the mask is added.  ``max_bias`` > 0:
    head h multiplies the mask with an ALiBi slope (:func:`alibi_slopes`), else the slope is 1.  ``precision``: a
    :class:`~ggplug.types.Precision`; if k or v is BF16 and it is not F32, queries and probabilities may be rounded to
    BF16.

    A key that the mask hides with -inf does not contribute, also if k and v hold NaN for it; a key whose probability is
    below :data:`FAINT` may or may not.  Rows for which all logits
    are -inf are zeros, unlike those of :class:`SoftMax`.  All elements of a row are NaN if one of its other logits, or
    its sink, is NaN or +inf.  Products and logits beyond the range of float32 count as infinite.

    Devices need no memory of n by m numbers: they compute the softmax while they go over the keys (M. Milakov, N.
    Gimelshein,
    *Online normalizer calculation for softmax*, arXiv:1805.02867; T. Dao et al., *FlashAttention*, arXiv:2205.14135).
    """

    precision: int = 0

    def validate(self) -> None:
        super().validate()
        check_precision(self, self.precision)

    def result(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None) -> Spec:
        for tensor in (k, v):
            if tensor.type not in KERNEL_FLOATS and not tensor.type.is_quantized:
                mismatch(self, "k and v must be f32, f16, bf16 or quantised", q, k, v, mask, sinks)
        self._check(q, k, v, mask, sinks)
        return Spec(F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), max(3, q.rank, k.rank, v.rank))

    def reference(self, q: Array, k: Array, v: Array, mask: Array | None = None, sinks: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            logits, hidden = self.logits(q, k, mask)
            probabilities = probabilities_of(logits, sinks)
            v = np.repeat(v, q.shape[1] // max(1, v.shape[1]), axis=1)
            return _weighted_sum(probabilities, v, hidden | (probabilities < FAINT)).swapaxes(1, 2)

    def cost(self, node: Tensor) -> Cost:
        k, v = node.src[1], node.src[2]
        if k is None or v is None:
            return Cost(0, 0)
        return Cost(2 * node.nrows * k.ne[1] * (k.ne[0] + v.ne[0]), super().cost(node).bytes)


_flash_attn_ext = builder(FlashAttnExt)


@explained_by(FlashAttnExt)
def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    *,
    sinks: Tensor | None = None,
    precision: int = 0,
    name: str = "",
) -> Tensor:
    """Attention as one op: ``v softmax(scale k q + mask)``.

    Raises ShapeError, TypeMismatchError, ParameterError.
    """
    return _flash_attn_ext(q, k, v, mask, sinks, scale, max_bias, logit_softcap, precision, name=name)


def flash_attn_ext_add_sinks(a: Tensor, sinks: Tensor | None, *, name: str = "") -> Tensor:
    """A new node of the attention ``a`` with other ``sinks``, F32 [heads], or None; ``a`` is not changed.

    Raises TypeMismatchError if ``a`` is no result of :func:`flash_attn_ext`, and what that raises.
    """
    op, (q, k, v, mask, _) = _attention(a, "flash_attn_ext_add_sinks")
    return flash_attn_ext(
        q,
        k,
        v,
        mask,
        op.scale,
        op.max_bias,
        op.logit_softcap,
        sinks=sinks,
        precision=op.precision,
        name=name or a.name,
    )


def flash_attn_ext_set_prec(a: Tensor, precision: int, *, name: str = "") -> Tensor:
    """A new node of the attention ``a`` with another ``precision``; ``a`` is not changed.

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


class FlashAttnBack(Attending):
    """The gradients of q, k, v and sinks, from d, that of the result of flash_attn_ext  (ggml_flash_attn_back).

    q, k, v, mask, sinks and the parameters: as of :class:`FlashAttnExt`, but k and v are F32, F16 or BF16.
    d: F32 [dv, h, n, b], rows contiguous.  ``masked``: keys after i + m - n are hidden from query i, also without mask.
    Result: F32, one dimension: the gradients of q, k, v and sinks, each contiguous in the extents of its source and
    padded with zeros to 16 bytes; :func:`flash_attn_back_parts` returns views of them.

    A row for which all logits are -inf contributes nothing.  A key with probability 0 in a row contributes nothing to
    the gradients of that row and gets nothing from it, also if the sources hold NaN there.  (ggml declares the function
    for transposed values and for queries of one size, and aborts when it is computed; the order of the parts is the
    same.)
    """

    masked: bool = False

    def result(
        self, q: Tensor, k: Tensor, v: Tensor, d: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None
    ) -> Spec:
        for tensor in (k, v):
            if tensor.type not in KERNEL_FLOATS:
                mismatch(self, "k and v must be f32, f16 or bf16", q, k, v, d, mask, sinks)
        self._check(q, k, v, mask, sinks, d)
        if d.type is not F32:
            mismatch(self, "d must be f32", q, k, v, d, mask, sinks)
        if d.ne != (v.ne[0], q.ne[2], q.ne[1], q.ne[3]):
            misfit(self, "d must be [dv, h, n, b], as the result of flash_attn_ext", q, k, v, d, mask, sinks)
        if d.ne[0] > 1 and d.nb[0] != 4:
            misfit(self, "rows of d must be contiguous (use gg.cont first)", q, k, v, d, mask, sinks)
        return Spec(F32, (sum(_padded(each.size) for each in (q, k, v, sinks) if each is not None), 1, 1, 1), 1)

    def logits(self, q: Array, k: Array, mask: Array | None) -> tuple[Array, Array]:
        """The logits as for attention; with ``masked``, later keys are hidden too."""
        logits, hidden = super().logits(q, k, mask)
        if self.masked:
            n, m = logits.shape[-2:]
            hidden = hidden | ~np.tri(n, m, m - n, dtype=bool)
            logits = np.where(hidden, -np.inf, logits)
        return logits, hidden

    def reference(
        self, q: Array, k: Array, v: Array, d: Array, mask: Array | None = None, sinks: Array | None = None
    ) -> Array:
        batches, groups = k.shape[:2]
        per_head = q.shape[1] // max(1, groups)
        with np.errstate(all="ignore"):
            dots = _in_range(_in_range(q @ np.repeat(k, per_head, axis=1).swapaxes(-1, -2)) * self.scale)
            _, cap = self.capped()
            slope = 1 - np.tanh(dots / cap) ** 2 if cap else np.ones(dots.shape)
            logits, _ = self.logits(q, k, mask)
            probabilities, of_rows = probabilities_of(logits, sinks), d.swapaxes(1, 2)
            wanted = np.where(probabilities == 0, 0, of_rows @ np.repeat(v, per_head, axis=1).swapaxes(-1, -2))
            mean = (probabilities * wanted).sum(axis=-1, keepdims=True)
            moved = np.where(probabilities == 0, 0, probabilities * (wanted - mean) * slope * self.scale)

            def weighted_sum(weights: Array, rows: Array) -> Array:
                return _weighted_sum(weights, rows, weights == 0)

            def folded(x: Array) -> Array:
                """The sum over the heads of q that use the same head of k and v."""
                return x.reshape(batches, groups, per_head, *x.shape[2:]).sum(axis=2)

            parts = [weighted_sum(moved, np.repeat(k, per_head, axis=1))]
            parts.append(folded(weighted_sum(moved.swapaxes(-1, -2), q)))
            parts.append(folded(weighted_sum(probabilities.swapaxes(-1, -2), of_rows)))
            if sinks is not None:
                highest = np.maximum(logits.max(axis=-1, keepdims=True, initial=-np.inf), sinks.reshape(1, -1, 1, 1))
                highest = np.where(highest == -np.inf, 0, highest)
                powers = np.exp(logits - highest).sum(axis=-1, keepdims=True)
                sunk = np.exp(sinks.reshape(1, -1, 1, 1) - highest)
                parts.append(-(sunk / np.where(powers + sunk == 0, 1, powers + sunk) * mean).sum(axis=(0, 2, 3)))
        return np.concatenate([np.pad(each.reshape(-1), (0, _padded(each.size) - each.size)) for each in parts])

    def cost(self, node: Tensor) -> Cost:
        q, k, v = node.src[:3]
        if q is None or k is None or v is None:
            return Cost(0, 0)
        return Cost(2 * q.nrows * k.ne[1] * (4 * k.ne[0] + 3 * v.ne[0]), super().cost(node).bytes)


def _padded(count: int) -> int:
    """``count`` rounded up so that the next float32 after them begins at a multiple of 16 bytes."""
    return -(-count // 4) * 4


_flash_attn_back = builder(FlashAttnBack)


@explained_by(FlashAttnBack, FlashAttnExt)
def flash_attn_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    d: Tensor,
    masked: bool = False,
    *,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    name: str = "",
) -> Tensor:
    """The gradients of attention's sources, one after the other.

    ``scale`` None: 1 / sqrt(dk), as in ggml.  Raises ShapeError, TypeMismatchError, ParameterError.
    """
    factor = max(1, q.ne[0]) ** -0.5 if scale is None else scale
    return _flash_attn_back(q, k, v, d, mask, sinks, factor, max_bias, logit_softcap, masked, name=name)


def flash_attn_back_parts(a: Tensor) -> tuple[Tensor, ...]:
    """Views of the gradients in ``a``, a result of :func:`flash_attn_back`: of q, k, v, and of sinks if it has any.

    Raises TypeMismatchError for other tensors.
    """
    if not isinstance(a.op, FlashAttnBack):
        raise TypeMismatchError(
            f"flash_attn_back_parts: a must be a result of gg.flash_attn_back, got {a}", op=a.op, got=a
        )
    parts, offset = [], 0
    for source in (*a.src[:3], a.src[5]):
        if source is not None:
            nb = contiguous_strides(F32, source.ne)
            parts.append(view(a, *source.ne[: max(1, source.rank)], nb=nb[1:], offset=offset))
            offset += 4 * _padded(source.size)
    return tuple(parts)

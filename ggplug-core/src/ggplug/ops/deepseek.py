"""Ops of DeepSeek's models: the indexer of sparse attention, and hyper-connections of several residual streams."""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, is_multiple, mismatch, require
from ggplug.ops.unary import Sigmoid
from ggplug.tensor import Spec, Tensor
from ggplug.types import F16, F32

__all__ = [
    "Dsv4HcComb",
    "Dsv4HcPost",
    "Dsv4HcPre",
    "Dsv4HcPreGated",
    "LightningIndexer",
    "dsv4_hc_comb",
    "dsv4_hc_post",
    "dsv4_hc_pre",
    "dsv4_hc_pre_gated",
    "lightning_indexer",
]

STREAMS = 4
"""The number of residual streams that :class:`Dsv4HcComb` mixes, as in ggml."""


class LightningIndexer(Op):
    """y[j, t] = sum over h of max(q[:, h, t] . k[:, 0, j], 0) weights[h, t] + mask[j, t]  (ggml_lightning_indexer).

    How much each query attends to each key (DeepSeek-AI, *DeepSeek-V3.2*, 2025: "lightning indexer").  q: F32
    [n, heads, T, S].  k: any float or block type [n, 1, K, S].  weights: F32 [heads, T, 1, S].  mask: F16 [K, T, 1, s],
    of which sequence i uses number i % s.  Any strides.  Result: F32 [K, T, 1, S].  A NaN product counts as 0.
    """

    def result(self, q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Spec:
        sources = (q, k, weights, mask)
        if q.type is not F32 or weights.type is not F32 or mask.type is not F16:
            mismatch(self, "q and weights must be f32, mask f16", *sources)
        if k.type.dtype.kind == "i" and not k.type.is_quantized:
            mismatch(self, "k must be of a float or block type", *sources)
        n, heads, tokens, sequences = q.ne
        keys = k.ne[2]
        require(k.ne == (n, 1, keys, sequences), self, f"k must be [{n}, 1, keys, {sequences}]", *sources)
        wanted = (heads, tokens, 1, sequences)
        require(weights.ne == wanted, self, f"weights must have the extents {wanted}", *sources)
        fits = mask.ne[:3] == (keys, tokens, 1) and is_multiple(sequences, mask.ne[3])
        require(fits, self, f"mask must be [{keys}, {tokens}, 1, a divisor of {sequences}]", *sources)
        return Spec(F32, (keys, tokens, 1, sequences), 4 if sequences > 1 else 2)

    def reference(self, q: Array, k: Array, weights: Array, mask: Array) -> Array:
        products = np.einsum("sthd,skd->sthk", q, k[:, :, 0])
        scores = np.einsum("sthk,sth->stk", np.where(products > 0, products, 0), weights[:, 0])
        return scores[:, np.newaxis] + mask[np.arange(q.shape[0]) % max(1, mask.shape[0])]


MOST_ITERATIONS = 1 << 16
"""The largest number of iterations of the alternating normalisation, which converges within some tens."""


class Dsv4HcComb(Op):
    """y[:, :, t] = a matrix of positive numbers whose rows and columns sum to about 1  (ggml_dsv4_hc_comb).

    With logits l[d, s, t] = scale[2] mixes[8 + d + 4 s, t] + base[8 + d + 4 s] for each of 4 streams d and s: y is the
    softmax of l over d, plus eps; divided by eps and its sums over s; and n_iter - 1 times by eps and its sums over d,
    then by eps and its sums over s (Z. Xie et al., *mHC: Manifold-Constrained Hyper-Connections*, arXiv:2512.24880).
    mixes: F32 [24, T].  scale: F32, of 3 numbers or more.  base: F32 [24].  Any strides.  Result: F32 [4, 4, T].
    """

    eps: float = 1e-6
    n_iter: int = 1

    def validate(self) -> None:
        if not 1 <= self.n_iter <= MOST_ITERATIONS:
            wanted = f"1 to {MOST_ITERATIONS}"
            raise ParameterError(f"{self.name}: n_iter must be {wanted}, got {self.n_iter}", op=self, got=self.n_iter)

    def result(self, mixes: Tensor, scale: Tensor, base: Tensor) -> Spec:
        sources = (mixes, scale, base)
        if any(each.type is not F32 for each in sources):
            mismatch(self, "takes f32", *sources)
        count = (2 + STREAMS) * STREAMS
        require(mixes.ne[0] == count and mixes.ne[2:] == (1, 1), self, f"mixes must be [{count}, T]", *sources)
        require(scale.ne[0] >= 3 and scale.ne[1:] == (1, 1, 1), self, "scale must be 3 numbers or more", *sources)
        require(base.ne == (count, 1, 1, 1), self, f"base must be {count} numbers", *sources)
        return Spec(F32, (STREAMS, STREAMS, mixes.ne[1], 1), 3)

    def reference(self, mixes: Array, scale: Array, base: Array) -> Array:
        first = 2 * STREAMS
        logits = mixes[0, 0, :, first:] * scale[0, 0, 0, 2] + base[0, 0, 0, first:]
        logits = logits.reshape(-1, STREAMS, STREAMS)
        powers = np.exp(logits - logits.max(axis=2, keepdims=True))
        y = powers / powers.sum(axis=2, keepdims=True) + self.eps
        y = y / (y.sum(axis=1, keepdims=True) + self.eps)
        for _ in range(1, self.n_iter):
            y = y / (y.sum(axis=2, keepdims=True) + self.eps)
            y = y / (y.sum(axis=1, keepdims=True) + self.eps)
        return y[np.newaxis]


class Dsv4HcPre(Op):
    """y[i, t] = sum over streams h of x[i, h, t] weights[h, t]  (ggml_dsv4_hc_pre).

    x: F32 [n, H, T]. weights: F32 [H, T]. Any strides. Result: F32 [n, T].
    """

    def result(self, x: Tensor, weights: Tensor) -> Spec:
        if x.type is not F32 or weights.type is not F32:
            mismatch(self, "takes f32", x, weights)
        require(x.ne[3] == 1 and x.ne[1] > 0, self, "x must be [n, H, T] with H of 1 or more", x, weights)
        wanted = (x.ne[1], x.ne[2], 1, 1)
        require(weights.ne == wanted, self, f"weights must have the extents {wanted}", x, weights)
        return Spec(F32, (x.ne[0], x.ne[2], 1, 1), 2)

    def reference(self, x: Array, weights: Array) -> Array:
        return np.einsum("thi,th->ti", x[0], weights[0, 0])[np.newaxis, np.newaxis]


class Dsv4HcPreGated(Op):
    """y[i, t] = scale times the sum over streams h of x[i, h, t] / (1 + e**-gate[i, h, t])  (ggml_dsv4_hc_pre_gated).

    x and gate: F32 [n, H, T]. Any strides. Result: F32 [n, T].
    """

    scale: float = 1.0

    def result(self, x: Tensor, gate: Tensor) -> Spec:
        if x.type is not F32 or gate.type is not F32:
            mismatch(self, "takes f32", x, gate)
        require(x.ne[3] == 1 and x.ne[1] > 0, self, "x must be [n, H, T] with H of 1 or more", x, gate)
        require(gate.ne == x.ne, self, "gate must have the extents of x", x, gate)
        return Spec(F32, (x.ne[0], x.ne[2], 1, 1), 2)

    def reference(self, x: Array, gate: Array) -> Array:
        return self.scale * (x * Sigmoid.formula(gate)).sum(axis=2)[np.newaxis]


class Dsv4HcPost(Op):
    """y[i, d, t] = x[i, t] post[d, t] + sum over streams s of residual[i, s, t] comb[d, s, t]  (ggml_dsv4_hc_post).

    x: F32 [n, T]. residual: F32 [n, H, T]. post: F32 [H, T]. comb: F32 [H, H, T]. Any strides. Result: F32 [n, H, T].
    """

    def result(self, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Spec:
        sources = (x, residual, post, comb)
        if any(each.type is not F32 for each in sources):
            mismatch(self, "takes f32", *sources)
        n, tokens, streams = x.ne[0], x.ne[1], residual.ne[1]
        require(x.ne[2:] == (1, 1) and streams > 0, self, "x must be [n, T], of 1 stream or more", *sources)
        for tensor, name, wanted in (
            (residual, "residual", (n, streams, tokens, 1)),
            (post, "post", (streams, tokens, 1, 1)),
            (comb, "comb", (streams, streams, tokens, 1)),
        ):
            require(tensor.ne == wanted, self, f"{name} must have the extents {wanted}", *sources)
        return Spec(F32, residual.ne, 3)

    def reference(self, x: Array, residual: Array, post: Array, comb: Array) -> Array:
        added = x[0, 0][:, np.newaxis] * post[0, 0][..., np.newaxis]
        return (added + np.einsum("tsi,tsd->tdi", residual[0], comb[0]))[np.newaxis]


lightning_indexer = builder(LightningIndexer)
dsv4_hc_comb = builder(Dsv4HcComb)
dsv4_hc_pre = builder(Dsv4HcPre)
dsv4_hc_pre_gated = builder(Dsv4HcPreGated)
dsv4_hc_post = builder(Dsv4HcPost)

"""Attention: heads of queries, keys and values, and two ways to compute it.

Queries are [d_k, n_head, T], keys [d_k, n_head_kv, T] and values [d_v, n_head_kv, T]: several query heads share one
head of keys and values (arXiv:2305.13245).  The result is [d_v n_head, T].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.weights.weights import Weights


@dataclass(frozen=True)
class Heads:
    """The numbers of heads of a block's attention, and of elements of a key and of a value."""

    n_head: int
    n_head_kv: int
    d_k: int
    d_v: int

    @classmethod
    def of(cls, hp: Hyperparameters, n_layer: int, *, all_attend: bool = True) -> list[Heads]:
        """The heads of each block; a block without attention has ``n_head_kv`` 0.

        Raises ModelError, also for a block without attention if ``all_attend``.
        """
        n_embd = hp.integer("embedding_length")
        counts = hp.of_blocks("attention.head_count", n_layer, at_least=int(all_attend))
        kv_counts = hp.of_blocks("attention.head_count_kv", n_layer, counts, at_least=int(all_attend))
        most = max(*counts, 1)
        keys, values = hp.integer("attention.key_length", None), hp.integer("attention.value_length", None)
        if (keys is None or values is None) and n_embd % most:
            raise hp.refused("embedding_length", f"a multiple of {hp.prefix}attention.head_count ({most})")
        for count, count_kv in zip(counts, kv_counts, strict=True):
            if count_kv and count % count_kv:
                raise hp.refused("attention.head_count_kv", f"a divisor of {hp.prefix}attention.head_count ({count})")
        own = n_embd // most
        return [cls(*each, keys or own, values or own) for each in zip(counts, kv_counts, strict=True)]

    @property
    def k_width(self) -> int:
        """Number of elements of the keys of a token."""
        return self.d_k * self.n_head_kv

    @property
    def v_width(self) -> int:
        """Number of elements of the values of a token."""
        return self.d_v * self.n_head_kv


def projections(weights: Weights, x: Tensor, heads: Heads, clamp: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of ``x`` [n, T]: from one product with ``attn_qkv``, or three with ``attn_q``,
    ``attn_k`` and ``attn_v``.

    Adds the biases that the file has: one for ``attn_qkv``, or three.  ``clamp``: limits the absolute values.
    """
    widths = heads.d_k * heads.n_head, heads.k_width, heads.v_width
    names = "attn_q", "attn_k", "attn_v"
    if "attn_qkv.weight" in weights:
        qkv = linear(weights, "attn_qkv", x, sum(widths))
        if "attn_qkv.bias" not in weights and "attn_q.bias" in weights:
            biases = [weights(f"{name}.bias", width) for name, width in zip(names, widths, strict=True)]
            qkv = qkv + reduce(lambda a, b: gg.concat(a, b, dim=0), biases)
        if clamp:
            qkv = gg.clamp(qkv, -clamp, clamp)
        q = part(qkv, 0, heads.d_k, heads.n_head)
        k = part(qkv, widths[0], heads.d_k, heads.n_head_kv)
        return q, k, part(qkv, widths[0] + widths[1], heads.d_v, heads.n_head_kv)
    q, k, v = (linear(weights, name, x, width) for name, width in zip(names, widths, strict=True))
    if clamp:
        q, k, v = (gg.clamp(each, -clamp, clamp) for each in (q, k, v))
    return split(q, heads.n_head), split(k, heads.n_head_kv), split(v, heads.n_head_kv)


def gated_queries(weights: Weights, x: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """Queries, and a factor of the attention's result, [d_k n_head, T]; each head of ``attn_q`` has rows of both."""
    both = split(linear(weights, "attn_q", x, 2 * heads.d_k * heads.n_head), heads.n_head)
    q, gate = of_heads(both, 0, heads.d_k), gg.cont(of_heads(both, heads.d_k, heads.d_k))
    return q, gg.sigmoid(joined(gate))


def of_heads(x: Tensor, first: int, count: int) -> Tensor:
    """The elements from ``first`` on of each head: a view [count, n_head, T] of [d, n_head, T]."""
    return gg.view(x, count, *x.ne[1:3], nb=x.nb[1:3], offset=first * x.nb[0])


def split(x: Tensor, n_head: int) -> Tensor:
    """Splits columns into heads: [n, T] becomes [n / n_head, n_head, T]."""
    return gg.reshape(x, x.ne[0] // n_head, n_head, x.ne[1])


def part(x: Tensor, first: int, d: int, n_head: int) -> Tensor:
    """The heads that begin at element ``first`` of each column: a view [d, n_head, T] of [n, T]."""
    size = x.nb[0]
    return gg.view(x, d, n_head, x.ne[1], nb=(d * size, x.nb[1]), offset=first * size)


def joined(x: Tensor) -> Tensor:
    """Joins heads to columns: [d, n_head, T] becomes [d n_head, T]; a view if ``x`` is a part of columns."""
    if x.is_contiguous():
        return gg.reshape(x, x.ne[0] * x.ne[1], x.ne[2])
    return gg.view(x, x.ne[0] * x.ne[1], x.ne[2], nb=(x.nb[2],))


def by_sequence(x: Tensor, n_seq: int) -> Tensor:
    """Heads in the order of the attention ops: a view [d, T / n_seq, n_head, n_seq] of [d, n_head, T]."""
    d, n_head, tokens = x.ne[:3]
    n = tokens // n_seq
    return gg.permute(gg.view(x, d, n_head, n, n_seq, nb=(x.nb[1], x.nb[2], n * x.nb[2])), 0, 2, 1, 3)


def mixed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    scale: float,
    n_seq: int = 1,
    max_bias: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention among all tokens of each sequence, as products and a softmax: [d_v n_head, T].

    mask: F32 [T / n_seq, T / n_seq, 1, n_seq].  Devices compute this chain as groups, which is faster than the single
    op of :func:`mixed_as_one` for texts of some hundred tokens.  ``max_bias``: of ALiBi; the mask then holds distances.
    ``bias``: F32 [n, n, n_head], which is added to the products.
    """
    q, k, v = (by_sequence(each, n_seq) for each in (q, k, v))
    return mixed_views(q, k, v, mask, scale=scale, max_bias=max_bias, bias=bias)


def mixed_views(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    scale: float,
    max_bias: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """As :func:`mixed`, of q [d_k, n, n_head, S], k [d_k, m, n_head_kv, S] and v [d_v, m, n_head_kv, S].

    Keys and values may be views of a KV cache, of any type.  ``bias``: F32 [m, n, n_head, S or 1].
    """
    v = gg.cast(v, gg.F32) if v.type.is_quantized else v
    transposed = gg.cont(gg.permute(v, 1, 0, 2, 3))  # [m, d_v, n_head_kv, S]
    products = gg.mul_mat(k, q)
    products = products if bias is None else products + bias
    probabilities = gg.soft_max(products, mask, scale=scale, max_bias=max_bias)
    y = gg.cont(gg.permute(gg.mul_mat(transposed, probabilities), 0, 2, 1, 3))
    return gg.reshape(y, y.ne[0] * y.ne[1], y.ne[2] * y.ne[3])


def mixed_as_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    max_bias: float = 0.0,
) -> Tensor:
    """Attention to the cells of a KV cache, as one op: [d_v n_head, T].

    q: [d_k, n_head, T].  k: [d_k, m, n_head_kv, S], v: [d_v, m, n_head_kv, S], views of a cache, of any type.
    mask: F16 [m, T / S, 1, S].  ``softcap``: a cap c replaces each logit x by c tanh(x / c) (arXiv:2408.00118).
    ``sinks``: F32 [n_head], an additional logit for each head, without a value (arXiv:2309.17453).  ``max_bias``: of
    ALiBi; the mask then holds distances.
    """
    y = gg.flash_attn_ext(by_sequence(q, k.ne[3]), k, v, mask, scale, max_bias, softcap, sinks=sinks)
    return gg.reshape(y, y.ne[0] * y.ne[1], y.ne[2] * y.ne[3])

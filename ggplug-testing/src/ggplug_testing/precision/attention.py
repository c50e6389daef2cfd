"""Rooms of attention: products, a softmax of them, and products again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array
from ggplug.ops.elementwise import tile
from ggplug.ops.flash_attention import shares_of
from ggplug.tensor import Tensor
from ggplug.types import Precision
from ggplug_testing.precision.products import COARSE, block_steps
from ggplug_testing.precision.rule import DEVIATIONS, SUMMED, UNIT
from ggplug_testing.precision.sums import summed


def _attended(
    node: Tensor, q: Array, k: Array, mask: Array | None, sinks: Array | None, coarse: float
) -> tuple[Array, Array]:
    """Shares of attention, and their roundings: ``coarse`` is the deviation of rounding queries, in roundings."""
    op: Any = node.op
    assert node.src[1] is not None
    kind = node.src[1].type
    logits, _ = op.logits(q, k, mask)
    dots, terms = np.abs(q @ k.swapaxes(-1, -2)), (q * q) @ (k * k).swapaxes(-1, -2)
    off = SUMMED * math.sqrt(q.shape[-1] + 1) * np.maximum(dots, 2 * np.sqrt(terms)) + 4 * dots
    off = off + DEVIATIONS * coarse * np.sqrt(terms)
    if kind.is_quantized:
        steps = block_steps(q, kind.block_size)
        off = off + DEVIATIONS * np.sqrt((steps * steps) @ (k * k).swapaxes(-1, -2) / 12) / UNIT
    off = abs(op.scale) * off + 10 * np.minimum(op.logit_softcap, np.abs(op.scale) * dots)
    if mask is not None:
        slopes = alibi_slopes(q.shape[1], op.max_bias)[:, np.newaxis, np.newaxis]
        off = off + (34 if op.max_bias else 1) * np.abs(slopes * tile(mask[:, :, : q.shape[2]], logits.shape))
    shares = shares_of(logits, sinks)
    highest = np.max(np.where(np.isnan(logits), -np.inf, logits), axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        highest = np.fmax(highest, sinks.reshape(1, -1, 1, 1))
    off = np.where(shares > 0, off + 2 * np.abs(logits - highest), 0)
    shared = np.sum(shares * off, axis=-1, keepdims=True) + np.where(shares > 0, 2 * np.abs(highest), 0)
    return shares, np.where(shares > 0, shares * (off + shared + 16 + 4 * summed(logits)), 0)


def flash_attn_ext(
    node: Tensor, exact: Array, q: Array, k: Array, v: Array, mask: Array | None = None, sinks: Array | None = None
) -> Array:
    op: Any = node.op
    kinds = [source.type for source in node.src[1:3] if source is not None]
    q, k, v = (np.where(np.isfinite(each), each, 0) for each in (q, k, v))
    coarse = [0.0 if op.precision == Precision.F32 else COARSE.get(kind, 0.0) / UNIT / math.sqrt(3) for kind in kinds]
    k, v = (np.repeat(each, q.shape[1] // max(1, each.shape[1]), axis=1) for each in (k, v))
    shares, off = _attended(node, q, k, mask, sinks, coarse[0])
    spread = np.sqrt((shares * shares) @ (v * v))
    added = SUMMED * math.sqrt(v.shape[-2] + 1) * np.maximum(np.abs(exact.swapaxes(1, 2)), 2 * spread)
    return np.asarray(off @ np.abs(v) + added + DEVIATIONS * coarse[1] * spread).swapaxes(1, 2)


def flash_attn_back(
    node: Tensor, exact: Array, q: Array, k: Array, v: Array, d: Array, mask: Array | None = None,
    sinks: Array | None = None,
) -> Array:  # fmt: skip
    op: Any = node.op
    q, k, v, d = (np.where(np.isfinite(each), each, 0) for each in (q, k, v, d))
    batches, groups, share = *k.shape[:2], q.shape[1] // max(1, k.shape[1])
    wide_k, wide_v = (np.repeat(each, share, axis=1) for each in (k, v))
    shares, off = _attended(node, q, wide_k, mask, sinks, 0.0)
    d = d.swapaxes(1, 2)
    wanted = np.abs(d @ wide_v.swapaxes(-1, -2))
    added = 2 * np.sqrt((d * d) @ (wide_v * wide_v).swapaxes(-1, -2))
    of_dots = SUMMED * math.sqrt(v.shape[-1] + 1) * np.maximum(wanted, added)
    mean = np.sum(shares * wanted, axis=-1, keepdims=True)
    of_mean = np.sum(off * wanted + shares * (of_dots + 8 * wanted), axis=-1, keepdims=True) + summed(shares) * mean
    scale = abs(op.scale)
    size = scale * shares * (wanted + mean)
    moved = scale * (off * (wanted + mean) + shares * (of_dots + of_mean)) + 24 * size

    def collected(first: Array, second: Array, off: Array) -> Array:
        """Roundings of the product of two matrices, the first of which is off by so much."""
        terms = 2 * np.sqrt((first * first) @ (second * second))
        return np.asarray(off @ np.abs(second) + SUMMED * math.sqrt(share * first.shape[-1] + 1) * terms)

    def folded(x: Array) -> Array:
        return np.asarray(x.reshape(batches, groups, share, *x.shape[2:]).sum(axis=2))

    turned = (each.swapaxes(-1, -2) for each in (size, moved, shares, off))
    sizes, moves, weights, offs = turned
    parts = [
        collected(size, wide_k, moved), folded(collected(sizes, q, moves)), folded(collected(weights, d, offs)),
    ]  # fmt: skip
    if sinks is not None:
        rest = 1 - shares.sum(axis=-1, keepdims=True)
        off_of_rest = rest * (16 + 4 * summed(shares)) + np.sum(off, axis=-1, keepdims=True)
        of_rows = rest * of_mean + (off_of_rest + 16 * rest + SUMMED * math.sqrt(q.shape[-2])) * mean
        parts.append(of_rows.sum(axis=(0, 2, 3)))
    padded = [np.pad(each.reshape(-1), (0, -each.size % 4)) for each in parts]
    return np.concatenate(padded).reshape(exact.shape)


def indexed(node: Tensor, exact: Array, q: Array, k: Array, weights: Array, mask: Array) -> Array:
    keys, of_heads = k[:, :, 0], np.abs(weights[:, 0])
    products = np.einsum("sthd,skd->sthk", q, keys)
    size = np.maximum(np.abs(products), 2 * np.sqrt(np.einsum("sthd,skd->sthk", q**2, keys**2)))
    relative = SUMMED * math.sqrt(q.shape[3] + 1) * size + (q.shape[2] + 2) * np.abs(products)
    room = np.einsum("sthk,sth->stk", relative, of_heads)[:, np.newaxis]
    hidden = mask[np.arange(q.shape[0]) % max(1, mask.shape[0])]
    return np.asarray(room + 2 * np.abs(exact) + np.abs(np.where(np.isfinite(exact), exact - hidden, 0)))

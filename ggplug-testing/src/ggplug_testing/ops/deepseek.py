"""The layers of DeepSeek's models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.unary import Sigmoid
from ggplug.tensor import Tensor
from ggplug.types import F16, F32, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import QUANTIZED, ROWWISE, Case
from ggplug_testing.cases.making import case, extents_of, in_blocks, leaf, named
from ggplug_testing.description import describe
from ggplug_testing.precision.rule import FLUSHED, SUMMED, UNIT, Node, element, of_magnitudes

_SHAPES = ((31, 4, 17), (1, 1, 1), (7, 4, 1), (130, 3, 5), (1100, 2, 2))
_LAYOUTS = (*ROWWISE[1:], "transposed")


def lightning_indexer_cases(op: type[Op]) -> Iterator[Case]:
    """Types of k, few and many heads and keys, masks that hide and that repeat, layouts."""

    def hidden(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        values = random.standard_normal(shape)
        return np.where(random.uniform(size=shape) < 0.3, -np.inf, values)

    def indexed(label: str, type: Type = F16, layout: Any = "packed", n: int = 64, **others: int) -> Case:
        sizes = {"heads": 4, "keys": 19, "tokens": 3, "sequences": 1, "masks": 1, **others, "n": in_blocks(n, type)}
        q, k, weights, mask = extents_of(
            "n heads tokens sequences, n 1 keys sequences, heads tokens 1 sequences, keys tokens 1 masks", sizes
        )
        sources = leaf(F32, q, layout), leaf(type, k, layout), leaf(F32, weights, layout)
        return case(op, label, *sources, leaf(F16, mask, layout, values=hidden))

    for type in (*KERNEL_FLOATS, *QUANTIZED):
        yield indexed(f"k of {type.name}", type)
    variants: tuple[dict[str, Any], ...] = (
        {"heads": 1, "keys": 1, "tokens": 1},
        {"heads": 32, "n": 128, "keys": 65},
        {"n": 33, "heads": 9},
        {"n": 1, "heads": 2},
        {"sequences": 4, "masks": 2},
        {"sequences": 3, "masks": 3, "tokens": 1},
        *({"layout": layout, "sequences": 2} for layout in ROWWISE[1:]),
    )
    for each in variants:
        yield indexed(named(each), **each)
    # Rounding errors add up where all products are the same.
    one, tenth = (
        leaf(F32, (1000, 1), values=lambda random, shape, each=each: np.full(shape, each)) for each in (1.0, 0.1)
    )
    yield case(op, "equal products in long rows", one, tenth, leaf(F32, (1,)), leaf(F16, (1,)))


def _indexed(node: Tensor, exact: Array, q: Array, k: Array, weights: Array, mask: Array) -> Array:
    keys, of_heads = k[:, :, 0], np.abs(weights[:, 0])
    products = np.einsum("sthd,skd->sthk", q, keys)
    size = np.maximum(np.abs(products), 2 * np.sqrt(np.einsum("sthd,skd->sthk", q**2, keys**2)))
    relative = SUMMED * math.sqrt(q.shape[3] + 1) * size + (q.shape[2] + 2) * np.abs(products)
    tolerance = np.einsum("sthk,sth->stk", relative, of_heads)[:, np.newaxis]
    hidden = mask[np.arange(q.shape[0]) % max(1, mask.shape[0])]
    return np.asarray(tolerance + 2 * np.abs(exact) + np.abs(np.where(np.isfinite(exact), exact - hidden, 0)))


describe(
    ops.LightningIndexer,
    cases=[lightning_indexer_cases],
    rule=element(
        "sum(abs(w) (3.46 sqrt(n + 1) size + (heads + 2) abs(q k))) + 2 abs(y) + abs(y - mask), size as of products",
        "n products and sums of each head, their products with weights, sums",
        _indexed,
    ),
)


def dsv4_hc_comb_cases(op: type[Op]) -> Iterator[Case]:
    """Tokens, repetitions, eps, logits far apart, layouts."""

    def combined(label: str, tokens: int = 5, layout: Any = "packed", scale: float = 1.0, **parameters: Any) -> Case:
        scales = leaf(F32, (3,), layout, low=0.5 * scale, high=2 * scale)
        return case(op, label, leaf(F32, (24, tokens), layout), scales, leaf(F32, (24,), layout), **parameters)

    for tokens in (1, 17, 130):
        yield combined(f"{tokens} tokens", tokens)
    for n_iter in (2, 4, 20):
        yield combined(f"n_iter={n_iter}", n_iter=n_iter)
    yield combined("eps=0.1", eps=0.1, n_iter=3)
    yield combined("eps=0", eps=0.0, n_iter=2)
    yield combined("logits far apart", scale=20.0, n_iter=2)
    for layout in _LAYOUTS:
        yield combined(layout, layout=layout, n_iter=2)


def _balanced(node: Node, exact: Array, mixes: Array, scale: Array, base: Array) -> Array:
    scaled = np.abs(mixes[..., 8:] * scale[..., 2:3])
    e = (5 * scaled + 3 * np.abs(base[..., 8:])).max(axis=3, initial=0).reshape(1, -1, 1, 1)
    return np.asarray(2 * np.abs(exact) * (24 + 4 * e + 16 * node.op.n_iter))


describe(
    ops.Dsv4HcComb,
    cases=[dsv4_hc_comb_cases],
    rule=element(
        "2 abs(y) (24 + 4 max(5 abs(scale mixes) + 3 abs(base)) + 16 n_iter)",
        "logits, whose errors become factors of the powers; sums and quotients, which never widen ratios of errors",
        _balanced,
    ),
)


_STREAMS_OF: dict[type[Op], str] = {
    ops.Dsv4HcPre: "n h t, h t",
    ops.Dsv4HcPreGated: "n h t, n h t",
    ops.Dsv4HcPost: "n t, n h t, h t, h h t",
}


def dsv4_hc_cases(op: type[Op]) -> Iterator[Case]:
    """Rows of different lengths, with different numbers of streams and of tokens; layouts."""

    def mixed(label: str, n: int, h: int, t: int, layout: Any = "packed") -> Case:
        sources = _STREAMS_OF[op]
        of = extents_of(sources, {"n": n, "h": h, "t": t})
        scaled = {"scale": 1 / h} if "scale" in op.parameters else {}
        return case(op, label, *(leaf(F32, ne, layout) for ne in of), **scaled)

    for shape in _SHAPES:
        yield mixed(" x ".join(map(str, shape)), *shape)
    for layout in _LAYOUTS:
        yield mixed(layout, 40, 4, 6, layout)


def _gated(node: Node, exact: Array, x: Array, gate: Array) -> Array:
    opened = Sigmoid.formula(gate)
    total = (np.abs(x) * ((x.shape[2] + 15) * opened + FLUSHED / UNIT)).sum(axis=2)
    return np.asarray(np.abs(node.op.scale) * total[np.newaxis])


describe(ops.Dsv4HcPre, ops.Dsv4HcPreGated, ops.Dsv4HcPost, cases=[dsv4_hc_cases])
describe(
    ops.Dsv4HcPreGated,
    rule=element(
        "abs(scale) sum(abs(x) ((H + 15) s + 2**-102)), s = 1 / (1 + e**-gate)",
        "s, whose power may overflow; H products and sums, a product",
        _gated,
    ),
)
describe(
    ops.Dsv4HcPre,
    ops.Dsv4HcPost,
    rule=of_magnitudes(
        "(H + 3) f(abs(sources))",
        "H products and sums",
        lambda *sources: sources[len(sources) // 4].shape[2] + 3,  # of x, or of the residual
    ),
)

"""Attention as one op, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import tile
from ggplug.ops.flash_attention import FAINT, probabilities_of
from ggplug.ops.views import permute, view
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, Precision, Type
from ggplug_testing.cases.case import QUANTIZED, Case, Leafs, node
from ggplug_testing.cases.making import Make, case, in_blocks, leaf
from ggplug_testing.description import describe
from ggplug_testing.precision.rule import DEVIATIONS, SUMMED, UNIT, Node, row
from ggplug_testing.precision.sums import COARSE, block_steps, roundings, summed


def _hiding(fraction: float) -> Any:
    """Masks of random numbers that hide so many of the keys."""

    def values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        drawn = random.standard_normal(shape)
        drawn[random.uniform(size=shape) < fraction] = -np.inf
        return drawn

    return values


def _causal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    rows, keys = np.ogrid[: shape[-2], : shape[-1]]
    return np.broadcast_to(np.where(keys > rows + shape[-1] - shape[-2], -np.inf, 0.0), shape)


def _far(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Queries whose logits lie far apart."""
    return random.standard_normal(shape) * 40


def _some_zeros(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Queries of which every other one is zero, so that all of its products are."""
    drawn = random.standard_normal(shape)
    drawn[..., ::2, :] = 0
    return drawn


def _case(
    op: type[Op],
    label: str,
    *,
    n: int,
    m: int,
    dk: int,
    dv: int = 0,
    h: int = 2,
    g: int = 0,
    b: int = 1,
    k: Type,
    v: Type | None = None,
    mask: tuple[int, ...] | None = None,
    hidden: Any = 0.3,
    sinks: bool = False,
    values: Any = None,
    cached: bool = False,
    **parameters: Any,
) -> Case:
    """``n`` queries of ``m`` keys of ``dk`` numbers and values of ``dv``, in ``h`` heads, of which ``g`` have keys."""
    kinds, lengths = (k, v or k), (in_blocks(dk, k), in_blocks(dv or dk, v or k))
    back = op is ops.FlashAttnBack
    q = leaf(F32, (lengths[0], n, h, b), values=values)
    keys, mixed = (_keys(t, d, m, g or h, b, cached) for t, d in zip(kinds, lengths, strict=True))
    sources = [_adjacent((dk, h, n, b)) if back and cached else q, keys, mixed]
    if back:
        sources.append(leaf(F32, (lengths[1], h, n, b)))
    drawn = hidden if callable(hidden) else _hiding(hidden)
    shown = None if mask is None else leaf(F16, (m, *mask), values=drawn)
    each = leaf(F32, (h,)) if sinks else None
    return case(op, label, *sources, shown, each, **{"scale": lengths[0] ** -0.5, **parameters})


def flash_attn_ext_cases(op: type[Op]) -> Iterator[Case]:
    """One query and many, few keys and many; all types; heads that share keys; masks, ALiBi, sinks, caps; layouts."""

    def attended(label: str, dk: int = 32, n: int = 3, m: int = 37, k: Type = F16, **how: Any) -> Case:
        return _case(op, label, dk=dk, n=n, m=m, k=k, **how)

    for n in (1, 2, 5, 13, 40):
        for m in (1, 33, 257):
            yield attended(f"{n} queries of {m} keys", n=n, m=m)
    for size in (1, 7, 40, 64, 80, 128, 256):
        for n in (2, 16):
            yield attended(f"{n} queries of {size} numbers", size, n, 130)
    for n in (3, 33):
        queries = f"{n} queries"
        yield attended(f"{queries}, values of other lengths", 40, n, 150, dv=72)
        yield attended(f"{queries}, shorter values", 72, n, 130, dv=8, k=F32)
        for type in (F32, BF16):
            yield attended(f"{queries} {type.name}", 48, n, 140, k=type)
            exact = f"{queries} {type.name} with Precision.F32"
            yield attended(exact, 48, n, 140, k=type, precision=int(Precision.F32))
        yield attended(f"{queries} f16 keys, f32 values", 48, n, 140, v=F32)
        for type in QUANTIZED:
            yield attended(f"{queries} {type.name}", 32, n, 70, k=type)
            yield attended(f"{queries} f16 keys, {type.name} values", 32, n, 70, v=type)
        yield attended(f"{queries}, heads that share keys", 32, n, 70, h=6, g=2, b=2)
        yield attended(f"{queries}, one head of keys", 16, n, 70, h=5, g=1, b=3)
        yield attended(f"{queries}, mask", 32, n, 290, mask=(n,))
        yield attended(f"{queries}, mask with more rows", 32, n, 70, mask=(n + 5,))
        yield attended(f"{queries}, mask for each head and batch", 32, n, 70, h=4, g=2, b=2, mask=(n, 4, 2))
        yield attended(f"{queries}, mask for every other head", 32, n, 70, h=4, g=2, b=2, mask=(n, 2))
        yield attended(f"{queries}, mask for every other batch", 32, n, 70, h=2, g=2, b=4, mask=(n, 1, 2))
        yield attended(f"{queries}, mask that hides most", 32, n, 400, mask=(n,), hidden=0.99)
        yield attended(f"{queries}, mask that hides all", 32, n, 40, mask=(n,), hidden=1.0)
        yield attended(f"{queries}, mask that hides all, sinks", 32, n, 40, mask=(n,), hidden=1.0, sinks=True)
        yield attended(f"{queries}, mask that hides what comes later", 32, n, 300, mask=(n,), hidden=_causal)
        for heads in (1, 3, 4, 12):
            yield attended(f"{queries}, ALiBi, {heads} heads", 16, n, 40, h=heads, mask=(n,), max_bias=8.0)
        yield attended(f"{queries}, ALiBi, slopes that vanish", 16, n, 40, h=2, mask=(n,), max_bias=600.0)
        yield attended(f"{queries}, sinks", 32, n, 70, h=5, sinks=True)
        yield attended(f"{queries}, capped", 32, n, 70, logit_softcap=3.0, values=_far)
        for cap in (1e-30, 1e-40, 1e-60):
            yield attended(f"{queries}, capped by {cap}", 32, n, 70, logit_softcap=cap, values=_some_zeros, scale=7.0)
        yield attended(f"{queries}, logits far apart", 32, n, 200, values=_far)
        yield attended(f"{queries}, a scale below zero", 32, n, 70, scale=-0.3)
        yield attended(f"{queries}, in a cache", 32, n, 140, h=4, g=2, b=2, cached=True, mask=(n,))
        everything: dict[str, Any] = {"h": 12, "g": 4, "b": 2, "dv": 40, "mask": (n, 1, 2), "sinks": True}
        yield attended(f"{queries}, everything", 72, n, 300, **everything, max_bias=4.0, logit_softcap=5.0)
    for n in (1, 70):
        yield attended(f"{n} queries, keys in parts", 16, n, 1100, g=1)
        yield attended(f"{n} queries, keys in parts, masked", 16, n, 1537, mask=(n,), hidden=0.999, sinks=True)
    yield attended("many queries", 16, 450, 40)
    adjacent = "queries of heads next to each other"
    k, v = leaf(F16, (32, 21, 2, 2)), leaf(F16, (32, 21, 2, 2))
    yield case(op, adjacent, _adjacent((32, 4, 19, 2)), k, v, scale=0.2)


def _keys(type: Type, size: int, keys: int, heads: int, batches: int, cached: bool) -> Make:
    """Keys or values; ``cached``: the first of a longer cache, whose heads lie side by side."""

    def make(leafs: Leafs) -> Tensor:
        permuted = permute(leafs.tensor(type, size, heads, keys + 9, batches), 0, 2, 1, 3)
        return view(permuted, size, keys, heads, batches, nb=permuted.nb[1:])

    return make if cached else leaf(type, (size, keys, heads, batches))


def _adjacent(ne: tuple[int, ...]) -> Make:
    """Queries, whose heads lie side by side."""
    return lambda leafs: permute(leafs.tensor(F32, *ne), 0, 2, 1, 3)


Values = dict[str, Array]
"""The values of sources, by their names."""


def _special_cases(op: type[Op]) -> Iterator[Case]:
    """Numbers that are not finite in each of the sources, in rows that see them and in others."""
    keys = 37

    def special(label: str, n: int, change: Callable[[Values], None], kind: Type = F16, **parameters: Any) -> Case:
        def make(leafs: Leafs) -> Any:
            shapes: dict[str, tuple[int, ...]] = {"mask": (n, keys), "sinks": (4,)}
            shapes |= {"q": (4, n, 16), "k": (4, keys, 16), "v": (4, keys, 16), "d": (n, 4, 16)}
            drawn = {name: leafs.random.standard_normal(shapes[name]) for name in op.sources}
            change(drawn)
            kinds = {"k": kind, "v": kind, "mask": F16}
            sources = [leafs.array(kinds.get(name, F32), values) for name, values in drawn.items()]
            if not label.endswith("sink"):
                sources.pop()
            return node(op, *sources, **{"scale": 0.3, **parameters})

        return Case(op.name, f"special: {n} queries, {label}", make)

    for n in (2, 20):
        for number in (math.nan, math.inf, -math.inf):
            for name in ("q", "k", "v", "d"):
                if name not in op.sources:
                    continue
                yield special(f"{number} in {name}", n, _put(number, name, (1, 1, 3)))
            yield special(f"{number} in q, capped", n, _put(number, "q", (1, 1, 3)), logit_softcap=2.0)
            yield special(f"{number} in the mask", n, _put(number, "mask", (1, 7)))
            yield special(f"{number} as a row of the mask", n, _put(number, "mask", 1))
            yield special(f"{number} as a sink", n, _put(number, "sinks", 2))
            for name in ("k", "v"):
                yield special(f"{number} in {name} where hidden", n, _hidden(number, name, slice(None)))
                yield special(f"{number} in {name} where hidden from a row", n, _hidden(number, name, 1))
        yield special("products beyond float32", n, _put(3e38, "q", slice(None)), F32)
        yield special("scale 0 of products beyond float32", n, _put(3e38, "q", slice(None)), F32, scale=0.0)


def _put(number: float, name: str, where: Any) -> Callable[[Values], None]:
    def change(drawn: Values) -> None:
        drawn[name][where] = number

    return change


def _hidden(number: float, name: str, rows: Any) -> Callable[[Values], None]:
    """``number`` in some keys or values that a mask hides from these rows."""

    def change(drawn: Values) -> None:
        drawn[name][:, 5:9] = number
        drawn["mask"][rows, 5:9] = -math.inf

    return change


def flash_attn_back_cases(op: type[Op]) -> Iterator[Case]:
    """One query and many; types; heads that share keys; masks of both kinds, sinks, caps; layouts."""

    def back(label: str, n: int = 5, m: int = 21, dk: int = 16, dv: int = 16, k: Type = F32, **how: Any) -> Case:
        return _case(op, label, n=n, m=m, dk=dk, dv=dv, k=k, **{"g": 2, **how})

    for n, m in ((1, 1), (1, 70), (3, 5), (40, 33), (17, 130)):
        yield back(f"{n} queries of {m} keys", n, m)
        yield back(f"{n} queries of {m} keys, none that comes later", n, m, masked=True)
    for dk, dv in ((7, 5), (40, 72), (1, 1)):
        yield back(f"keys of {dk} numbers, values of {dv}", dk=dk, dv=dv)
    for kind in (F16, BF16):
        yield back(f"{kind.name}", k=kind)
    yield back("heads that share keys", h=6, g=2, b=2)
    yield back("mask", mask=(5,))
    yield back("mask for each head and batch, with more rows", h=4, g=2, b=2, mask=(9, 4, 2))
    yield back("mask for every other head and batch", h=4, g=2, b=4, mask=(5, 2, 2))
    yield back("mask that hides all", mask=(5,), hidden=1.0)
    yield back("ALiBi", h=3, g=3, mask=(5,), max_bias=8.0)
    yield back("sinks", h=6, g=2, b=2, sinks=True)
    yield back("ALiBi, slopes that vanish", h=2, mask=(5,), max_bias=600.0)
    yield back("capped", logit_softcap=1.5)
    yield back("capped far below", logit_softcap=0.05)
    yield back("rows apart", h=4, g=2, b=2, cached=True)
    everything: dict[str, Any] = {"h": 4, "b": 2, "mask": (9, 1, 2), "sinks": True, "masked": True}
    yield back("everything", 9, 35, 24, 40, F16, **everything, max_bias=4.0, logit_softcap=3.0)


def _attended(
    node: Node, q: Array, k: Array, mask: Array | None, sinks: Array | None, coarse: float
) -> tuple[Array, Array]:
    """The probabilities of keys, and their roundings: ``coarse`` is the deviation of rounding queries, in roundings."""
    assert node.src[1] is not None
    kind = node.src[1].type
    logits, _ = node.op.logits(q, k, mask)
    dots, terms = np.abs(q @ k.swapaxes(-1, -2)), (q * q) @ (k * k).swapaxes(-1, -2)
    off = roundings(q.shape[-1], dots, terms, products=True) + 4 * dots
    off = off + DEVIATIONS * coarse * np.sqrt(terms)
    if kind.is_quantized:
        steps = block_steps(q, kind.block_size)
        off = off + DEVIATIONS * np.sqrt((steps * steps) @ (k * k).swapaxes(-1, -2) / 12) / UNIT
    off = abs(node.op.scale) * off + 10 * np.minimum(node.op.logit_softcap, np.abs(node.op.scale) * dots)
    if mask is not None:
        slopes = alibi_slopes(q.shape[1], node.op.max_bias)[:, np.newaxis, np.newaxis]
        off = off + (34 if node.op.max_bias else 1) * np.abs(slopes * tile(mask[:, :, : q.shape[2]], logits.shape))
    probabilities = probabilities_of(logits, sinks)
    highest = np.max(np.where(np.isnan(logits), -np.inf, logits), axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        highest = np.fmax(highest, sinks.reshape(1, -1, 1, 1))
    off = np.where(probabilities > 0, off + 2 * np.abs(logits - highest), 0)
    shared = np.sum(probabilities * off, axis=-1, keepdims=True) + np.where(probabilities > 0, 2 * np.abs(highest), 0)
    return probabilities, np.where(probabilities > 0, probabilities * (off + shared + 16 + 4 * summed(logits)), 0)


def _flash_attn_ext(
    node: Node, exact: Array, q: Array, k: Array, v: Array, mask: Array | None = None, sinks: Array | None = None
) -> Array:
    kinds = [source.type for source in node.src[1:3] if source is not None]
    lost = ~np.isfinite(v)
    q, k, v = (np.where(np.isfinite(each), each, 0) for each in (q, k, v))
    coarse = [COARSE.get(kind, 0.0) / UNIT / math.sqrt(3) for kind in kinds]
    if node.op.precision == Precision.F32:
        coarse = [0.0, 0.0]
    k, v, lost = (np.repeat(each, q.shape[1] // max(1, each.shape[1]), axis=1) for each in (k, v, lost))
    probabilities, off = _attended(node, q, k, mask, sinks, coarse[0])
    terms = (probabilities * probabilities) @ (v * v)
    added = roundings(v.shape[-2], exact.swapaxes(1, 2), terms, products=True)
    around = off @ np.abs(v) + added + DEVIATIONS * coarse[1] * np.sqrt(terms)
    if lost.any():
        _, hidden = node.op.logits(q, k, mask)
        faint = (probabilities < FAINT) & ~hidden
        around = np.where((faint.astype(float) @ lost) > 0, np.inf, around)
    return np.asarray(around).swapaxes(1, 2)


def _flash_attn_back(
    node: Node,
    exact: Array,
    q: Array,
    k: Array,
    v: Array,
    d: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    q, k, v, d = (np.where(np.isfinite(each), each, 0) for each in (q, k, v, d))
    batches, groups, heads = *k.shape[:2], q.shape[1] // max(1, k.shape[1])
    wide_k, wide_v = (np.repeat(each, heads, axis=1) for each in (k, v))
    probabilities, off = _attended(node, q, wide_k, mask, sinks, 0.0)
    d = d.swapaxes(1, 2)
    wanted = np.abs(d @ wide_v.swapaxes(-1, -2))
    added = 2 * np.sqrt((d * d) @ (wide_v * wide_v).swapaxes(-1, -2))
    of_dots = SUMMED * math.sqrt(v.shape[-1] + 1) * np.maximum(wanted, added)
    mean = np.sum(probabilities * wanted, axis=-1, keepdims=True)
    of_mean = (
        np.sum(off * wanted + probabilities * (of_dots + 8 * wanted), axis=-1, keepdims=True)
        + summed(probabilities) * mean
    )
    scale = abs(node.op.scale)
    size = scale * probabilities * (wanted + mean)
    moved = scale * (off * (wanted + mean) + probabilities * (of_dots + of_mean)) + 24 * size

    def collected(first: Array, second: Array, off: Array) -> Array:
        """Roundings of the product of two matrices, the first of which is off by so much."""
        terms = 2 * np.sqrt((first * first) @ (second * second))
        return np.asarray(off @ np.abs(second) + SUMMED * math.sqrt(heads * first.shape[-1] + 1) * terms)

    def folded(x: Array) -> Array:
        return np.asarray(x.reshape(batches, groups, heads, *x.shape[2:]).sum(axis=2))

    transposed = (each.swapaxes(-1, -2) for each in (size, moved, probabilities, off))
    sizes, moves, weights, offs = transposed
    parts = [
        collected(size, wide_k, moved),
        folded(collected(sizes, q, moves)),
        folded(collected(weights, d, offs)),
    ]
    if sinks is not None:
        rest = 1 - probabilities.sum(axis=-1, keepdims=True)
        off_of_rest = rest * (16 + 4 * summed(probabilities)) + np.sum(off, axis=-1, keepdims=True)
        of_rows = rest * of_mean + (off_of_rest + 16 * rest + SUMMED * math.sqrt(q.shape[-2])) * mean
        parts.append(of_rows.sum(axis=(0, 2, 3)))
    padded = [np.pad(each.reshape(-1), (0, -each.size % 4)) for each in parts]
    return np.concatenate(padded).reshape(exact.shape)


describe(
    ops.FlashAttnExt,
    cases=[flash_attn_ext_cases, _special_cases],
    large=False,
    rule=row(
        "sum(p (16 + 4 S + e + sum(p e)) abs(v)) + S size, p the probabilities, e = scale (S(dk) size + r) + "
        "4 abs(logit) + 10 min(cap, abs(logit)) + abs(mask) + 2 abs(logit - max) + 2 abs(max), S and size as products "
        "have them",
        "logits as products, r of queries and probabilities rounded to the types of k and v; the rest as soft_max, and "
        "as products of its probabilities; powers are rounded again with every block of keys with a larger logit",
        _flash_attn_ext,
    ),
)
describe(
    ops.FlashAttnBack,
    cases=[_special_cases, flash_attn_back_cases],
    large=False,
    rule=row(
        "with g = d v, p the probabilities, e(p) their roundings: of v's gradient sum(e(p) abs(d)), of those of q "
        "and k scale sum((e(p) (abs(g) + m) + p (e(g) + e(m) + 24 abs(g) + 24 m)) abs(k or q)), m = sum(p abs(g)), "
        "each + S size of its sums; of the sinks' what is left of p for them in the place of p",
        "probabilities as in flash_attn_ext, and products of them",
        _flash_attn_back,
    ),
)

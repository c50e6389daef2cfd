"""Cases of attention as one op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Array, Op
from ggplug.ops.flash_attention import FlashAttnBack, FlashAttnExt
from ggplug.ops.views import permute, view
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, Precision, Type
from ggplug_testing.cases.case import QUANTIZED, Case, Leafs, generates, in_blocks, node


def hiding(share: float) -> Any:
    """Masks of random numbers that hide so many of the keys."""

    def values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        drawn = random.standard_normal(shape)
        drawn[random.uniform(size=shape) < share] = -np.inf
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


@generates(FlashAttnExt)
def flash_attn_ext_cases(cls: type[Op]) -> Iterator[Case]:
    """One query and many, few keys and many; all types; heads that share keys; masks, ALiBi, sinks, caps; layouts."""

    def case(
        label: str, dk: int = 32, n: int = 3, m: int = 37, h: int = 2, g: int = 0, b: int = 1, dv: int = 0, *,
        k: Type = F16, v: Type | None = None, mask: tuple[int, ...] | None = None, hidden: Any = 0.3,
        sinks: bool = False, values: Any = None, cached: bool = False, **parameters: Any,
    ) -> Case:  # fmt: skip
        def make(leafs: Leafs) -> Any:
            kinds, lengths = (k, v or k), (in_blocks(dk, k), in_blocks(dv or dk, v or k))
            q = leafs.tensor(F32, lengths[0], n, h, b, values=values)
            keys, mixed = (
                _cached(leafs, t, d, m, g or h, b) if cached else leafs.tensor(t, d, m, g or h, b)
                for t, d in zip(kinds, lengths, strict=True)
            )
            drawn = hidden if callable(hidden) else hiding(hidden)
            shown = None if mask is None else leafs.tensor(F16, m, *mask, values=drawn)
            each = leafs.tensor(F32, h) if sinks else None
            given: dict[str, Any] = {"scale": lengths[0] ** -0.5, **parameters}
            return node(cls, q, keys, mixed, shown, each, **given)

        return Case(cls.name, label, make)

    for n in (1, 2, 5, 13, 40):
        for m in (1, 33, 257):
            yield case(f"{n} queries of {m} keys", n=n, m=m)
    for size in (1, 7, 40, 64, 80, 128, 256):
        for n in (2, 16):
            yield case(f"{n} queries of {size} numbers", size, n, 130)
    for n in (3, 33):
        queries = f"{n} queries"
        yield case(f"{queries}, values of other lengths", 40, n, 150, dv=72)
        yield case(f"{queries}, shorter values", 72, n, 130, dv=8, k=F32)
        for type in (F32, BF16):
            yield case(f"{queries} {type.name}", 48, n, 140, k=type)
            yield case(f"{queries} {type.name} with Precision.F32", 48, n, 140, k=type, precision=int(Precision.F32))
        yield case(f"{queries} f16 keys, f32 values", 48, n, 140, v=F32)
        for type in QUANTIZED:
            yield case(f"{queries} {type.name}", 32, n, 70, k=type)
            yield case(f"{queries} f16 keys, {type.name} values", 32, n, 70, v=type)
        yield case(f"{queries}, heads that share keys", 32, n, 70, h=6, g=2, b=2)
        yield case(f"{queries}, one head of keys", 16, n, 70, h=5, g=1, b=3)
        yield case(f"{queries}, mask", 32, n, 290, mask=(n,))
        yield case(f"{queries}, mask with more rows", 32, n, 70, mask=(n + 5,))
        yield case(f"{queries}, mask for each head and batch", 32, n, 70, h=4, g=2, b=2, mask=(n, 4, 2))
        yield case(f"{queries}, mask for every other head", 32, n, 70, h=4, g=2, b=2, mask=(n, 2))
        yield case(f"{queries}, mask for every other batch", 32, n, 70, h=2, g=2, b=4, mask=(n, 1, 2))
        yield case(f"{queries}, mask that hides most", 32, n, 400, mask=(n,), hidden=0.99)
        yield case(f"{queries}, mask that hides all", 32, n, 40, mask=(n,), hidden=1.0)
        yield case(f"{queries}, mask that hides all, sinks", 32, n, 40, mask=(n,), hidden=1.0, sinks=True)
        yield case(f"{queries}, mask that hides what comes later", 32, n, 300, mask=(n,), hidden=_causal)
        for heads in (1, 3, 4, 12):
            yield case(f"{queries}, ALiBi, {heads} heads", 16, n, 40, h=heads, mask=(n,), max_bias=8.0)
        yield case(f"{queries}, ALiBi, slopes that vanish", 16, n, 40, h=2, mask=(n,), max_bias=600.0)
        yield case(f"{queries}, sinks", 32, n, 70, h=5, sinks=True)
        yield case(f"{queries}, capped", 32, n, 70, logit_softcap=3.0, values=_far)
        for cap in (1e-30, 1e-40, 1e-60):
            yield case(f"{queries}, capped by {cap}", 32, n, 70, logit_softcap=cap, values=_some_zeros, scale=7.0)
        yield case(f"{queries}, logits far apart", 32, n, 200, values=_far)
        yield case(f"{queries}, a scale below zero", 32, n, 70, scale=-0.3)
        yield case(f"{queries}, in a cache", 32, n, 140, h=4, g=2, b=2, cached=True, mask=(n,))
        yield case(
            f"{queries}, everything", 72, n, 300, h=12, g=4, b=2, dv=40, mask=(n, 1, 2), sinks=True, max_bias=4.0,
            logit_softcap=5.0,
        )  # fmt: skip
    for n in (1, 70):
        yield case(f"{n} queries, keys in parts", 16, n, 1100, g=1)
        yield case(f"{n} queries, keys in parts, masked", 16, n, 1537, mask=(n,), hidden=0.999, sinks=True)
    yield case("many queries", 16, 450, 40)
    yield Case(cls.name, "queries of heads beside each other", lambda leafs: _heads_beside(cls, leafs))


def _cached(leafs: Leafs, type: Type, size: int, keys: int, heads: int, batches: int) -> Tensor:
    """The first keys of a longer cache, whose heads lie beside each other."""
    whole = leafs.tensor(type, size, heads, keys + 9, batches)
    turned = permute(whole, 0, 2, 1, 3)
    return view(turned, size, keys, heads, batches, nb=turned.nb[1:])


def _heads_beside(cls: type[Op], leafs: Leafs) -> Tensor:
    q = permute(leafs.tensor(F32, 32, 4, 19, 2), 0, 2, 1, 3)
    return node(cls, q, leafs.tensor(F16, 32, 21, 2, 2), leafs.tensor(F16, 32, 21, 2, 2), scale=0.2)


Drawn = dict[str, Array]
"""The values of sources, by their names."""


@generates(FlashAttnExt, FlashAttnBack)
def special_cases(cls: type[Op]) -> Iterator[Case]:
    """Numbers that are not finite in each of the sources, in rows that see them and in others."""
    keys = 37

    def case(label: str, n: int, change: Callable[[Drawn], None], kind: Type = F16, **parameters: Any) -> Case:
        def make(leafs: Leafs) -> Any:
            shapes = {
                "q": (4, n, 16), "k": (4, keys, 16), "v": (4, keys, 16), "d": (n, 4, 16), "mask": (n, keys),
                "sinks": (4,),
            }  # fmt: skip
            drawn = {name: leafs.random.standard_normal(shapes[name]) for name in cls.sources}
            change(drawn)
            kinds = {"k": kind, "v": kind, "mask": F16}
            sources = [leafs.array(kinds.get(name, F32), values) for name, values in drawn.items()]
            if not label.endswith("sink"):
                sources.pop()
            return node(cls, *sources, **{"scale": 0.3, **parameters})

        return Case(cls.name, f"special: {n} queries, {label}", make)

    for n in (2, 20):
        for number in (math.nan, math.inf, -math.inf):
            for name in ("q", "k", "v", "d"):
                if name not in cls.sources:
                    continue
                yield case(f"{number} in {name}", n, _put(number, name, (1, 1, 3)))
            yield case(f"{number} in q, capped", n, _put(number, "q", (1, 1, 3)), logit_softcap=2.0)
            yield case(f"{number} in the mask", n, _put(number, "mask", (1, 7)))
            yield case(f"{number} as a row of the mask", n, _put(number, "mask", 1))
            yield case(f"{number} as a sink", n, _put(number, "sinks", 2))
            for name in ("k", "v"):
                yield case(f"{number} in {name} where hidden", n, _hidden(number, name, slice(None)))
                yield case(f"{number} in {name} where hidden from a row", n, _hidden(number, name, 1))
        yield case("products beyond float32", n, _put(3e38, "q", slice(None)), F32)
        yield case("scale 0 of products beyond float32", n, _put(3e38, "q", slice(None)), F32, scale=0.0)


def _put(number: float, name: str, where: Any) -> Callable[[Drawn], None]:
    def change(drawn: Drawn) -> None:
        drawn[name][where] = number

    return change


def _hidden(number: float, name: str, rows: Any) -> Callable[[Drawn], None]:
    """``number`` in some keys or values that a mask hides from these rows."""

    def change(drawn: Drawn) -> None:
        drawn[name][:, 5:9] = number
        drawn["mask"][rows, 5:9] = -math.inf

    return change


@generates(FlashAttnBack)
def flash_attn_back_cases(cls: type[Op]) -> Iterator[Case]:
    """One query and many; types; heads that share keys; masks of both kinds, sinks, caps; layouts."""

    def case(
        label: str, n: int = 5, m: int = 21, dk: int = 16, dv: int = 16, h: int = 2, g: int = 2, b: int = 1, *,
        kind: Type = F32, mask: tuple[int, ...] | None = None, hidden: Any = 0.3, sinks: bool = False,
        cached: bool = False, **parameters: Any,
    ) -> Case:  # fmt: skip
        def make(leafs: Leafs) -> Any:
            q = permute(leafs.tensor(F32, dk, h, n, b), 0, 2, 1, 3) if cached else leafs.tensor(F32, dk, n, h, b)
            k, v = (
                _cached(leafs, kind, size, m, g, b) if cached else leafs.tensor(kind, size, m, g, b)
                for size in (dk, dv)
            )
            d = leafs.tensor(F32, dv, h, n, b)
            shown = None if mask is None else leafs.tensor(F16, m, *mask, values=hiding(hidden))
            each = leafs.tensor(F32, h) if sinks else None
            return node(cls, q, k, v, d, shown, each, **{"scale": dk**-0.5, **parameters})

        return Case(cls.name, label, make)

    for n, m in ((1, 1), (1, 70), (3, 5), (40, 33), (17, 130)):
        yield case(f"{n} queries of {m} keys", n, m)
        yield case(f"{n} queries of {m} keys, none that comes later", n, m, masked=True)
    for dk, dv in ((7, 5), (40, 72), (1, 1)):
        yield case(f"keys of {dk} numbers, values of {dv}", dk=dk, dv=dv)
    for kind in (F16, BF16):
        yield case(f"{kind.name}", kind=kind)
    yield case("heads that share keys", h=6, g=2, b=2)
    yield case("mask", mask=(5,))
    yield case("mask for each head and batch, with more rows", h=4, g=2, b=2, mask=(9, 4, 2))
    yield case("mask for every other head and batch", h=4, g=2, b=4, mask=(5, 2, 2))
    yield case("mask that hides all", mask=(5,), hidden=1.0)
    yield case("ALiBi", h=3, g=3, mask=(5,), max_bias=8.0)
    yield case("sinks", h=6, g=2, b=2, sinks=True)
    yield case("ALiBi, slopes that vanish", h=2, mask=(5,), max_bias=600.0)
    yield case("capped", logit_softcap=1.5)
    yield case("capped far below", logit_softcap=0.05)
    yield case("rows apart", h=4, g=2, b=2, cached=True)
    yield case("everything", 9, 35, 24, 40, 4, 2, 2, mask=(9, 1, 2), sinks=True, max_bias=4.0, logit_softcap=3.0,
               masked=True, kind=F16)  # fmt: skip

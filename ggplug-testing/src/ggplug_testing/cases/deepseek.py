"""Cases of the layers of DeepSeek's models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Op
from ggplug.ops.deepseek import Dsv4HcComb, Dsv4HcPost, Dsv4HcPre, LightningIndexer
from ggplug.types import F16, F32, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import QUANTIZED, ROWWISE, Case, Leafs, generates, in_blocks, node

_SHAPES = ((31, 4, 17), (1, 1, 1), (7, 4, 1), (130, 3, 5), (1100, 2, 2))


@generates(LightningIndexer)
def lightning_indexer_cases(cls: type[Op]) -> Iterator[Case]:
    """Types of k, few and many heads and keys, masks that hide and that repeat, layouts."""

    def make(
        leafs: Leafs, type: Type = F16, n: int = 64, heads: int = 4, keys: int = 19, tokens: int = 3,
        sequences: int = 1, masks: int = 1, layout: Any = "packed",
    ) -> Any:  # fmt: skip
        def hidden(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
            values = random.standard_normal(shape)
            return np.where(random.uniform(size=shape) < 0.3, -np.inf, values)

        n = in_blocks(n, type)
        return node(
            cls, leafs.tensor(F32, n, heads, tokens, sequences, layout=layout),
            leafs.tensor(type, n, 1, keys, sequences, layout=layout),
            leafs.tensor(F32, heads, tokens, 1, sequences, layout=layout),
            leafs.tensor(F16, keys, tokens, 1, masks, values=hidden, layout=layout),
        )  # fmt: skip

    for type in (*KERNEL_FLOATS, *QUANTIZED):
        yield Case(cls.name, f"k of {type.name}", lambda leafs, t=type: make(leafs, t))  # type: ignore[misc]
    given: tuple[dict[str, Any], ...] = (
        {"heads": 1, "keys": 1, "tokens": 1}, {"heads": 32, "n": 128, "keys": 65}, {"n": 33, "heads": 9},
        {"n": 1, "heads": 2}, {"sequences": 4, "masks": 2}, {"sequences": 3, "masks": 3, "tokens": 1},
        *({"layout": layout, "sequences": 2} for layout in ROWWISE[1:]),
    )  # fmt: skip
    for each in given:
        label = " ".join(f"{name}={value}" for name, value in each.items())
        yield Case(cls.name, label, lambda leafs, g=each: make(leafs, **g))  # type: ignore[misc]


@generates(Dsv4HcComb)
def dsv4_hc_comb_cases(cls: type[Op]) -> Iterator[Case]:
    """Tokens, repetitions, eps, logits far apart, layouts."""

    def case(label: str, tokens: int = 5, layout: Any = "packed", scale: float = 1.0, **given: Any) -> Case:
        def make(leafs: Leafs) -> Any:
            mixes = leafs.tensor(F32, 24, tokens, layout=layout)
            scales = leafs.tensor(F32, 3, low=0.5 * scale, high=2 * scale, layout=layout)
            return node(cls, mixes, scales, leafs.tensor(F32, 24, layout=layout), **given)

        return Case(cls.name, label, make)

    for tokens in (1, 17, 130):
        yield case(f"{tokens} tokens", tokens)
    for n_iter in (2, 4, 20):
        yield case(f"n_iter={n_iter}", n_iter=n_iter)
    yield case("eps=0.1", eps=0.1, n_iter=3)
    yield case("eps=0", eps=0.0, n_iter=2)
    yield case("logits far apart", scale=20.0, n_iter=2)
    for layout in (*ROWWISE[1:], "transposed"):
        yield case(str(layout), layout=layout, n_iter=2)


@generates(Dsv4HcPre)
def dsv4_hc_pre_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, streams and tokens; layouts."""
    for n, streams, tokens in _SHAPES:

        def plain(leafs: Leafs, x: Any = (n, streams, tokens)) -> Any:
            return node(cls, leafs.tensor(F32, *x), leafs.tensor(F32, *x[1:]))

        yield Case(cls.name, f"{n} x {streams} x {tokens}", plain)
    for layout in (*ROWWISE[1:], "transposed"):

        def laid(leafs: Leafs, layout: Any = layout) -> Any:
            return node(cls, leafs.tensor(F32, 40, 4, 6, layout=layout), leafs.tensor(F32, 4, 6, layout=layout))

        yield Case(cls.name, str(layout), laid)


@generates(Dsv4HcPost)
def dsv4_hc_post_cases(cls: type[Op]) -> Iterator[Case]:
    """The same."""

    def make(leafs: Leafs, n: int, h: int, t: int, layout: Any = "packed") -> Any:
        extents = (n, t), (n, h, t), (h, t), (h, h, t)
        return node(cls, *(leafs.tensor(F32, *ne, layout=layout) for ne in extents))

    for shape in _SHAPES:
        yield Case(cls.name, " x ".join(map(str, shape)), lambda leafs, s=shape: make(leafs, *s))  # type: ignore[misc]
    for layout in (*ROWWISE[1:], "transposed"):
        yield Case(cls.name, str(layout), lambda leafs, l=layout: make(leafs, 40, 4, 6, l))  # type: ignore[misc]

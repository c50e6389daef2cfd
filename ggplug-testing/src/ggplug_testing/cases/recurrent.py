"""Cases of layers whose state goes from token to token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Op
from ggplug.ops.norms import L2Norm
from ggplug.ops.recurrent import GatedDeltaNet, GatedLinearAttn, RwkvWkv6, RwkvWkv7, SsmConv, SsmScan
from ggplug.ops.views import view
from ggplug.tensor import Tensor
from ggplug.types import F32, I32
from ggplug_testing.cases.case import ROWWISE, Case, Leafs, generates, node, spell


@generates(SsmConv)
def ssm_conv_cases(cls: type[Op]) -> Iterator[Case]:
    """One token and many, few channels and many, layouts."""
    sizes = (4, 33, 1, 1), (4, 1030, 3, 2), (1, 5, 7, 1), (3, 16, 64, 3), (9, 1, 2, 1)
    for taps, channels, tokens, sequences in sizes:
        x = (tokens + taps - 1, channels, sequences)

        def plain(leafs: Leafs, x: Any = x, weights: Any = (taps, channels)) -> Any:
            return node(cls, leafs.tensor(F32, *x), leafs.tensor(F32, *weights))

        yield Case(cls.name, f"{spell(F32, x)} by {taps} taps", plain)
    for layout in ROWWISE[1:]:

        def laid(leafs: Leafs, layout: Any = layout) -> Any:
            return node(cls, leafs.tensor(F32, 12, 19, 2, layout=layout), leafs.tensor(F32, 4, 19, layout=layout))

        yield Case(cls.name, layout, laid)


@generates(SsmScan)
def ssm_scan_cases(cls: type[Op]) -> Iterator[Case]:
    """One decay a head and one for each number; groups, snapshots, sources beside each other, ids out of range."""

    def make(
        leafs: Leafs, size: int = 16, dim: int = 5, heads: int = 4, groups: int = 2, tokens: int = 3,
        sequences: int = 2, several: bool = False, snapshots: int = 1, apart: bool = False, ids: Any = None,
    ) -> Any:  # fmt: skip
        def source(*ne: int, **values: Any) -> Tensor:
            if not apart:
                return leafs.tensor(F32, *ne, **values)
            wide = leafs.tensor(F32, ne[0], ne[1] + 3, *ne[2:], **values)
            return view(wide, *ne, nb=wide.nb[1:], offset=wide.nb[1])

        chosen = leafs.indices((sequences,), 5, distinct=True) if ids is None else leafs.array(I32, np.array(ids))
        return node(
            cls, leafs.tensor(F32, size, dim, heads, 5), source(dim, heads, tokens, sequences),
            leafs.tensor(F32, heads, tokens, sequences, low=-3, high=3),
            leafs.tensor(F32, size if several else 1, heads, low=-2, high=-0.1),
            source(size, groups, tokens, sequences), source(size, groups, tokens, sequences), chosen,
            snapshots=snapshots,
        )  # fmt: skip

    sizes: tuple[dict[str, Any], ...] = (
        {}, {"several": True}, {"size": 37, "dim": 1, "heads": 6}, {"size": 37, "several": True, "groups": 1},
        {"size": 128, "dim": 16, "tokens": 1, "sequences": 1}, {"tokens": 9, "snapshots": 4},
        {"tokens": 2, "snapshots": 4}, {"apart": True}, {"apart": True, "several": True, "groups": 4},
        {"size": 1, "dim": 2, "several": True}, {"sequences": 4, "tokens": 12},
    )  # fmt: skip
    for given in sizes:
        label = " ".join(f"{name}={value}" for name, value in given.items()) or "plain"
        yield Case(cls.name, label, lambda leafs, g=given: make(leafs, **g))  # type: ignore[misc]
    yield Case(cls.name, "ids out of range", lambda leafs: make(leafs, sequences=4, ids=[1, 5, -1, 0]))
    yield Case(cls.name, "a large id out of range", lambda leafs: make(leafs, sequences=2, ids=[2**31 - 1, 2]))


_HEADS = ((16, 2, 1, 1), (33, 3, 4, 2), (64, 4, 6, 3), (1, 1, 5, 1), (8, 5, 12, 4))
"""Numbers of a head, heads, tokens, and sequences, of which the tokens are a multiple."""


@generates(RwkvWkv6, RwkvWkv7, GatedLinearAttn)
def matrices_cases(cls: type[Op]) -> Iterator[Case]:
    """Heads of all sizes, one sequence and several."""
    for size, heads, tokens, sequences in _HEADS:

        def make(leafs: Leafs, n: int = size, h: int = heads, t: int = tokens, s: int = sequences) -> Any:
            def source(**values: Any) -> Tensor:
                return leafs.tensor(F32, n, h, t, **values)

            state = leafs.tensor(F32, n * n * h, s)
            decay = source(low=0.3, high=0.99)
            if cls is GatedLinearAttn:
                return node(cls, source(), source(), source(), decay, state, scale=n**-0.5)
            if cls is RwkvWkv6:
                return node(cls, source(), source(), source(), leafs.tensor(F32, n, h), decay, state)
            a, b = node(L2Norm, source(), eps=1e-6), node(L2Norm, source(), eps=1e-6)
            return node(cls, source(), decay, source(), source(), a, b, state)

        yield Case(cls.name, f"heads={heads} of {size} tokens={tokens} sequences={sequences}", make)


@generates(GatedDeltaNet)
def gated_delta_net_cases(cls: type[Op]) -> Iterator[Case]:
    """The same; heads that share q and k, gates for each number, snapshots, heads that are not packed."""

    def make(
        leafs: Leafs, size: int, heads: int, tokens: int, sequences: int, gates: bool = False, shared: int = 1,
        snapshots: int = 1, apart: bool = False, serves: int = 1,
    ) -> Any:  # fmt: skip
        def rows(count: int, images: int) -> Tensor:
            if not apart:
                return leafs.tensor(F32, size, count, tokens, images)
            wide = leafs.tensor(F32, size, count + 2, tokens, images)
            return view(wide, size, count, tokens, images, nb=wide.nb[1:], offset=wide.nb[1])

        q, k = (node(L2Norm, rows(heads // shared, sequences // serves), eps=1e-6) for _ in range(2))
        if apart:
            q = rows(heads // shared, sequences)
        gate = leafs.tensor(F32, size if gates else 1, heads, tokens, sequences, low=-2, high=-0.05)
        beta = leafs.tensor(F32, 1, heads, tokens, sequences, low=0, high=1)
        state = leafs.tensor(F32, size, size, heads, sequences)
        return node(cls, q, k, rows(heads, sequences), gate, beta, state, snapshots=snapshots)

    for size, heads, tokens, sequences in _HEADS:
        for gates in (False, True):
            label = f"heads={heads} of {size} tokens={tokens} sequences={sequences} gates={gates}"
            yield Case(
                cls.name, label,
                lambda leafs, n=size, h=heads, t=tokens, s=sequences, g=gates: make(leafs, n, h, t, s, g),  # type: ignore[misc]
            )  # fmt: skip
    more: tuple[dict[str, Any], ...] = (
        {"shared": 2}, {"shared": 4}, {"snapshots": 3}, {"snapshots": 7}, {"apart": True}, {"serves": 2}, {"serves": 4},
    )  # fmt: skip
    for given in more:
        label = " ".join(f"{name}={value}" for name, value in given.items())
        yield Case(cls.name, label, lambda leafs, g=given: make(leafs, 16, 4, 5, 4, **g))  # type: ignore[misc]

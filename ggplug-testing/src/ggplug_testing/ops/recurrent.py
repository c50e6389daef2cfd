"""Layers whose state goes from token to token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.views import view
from ggplug.tensor import Tensor
from ggplug.types import F32, I32
from ggplug_testing.cases.case import ROWWISE, Case, Leafs, node
from ggplug_testing.cases.making import case, extents_of, leaf, named, spell
from ggplug_testing.description import describe
from ggplug_testing.drawing import BATCHES, CONTIGUOUS, FEW, Draw, Drawn
from ggplug_testing.ops.images import CONVOLVED
from ggplug_testing.precision.rule import FLUSHED, Node, element, of_magnitudes
from ggplug_testing.precision.sums import summed


def _apart(leafs: Leafs, more: int, *ne: int) -> Tensor:
    """A source whose second dimension has gaps of ``more`` rows."""
    wide = leafs.tensor(F32, ne[0], ne[1] + more, *ne[2:])
    return view(wide, *ne, nb=wide.nb[1:], offset=wide.nb[1])


def ssm_conv_cases(op: type[Op]) -> Iterator[Case]:
    """One token and many, few channels and many, layouts."""
    sizes = (4, 33, 1, 1), (4, 1030, 3, 2), (1, 5, 7, 1), (3, 16, 64, 3), (9, 1, 2, 1)
    for taps, channels, tokens, sequences in sizes:
        x = (tokens + taps - 1, channels, sequences)
        yield case(op, f"{spell(F32, x)} by {taps} taps", leaf(F32, x), leaf(F32, (taps, channels)))
    for layout in ROWWISE[1:]:
        yield case(op, layout, leaf(F32, (12, 19, 2), layout), leaf(F32, (4, 19), layout))


describe(ops.SsmConv, cases=[ssm_conv_cases], rule=CONVOLVED)


_SCANNED = (
    "size dim heads states, dim heads tokens sequences, heads tokens sequences, wide heads, "
    "size groups tokens sequences, size groups tokens sequences"
)
"""All sources of a scan but the ids; ``wide``: how many numbers of a a head has."""


def ssm_scan_cases(op: type[Op]) -> Iterator[Case]:
    """One decay a head and one for each number; groups, snapshots, sources next to each other, ids out of range."""
    ranges: dict[str, Any] = {"dt": {"low": -3, "high": 3}, "a": {"low": -2, "high": -0.1}}

    plain = {"size": 16, "dim": 5, "heads": 4, "groups": 2, "tokens": 3, "sequences": 2, "states": 5}

    def make(
        leafs: Leafs, several: bool = False, snapshots: int = 1, apart: bool = False, ids: Any = None, **given: int
    ) -> Tensor:
        n = {**plain, **given}
        chosen = leafs.indices((n["sequences"],), 5, distinct=True) if ids is None else leafs.array(I32, np.array(ids))
        extents = extents_of(_SCANNED, {**n, "wide": n["size"] if several else 1})
        sources = [
            _apart(leafs, 3, *ne) if apart and name in "xbc" else leafs.tensor(F32, *ne, **ranges.get(name, {}))
            for name, ne in zip(op.sources, extents, strict=False)
        ]
        return node(op, *sources, chosen, snapshots=snapshots)

    sizes: tuple[dict[str, Any], ...] = (
        {},
        {"several": True},
        {"size": 37, "dim": 1, "heads": 6},
        {"size": 37, "several": True, "groups": 1},
        {"size": 128, "dim": 16, "tokens": 1, "sequences": 1},
        {"tokens": 9, "snapshots": 4},
        {"tokens": 2, "snapshots": 4},
        {"apart": True},
        {"apart": True, "several": True, "groups": 4},
        {"size": 1, "dim": 2, "several": True},
        {"sequences": 4, "tokens": 12},
    )
    for given in sizes:
        yield Case(op.name, named(given) or "plain", partial(make, **given))
    yield Case(op.name, "ids out of range", partial(make, sequences=4, ids=[1, 5, -1, 0]))
    yield Case(op.name, "a large id out of range", partial(make, sequences=2, ids=[2**31 - 1, 2]))


def _draw_ssm_scan(c: Draw, op: type[Op]) -> Drawn:
    types = {name: c.type(name, (F32,)) for name in op.sources if name != "ids"}
    n = {"size": c.row("n", types["s"], types["b"], types["c"]), "dim": c.row("D", types["x"])}
    n["groups"] = c.extent("G", BATCHES)
    n["heads"] = n["groups"] * c.pick("heads of a group", (1, 2, 3))
    n |= {"tokens": c.extent("T", FEW), "sequences": c.extent("S", BATCHES), "states": c.extent("R", BATCHES)}
    if n["heads"] % types["dt"].block_size:
        n["heads"] = n["groups"] = types["dt"].block_size
    snapshots = c.pick("snapshots", (1, 2, 3), (4, 1, 1))
    several = snapshots == 1 and c.pick("a for each number", (False, True))
    c.promised &= all(n.values())
    extents = extents_of(_SCANNED, {**n, "wide": n["size"] if several else types["a"].block_size})
    kinds = ("normal", "constant", "small")
    sources = [c.source(name, types[name], ne, CONTIGUOUS, kinds) for name, ne in zip(types, extents, strict=True)]
    ids = c.indices("ids", (I32,), (n["sequences"],), n["states"], layouts=CONTIGUOUS)
    return Drawn([*sources, ids], {"snapshots": snapshots})


def _scanned(node: Node, exact: Array, s: Array, x: Array, dt: Array, a: Array, *others: Array) -> Array:
    b, c, ids = others
    step = np.logaddexp(0, dt)
    off = (8 + 6 * step) * (np.abs(a).max(initial=0) + 1 / np.maximum(step, FLUSHED)) + 4 * np.abs(step)
    count = (x.shape[1] + 1) * (16 + off.max(initial=0)) + summed(s)
    return np.asarray(count * np.asarray(node.op.reference(np.abs(s), np.abs(x), dt, a, np.abs(b), np.abs(c), ids)))


describe(
    ops.SsmScan,
    cases=[ssm_scan_cases],
    draw=_draw_ssm_scan,
    rule=element(
        "(S + (T + 1) (16 + max(e))) f(abs(sources)), e = (8 + 6 dt) (max(abs(a)) + 1 / dt) + 4 dt",
        "softplus, the power of dt a, products and sums of each of T tokens",
        _scanned,
    ),
)


_HEADS = ((16, 2, 1, 1), (33, 3, 4, 2), (64, 4, 6, 3), (1, 1, 5, 1), (8, 5, 12, 4))
"""Numbers of a head, heads, tokens, and sequences, of which the tokens are a multiple."""


def matrices_cases(op: type[Op]) -> Iterator[Case]:
    """Heads of all sizes, one sequence and several."""
    for size, heads, tokens, sequences in _HEADS:

        def make(leafs: Leafs, n: int = size, h: int = heads, t: int = tokens, s: int = sequences) -> Tensor:
            def source(**values: Any) -> Tensor:
                return leafs.tensor(F32, n, h, t, **values)

            state = leafs.tensor(F32, n * n * h, s)
            decay = source(low=0.3, high=0.99)
            if op is ops.GatedLinearAttn:
                return node(op, source(), source(), source(), decay, state, scale=n**-0.5)
            if op is ops.RwkvWkv6:
                return node(op, source(), source(), source(), leafs.tensor(F32, n, h), decay, state)
            a, b = node(ops.L2Norm, source(), eps=1e-6), node(ops.L2Norm, source(), eps=1e-6)
            return node(op, source(), decay, source(), source(), a, b, state)

        yield Case(op.name, f"heads={heads} of {size} tokens={tokens} sequences={sequences}", make)


describe(
    ops.RwkvWkv6,
    ops.RwkvWkv7,
    ops.GatedLinearAttn,
    cases=[matrices_cases],
    rule=of_magnitudes(
        "(S + 8 + 6 T) f(abs(sources))",
        "products and sums of each of T tokens",
        lambda first, *others: 6 * first.shape[1] + 8 + summed(first),
    ),
)


def gated_delta_net_cases(op: type[Op]) -> Iterator[Case]:
    """The same; heads that share q and k, gates for each number, snapshots, heads that are not packed."""

    def make(leafs: Leafs, size: int, heads: int, tokens: int, sequences: int, **how: Any) -> Tensor:
        alike, apart = heads // how.get("shared", 1), how.get("apart", False)

        def rows(count: int, images: int) -> Tensor:
            ne = (size, count, tokens, images)
            return _apart(leafs, 2, *ne) if apart else leafs.tensor(F32, *ne)

        q, k = (node(ops.L2Norm, rows(alike, sequences // how.get("serves", 1)), eps=1e-6) for _ in range(2))
        if apart:
            q = rows(alike, sequences)
        gate = leafs.tensor(F32, size if how.get("gates") else 1, heads, tokens, sequences, low=-2, high=-0.05)
        beta = leafs.tensor(F32, 1, heads, tokens, sequences, low=0, high=1)
        state = leafs.tensor(F32, size, size, heads, sequences)
        return node(op, q, k, rows(heads, sequences), gate, beta, state, snapshots=how.get("snapshots", 1))

    for size, heads, tokens, sequences in _HEADS:
        for gates in (False, True):
            label = f"heads={heads} of {size} tokens={tokens} sequences={sequences} gates={gates}"
            given = partial(make, size=size, heads=heads, tokens=tokens, sequences=sequences, gates=gates)
            yield Case(op.name, label, given)
    more: tuple[dict[str, Any], ...] = (
        {"shared": 2},
        {"shared": 4},
        {"snapshots": 3},
        {"snapshots": 7},
        {"apart": True},
        {"serves": 2},
        {"serves": 4},
    )
    for each in more:
        given = partial(make, size=16, heads=4, tokens=5, sequences=4, **each)
        yield Case(op.name, named(each), given)


def _delta(node: Tensor, exact: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> Array:
    def longest(x: Array) -> float:
        return float(np.sqrt((x * x).sum(axis=-1)).max(initial=0))

    size, tokens = v.shape[3], v.shape[1]
    one = 1 + np.abs(beta).max(initial=0) * longest(k) ** 2
    held = longest(state) + tokens * np.abs(beta).max(initial=0) * longest(k) * np.abs(v).max(initial=0)
    factor = (64 + 16 * tokens + summed(v)) * one**tokens * held * np.exp(np.maximum(g, 0).sum())
    return np.full_like(exact, factor * max(1.0, longest(q) / math.sqrt(size)))


describe(
    ops.GatedDeltaNet,
    cases=[gated_delta_net_cases],
    rule=element(
        "(S + 64 + 16 T) (1 + beta abs(k)**2)**T size max(1, abs(q) / sqrt(S)), of the longest q and k and the largest "
        "beta; size = abs(state) + T beta abs(k) abs(v)",
        "the power of g, products and sums of each of T tokens, each of which the next ones multiply",
        _delta,
    ),
)

"""Cases of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug.ops.base import Op
from ggplug.ops.matrix import MulMat, MulMatId, OutProd
from ggplug.types import BF16, F16, F32, Q8_0, Q8_1, Q8_K, Type
from ggplug_testing.cases.case import LAYOUTS, QUANTIZED, ROWWISE, Case, Leafs, generates, in_blocks, node

M = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65)
N = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130)
K = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 256, 515)
"""Extents around the tiles that kernels have."""

WEIGHTS: tuple[Type, ...] = (F32, F16, BF16, *QUANTIZED)


def _case(
    cls: type[Op], label: str, types: tuple[Type, Type], a: tuple[int, ...], b: tuple[int, ...],
    layouts: Any = ("packed", "packed"), **parameters: Any,
) -> Case:  # fmt: skip
    def make(leafs: Leafs) -> Any:
        weights = leafs.tensor(types[0], *a, layout=layouts[0])
        return node(cls, weights, leafs.tensor(types[1], *b, layout=layouts[1]), **parameters)

    return Case(cls.name, label, make)


def _rounded(weights: Type) -> Type | None:
    """What ggml rounds activations to for these weights (``vec_dot_type`` in its type traits), if that isn't Q8_0."""
    if weights.block_size == Q8_K.block_size:
        return Q8_K
    return Q8_1 if any(field.name == "m" for field in weights.fields) else None


@generates(MulMat)
def mul_mat_cases(cls: type[Op]) -> Iterator[Case]:
    """Each extent on both sides of usual tiles, each pair of types, batches, broadcasts, layouts."""
    blocks = [(type, other) for type, other in zip(QUANTIZED, (F16, BF16) * len(QUANTIZED), strict=False)]
    rounded = [(type, other) for type in QUANTIZED for other in (Q8_0, _rounded(type)) if other is not None]
    for types in ((F32, F16), (F32, BF16), (BF16, F16), *blocks, *rounded):
        for m, n in ((5, 1), (9, 7), (33, 40)):
            k = in_blocks(96, *types)
            label = f"{types[0].name} x {types[1].name} m={m} n={n} k={k}"
            yield _case(cls, label, types, (k, m), (k, n))
    for types in [(w, F32) for w in WEIGHTS] + [(F16, F16), (BF16, BF16)]:
        block = types[0].block_size
        pair = f"{types[0].name} x {types[1].name}"
        # Block types share what depends on extents: together they have all of them, and Q8_0 alone.
        shared = block > 1 and types[0] is not Q8_0
        first, step = (QUANTIZED.index(types[0]) % 3, 3) if shared else (0, 1)

        def simple(m: int, n: int, k: int, types: Any = types, pair: str = pair) -> Case:
            return _case(cls, f"{pair} m={m} n={n} k={k}", types, (k, m), (k, n))

        blocks_of = (1, 2, 3, 4, 5, 8, 17) if block < 256 else (1, 2, 3, 5)
        lengths = K if block == 1 else tuple(n * block for n in blocks_of)
        for k in lengths:
            yield simple(5, 3, k)
            yield simple(18, 1, k)
        middle = in_blocks(64, types[0]) if block > 1 else 40
        for m, n in dict.fromkeys([*((m, 2) for m in M[first::step]), *((7, n) for n in N[first::step])]):
            yield simple(m, n, middle)
        for m, n, k in ((64, 1, 1024), (33, 70, 256), (128, 40, 96), (257, 1, 128), (16, 129, 64)):
            yield simple(m, n, in_blocks(k, types[0]))
        for a2, a3, b2, b3 in ((3, 2, 3, 4), (1, 1, 4, 2), (2, 1, 4, 3), (2, 2, 6, 2)):
            yield _case(cls, f"{pair} batches {a2}x{a3} for {b2}x{b3}", types, (middle, 6, a2, a3), (middle, 5, b2, b3))
        for layout in ("offset", "rows apart", "window", "permuted"):
            a, b = (middle, 6, 3), (middle, 5, 3)
            yield _case(cls, f"{pair} a {layout}", types, a, b, (layout, "packed"))
            yield _case(cls, f"{pair} b {layout}", types, a, b, ("packed", layout))
            yield _case(cls, f"{pair} both {layout}, one column", types, a, (middle, 1, 3), (layout, layout))
        yield _case(cls, f"{pair} b transposed", types, (middle, 6), (middle, 9), ("packed", "transposed"))
        k = in_blocks(4099, types[0])
        for n in (1, 9):
            yield _case(cls, f"{pair} long rows with an odd tail m=3 n={n} k={k}", types, (k, 3), (k, n))
    for weights in (F16, BF16):
        yield _case(cls, f"{weights.name} x f32 precision f32", (weights, F32), (64, 9), (64, 4), precision=10)


@generates(MulMatId)
def mul_mat_id_cases(cls: type[Op]) -> Iterator[Case]:
    """Few and many experts, a row of b for all of a token's experts, for some or for each, experts that none chose."""

    def case(
        types: tuple[Type, Type], k: int, m: int, experts: int, used: int, tokens: int, rows: int, layouts: Any,
        chosen: int | None = None,
    ) -> Case:  # fmt: skip
        k = in_blocks(k, *types)

        def make(leafs: Leafs) -> Any:
            weights = leafs.tensor(types[0], k, m, experts, layout=layouts[0])
            b = leafs.tensor(types[1], k, rows, tokens, layout=layouts[1])
            ids = leafs.indices((used, tokens), chosen or experts, distinct=True, layout=layouts[2])
            return node(cls, weights, b, ids)

        shared = {used: "", 1: " shared"}.get(rows, f" in turns with {rows} rows")
        shape = f"k={k} m={m} experts={experts} used={used} tokens={tokens}{shared}"
        special = [f", {name} {how}" for name, how in zip(cls.sources, layouts, strict=True) if how != "packed"]
        how = "".join(special) + (f", {chosen} chosen" if chosen else "")
        return Case(cls.name, f"{types[0].name} x {types[1].name} {shape}{how}", make)

    packed = ("packed", "packed", "packed")
    for weights in WEIGHTS:
        for own in (True, False):
            sizes = ((4, 2, 1), (4, 2, 7), (8, 8, 3), (1, 1, 5), (16, 3, 33), (3, 2, 60))
            for experts, used, tokens in sizes if weights not in QUANTIZED or weights is Q8_0 else sizes[1::4]:
                if own or used > 1:
                    yield case((weights, F32), 64, 9, experts, used, tokens, used if own else 1, packed)
        yield case((weights, F32), 256, 33, 4, 2, 40, 2, packed)
        for layouts in (
            ("rows apart", "packed", "packed"),
            ("packed", "window", "packed"),
            ("packed", "packed", "window"),
        ):
            for tokens in (6, 90):
                yield case((weights, F32), 96, 7, 5, 2, tokens, 2, layouts)
        yield case((weights, F32), 64, 70, 7, 3, 120, 1, packed, chosen=4)
        for rounded in (Q8_0, _rounded(weights)) if weights in QUANTIZED else ():
            if rounded is not None:
                yield case((weights, rounded), 64, 9, 4, 2, 7, 2, packed)
    for weights in (F32, F16, Q8_0):
        yield case((weights, F32), 4099, 3, 3, 2, 5, 2, packed)
    for tokens in (4, 60):
        yield case((F32, F32), 37, 5, 3, 2, tokens, 2, packed)
    yield case((F16, F16), 40, 5, 3, 2, 4, 1, packed)
    for weights in (F32, BF16, Q8_0):
        for used, rows, tokens in ((4, 2, 1), (6, 3, 5), (4, 2, 40)):
            yield case((weights, F32), 64, 9, 7, used, tokens, rows, packed)
    yield case((F32, F32), 64, 9, 7, 6, 5, 2, ("packed", "window", "packed"))


@generates(OutProd)
def out_prod_cases(cls: type[Op]) -> Iterator[Case]:
    """Extents around vectors and blocks, every type of a, batches that repeat, layouts of both."""

    def case(
        label: str, a: tuple[int, ...], b: tuple[int, ...], *, type: Type = F32, b_type: Type = F32,
        layouts: Any = ("packed", "packed"),
    ) -> Case:  # fmt: skip
        def make(leafs: Leafs) -> Any:
            rows = leafs.tensor(type, in_blocks(a[0], type), *a[1:], layout=layouts[0])
            return node(cls, rows, leafs.tensor(b_type, *b, layout=layouts[1]))

        return Case(cls.name, label, make)

    for m, n, k in ((1, 1, 1), (16, 4, 3), (33, 5, 7), (7, 9, 40), (1030, 3, 2), (64, 130, 17)):
        yield case(f"{m} by {n}, {k} products", (m, k), (n, k))
    for kind in (F16, BF16, *QUANTIZED):
        yield case(f"{kind.name}", (96, 6), (5, 6), type=kind)
    for kind in (F16, BF16):
        yield case(f"f32 and {kind.name}", (33, 6), (5, 6), b_type=kind)
    yield case("batches", (32, 5, 2, 3), (7, 5, 2, 3))
    yield case("batches that repeat", (32, 5, 2, 2), (7, 5, 4, 4))
    yield case("batches that repeat for all", (32, 5, 2, 1), (7, 5, 4, 3))
    for layout in ROWWISE:
        yield case(f"a {layout}", (33, 5, 3, 2), (7, 5, 3, 2), layouts=(layout, "packed"))
    for layout in LAYOUTS:
        yield case(f"b {layout}", (33, 5, 3, 2), (7, 5, 3, 2), layouts=("packed", layout))

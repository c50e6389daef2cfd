"""Products of matrices, and systems of equations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, I32, KERNEL_FLOATS, Q8_0, Q8_1, Q8_K, Precision, Type
from ggplug_testing.cases.case import ENCODED, LAYOUTS, QUANTIZED, ROWWISE, Case, Layout, Leafs, node
from ggplug_testing.cases.making import case, in_blocks, indices, leaf, made
from ggplug_testing.cases.special import INF, NAN
from ggplug_testing.description import CaseOf, describe
from ggplug_testing.drawing import ANY, BATCHES, CONTIGUOUS, FEW, MODERATE, NOT_WHOLE, ONCE_ROWS, Draw, Drawn, Source
from ggplug_testing.precision.rule import DEVIATIONS, UNIT, Node, Rule, element, row
from ggplug_testing.precision.sums import COARSE, block_steps, roundings

_M = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65)
_N = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130)
_K = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 256, 515)
"""Extents around the tiles that kernels have."""

_WEIGHTS: tuple[Type, ...] = (*KERNEL_FLOATS, *QUANTIZED)
_KINDS = (*MODERATE, "NaN", "infinite")


def _rounded(weights: Type) -> Type | None:
    """What ggml rounds activations to for these weights (``vec_dot_type`` in its type traits), if that isn't Q8_0."""
    if weights.block_size == Q8_K.block_size:
        return Q8_K
    return Q8_1 if any(field.name == "m" for field in weights.fields) else None


def _activations(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random rows, of which some hold a NaN, an infinity, or both infinities."""
    rows = random.standard_normal(shape).reshape(-1, shape[-1])
    n, k = rows.shape
    rows[0, k // 3] = NAN
    rows[1 % n, 0] = INF
    rows[2 % n, k - 1] = -INF
    rows[3 % n, [1, 2]] = INF, -INF
    return rows.reshape(shape)


def _weights(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random rows of numbers that are not near zero, the last of each matrix with an infinity."""
    rows: Array = random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape)
    rows[..., -1, shape[-1] // 2] = INF
    return rows


def _product(node: Node, exact: Array, weights: Array, other: Array, *ids: Array) -> Array:
    assert node.src[0] is not None
    assert node.src[1] is not None
    kind = node.src[0].type

    def summed(squares: Array) -> Array:
        """The sum of ``weights**2 squares`` of each element of the result."""
        return np.asarray(node.op.reference(weights * weights, squares, *ids)).reshape(exact.shape)

    weights, other = (np.where(np.isfinite(each), each, 0) for each in (weights, other))
    terms = summed(other * other)
    variance = (roundings(weights.shape[-1], exact, terms, products=True) / DEVIATIONS) ** 2
    if not node.src[1].type.is_quantized:
        if kind.is_quantized:
            variance = variance + summed(block_steps(other, kind.block_size) ** 2) / 12 / UNIT**2
        elif kind in COARSE and node.op.precision != Precision.F32:
            variance = variance + terms * (COARSE[kind] / UNIT) ** 2 / 3
    return np.asarray(DEVIATIONS * np.sqrt(variance))


_PRODUCT = Rule(
    "products",
    "6 sqrt((K + 1) size**2 / 3 + r), size = max(abs(y), 2 sqrt(sum((a b)**2)))",
    "the sums of K products; r, in square roundings, is for activations that are rounded: to F16 or BF16 "
    "sum((a b)**2) c**2 / 3 with c = 2**-10 or 2**-8, for weights in blocks sum((a step)**2) / 12 with step = "
    "max(abs(b)) / 127 of the block; else 0, and with Precision.F32 for weights without blocks",
    _product,
    spread=True,
)


# -- weights by activations ------------------------------------------------------------------------


def mul_mat_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent on both sides of usual tiles, each pair of types, batches, broadcasts, layouts."""

    def product(label: str, types: Any, a: Any, b: Any, layouts: Any = ("packed", "packed"), **more: Any) -> Case:
        return case(op, label, leaf(types[0], a, layouts[0]), leaf(types[1], b, layouts[1]), **more)

    blocks = [(type, other) for type, other in zip(QUANTIZED, (F16, BF16) * len(QUANTIZED), strict=False)]
    rounded = [(type, other) for type in QUANTIZED for other in (Q8_0, _rounded(type)) if other is not None]
    for types in ((F32, F16), (F32, BF16), (BF16, F16), *blocks, *rounded):
        for m, n in ((5, 1), (9, 7), (33, 40)):
            k = in_blocks(96, *types)
            yield product(f"{types[0].name} x {types[1].name} m={m} n={n} k={k}", types, (k, m), (k, n))
    for types in [(w, F32) for w in _WEIGHTS] + [(F16, F16), (BF16, BF16)]:
        block = types[0].block_size
        pair = f"{types[0].name} x {types[1].name}"
        # Block types share what depends on extents: together they have all of them, and so has Q8_0 by itself.
        shared = block > 1 and types[0] is not Q8_0
        first, step = (QUANTIZED.index(types[0]) % 3, 3) if shared else (0, 1)

        def simple(m: int, n: int, k: int, types: Any = types, pair: str = pair) -> Case:
            return product(f"{pair} m={m} n={n} k={k}", types, (k, m), (k, n))

        blocks_of = (1, 2, 3, 4, 5, 8, 17) if block < 256 else (1, 2, 3, 5)
        for k in _K if block == 1 else tuple(n * block for n in blocks_of):
            yield simple(5, 3, k)
            yield simple(18, 1, k)
        middle = in_blocks(64, types[0]) if block > 1 else 40
        for m, n in dict.fromkeys([*((m, 2) for m in _M[first::step]), *((7, n) for n in _N[first::step])]):
            yield simple(m, n, middle)
        for m, n, k in ((64, 1, 1024), (33, 70, 256), (128, 40, 96), (257, 1, 128), (16, 129, 64)):
            yield simple(m, n, in_blocks(k, types[0]))
        for a2, a3, b2, b3 in ((3, 2, 3, 4), (1, 1, 4, 2), (2, 1, 4, 3), (2, 2, 6, 2)):
            yield product(f"{pair} batches {a2}x{a3} for {b2}x{b3}", types, (middle, 6, a2, a3), (middle, 5, b2, b3))
        for layout in ROWWISE[1:]:
            a, b = (middle, 6, 3), (middle, 5, 3)
            yield product(f"{pair} a {layout}", types, a, b, (layout, "packed"))
            yield product(f"{pair} b {layout}", types, a, b, ("packed", layout))
            yield product(f"{pair} both {layout}, one column", types, a, (middle, 1, 3), (layout, layout))
        yield product(f"{pair} b transposed", types, (middle, 6), (middle, 9), ("packed", "transposed"))
        k = in_blocks(4099, types[0])
        for n in (1, 9):
            yield product(f"{pair} long rows with an odd tail m=3 n={n} k={k}", types, (k, 3), (k, n))
    for m, n, size in ((601, 703, "1 MiB"), (2053, 2050, "16 MiB")):
        yield product(f"results of more than {size} m={m} n={n} k=8", (F32, F32), (8, m), (8, n))
    for weights in (F16, BF16):
        yield product(f"{weights.name} x f32 precision f32", (weights, F32), (64, 9), (64, 4), precision=10)


def _mul_mat_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for type in (*KERNEL_FLOATS, *ENCODED):
        k = in_blocks(64, type)
        for n in (1, 5, 34):
            product = made(op, leaf(type, (k, 7), values=_weights), leaf(F32, (k, n), values=_activations))
            yield case(f"{type.name} by {n} columns", product, "not finite" if type.is_quantized else "values")


def _draw_mul_mat(c: Draw, op: type[Op]) -> Drawn:
    a = c.type("a", _WEIGHTS)
    b = c.type("b", KERNEL_FLOATS if c.pick("b.narrow", (True, False), (6, 1)) else _WEIGHTS)
    k = c.row("k", a, b)
    m, n = c.extent("m"), c.extent("n")
    a2, a3 = c.extent("a2", BATCHES), c.extent("a3", BATCHES)
    many2, many3 = c.pick("many2", (1, 2, 3), (4, 1, 1)), c.pick("many3", (1, 2), (4, 1))
    if not a2 or not a3:
        c.promised = False
    weights = c.source("a", a, (k, m, a2, a3), ONCE_ROWS, _KINDS)
    other = c.source("b", b, (k, n, a2 * many2, a3 * many3), ANY, _KINDS)
    return Drawn([weights, other], {"precision": c.pick("precision", (0, 10))})


describe(ops.MulMat, cases=[mul_mat_cases], special=[_mul_mat_special], draw=_draw_mul_mat, rule=_PRODUCT)


def mul_mat_id_cases(op: type[Op]) -> Iterator[Case]:
    """Few and many experts, a row of b for all of a token's experts, for some or for each, experts that none chose."""

    def routed(
        weights: Type,
        k: int,
        m: int,
        experts: int,
        used: int,
        tokens: int,
        rows: int,
        *,
        other: Type = F32,
        chosen: int | None = None,
        laid: str = "",
        layout: Layout = "packed",
    ) -> Case:
        k = in_blocks(k, weights, other)
        shared = {used: "", 1: " shared"}.get(rows, f" with {rows} rows repeated")
        shape = f"k={k} m={m} experts={experts} used={used} tokens={tokens}{shared}"
        how = (f", {laid} {layout}" if laid else "") + (f", {chosen} chosen" if chosen else "")
        layouts: list[Layout] = [layout if name == laid else "packed" for name in op.sources]
        return case(
            op,
            f"{weights.name} x {other.name} {shape}{how}",
            leaf(weights, (k, m, experts), layouts[0]),
            leaf(other, (k, rows, tokens), layouts[1]),
            indices((used, tokens), chosen or experts, distinct=True, layout=layouts[2]),
        )

    for weights in _WEIGHTS:
        for own in (True, False):
            sizes = ((4, 2, 1), (4, 2, 7), (8, 8, 3), (1, 1, 5), (16, 3, 33), (3, 2, 60))
            for experts, used, tokens in sizes if weights not in QUANTIZED or weights is Q8_0 else sizes[1::4]:
                if own or used > 1:
                    yield routed(weights, 64, 9, experts, used, tokens, used if own else 1)
        yield routed(weights, 256, 33, 4, 2, 40, 2)
        for tokens in (6, 90):
            yield routed(weights, 96, 7, 5, 2, tokens, 2, laid="as_", layout="rows apart")
        for laid in ("b", "ids"):
            for tokens in (6, 90):
                yield routed(weights, 96, 7, 5, 2, tokens, 2, laid=laid, layout="window")
        yield routed(weights, 64, 70, 7, 3, 120, 1, chosen=4)
        for rounded in (Q8_0, _rounded(weights)) if weights in QUANTIZED else ():
            if rounded is not None:
                yield routed(weights, 64, 9, 4, 2, 7, 2, other=rounded)
    for weights in (F32, F16, Q8_0):
        yield routed(weights, 4099, 3, 3, 2, 5, 2)
    for tokens in (4, 60):
        yield routed(F32, 37, 5, 3, 2, tokens, 2)
    yield routed(F16, 40, 5, 3, 2, 4, 1, other=F16)
    for weights in (F32, BF16, Q8_0):
        for used, rows, tokens in ((4, 2, 1), (6, 3, 5), (4, 2, 40)):
            yield routed(weights, 64, 9, 7, used, tokens, rows)
    yield routed(F32, 64, 9, 7, 6, 5, 2, laid="b", layout="window")


def _mul_mat_id_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for type in (F32, BF16, Q8_0):
        for tokens in (8, 80):
            experts, b = leaf(type, (64, 5, 3), values=_weights), leaf(F32, (64, 1, tokens), values=_activations)
            routed = made(op, experts, b, indices((2, tokens), 3, distinct=True))
            yield case(f"{type.name} by {tokens} tokens", routed, "not finite" if type.is_quantized else "values")

        def outside(leafs: Leafs, t: Type = type) -> Tensor:
            ids = leafs.random.integers(0, 3, (9, 2))
            ids[2, 1], ids[4] = 3, [-1, 2**31 - 1]
            return node(op, leafs.tensor(t, 64, 5, 3), leafs.tensor(F32, 64, 1, 9), leafs.array(I32, ids))

        yield case(f"ids out of range in {type.name}", outside, "values")


def _draw_mul_mat_id(c: Draw, op: type[Op]) -> Drawn:
    a, b = c.type("as_", _WEIGHTS), c.type("b", KERNEL_FLOATS)
    k, m = c.row("k", a, b), c.extent("m")
    experts, used, tokens = c.extent("experts", FEW), c.extent("used", BATCHES), c.extent("tokens")
    own = c.pick("own", (True, False))
    c.promised &= used > 0 or not own
    weights = c.source("as_", a, (k, m, experts), ONCE_ROWS, _KINDS)
    other = c.source("b", b, (k, used if own else 1, tokens), ANY, _KINDS)
    ids = c.indices("ids", (I32,), (used, tokens), experts)
    return Drawn([weights, other, ids], {"precision": c.pick("precision", (0, 10))})


describe(ops.MulMatId, cases=[mul_mat_id_cases], special=[_mul_mat_id_special], draw=_draw_mul_mat_id, rule=_PRODUCT)


# -- outer products --------------------------------------------------------------------------------


def out_prod_cases(op: type[Op]) -> Iterator[Case]:
    """Extents around vectors and blocks, every type of a, batches that repeat, layouts of both."""

    def product(label: str, a: Any, b: Any, types: Any = (F32, F32), layouts: Any = ("packed", "packed")) -> Case:
        rows = (in_blocks(a[0], types[0]), *a[1:])
        return case(op, label, leaf(types[0], rows, layouts[0]), leaf(types[1], b, layouts[1]))

    for m, n, k in ((1, 1, 1), (16, 4, 3), (33, 5, 7), (7, 9, 40), (1030, 3, 2), (64, 130, 17)):
        yield product(f"{m} by {n}, {k} products", (m, k), (n, k))
    for kind in (F16, BF16, *QUANTIZED):
        yield product(f"{kind.name}", (96, 6), (5, 6), (kind, F32))
    for kind in (F16, BF16):
        yield product(f"f32 and {kind.name}", (33, 6), (5, 6), (F32, kind))
    yield product("batches", (32, 5, 2, 3), (7, 5, 2, 3))
    yield product("batches that repeat", (32, 5, 2, 2), (7, 5, 4, 4))
    yield product("batches that repeat for all", (32, 5, 2, 1), (7, 5, 4, 3))
    for layout in ROWWISE:
        yield product(f"a {layout}", (33, 5, 3, 2), (7, 5, 3, 2), layouts=(layout, "packed"))
    for layout in LAYOUTS:
        yield product(f"b {layout}", (33, 5, 3, 2), (7, 5, 3, 2), layouts=("packed", layout))


def _out_prod(node: Node, exact: Array, a: Array, b: Array) -> Array:
    a, b = (np.where(np.isfinite(each), each, 0) for each in (a, b))
    terms = node.op.reference(a * a, b * b)
    return roundings(a.shape[-2], exact, terms, products=True)


describe(
    ops.OutProd,
    cases=[out_prod_cases],
    rule=row(
        "6 sqrt((K + 1) size**2 / 3), size = max(abs(y), 2 sqrt(sum((a b)**2)))", "the sums of K products", _out_prod
    ),
)


# -- systems of equations --------------------------------------------------------------------------


def _triangles(random: np.random.Generator, n: int, *batches: int) -> Array:
    """Lower triangular matrices that are far from singular; what lies above the diagonal is anything."""
    a: Array = random.uniform(-0.5, 0.5, (*batches[::-1], n, n)) / max(1, n) ** 0.5
    a[..., range(n), range(n)] = random.uniform(1, 2, (*batches[::-1], n))
    return a


def solve_tri_cases(op: type[Op]) -> Iterator[Case]:
    """Systems of one equation and of many, one right-hand side and many, batches; what lies above is not looked at."""

    def systems(label: str, n: int, k: int, *batches: int) -> Case:
        def a(leafs: Leafs) -> Tensor:
            return leafs.array(F32, _triangles(leafs.random, n, *batches))

        return case(op, label, a, leaf(F32, (k, n, *batches)))

    for n, k in ((1, 1), (2, 5), (9, 1), (16, 16), (33, 17), (64, 3), (40, 70)):
        yield systems(f"{n} equations, {k} right-hand sides", n, k)
    yield systems("batches", 11, 5, 4, 3)


def _draw_solve_tri(c: Draw, op: type[Op]) -> Drawn:
    kinds = c.type("a", (F32,)), c.type("b", (F32,))
    n, k = c.row("n", kinds[0]), c.row("k", kinds[1])
    batches = c.extent("n2", FEW), c.extent("n3", BATCHES)
    random = np.random.default_rng(c.number("a.numbers"))
    matrices = random.choice([-1, 1]) * _triangles(random, n, *batches)
    whole = np.iinfo(np.int8)  # of an integer type they are integers
    values = matrices if kinds[0] in NOT_WHOLE else np.clip(np.rint(matrices), whole.min, whole.max)
    a = Source("a", kinds[0], (n, n, *batches), c.layout("a", CONTIGUOUS), "normal", values)
    return Drawn([a, c.source("b", kinds[1], (k, n, *batches), CONTIGUOUS, MODERATE)])


def _solve_tri(node: Tensor, exact: Array, a: Array, b: Array) -> Array:
    lower = np.tril(np.where(np.isfinite(a), a, 1))
    n = a.shape[-1]
    singular = (np.diagonal(lower, axis1=-2, axis2=-1) == 0).any()
    if singular or not n:
        return np.zeros_like(exact)
    return np.asarray(2 * (n + 2) * np.abs(np.linalg.inv(lower)) @ np.abs(lower) @ np.abs(exact))


describe(
    ops.SolveTri,
    cases=[solve_tri_cases],
    draw=_draw_solve_tri,
    rule=element(
        "2 (n + 2) abs(a**-1) abs(a) abs(y)",
        "n products and sums, a quotient (N. J. Higham, Accuracy and stability of numerical algorithms, theorem 8.5)",
        _solve_tri,
    ),
)

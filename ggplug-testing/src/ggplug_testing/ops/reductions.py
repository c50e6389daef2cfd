"""Ops that look at whole rows: norms, softmax, sums, means, maxima, sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import tile
from ggplug.ops.views import view
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, FLOATS, I32, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import LAYOUTS, LENGTHS, Case, Leafs, node
from ggplug_testing.cases.making import array, case, laid, leaf, made
from ggplug_testing.cases.special import INF, LONG, NAN, ROWS, WIDE_ROWS
from ggplug_testing.description import CaseOf, Selects, describe
from ggplug_testing.drawing import ADDED_UP, ANY, ANYTHING, CONTIGUOUS, MODERATE, ONCE, Draw, Drawn, of_one
from ggplug_testing.precision.rule import CHOSEN, FLUSHED, SUMMED, UNIT, Node, row
from ggplug_testing.precision.sums import added, overflows, summed

_LENGTHS = (*LENGTHS, 2048, 4099, 8209)


def _shifted(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows with a mean: sums that do not come to nothing."""
    return random.standard_normal(shape) + 1.5


def _far(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows around 3000: of their squares float32 keeps no digit of the variance."""
    return random.standard_normal(shape) + 3000


def _few_values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.integers(-3, 4, shape).astype(np.float64)


def _rows_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for type in KERNEL_FLOATS:
        yield case(f"rows of {type.name}", made(op, array(type, ROWS)))
    yield case("short rows", made(op, array(F32, np.ascontiguousarray(ROWS[:, :3]))))


def _wide_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for i in range(len(WIDE_ROWS)):
        yield case(f"wide row {i}", made(op, array(F32, WIDE_ROWS[i : i + 1])))


_draw_sum = of_one(FLOATS, ANY, ADDED_UP)


# -- norms -----------------------------------------------------------------------------------------


def norm_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, eps from none to large, types, layouts, rows that are constant or zero."""
    for length in _LENGTHS[1:]:
        yield case(op, f"rows of {length}", leaf(F32, (length, 3)), eps=1e-6)
    for eps in (0.0, 1e-12, 1e-5, 0.1, 10.0):
        yield case(op, f"eps {eps}", leaf(F32, (64, 5)), eps=eps)
    yield from laid(op, (40, 5, 4, 3), eps=1e-5)
    zeros = leaf(F32, (33, 2), values=lambda random, shape: np.zeros(shape))
    yield case(op, "rows of zeros", zeros, eps=1e-6)
    yield case(op, "rows with a mean", leaf(F32, (200, 4), values=_shifted), eps=1e-6)
    for length in (65, 1000):
        yield case(op, f"rows of {length} with mean 3000", leaf(F32, (length, 4), values=_far), eps=1e-6)
    yield case(op, "large values", leaf(F32, (65, 4), low=-1e8, high=1e8), eps=1e-6)
    yield case(op, "many rows", leaf(F32, (8, 900)), eps=1e-6)


def _norm_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for eps in (0.0, 1e-24, 1e-12, 1e-6, 1e6, 1e30):
        for type in (F32, BF16):
            yield case(f"wide rows of {type.name}, eps {eps}", made(op, array(type, WIDE_ROWS), eps=eps))
        for i in range(len(WIDE_ROWS) if eps < 1e-12 else 0):
            yield case(f"wide row {i}, eps {eps}", made(op, array(F32, WIDE_ROWS[i : i + 1]), eps=eps))


def _draw_norm(c: Draw, op: type[Op]) -> Drawn:
    eps = c.pick("eps", (1e-6, 0.0, 1e-12, 0.1, 10.0, 1e6, -1.0), (6, 2, 1, 1, 1, 1, 1))
    c.promised &= eps >= 0
    return Drawn(_draw_sum(c, op).sources, {"eps": eps})


def _lost(squares: Array, count: int, eps: float, rooted: Callable[[Array, float], Array]) -> Array:
    """How far 1 / sqrt(rooted(squares, eps)) is off, in roundings, by what float32 does not hold of sums of squares.

    ``count`` squares, their mean and ``eps`` may be flushed to zero; infinite where nothing is left, or where the sum
    may overflow.
    """
    kept = rooted(np.maximum(squares - 2 * count * FLUSHED, 0), eps if eps >= FLUSHED else 0.0)
    return np.where(overflows(squares), np.inf, (np.sqrt(rooted(squares, eps) / kept) - 1) / UNIT)


def _of_rows(exact: Array, roundings: Array) -> Array:
    """So many roundings of results; of a row of which float32 keeps nothing also where the result is 0."""
    return np.where(np.isposinf(roundings), np.inf, roundings * np.abs(exact))


def _norm(node: Node, exact: Array, x: Array) -> Array:
    n = max(1, x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / n
    squares = np.sum((x - mean) ** 2, axis=-1, keepdims=True)
    moved = (added(x) / n + 6 * np.abs(mean)) / np.sqrt(squares / n + node.op.eps)
    off = _lost(squares, n, node.op.eps, lambda total, eps: total / n + eps)
    return np.asarray(moved + _of_rows(exact, 16 + summed(x) / 2 + np.minimum(UNIT * moved, 1) * moved + off))


def _rms_norm(node: Node, exact: Array, x: Array) -> Array:
    n = max(1, x.shape[-1])
    squares = np.sum(x * x, axis=-1, keepdims=True)
    off = _lost(squares, n, node.op.eps, lambda total, eps: total / n + eps)
    return _of_rows(exact, 16 + summed(x) / 2 + off)


def _l2_norm(node: Node, exact: Array, x: Array) -> Array:
    squares = np.sum(x * x, axis=-1, keepdims=True)
    off = _lost(squares, x.shape[-1], node.op.eps, lambda total, eps: np.fmax(total, eps * eps))
    return _of_rows(exact, 16 + summed(x) / 2 + off)


describe(ops.RowNorm, cases=[norm_cases], special=[_rows_special, _norm_special], draw=_draw_norm)
describe(
    ops.Norm,
    rule=row(
        "m + (16 + S/2 + m**2 UNIT) abs(y), m = (S size / n + 6 abs(mean)) / deviation",
        "the mean, m, by which all elements move; n squares and sums, the root, the quotient",
        _norm,
    ),
)
describe(
    ops.RmsNorm,
    rule=row("(16 + S/2) abs(y)", "n squares and sums, half of whose error is the root's, the quotient", _rms_norm),
)
describe(ops.L2Norm, rule=row("(16 + S/2) abs(y)", "as rms_norm", _l2_norm))


def group_norm_cases(op: type[Op]) -> Iterator[Case]:
    """Groups that divide the channels and groups that do not, more groups than channels, types, layouts, batches."""
    for channels, groups in ((8, 1), (8, 2), (8, 8), (10, 4), (7, 3), (3, 5), (1, 1)):
        x = leaf(F32, (9, 5, channels, 2), values=_shifted)
        yield case(op, f"{channels} channels in {groups} groups", x, n_groups=groups, eps=1e-5)
    yield from laid(op, (12, 5, 6, 2), values={"values": _shifted}, n_groups=3, eps=1e-5)
    yield case(op, "large groups", leaf(F32, (64, 40, 4), values=_shifted), n_groups=2, eps=1e-6)


def _group_norm(node: Node, exact: Array, x: Array) -> Array:
    channels = -(-x.shape[1] // node.op.n_groups)
    tolerance = np.zeros_like(exact)
    for start in range(0, x.shape[1], max(1, channels)):
        part = slice(start, start + channels)
        flat = (x.shape[0], 1, 1, x[:1, part].size)
        found = _norm(node, exact[:, part].reshape(flat), x[:, part].reshape(flat))
        tolerance[:, part] = found.reshape(exact[:, part].shape)
    return tolerance


describe(ops.GroupNorm, cases=[group_norm_cases], rule=row("as norm, of groups", "as norm", _group_norm))


# -- sums ------------------------------------------------------------------------------------------


def sum_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, types, layouts."""
    for length in _LENGTHS:
        yield case(op, f"rows of {length}", leaf(F32, (length, 3), values=_shifted))
    yield from laid(op, (23, 5, 4, 3), values={"values": _shifted})
    yield case(op, "rows with mean 3000", leaf(F32, (1000, 4), values=_far))
    yield case(op, "many rows", leaf(F32, (5, 800), values=_shifted))


def _sum_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for i in range(1, len(ROWS)):
        yield case(f"row {i}", made(op, array(F32, ROWS[i : i + 1])))


def _mean(node: Tensor, exact: Array, x: Array) -> Array:
    return np.asarray(added(x) / max(1, x.shape[-1]) + 6 * np.abs(exact))


describe(
    ops.SumRows,
    cases=[sum_cases],
    special=[_rows_special, _wide_special],
    draw=_draw_sum,
    rule=row("S size, size = max(abs(y), 2 sqrt(sum(x**2)))", "n sums", lambda node, exact, x: added(x)),
)
describe(
    ops.Sum,
    cases=[sum_cases],
    special=[_sum_special, _wide_special],
    draw=_draw_sum,
    rule=row("S size, as sum_rows", "n sums", lambda node, exact, x: added(x.reshape(1, 1, 1, -1))),
)
describe(
    ops.Mean,
    cases=[sum_cases],
    special=[_rows_special, _wide_special],
    draw=_draw_sum,
    rule=row("S size / n + 6 abs(y)", "n sums, the quotient", _mean),
)


def _cumsum(node: Tensor, exact: Array, x: Array) -> Array:
    count = np.arange(1, x.shape[-1] + 1)
    size = np.maximum(np.abs(exact), 2 * np.sqrt(np.cumsum(x * x, axis=-1)))
    roundings = SUMMED * np.sqrt(count) * size + np.abs(exact)
    return np.where(overflows(np.cumsum(np.abs(x), axis=-1)), np.inf, roundings)


describe(
    ops.Cumsum,
    cases=[sum_cases],
    special=[_rows_special],
    rule=row("S size + abs(y), as sum_rows, of the elements up to i", "i sums", _cumsum),
)


# -- choices ---------------------------------------------------------------------------------------


def count_equal_cases(op: type[Op]) -> Iterator[Case]:
    """Lengths, layouts of both sides, all equal, none."""

    def pair(label: str, ne: tuple[int, ...], a: Any = "packed", b: Any = "packed", high: int = 3) -> Case:
        return case(op, label, leaf(I32, ne, a, low=0, high=high), leaf(I32, ne, b, low=0, high=high))

    for length in (*LENGTHS, 9000):
        yield pair(f"{length} elements", (length,))
    for layout in LAYOUTS:
        yield pair(f"a {layout}", (13, 5, 3, 2), layout)
        yield pair(f"both {layout}", (13, 5, 3, 2), layout, layout)
    yield pair("all equal", (40, 7), high=1)
    yield case(op, "none equal", leaf(I32, (50,), low=-9, high=0), leaf(I32, (50,), low=1, high=9))


describe(ops.CountEqual, cases=[count_equal_cases], rule=CHOSEN)


def argmax_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, types, layouts of a matrix, equal elements, negative rows."""
    for length in _LENGTHS:
        yield case(op, f"rows of {length}", leaf(F32, (length, 4)))
    yield from laid(op, (29, 6))
    yield case(op, "equal elements", leaf(F32, (100, 5), values=_few_values))
    yield case(op, "negative rows", leaf(F32, (50, 3), low=-9, high=-1))


def _draw_argmax(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    n0, n1 = c.row("n0", kind), c.extent("n1")
    c.promised &= n0 > 0
    return Drawn([c.source("x", kind, (n0, n1), ANY, ANYTHING)])


describe(
    ops.Argmax,
    cases=[argmax_cases],
    special=[_rows_special],
    draw=_draw_argmax,
    rule=CHOSEN,
    selects=Selects(first=True),
)


def argsort_cases(op: type[Op]) -> Iterator[Case]:
    """Both orders: row lengths on both sides of powers of two, types, layouts, equal elements."""
    for order in (0, 1):
        for length in _LENGTHS:
            yield case(op, f"rows of {length} order {order}", leaf(F32, (length, 3)), order=order)
        yield from laid(op, (21, 4, 3, 2), what=f" order {order}", order=order)
        yield case(op, f"equal elements order {order}", leaf(F32, (70, 5), values=_few_values), order=order)


def _argsort_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    def scattered(leafs: Leafs, count: int, order: int) -> Tensor:
        values = leafs.random.choice(np.array([NAN, -NAN, INF, -INF, 0.0, -0.0, *range(-5, 6)]), (4, count))
        values[0] = NAN
        return node(op, leafs.array(F32, values), order=order)

    for order in (0, 1):
        yield case(f"rows order {order}", made(op, array(F32, ROWS), order=order))
        for count in (70, 700):
            yield case(f"rows of {count} order {order}", lambda leafs, n=count, o=order: scattered(leafs, n, o))


describe(
    ops.Argsort,
    cases=[argsort_cases],
    special=[_argsort_special],
    draw=of_one(FLOATS, ANY, ANYTHING, order=(0, 1)),
    rule=CHOSEN,
    selects=Selects(),
)


def top_k_cases(op: type[Op]) -> Iterator[Case]:
    """One, some and all elements of rows of many lengths, types, layouts, equal elements."""
    for length in _LENGTHS:
        for k in sorted({1, min(7, length), length}):
            yield case(op, f"{k} of rows of {length}", leaf(F32, (length, 3)), k=k)
    yield from laid(op, (21, 4, 3, 2), k=5)
    yield case(op, "equal elements", leaf(F32, (70, 5), values=_few_values), k=9)


def _top_k_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for k in (1, 5, LONG):
        yield case(f"{k} of rows", made(op, array(F32, ROWS), k=k))


describe(ops.TopK, cases=[top_k_cases], special=[_top_k_special], rule=CHOSEN, selects=Selects(ordered=False))


# -- softmax ---------------------------------------------------------------------------------------


def _largest(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(random.uniform(size=shape) < 0.2, np.finfo(np.float32).max, 0.0)


def soft_max_cases(op: type[Op]) -> Iterator[Case]:
    """With and without mask, sinks, ALiBi; masks that hide most of x, have more rows than x, repeat over heads."""

    def masked(
        label: str,
        ne: tuple[int, ...],
        *,
        type: Type = F32,
        mask: tuple[int, ...] | None = None,
        mask_type: Type = F32,
        hidden: float = 0.3,
        sinks: bool = False,
        values: Any = None,
        **parameters: Any,
    ) -> Case:
        def hide(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            drawn = random.standard_normal(shape)
            # The first column stays visible: of a row without any, everything is NaN.
            drawn[..., 1:][random.uniform(size=drawn[..., 1:].shape) < hidden] = -np.inf
            return drawn

        shown = None if mask is None else leaf(mask_type, mask, values=hide)
        each = leaf(F32, (ne[2] if len(ne) > 2 else 1,)) if sinks else None
        return case(op, label, leaf(type, ne, values=values), shown, each, **parameters)

    def one_row_each(leafs: Leafs) -> Tensor:
        # Contiguous, though the stride of the dimension of one row is that of another one.
        return view(leafs.tensor(F32, 19, 3, 2), 19, 1, 3, 2, nb=(3 * 76, 76, 3 * 76))

    for length in _LENGTHS:
        yield masked(f"rows of {length}", (length, 3))
    yield case(op, "one row a head", one_row_each)
    yield case(op, "one row a head, sinks", one_row_each, None, leaf(F32, (3,)))
    for type in KERNEL_FLOATS:
        yield masked(f"{type.name} scaled", (37, 5, 4, 3), type=type, scale=0.125)
    for kind in (F32, F16):
        name = kind.name
        for length in (1, 16, 17, 33, 64, 100, 257):
            yield masked(f"{name} mask of {length}", (length, 5, 4), mask=(length, 5), mask_type=kind, scale=0.5)
        yield masked(f"{name} mask with more rows", (32, 5, 4), mask=(32, 64), mask_type=kind)
        yield masked(f"{name} mask for each head and batch", (32, 5, 4, 2), mask=(32, 5, 4, 2), mask_type=kind)
        yield masked(f"{name} mask for every other head", (32, 5, 4, 2), mask=(32, 5, 2, 1), mask_type=kind)
        yield masked(f"{name} mask for every other batch", (32, 5, 2, 4), mask=(32, 5, 1, 2), mask_type=kind)
        for heads in (1, 2, 3, 8, 12):
            ne = (24, 3, heads)
            yield masked(f"{name} ALiBi, {heads} heads", ne, mask=ne[:2], mask_type=kind, hidden=0, max_bias=8.0)
        yield masked(f"{name} mask hides most", (96, 4, 2), mask=(96, 4), mask_type=kind, hidden=0.97)
        yield masked(f"{name} mask and sinks", (48, 5, 3, 2), mask=(48, 5), mask_type=kind, sinks=True, scale=0.25)
    yield masked("sinks", (48, 5, 6), sinks=True)
    yield masked("ALiBi, slopes that vanish", (40, 6, 2), mask=(40, 6), max_bias=600.0)
    yield masked("everything", (40, 6, 4, 2), mask=(40, 8, 2, 1), mask_type=F16, sinks=True, scale=0.3, max_bias=4.0)
    yield masked("logits around 3000", (129, 4), values=_far)
    yield masked("huge logits", (33, 4), values=lambda random, shape: random.uniform(-3e4, 3e4, shape))
    yield masked("the largest logits", (33, 4), values=_largest)
    below = "all logits far below zero"
    yield masked(below, (33, 4), values=lambda random, shape: random.uniform(-3e4, -29990, shape))


def _soft_max_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    finite = array(F32, np.resize([0.5, -1.0, 2.0, 0.0], ROWS.shape))
    sinks = np.array([0.5, -INF, INF, NAN])
    wide = np.resize([3e38, -3e38, 2e38, 1.0], ROWS.shape)
    yield case("mask", made(op, finite, array(F32, ROWS)))
    yield case("sinks", made(op, array(F32, np.stack([ROWS] * len(sinks))), None, array(F32, sinks)))
    yield case("logits that differ by more than float32 holds", made(op, array(F32, wide)))
    yield case("logits beyond float32", made(op, array(F32, wide), scale=100.0))
    yield case("logits beyond float32 below", made(op, array(F32, -np.abs(wide)), scale=100.0))
    yield case("scale 0", made(op, finite, scale=0.0))
    yield case("scale 0 of rows", made(op, array(F32, ROWS), scale=0.0))


def _draw_soft_max(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    ne = c.shape(kind)
    x = c.source("x", kind, ne, CONTIGUOUS, ("normal", "integers", "ties", "constant", "hundreds", "large", "NaN"))
    mask = sinks = None
    max_bias = 0.0
    if c.optional("mask"):
        type = c.type("mask", (F32, F16))
        more = c.pick("mask.rows", (0, 1, 7))
        heads = ne[2] if c.pick("mask.heads", (False, True)) else 1
        batches = ne[3] if c.pick("mask.batches", (False, True)) else 1
        if not heads or not batches:
            c.promised = False
        mask = c.source("mask", type, (ne[0], ne[1] + more, heads, batches), CONTIGUOUS, ("normal", "infinite", "NaN"))
        max_bias = c.pick("max_bias", (0.0, 8.0, 4.0, 0.5), (3, 1, 1, 1))
    if c.optional("sinks"):
        sinks = c.source("sinks", c.type("sinks", (F32,)), (ne[2],), ONCE, MODERATE)
    scale = c.pick("scale", (1.0, 0.0, 0.125, -1.0, 1e-6, 30.0), (4, 2, 1, 1, 1, 1))
    return Drawn([x, mask, sinks], {"scale": scale, "max_bias": max_bias})


def _soft_max(node: Node, exact: Array, x: Array, mask: Array | None = None, sinks: Array | None = None) -> Array:
    logits = node.op.scale * x
    off = 3 * np.abs(logits)
    if mask is not None:
        slopes = alibi_slopes(x.shape[1], node.op.max_bias)[:, np.newaxis, np.newaxis]
        masked = slopes * tile(mask[:, :, : x.shape[2]], x.shape)
        logits = logits + masked
        off = off + (34 if node.op.max_bias else 1) * np.abs(masked) + np.abs(logits)
    highest = np.max(np.where(np.isnan(logits), -np.inf, logits), axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        highest = np.fmax(highest, sinks.reshape(1, -1, 1, 1))
    off = np.where(exact > 0, off + np.abs(logits - highest), 0)
    shared = np.sum(exact * off, axis=-1, keepdims=True)
    return np.asarray(exact * (off + shared + 2 * np.abs(highest) + 12 + summed(x)))


describe(
    ops.SoftMax,
    cases=[soft_max_cases],
    special=[_rows_special, _soft_max_special],
    draw=_draw_soft_max,
    rule=row(
        "y (12 + S + e + sum(y e) + 2 abs(max)), e = 3 abs(scale x) + abs(mask) + 2 abs(logit) + abs(max)",
        "logits, whose errors become factors of the power; powers, n sums, the quotient; 34 abs(mask) with ALiBi's "
        "slopes, which are powers",
        _soft_max,
    ),
)

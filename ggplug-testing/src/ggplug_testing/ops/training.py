"""Gradients, losses and optimisers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.tensor import Tensor
from ggplug.types import F32, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import LAYOUTS, LENGTHS, ROWWISE, Case, Leafs, node
from ggplug_testing.cases.making import case, laid, leaf, spell
from ggplug_testing.description import describe
from ggplug_testing.drawing import CONTIGUOUS, MODERATE, NOT_WHOLE, ONCE_ROWS, ROWS, Draw, Drawn, Source
from ggplug_testing.precision.rule import SUMMED, Node, element, row
from ggplug_testing.precision.sums import added, summed

# -- gradients -------------------------------------------------------------------------------------


def _probabilities(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows that are probabilities."""
    powers = np.exp(random.standard_normal(shape))
    rows: Array = powers / powers.sum(axis=-1, keepdims=True)
    return rows


def row_gradient_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, the parameter, types, layouts of each source."""
    name, values = ("eps", None) if op is ops.RmsNormBack else ("scale", _probabilities)

    def pair(label: str, type: Type, ne: tuple[int, ...], dy: Any, x: Any, number: float) -> Case:
        return case(op, label, leaf(type, ne, dy), leaf(type, ne, x, values=values), **{name: number})

    for length in (*LENGTHS, 2048):
        yield pair(f"rows of {length}", F32, (length, 3), "packed", "packed", 0.1)
    for number in (1e-6, 1.0, 10.0):
        yield pair(f"{name} {number}", F32, (64, 5), "packed", "packed", number)
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne = (40, 5, 3, 2)
            yield pair(f"dy {spell(type, ne, layout)}", type, ne, layout, "packed", 0.5)
            yield pair(f"dy and x {spell(type, ne, layout)}", type, ne, layout, layout, 0.5)


def _rms_norm_back(node: Node, exact: Array, dy: Array, x: Array) -> Array:
    n = max(1, x.shape[-1])
    root = 1 / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) / n + node.op.eps)
    mean = np.abs(np.sum(x * dy, axis=-1, keepdims=True)) / n
    second = root**3 * np.abs(x)
    return np.asarray((24 + 2 * summed(x)) * (root * np.abs(dy) + second * mean) + second * added(x * dy) / n)


def _soft_max_back(node: Node, exact: Array, dy: Array, y: Array) -> Array:
    dot = np.abs(np.sum(y * dy, axis=-1, keepdims=True))
    return np.asarray(np.abs(node.op.scale * y) * (8 * (np.abs(dy) + dot) + added(y * dy)))


describe(
    ops.RmsNormBack,
    cases=[row_gradient_cases],
    rule=row(
        "(24 + 2 S) (r abs(dy) + r**3 abs(x mean)) + r**3 abs(x) S size / n, mean = sum(x dy) / n",
        "two sums of n products, the root, quotients, products",
        _rms_norm_back,
    ),
)
describe(
    ops.SoftMaxBack,
    cases=[row_gradient_cases],
    rule=row(
        "abs(scale y) (8 (abs(dy) + abs(dot)) + S size), dot = sum(y dy)",
        "n products and sums, differences, products",
        _soft_max_back,
    ),
)


def repeat_back_cases(op: type[Op]) -> Iterator[Case]:
    """Repetitions along each dimension and all, results of one element a row and of one at all; types, layouts."""
    x = (24, 6, 4, 4)
    for ne in (
        (8, 6, 4, 4),
        (24, 3, 4, 4),
        (24, 6, 1, 4),
        (24, 6, 4, 2),
        (24, 6, 4, 1),
        (12, 2, 2, 2),
        x,
        (1, 6, 4, 4),
        (1, 1, 1, 1),
        (24, 1, 1, 1),
    ):
        yield case(op, f"{spell(F32, x)} to {'x'.join(map(str, ne))}", leaf(F32, x), ne=ne)
    yield case(op, "long rows", leaf(F32, (1030, 5)), ne=(515, 1))
    yield case(op, "a sum of long rows", leaf(F32, (5000, 3)), ne=(1, 1))
    yield case(op, "many rows", leaf(F32, (33, 900)), ne=(33, 1))
    yield from laid(op, x, ne=(12, 3, 4, 1))


def _repeat_back(node: Node, exact: Array, x: Array) -> Array:
    size = np.maximum(np.abs(exact), 2 * np.sqrt(node.op.reference(x * x)))
    return np.asarray(SUMMED * math.sqrt(max(1, x.size // max(1, exact.size))) * size)


describe(
    ops.RepeatBack,
    cases=[repeat_back_cases],
    rule=row("S size, as sum_rows, of what is added up", "the sums", _repeat_back),
)


# -- losses ----------------------------------------------------------------------------------------


def cross_entropy_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, layouts, labels that are one class, logits far from zero."""

    def one_class(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.eye(shape[-1])[random.integers(0, shape[-1], shape[:-1])]

    def loss(
        label: str,
        ne: tuple[int, ...],
        of_logits: Any = "packed",
        of_labels: Any = "packed",
        *,
        values: Any = _probabilities,
        shift: float = 0.0,
        spread: float = 1.0,
    ) -> Case:
        def shifted(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            return random.standard_normal(shape) * spread + shift

        def make(leafs: Leafs) -> Tensor:
            logits = leafs.tensor(F32, *ne, layout=of_logits, values=shifted)
            labels = leafs.tensor(F32, *ne, layout=of_labels, values=values)
            grad = (leafs.tensor(F32, 1, low=0.5, high=2),) if op is ops.CrossEntropyLossBack else ()
            return node(op, *grad, logits, labels)

        return Case(op.name, label, make)

    for length in (*LENGTHS[1:], 5000):
        yield loss(f"rows of {length}", (length, 3))
    yield loss("one class", (50, 6), values=one_class)
    yield loss("logits far from zero", (33, 4), shift=1e3)
    yield loss("logits far apart", (33, 4), spread=50.0)
    yield loss("many rows", (10, 700))
    for layout in LAYOUTS:
        yield loss(f"logits {layout}", (10, 5, 4, 3), layout)
        yield loss(f"labels {layout}", (10, 5, 4, 3), "packed", layout)


def _softmax(logits: Array) -> tuple[Array, Array]:
    """The softmax of rows, and the roundings of it: of the differences to the largest, powers, a sum, a quotient."""
    away = logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(away)
    probabilities = powers / powers.sum(axis=-1, keepdims=True)
    off = np.where(probabilities > 0, np.abs(away), 0)
    return probabilities, probabilities * (
        16 + summed(logits) + 2 * off + 2 * np.sum(probabilities * off, axis=-1, keepdims=True)
    )


def _cross_entropy_loss(node: Tensor, exact: Array, logits: Array, labels: Array) -> Array:
    rows = max(1, logits.size // max(1, logits.shape[-1]))
    away = np.abs(logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf))
    probabilities, _ = _softmax(logits)
    of_sum = 16 + summed(logits) + 2 * np.sum(probabilities * away, axis=-1, keepdims=True)
    terms = np.abs(labels) * (of_sum + 4 * away)
    return np.asarray(np.sum(terms) / rows * (2 + SUMMED * math.sqrt(max(1, logits.size)) / 8) + 8 * np.abs(exact))


def _cross_entropy_loss_back(node: Tensor, exact: Array, dy: Array, logits: Array, labels: Array) -> Array:
    rows = max(1, logits.size // max(1, logits.shape[-1]))
    probabilities, off = _softmax(logits)
    return np.asarray(np.abs(dy / rows) * (off + 8 * (probabilities + np.abs(labels))))


describe(
    ops.CrossEntropyLoss,
    cases=[cross_entropy_cases],
    rule=row(
        "(2 + S/8) sum(labels (16 + S + 4 e + 2 sum(p e))) / rows + 8 abs(y), e = max(logits) - logit, p = softmax",
        "powers, sums, logarithms, products",
        _cross_entropy_loss,
    ),
)
describe(
    ops.CrossEntropyLossBack,
    cases=[cross_entropy_cases],
    rule=row(
        "abs(dy / rows) (p (24 + S + 2 e + 2 sum(p e)) + 8 labels)",
        "as soft_max, a difference, products",
        _cross_entropy_loss_back,
    ),
)


# -- optimisers ------------------------------------------------------------------------------------


def optimiser_cases(op: type[Op]) -> Iterator[Case]:
    """Lengths, parameters, layouts of what is written and of gradients, two steps."""
    adam = op is ops.OptStepAdamw

    def moments_of(leafs: Leafs, ne: tuple[int, ...], layout: Any) -> list[Tensor]:
        return [leafs.tensor(F32, *ne, layout=layout), leafs.tensor(F32, *ne, layout=layout, low=0, high=1)]

    def step(
        leafs: Leafs,
        w: Tensor,
        ne: tuple[int, ...],
        layouts: Any = ("packed", "packed"),
        moments: list[Tensor] | None = None,
    ) -> Tensor:
        grad = leafs.tensor(F32, *ne, layout=layouts[1])
        if not adam:
            return node(op, w, grad, leafs.array(F32, np.array([0.1, 0.01])))
        moments = moments or moments_of(leafs, ne, layouts[0])
        settings = np.array([1e-2, 0.9, 0.99, 1e-8, 0.01, 1 / (1 - 0.9**3), 1 / (1 - 0.99**3)])
        return node(op, w, grad, *moments, leafs.array(F32, settings))

    def stepped(label: str, ne: tuple[int, ...], layouts: Any = ("packed", "packed")) -> Case:
        return Case(op.name, label, lambda leafs: step(leafs, leafs.tensor(F32, *ne, layout=layouts[0]), ne, layouts))

    for length in (*LENGTHS, 5000):
        yield stepped(f"rows of {length}", (length, 2))
    for layout in ROWWISE:
        yield stepped(f"{spell(F32, (24, 5, 3, 2), layout)}", (24, 5, 3, 2), (layout, "packed"))
        yield stepped(f"gradient {layout}", (24, 5, 3, 2), ("packed", layout))
        yield stepped(f"columns {layout}", (1, 5, 3), (layout, layout))

    def two_steps(leafs: Leafs) -> Tensor:
        ne = (33, 3)
        moments = moments_of(leafs, ne, "packed")
        return step(leafs, step(leafs, leafs.tensor(F32, *ne), ne, moments=moments), ne, moments=moments)

    yield Case(op.name, "two steps", two_steps)


def _draw_step(c: Draw, op: type[Op]) -> Drawn:
    names = op.sources[:-1]
    types = {name: c.type(name, (F32,)) for name in op.sources}
    ne = c.shape(*(types[name] for name in names))
    sources: list[Source | None] = []
    for name in names:
        kinds = ("positive",) if name == "v" else MODERATE
        sources.append(c.source(name, types[name], ne, ROWS if name == "grad" else ONCE_ROWS, kinds))
    alpha, wd = c.pick("alpha", (1e-3, 0.5, 0.0)), c.pick("wd", (0.0, 0.01))
    numbers = [alpha, wd] if len(names) == 2 else [alpha, 0.9, 0.999, c.pick("eps", (1e-8, 0.1)), wd, 5.0, 20.0]
    kind = types["params"]
    count = -(-len(numbers) // kind.block_size) * kind.block_size
    c.promised &= count == len(numbers)
    values = np.resize(numbers if kind in NOT_WHOLE else [0, 1], count)
    sources.append(Source("params", kind, (count, 1, 1, 1), c.layout("params", CONTIGUOUS), "normal", values))
    return Drawn(sources)


def _adamw(node: Tensor, exact: Array, w: Array, grad: Array, m: Array, v: Array, params: Array) -> Array:
    alpha, beta1, beta2, eps, _, beta1h, beta2h = params.reshape(-1)
    kept, added = beta2 * beta2h * v, (1 - beta2) * beta2h * grad * grad
    root = np.sqrt(kept + added)
    moved = alpha * beta1h * (np.abs(beta1 * m) + np.abs((1 - beta1) * grad)) / (root + eps)
    # where v or a parameter is negative, which it should not be, little may be left of the sum under the root
    summed = np.abs(kept) + np.abs(added)
    return np.asarray(8 * np.abs(w) + (16 + 8 * summed / (root * np.abs(root + eps))) * np.abs(moved))


describe(
    ops.OptStepAdamw,
    cases=[optimiser_cases],
    draw=_draw_step,
    rule=element(
        "8 abs(w) + (16 + 8 abs(v) / v') alpha beta1h (abs(beta1 m) + abs((1 - beta1) g)) / (sqrt(v' beta2h) + eps)",
        "moments, a root, quotients, products; moments themselves as ops without a rule",
        _adamw,
    ),
)
describe(
    ops.OptStepSgd,
    cases=[optimiser_cases],
    draw=_draw_step,
    rule=element(
        "8 (abs(w) + abs(alpha g))",
        "products and a difference",
        lambda node, exact, w, grad, params: 8 * (np.abs(w) + np.abs(params.reshape(-1)[0] * grad)),
    ),
)

"""Cases of gradients, losses and optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Array, Op
from ggplug.ops.gradients import GetRowsBack, RepeatBack, RmsNormBack, SoftMaxBack
from ggplug.ops.training import CrossEntropyLoss, CrossEntropyLossBack, OptStepAdamw, OptStepSgd
from ggplug.types import F16, F32, I32, KERNEL_FLOATS
from ggplug_testing.cases.case import LAYOUTS, LENGTHS, ROWWISE, Case, Leafs, generates, node, spell


def _shares(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows that are probabilities."""
    powers = np.exp(random.standard_normal(shape))
    rows: Array = powers / powers.sum(axis=-1, keepdims=True)
    return rows


@generates(RmsNormBack, SoftMaxBack)
def row_gradient_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, the parameter, types, layouts of each source."""
    name = "eps" if cls is RmsNormBack else "scale"

    def case(label: str, type: Any, ne: tuple[int, ...], layouts: tuple[Any, Any], number: float) -> Case:
        def make(leafs: Leafs) -> Any:
            values = _shares if cls is SoftMaxBack else None
            dy = leafs.tensor(type, *ne, layout=layouts[0])
            return node(cls, dy, leafs.tensor(type, *ne, layout=layouts[1], values=values), **{name: number})

        return Case(cls.name, label, make)

    packed = ("packed", "packed")
    for length in (*LENGTHS, 2048):
        yield case(f"rows of {length}", F32, (length, 3), packed, 0.1)
    for number in (1e-6, 1.0, 10.0):
        yield case(f"{name} {number}", F32, (64, 5), packed, number)
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne = (40, 5, 3, 2)
            yield case(f"dy {spell(type, ne, layout)}", type, ne, (layout, "packed"), 0.5)
            yield case(f"dy and x {spell(type, ne, layout)}", type, ne, (layout, layout), 0.5)


@generates(RepeatBack)
def repeat_back_cases(cls: type[Op]) -> Iterator[Case]:
    """Repetitions along each dimension and all, results of one element a row and of one at all; types, layouts."""

    def case(label: str, x: tuple[int, ...], ne: tuple[int, ...], type: Any = F32, layout: Any = "packed") -> Case:
        return Case(cls.name, label, lambda leafs: node(cls, leafs.tensor(type, *x, layout=layout), ne=ne))

    x = (24, 6, 4, 4)
    for ne in ((8, 6, 4, 4), (24, 3, 4, 4), (24, 6, 1, 4), (24, 6, 4, 2), (24, 6, 4, 1), (12, 2, 2, 2), x):
        yield case(f"{spell(F32, x)} to {'x'.join(map(str, ne))}", x, ne)
    for ne in ((1, 6, 4, 4), (1, 1, 1, 1), (24, 1, 1, 1)):
        yield case(f"{spell(F32, x)} to {'x'.join(map(str, ne))}", x, ne)
    yield case("long rows", (1030, 5), (515, 1))
    yield case("a sum of long rows", (5000, 3), (1, 1))
    yield case("many rows", (33, 900), (33, 1))
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            yield case(f"{spell(type, x, layout)}", x, (12, 3, 4, 1), type, layout)


@generates(GetRowsBack)
def get_rows_back_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, rows that several ids name and rows that none does, more rows of dy than ids; types and layouts."""

    def case(
        label: str, n: int, rows: int, count: int, *, type: Any = F32, layout: Any = "packed", more: int = 0
    ) -> Case:
        def make(leafs: Leafs) -> Any:
            dy = leafs.tensor(type, n, count + more, layout=layout)
            return node(cls, dy, leafs.indices((count,), rows), rows=rows)

        return Case(cls.name, label, make)

    for length in (*LENGTHS, 600):
        yield case(f"rows of {length}", length, 5, 7)
    yield case("one row", 40, 1, 9)
    yield case("many rows", 8, 300, 40)
    yield case("more rows of dy", 33, 6, 4, more=3)
    for type in (F32, F16):
        for layout in LAYOUTS:
            yield case(f"dy {type.name} {layout}", 37, 6, 11, type=type, layout=layout)

    def outside(leafs: Leafs) -> Any:
        return node(cls, leafs.tensor(F32, 32, 5), leafs.array(I32, np.array([1, -1, 4, 2**31 - 1, 0])), rows=4)

    yield Case(cls.name, "ids out of range", outside)


@generates(CrossEntropyLoss, CrossEntropyLossBack)
def cross_entropy_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, layouts, labels that are one class, logits far from zero."""

    def case(
        label: str, ne: tuple[int, ...], layouts: tuple[Any, Any] = ("packed", "packed"), *, sharp: bool = False,
        shift: float = 0.0, spread: float = 1.0,
    ) -> Case:  # fmt: skip
        def one_class(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            return np.eye(shape[-1])[random.integers(0, shape[-1], shape[:-1])]

        def shifted(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            return random.standard_normal(shape) * spread + shift

        def make(leafs: Leafs) -> Any:
            logits = leafs.tensor(F32, *ne, layout=layouts[0], values=shifted)
            labels = leafs.tensor(F32, *ne, layout=layouts[1], values=one_class if sharp else _shares)
            grad = (leafs.tensor(F32, 1, low=0.5, high=2),) if cls is CrossEntropyLossBack else ()
            return node(cls, *grad, logits, labels)

        return Case(cls.name, label, make)

    for length in (*LENGTHS[1:], 5000):
        yield case(f"rows of {length}", (length, 3))
    yield case("one class", (50, 6), sharp=True)
    yield case("logits far from zero", (33, 4), shift=1e3)
    yield case("logits far apart", (33, 4), spread=50.0)
    yield case("many rows", (10, 700))
    for layout in LAYOUTS:
        yield case(f"logits {layout}", (10, 5, 4, 3), (layout, "packed"))
        yield case(f"labels {layout}", (10, 5, 4, 3), ("packed", layout))


@generates(OptStepAdamw, OptStepSgd)
def optimiser_cases(cls: type[Op]) -> Iterator[Case]:
    """Lengths, parameters, layouts of what is written and of gradients, two steps."""
    adam = cls is OptStepAdamw

    def step(leafs: Leafs, w: Any, ne: tuple[int, ...], layouts: tuple[Any, Any], moments: Any = None) -> Any:
        grad = leafs.tensor(F32, *ne, layout=layouts[1])
        if not adam:
            return node(cls, w, grad, leafs.array(F32, np.array([0.1, 0.01])))
        moments = moments or _moments(leafs, ne, layouts[0])
        settings = np.array([1e-2, 0.9, 0.99, 1e-8, 0.01, 1 / (1 - 0.9**3), 1 / (1 - 0.99**3)])
        return node(cls, w, grad, *moments, leafs.array(F32, settings))

    def case(label: str, ne: tuple[int, ...], layouts: tuple[Any, Any] = ("packed", "packed")) -> Case:
        def make(leafs: Leafs) -> Any:
            return step(leafs, leafs.tensor(F32, *ne, layout=layouts[0]), ne, layouts)

        return Case(cls.name, label, make)

    for length in (*LENGTHS, 5000):
        yield case(f"rows of {length}", (length, 2))
    for layout in ROWWISE:
        yield case(f"{spell(F32, (24, 5, 3, 2), layout)}", (24, 5, 3, 2), (layout, "packed"))
        yield case(f"gradient {layout}", (24, 5, 3, 2), ("packed", layout))
        yield case(f"columns {layout}", (1, 5, 3), (layout, layout))

    def two_steps(leafs: Leafs) -> Any:
        ne: tuple[int, ...] = (33, 3)
        moments = _moments(leafs, ne, "packed")
        first = step(leafs, leafs.tensor(F32, *ne), ne, ("packed", "packed"), moments)
        return step(leafs, first, ne, ("packed", "packed"), moments)

    yield Case(cls.name, "two steps", two_steps)


def _moments(leafs: Leafs, ne: tuple[int, ...], layout: Any) -> tuple[Any, Any]:
    return leafs.tensor(F32, *ne, layout=layout), leafs.tensor(F32, *ne, layout=layout, low=0, high=1)

"""An op outside of ggplug: y = cap tanh(gelu(x) / cap), its gradient, and their test cases and tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY

import numpy as np

from ggplug.errors import ParameterError
from ggplug.gradients import Parts, gradient
from ggplug.ops.base import Array, Op, builder, require, require_float
from ggplug.tensor import Spec, Tensor, like
from ggplug.types import F16, F32
from ggplug_testing.cases import LAYOUTS, Case, generates, node
from ggplug_testing.precision import RULES, Rule

SLOPE = math.sqrt(2 / math.pi)


class Capped(Op, abstract=True):
    """Base of both ops; it is no op itself."""

    _: KW_ONLY
    cap: float = 30.0

    def validate(self) -> None:
        if not 0 < self.cap < math.inf:
            raise ParameterError(f"{self.name}: cap must be above 0 and finite, got {self.cap}", got=self.cap)


class SoftCappedGelu(Capped):
    """y = cap tanh(gelu(x) / cap)."""

    name = "example.soft_capped_gelu"

    def result(self, x: Tensor) -> Spec:
        require_float(self, x)
        return like(x)

    def reference(self, x: Array) -> Array:
        gelu = x / 2 * (1 + np.tanh(SLOPE * x * (1 + 0.044715 * x * x)))
        return self.cap * np.tanh(gelu / self.cap)


class SoftCappedGeluBack(Capped):
    """dx = dy (1 - tanh(gelu(x) / cap)**2) gelu'(x)."""

    name = "example.soft_capped_gelu_back"

    def result(self, dy: Tensor, x: Tensor) -> Spec:
        require_float(self, dy, x)
        require(dy.ne == x.ne, self, "dy and x have the same extents", dy, x)
        return like(x)

    def reference(self, dy: Array, x: Array) -> Array:
        t = np.tanh(SLOPE * x * (1 + 0.044715 * x * x))
        slope = (1 + t) / 2 + x / 2 * (1 - t * t) * SLOPE * (1 + 3 * 0.044715 * x * x)
        return dy * (1 - np.tanh(x / 2 * (1 + t) / self.cap) ** 2) * slope


soft_capped_gelu = builder(SoftCappedGelu)
soft_capped_gelu_back = builder(SoftCappedGeluBack)


@gradient(SoftCappedGelu)
def _(node: Tensor, dy: Tensor) -> Parts:
    """The gradient of x, by the other op."""
    (x,), cap = node.src, node.op.cap
    return (lambda: soft_capped_gelu_back(dy, x, cap=cap),)


@generates(SoftCappedGelu, SoftCappedGeluBack)
def cases(cls: type[Op]) -> Iterator[Case]:
    """Every type and layout, with a cap that few numbers reach and with one that most do."""
    for cap in (30.0, 0.5):
        for type in (F32, F16):
            for layout in LAYOUTS:

                def make(leafs, cap=cap, type=type, layout=layout):  # type: ignore[no-untyped-def]
                    return node(cls, *(leafs.tensor(type, 33, 5, layout=layout) for _ in cls.sources), cap=cap)

                yield Case(cls.name, f"{type.name} {layout} cap={cap}", make)


def tolerance(node: Tensor, exact: Array, *sources: Array) -> Array:
    """The tolerance of float32, in units of 2**-24: for tanh, for gelu's polynomial, and for two products."""
    return 32 * np.abs(exact) + 32 * np.abs(sources[-1])


RULES[SoftCappedGelu.name] = Rule("one by one", "32 (abs(y) + abs(x))", "tanh twice, a polynomial", tolerance)
RULES[SoftCappedGeluBack.name] = Rule("one by one", "32 (abs(y) + abs(x))", "tanh twice, two polynomials", tolerance)

"""Sorting within rows."""

from __future__ import annotations

import enum

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import FLOATS, I32


class SortOrder(enum.IntEnum):
    """Which element comes first (GGML_SORT_ORDER_*)."""

    ASC = 0
    DESC = 1


class Argsort(Op):
    """y = for each row the positions of its elements in sorted order: I32 [ne0, ne1, ne2, ne3]  (ggml_argsort).

    ``order``: a :class:`SortOrder`.  NaN comes last in both orders.  Which of two equal elements comes first is up to
    the device.
    """

    order: int = 0

    def validate(self) -> None:
        if self.order not in (0, 1):
            raise ParameterError(f"argsort: order must be 0 (ascending) or 1 (descending), got {self.order}", op=self)

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        return Spec(I32, x.ne, x.rank)

    def reference(self, x: Array) -> Array:
        return np.argsort(-x if self.order else x, axis=-1, kind="stable")

    def cost(self, node: Tensor) -> Cost:
        return Cost(node.size * max(1, node.ne[0].bit_length()), super().cost(node).bytes)


argsort = builder(Argsort)

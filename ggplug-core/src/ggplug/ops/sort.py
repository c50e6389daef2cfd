"""Sorting within rows."""

from __future__ import annotations

import enum

import numpy as np

from ggplug.errors import ParameterError, ShapeError
from ggplug.ops.base import Array, Cost, Op, builder, misfit, require_float
from ggplug.ops.views import view
from ggplug.tensor import Spec, Tensor, describe
from ggplug.types import FLOATS, I32

__all__ = ["Argsort", "SortOrder", "TopK", "argsort", "argsort_top_k", "top_k"]


class SortOrder(enum.IntEnum):
    """Which element comes first (GGML_SORT_ORDER_*)."""

    ASC = 0
    DESC = 1


class Argsort(Op):
    """y = for each row the positions of its elements in sorted order: I32 [ne0, ne1, ne2, ne3]  (ggml_argsort).

    ``order``: a :class:`SortOrder`.  NaN comes last in both orders.  The order of equal elements depends on the device.
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


class TopK(Op):
    """y = for each row the positions of its ``k`` largest elements, in any order: I32 [k, ne1, ne2, ne3]  (ggml_top_k).

    NaN is smaller than every number.  Which of several equal elements are chosen depends on the device.
    """

    k: int

    def validate(self) -> None:
        if self.k < 0:
            raise ParameterError(f"top_k: k must not be negative, got {self.k}", op=self, got=self.k)

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if self.k > x.ne[0]:
            misfit(self, f"rows have fewer than {self.k} elements", x)
        return Spec(I32, (self.k, *x.ne[1:]), x.rank)

    def reference(self, x: Array) -> Array:
        return np.argsort(-x, axis=-1, kind="stable")[..., : self.k]

    def cost(self, node: Tensor) -> Cost:
        x = node.src[0]
        return Cost(0 if x is None else 2 * x.size, super().cost(node).bytes)


argsort = builder(Argsort)
top_k = builder(TopK)


def argsort_top_k(x: Tensor, k: int, *, name: str = "") -> Tensor:
    """For each row the positions of its ``k`` largest elements, the largest first: I32 (ggml_argsort_top_k).

    A view of :class:`Argsort`'s result.  If the order does not matter, :func:`top_k` is faster.
    """
    if not 0 <= k <= x.ne[0]:
        raise ShapeError(f"argsort_top_k: k must be 0 to ne0, got {k} for {describe((x,))}", tensor=x, got=k)
    order = argsort(x, SortOrder.DESC)
    return view(order, k, *order.ne[1 : max(1, x.rank)], nb=order.nb[1:], name=name)

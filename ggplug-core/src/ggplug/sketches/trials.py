"""Parameters to try an op with.

The functions that ops call choose elements, so every device gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.ops.base import Array, Op
from ggplug.ops.custom import Custom4d, MapCustom1, MapCustom2, MapCustom3, callback
from ggplug.ops.generated import Arange
from ggplug.ops.glu import SwigluClamp, SwigluOai
from ggplug.ops.unary import Clamp, Fill, LeakyRelu, Scale, Xielu

_PARAMETERS: dict[str, list[dict[str, Any]]] = {
    Scale.name: [{"s": 2.5}, {"s": -0.5, "bias": 1.25}],
    Clamp.name: [{"min": -0.5, "max": 0.5}, {"min": 0.0, "max": float("inf")}],
    LeakyRelu.name: [{"negative_slope": 0.1}],
    Fill.name: [{"value": 0.75}, {"value": float("-inf")}],
    Arange.name: [{"start": 0.0, "stop": 8.0}],
    Xielu.name: [
        {"alpha_n": 1.3, "alpha_p": 0.8, "beta": 0.5, "eps": -1e-6},
        {"alpha_n": 0.6, "alpha_p": 1.1, "beta": 0.25, "eps": -0.5},
    ],
    SwigluClamp.name: [{"limit": 10.0}, {"limit": 0.5}],
    SwigluOai.name: [{"alpha": 1.702, "limit": 7.0}, {"alpha": 0.5, "limit": 1.0}],
}


def parameters_of(op: type[Op]) -> list[dict[str, Any]]:
    """Parameters to try an op with that the extents of its sources do not decide; at least one set."""
    return _PARAMETERS.get(op.name, [{}])


def negated(dst: Array, a: Array, ith: int, nth: int, userdata: Any) -> None:
    """-a, each part every nth row."""
    dst[:, :, ith::nth] = -a[:, :, ith::nth]


def larger(dst: Array, a: Array, b: Array, ith: int, nth: int, userdata: Any) -> None:
    """The larger one of a and b, each part a piece of ne0."""
    first, end = (dst.shape[3] * part // nth for part in (ith, ith + 1))
    np.maximum(a[..., first:end], b[..., first:end], out=dst[..., first:end])


def chosen(dst: Array, a: Array, b: Array, c: Array, ith: int, nth: int, userdata: Any) -> None:
    """b where a is above the userdata, else c, each part every nth row."""
    rows = np.s_[:, :, ith::nth]
    dst[rows] = np.where(a[rows] > userdata, b[rows], c[rows])


def joined(dst: Array, *rest: Any) -> None:
    """The transposes of the sources next to each other; all by the first part."""
    *sources, ith, _, _ = rest
    at = 0
    for each in sources if ith == 0 else ():
        dst[..., at : at + each.shape[2]] = each.swapaxes(2, 3)
        at += each.shape[2]


FUNCTIONS: dict[type[Op], Callable[..., None]] = {
    MapCustom1: negated,
    MapCustom2: larger,
    MapCustom3: chosen,
    Custom4d: joined,
}
"""The function that an op's cases call."""

_LIMIT = 0.25


def of_python(op: type[Op], *, n_tasks: int = 1, prefilled: bool = False, **more: Any) -> dict[str, Any]:
    """The parameters of an op with its function; equal ones give equal ops."""
    return {"callback": callback(FUNCTIONS[op], _LIMIT), "n_tasks": n_tasks, "prefilled": prefilled, **more}

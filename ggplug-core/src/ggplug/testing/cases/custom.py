"""Cases of ops that call a Python function.  The functions choose elements, so every device gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Array, Op
from ggplug.ops.custom import Custom4d, MapCustom1, MapCustom2, MapCustom3, callback
from ggplug.testing.cases.case import LAYOUTS, Case, Leafs, generates, node, spell
from ggplug.types import F16, F32, F64, I32, Type


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


def beside(dst: Array, *rest: Any) -> None:
    """The transposes of the sources beside each other; all by the first part."""
    *sources, ith, _, _ = rest
    at = 0
    for each in sources if ith == 0 else ():
        dst[..., at : at + each.shape[2]] = each.swapaxes(2, 3)
        at += each.shape[2]


FUNCTIONS: dict[type[Op], Callable[..., None]] = {
    MapCustom1: negated, MapCustom2: larger, MapCustom3: chosen, Custom4d: beside,
}  # fmt: skip
"""The function that an op's cases call."""

_LIMIT = 0.25


def parameters(op: type[Op], *, n_tasks: int = 1, prefilled: bool = False, **more: Any) -> dict[str, Any]:
    """The parameters of an op with its function; equal ones give equal ops."""
    return {"callback": callback(FUNCTIONS[op], _LIMIT), "n_tasks": n_tasks, "prefilled": prefilled, **more}


@generates(MapCustom1, MapCustom2, MapCustom3)
def map_cases(cls: type[Op]) -> Iterator[Case]:
    """Types, layouts, numbers of parts."""

    def case(label: str, type: Type, layout: Any = "packed", **given: Any) -> Case:
        ne = (17, 6, 3) if layout == "elements apart" else (17, 6, 3, 2)

        def make(leafs: Leafs) -> Any:
            sources = [leafs.tensor(type, *ne, layout=layout) for _ in cls.sources]
            return node(cls, *sources, **parameters(cls, **given))

        return Case(cls.name, f"{spell(type, ne, layout)} {label}".strip(), make)

    for type in (F32, F16, F64, I32):
        yield case("", type)
    for layout in (*LAYOUTS[1:], "elements apart"):
        yield case("", F32, layout)
    for n_tasks in (2, 3, 100, -1):
        yield case(f"in {n_tasks} parts", F32, n_tasks=n_tasks)
    yield case("prefilled", F32, prefilled=True)


@generates(Custom4d)
def custom_4d_cases(cls: type[Op]) -> Iterator[Case]:
    """No source, one and nine; other types and extents than the sources'."""

    def case(label: str, count: int, type: Type, n_tasks: int = 1) -> Case:
        def make(leafs: Leafs) -> Any:
            sources = [leafs.tensor(type, 7, 2 + position, 3) for position in range(count)]
            columns = sum(each.ne[1] for each in sources)
            given = parameters(cls, n_tasks=n_tasks, type=type.name, ne=(columns, 7, 3))
            return node(cls, *sources, **given)

        return Case(cls.name, label, make)

    yield case("one source", 1, F32)
    yield case("one source of integers", 1, I32)
    yield case("four sources in 2 parts", 4, F16, 2)
    yield case("nine sources", 9, F32)

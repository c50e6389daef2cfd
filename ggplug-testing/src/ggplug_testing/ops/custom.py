"""Ops that call a Python function.  The functions choose elements, so every device gives the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug import ops
from ggplug.ops.base import Op
from ggplug.sketches import of_python as parameters
from ggplug.types import F16, F32, F64, I32, Type
from ggplug_testing.cases.case import LAYOUTS, Case
from ggplug_testing.cases.making import case, leaf, spell
from ggplug_testing.description import describe
from ggplug_testing.precision.rule import Rule, none


def map_cases(op: type[Op]) -> Iterator[Case]:
    """Types, layouts, numbers of parts."""

    def mapped(label: str, type: Type = F32, layout: Any = "packed", **options: Any) -> Case:
        ne = (17, 6, 3) if layout == "elements apart" else (17, 6, 3, 2)
        sources = [leaf(type, ne, layout) for _ in op.sources]
        return case(op, f"{spell(type, ne, layout)} {label}".strip(), *sources, **parameters(op, **options))

    for type in (F32, F16, F64, I32):
        yield mapped("", type)
    for layout in (*LAYOUTS[1:], "elements apart"):
        yield mapped("", F32, layout)
    for n_tasks in (2, 3, 100, -1):
        yield mapped(f"in {n_tasks} parts", n_tasks=n_tasks)
    yield mapped("prefilled", prefilled=True)


def custom_4d_cases(op: type[Op]) -> Iterator[Case]:
    """No source, one and nine; other types and extents than the sources'."""
    for label, count, type, n_tasks in (
        ("one source", 1, F32, 1),
        ("one source of integers", 1, I32, 1),
        ("four sources in 2 parts", 4, F16, 2),
        ("nine sources", 9, F32, 1),
    ):
        rows = [2 + position for position in range(count)]
        options = parameters(op, n_tasks=n_tasks, type=type.name, ne=(sum(rows), 7, 3))
        yield case(op, label, *(leaf(type, (7, each, 3)) for each in rows), **options)


_CALLED = Rule("Python functions", "0", "nothing: every device calls the same function", none)

describe(ops.MapCustom1, ops.MapCustom2, ops.MapCustom3, cases=[map_cases], rule=_CALLED)
describe(ops.Custom4d, cases=[custom_4d_cases], rule=_CALLED)

"""Cases of ops that call a Python function.  The functions choose elements, so every device gives the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug.ops.base import Op
from ggplug.ops.custom import Custom4d, MapCustom1, MapCustom2, MapCustom3
from ggplug.sketches import of_python as parameters
from ggplug.types import F16, F32, F64, I32, Type
from ggplug_testing.cases.case import LAYOUTS, Case, Leafs, generates, node, spell


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

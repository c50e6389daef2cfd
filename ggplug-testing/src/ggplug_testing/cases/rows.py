"""Cases of ops that pick and write rows by index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.ops.base import Op
from ggplug.ops.rows import AddId, GetRows, SetRows
from ggplug.ops.views import view
from ggplug.types import BF16, F16, F32, I32, I64, KERNEL_FLOATS
from ggplug_testing.cases.case import (
    ENCODED,
    LAYOUTS,
    LENGTHS,
    QUANTIZED,
    ROWWISE,
    Case,
    Leafs,
    generates,
    node,
    spell,
    whole_blocks,
)


@generates(GetRows)
def get_rows_cases(cls: type[Op]) -> Iterator[Case]:
    """Every type; one and many rows; batches; indices that repeat, and that lie in a view."""

    def case(
        label: str, type: Any, a: tuple[int, ...], ids: tuple[int, ...], layouts: Any = ("packed", "packed")
    ) -> Case:
        def make(leafs: Leafs) -> Any:
            rows = leafs.tensor(type, *a, layout=layouts[0])
            return node(cls, rows, leafs.indices(ids, a[1], layout=layouts[1]))

        return Case(cls.name, label, make)

    for length in LENGTHS:
        yield case(f"rows of {length}", F32, (length, 6), (9,))
    for type in (*KERNEL_FLOATS, I32, *QUANTIZED):
        for a, ids in (((96, 1), (1,)), ((96, 11), (40,)), ((64, 5, 3, 2), (4, 3, 2)), ((288, 7, 2), (1, 2))):
            table = whole_blocks(a, type)
            yield case(f"{spell(type, table)} by {spell(I32, ids)}", type, table, ids)
        for layout in ROWWISE[1:]:
            table = whole_blocks((64, 5, 3), type)
            yield case(f"{spell(type, table, layout)}", type, table, (4, 3), (layout, "packed"))
    yield case("elements of a row apart", F32, (9, 5), (7,), ("transposed", "packed"))
    for layout in ROWWISE[1:]:
        yield case(f"ids {layout}", F32, (20, 7, 2), (5, 2), ("packed", layout))


@generates(SetRows)
def set_rows_cases(cls: type[Op]) -> Iterator[Case]:
    """Into every type, from every float; into views of a cache; read again afterwards."""

    def case(
        label: str, dst: Any, rows: Any, nd: tuple[int, ...], count: int, ids: tuple[int, ...] | None = None,
        kind: Any = I64, layouts: Any = ("packed", "packed", "packed"),
    ) -> Case:  # fmt: skip
        nd = whole_blocks(nd, dst)

        def make(leafs: Leafs) -> Any:
            target = leafs.tensor(dst, *nd, layout=layouts[0])
            source = leafs.tensor(rows, nd[0], count, *nd[2:], layout=layouts[1])
            places = leafs.indices(ids or (count,), nd[1], type=kind, distinct=True, layout=layouts[2])
            return node(cls, target, source, places)

        return Case(cls.name, label, make)

    for length in LENGTHS:
        yield case(f"rows of {length}", F32, F32, (length, 6), 3)
    for dst in (*KERNEL_FLOATS, I32, *ENCODED):
        for rows in (F32, F16, BF16):
            for kind in (I64, I32):
                yield case(f"{rows.name} into {dst.name} by {kind.name}", dst, rows, (96, 8), 5, kind=kind)
        yield case(f"batches of {dst.name}", dst, F32, (64, 6, 4, 4), 3, (3, 2, 2))
        yield case(f"ids for each batch of {dst.name}", dst, F32, (64, 6, 2, 2), 3, (3, 2, 2))
        for layout in ("offset", "rows apart", "window", "permuted"):
            yield case(f"{dst.name} {layout}", dst, F32, (64, 6, 3), 2, layouts=(layout, "packed", "packed"))
            yield case(f"rows {layout} into {dst.name}", dst, F32, (64, 6, 3), 2, layouts=("packed", layout, "packed"))
    yield case("ids for all batches", F32, F32, (16, 8, 3, 2), 4)
    yield case("ids in a window", F32, F32, (16, 8), 4, layouts=("packed", "packed", "window"))
    yield case("all rows", F32, F32, (17, 5), 5)
    yield Case(cls.name, "read again through the cache", lambda leafs: _read_again(cls, leafs, F32))
    yield Case(cls.name, "read again through an f16 cache", lambda leafs: _read_again(cls, leafs, F16))
    yield Case(cls.name, "two writes, one after the other", lambda leafs: _write_twice(cls, leafs))


def _read_again(cls: type[Op], leafs: Leafs, type: Any) -> Any:
    cache = leafs.tensor(type, 32, 10)
    written = node(cls, cache, leafs.tensor(F32, 32, 4), leafs.indices((4,), 10, type=I64, distinct=True))
    window = view(written, 32, 6, nb=written.nb[1:], offset=2 * written.nb[1])
    return node(GetRows, window, leafs.indices((9,), 6))


def _write_twice(cls: type[Op], leafs: Leafs) -> Any:
    cache = leafs.tensor(F32, 32, 10)
    first = node(cls, cache, leafs.tensor(F32, 32, 4), leafs.indices((4,), 10, type=I64, distinct=True))
    return node(cls, first, leafs.tensor(F32, 32, 4), leafs.indices((4,), 10, type=I64, distinct=True))


@generates(AddId)
def add_id_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, one and several experts a token, ids in a view, types, layouts, ids out of range."""

    def case(
        label: str, a: tuple[int, ...], experts: int, *, types: Any = (F32, F32), layouts: Any = ("packed",) * 3
    ) -> Case:
        def make(leafs: Leafs) -> Any:
            rows = leafs.tensor(types[0], *a, layout=layouts[0])
            biases = leafs.tensor(types[1], a[0], experts, layout=layouts[1])
            return node(cls, rows, biases, leafs.indices(a[1:], experts, layout=layouts[2]))

        return Case(cls.name, label, make)

    for length in (*LENGTHS, 1500):
        yield case(f"rows of {length}", (length, 2, 3), 5)
    yield case("one expert", (40, 1, 6), 1)
    yield case("many tokens", (16, 4, 300), 8)
    for type in KERNEL_FLOATS:
        yield case(f"{type.name} and f32", (33, 2, 5), 4, types=(type, F32))
        for layout in LAYOUTS:
            layouts = (layout, "packed", "packed")
            yield case(f"a {type.name} {layout}", (33, 2, 5), 4, types=(type, type), layouts=layouts)
    for layout in LAYOUTS[1:3]:
        yield case(f"b {layout}", (33, 2, 5), 4, layouts=("packed", layout, "packed"))
    yield case("b transposed", (33, 2, 5), 4, layouts=("packed", "transposed", "packed"))
    yield case("ids in a window", (33, 2, 5), 4, layouts=("packed", "packed", "window"))

    def outside(leafs: Leafs) -> Any:
        ids = np.array([[0, -1], [4, 1], [2**31 - 1, 3]])
        return node(cls, leafs.tensor(F32, 40, 2, 3), leafs.tensor(F32, 40, 4), leafs.array(I32, ids))

    yield Case(cls.name, "ids out of range", outside)

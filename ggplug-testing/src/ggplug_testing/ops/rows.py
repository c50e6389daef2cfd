"""Ops that pick, write and add rows by index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.views import view
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, I32, I64, KERNEL_FLOATS, Q8_0, Type
from ggplug_testing.cases.case import ENCODED, LAYOUTS, LENGTHS, QUANTIZED, ROWWISE, Case, Leafs, node
from ggplug_testing.cases.making import array, bits, case, indices, leaf, made, spell, whole_blocks
from ggplug_testing.cases.special import FLOAT_WORDS, HALF_WORDS, LONG, WHOLE_ROWS, blocks, ids_of, words
from ggplug_testing.description import CaseOf, describe
from ggplug_testing.drawing import ADDED_UP, ANY, ANYTHING, FEW, MODERATE, NOT_WHOLE, ONCE_ROWS, ROWS, Draw, Drawn
from ggplug_testing.precision.rule import MOVES, SUMMED, Node, of_result, row


def get_rows_cases(op: type[Op]) -> Iterator[Case]:
    """Every type; one and many rows; batches; indices that repeat, and that lie in a view."""

    def picked(label: str, type: Type, a: Any, ids: Any, layouts: Any = ("packed", "packed")) -> Case:
        return case(op, label, leaf(type, a, layouts[0]), indices(ids, a[1], layout=layouts[1]))

    for length in LENGTHS:
        yield picked(f"rows of {length}", F32, (length, 6), (9,))
    for type in (*KERNEL_FLOATS, I32, *QUANTIZED):
        for a, ids in (((96, 1), (1,)), ((96, 11), (40,)), ((64, 5, 3, 2), (4, 3, 2)), ((288, 7, 2), (1, 2))):
            table = whole_blocks(a, type)
            yield picked(f"{spell(type, table)} by {spell(I32, ids)}", type, table, ids)
        for layout in ROWWISE[1:]:
            table = whole_blocks((64, 5, 3), type)
            yield picked(f"{spell(type, table, layout)}", type, table, (4, 3), (layout, "packed"))
    yield picked("elements of a row apart", F32, (9, 5), (7,), ("transposed", "packed"))
    for layout in ROWWISE[1:]:
        yield picked(f"ids {layout}", F32, (20, 7, 2), (5, 2), ("packed", layout))


def _get_rows_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    ids = ids_of(I32, 4)
    for type in (F32, F16, Q8_0, I32):
        yield case(f"ids out of range in {type.name}", made(op, leaf(type, (64, 4)), array(I32, ids)))
    batched = np.resize(ids, (2, len(ids)))
    batched[0] = 3
    yield case("ids out of range in the second batch", made(op, leaf(F32, (LONG, 4, 2)), array(I32, batched)))
    for type, numbers in ((F16, HALF_WORDS), (BF16, FLOAT_WORDS >> 16)):
        sources = bits(type, np.resize(numbers, (2, LONG))), array(I32, np.array([1, 0, 1]))
        yield case(f"bits of {type.name}", made(op, *sources), "bits")


def _draw_get_rows(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("a", (*NOT_WHOLE, I32))
    ne = c.shape(kind)
    ids = c.indices("ids", (I32,), (c.extent("rows"), ne[2], ne[3]), ne[1])
    return Drawn([c.source("a", kind, ne, ANY, ANYTHING), ids])


describe(ops.GetRows, cases=[get_rows_cases], special=[_get_rows_special], draw=_draw_get_rows, rule=MOVES)


def get_rows_back_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, rows that several ids name and rows that none does, more rows of dy than ids; types and layouts."""

    def back(
        label: str, n: int, rows: int, count: int, *, type: Type = F32, layout: Any = "packed", more: int = 0
    ) -> Case:
        return case(op, label, leaf(type, (n, count + more), layout), indices((count,), rows), rows=rows)

    for length in (*LENGTHS, 600):
        yield back(f"rows of {length}", length, 5, 7)
    yield back("one row", 40, 1, 9)
    yield back("many rows", 8, 300, 40)
    yield back("more rows of dy", 33, 6, 4, more=3)
    for type in (F32, F16):
        for layout in LAYOUTS:
            yield back(f"dy {type.name} {layout}", 37, 6, 11, type=type, layout=layout)
    ids = array(I32, np.array([1, -1, 4, 2**31 - 1, 0]))
    yield case(op, "ids out of range", leaf(F32, (32, 5)), ids, rows=4)


def _draw_get_rows_back(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("dy", (F32, F16))
    n, count, more = c.row("n", kind), c.extent("count"), c.pick("more", (0, 1, 5))
    rows = c.extent("rows")
    ids = c.indices("ids", (I32,), (count,), rows)
    return Drawn([c.source("dy", kind, (n, count + more), ANY, MODERATE), ids], {"rows": rows})


def _get_rows_back(node: Node, exact: Array, dy: Array, ids: Array) -> Array:
    size = np.maximum(np.abs(exact), 2 * np.sqrt(node.op.reference(dy * dy, ids)).reshape(exact.shape))
    return np.asarray(SUMMED * max(1, ids.size) ** 0.5 * size)


describe(
    ops.GetRowsBack,
    cases=[get_rows_back_cases],
    draw=_draw_get_rows_back,
    rule=row("S size, as sum_rows, of what is added up", "the sums", _get_rows_back),
)


def set_rows_cases(op: type[Op]) -> Iterator[Case]:
    """Into every type, from every float; into views of a cache; read again afterwards."""

    def written(
        label: str,
        dst: Type,
        rows: Type,
        nd: tuple[int, ...],
        count: int,
        ids: tuple[int, ...] | None = None,
        kind: Type = I64,
        layouts: Any = ("packed", "packed", "packed"),
    ) -> Case:
        nd = whole_blocks(nd, dst)
        source = leaf(rows, (nd[0], count, *nd[2:]), layouts[1])
        places = indices(ids or (count,), nd[1], type=kind, distinct=True, layout=layouts[2])
        return case(op, label, leaf(dst, nd, layouts[0]), source, places)

    for length in LENGTHS:
        yield written(f"rows of {length}", F32, F32, (length, 6), 3)
    for dst in (*KERNEL_FLOATS, I32, *ENCODED):
        for rows in (F32, F16, BF16):
            for kind in (I64, I32):
                yield written(f"{rows.name} into {dst.name} by {kind.name}", dst, rows, (96, 8), 5, kind=kind)
        yield written(f"batches of {dst.name}", dst, F32, (64, 6, 4, 4), 3, (3, 2, 2))
        yield written(f"ids for each batch of {dst.name}", dst, F32, (64, 6, 2, 2), 3, (3, 2, 2))
        for layout in LAYOUTS[1:5]:
            into, source = (layout, "packed", "packed"), ("packed", layout, "packed")
            yield written(f"{dst.name} {layout}", dst, F32, (64, 6, 3), 2, layouts=into)
            yield written(f"rows {layout} into {dst.name}", dst, F32, (64, 6, 3), 2, layouts=source)
    yield written("ids for all batches", F32, F32, (16, 8, 3, 2), 4)
    yield written("ids in a window", F32, F32, (16, 8), 4, layouts=("packed", "packed", "window"))
    yield written("all rows", F32, F32, (17, 5), 5)
    yield Case(op.name, "read again through the cache", lambda leafs: _read_again(op, leafs, F32))
    yield Case(op.name, "read again through an f16 cache", lambda leafs: _read_again(op, leafs, F16))
    yield Case(op.name, "two writes, one after the other", lambda leafs: _four(op, leafs, _four(op, leafs)))


def _four(op: type[Op], leafs: Leafs, cache: Tensor | None = None, type: Type = F32) -> Tensor:
    """Four rows written into a cache of ten."""
    cache = leafs.tensor(type, 32, 10) if cache is None else cache
    return node(op, cache, leafs.tensor(F32, 32, 4), leafs.indices((4,), 10, type=I64, distinct=True))


def _read_again(op: type[Op], leafs: Leafs, type: Type) -> Tensor:
    written = _four(op, leafs, type=type)
    window = view(written, 32, 6, nb=written.nb[1:], offset=2 * written.nb[1])
    return node(ops.GetRows, window, leafs.indices((9,), 6))


def _set_rows_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for kind in (I64, I32):
        ids = ids_of(kind, 5)
        for type in (F32, F16, Q8_0):
            sources = leaf(type, (64, 5)), leaf(F32, (64, len(ids))), array(kind, ids)
            yield case(f"{kind.name} ids out of range into {type.name}", made(op, *sources))
    for type in (F16, BF16, *ENCODED):
        rows = blocks(type) if type.is_quantized else words().view(np.float32)
        count, length = rows.shape
        places = indices((count,), count + 1, type=I64, distinct=True)
        yield case(f"f32 into {type.name}", made(op, leaf(type, (length, count + 1)), array(F32, rows), places), "bits")
    places = indices((3,), 4, type=I64, distinct=True)
    for source in KERNEL_FLOATS:
        yield case(f"{source.name} into i32", made(op, leaf(I32, (LONG, 4)), array(source, WHOLE_ROWS), places))


def _draw_set_rows(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("dst", (*NOT_WHOLE, I32))
    rows = c.type("rows", KERNEL_FLOATS)
    ne = c.shape(kind, rows)
    count = min(c.extent("rows"), ne[1])
    i1 = ne[2] if c.pick("ids.each2", (True, False)) else 1
    i2 = ne[3] if c.pick("ids.each3", (True, False)) else 1
    if not i1 or not i2:
        c.promised = False
    return Drawn(
        [
            c.source("dst", kind, ne, ONCE_ROWS, ANYTHING),
            c.source("rows", rows, (ne[0], count, ne[2], ne[3]), ROWS, ANYTHING),
            c.indices("ids", (I64, I32), (count, i1, i2), ne[1], distinct=True),
        ]
    )


describe(ops.SetRows, cases=[set_rows_cases], special=[_set_rows_special], draw=_draw_set_rows, rule=MOVES)


def add_id_cases(op: type[Op]) -> Iterator[Case]:
    """Row lengths, one and several experts a token, ids in a view, types, layouts, ids out of range."""

    def added(
        label: str, a: tuple[int, ...], experts: int, *, types: Any = (F32, F32), layouts: Any = ("packed",) * 3
    ) -> Case:
        biases = leaf(types[1], (a[0], experts), layouts[1])
        return case(op, label, leaf(types[0], a, layouts[0]), biases, indices(a[1:], experts, layout=layouts[2]))

    for length in (*LENGTHS, 1500):
        yield added(f"rows of {length}", (length, 2, 3), 5)
    yield added("one expert", (40, 1, 6), 1)
    yield added("many tokens", (16, 4, 300), 8)
    for type in KERNEL_FLOATS:
        yield added(f"{type.name} and f32", (33, 2, 5), 4, types=(type, F32))
        for layout in LAYOUTS:
            layouts = (layout, "packed", "packed")
            yield added(f"a {type.name} {layout}", (33, 2, 5), 4, types=(type, type), layouts=layouts)
    for layout in (*LAYOUTS[1:3], "transposed"):
        yield added(f"b {layout}", (33, 2, 5), 4, layouts=("packed", layout, "packed"))
    yield added("ids in a window", (33, 2, 5), 4, layouts=("packed", "packed", "window"))
    ids = array(I32, np.array([[0, -1], [4, 1], [2**31 - 1, 3]]))
    yield case(op, "ids out of range", leaf(F32, (40, 2, 3)), leaf(F32, (40, 4)), ids)


def _draw_add_id(c: Draw, op: type[Op]) -> Drawn:
    a, b = c.type("a", KERNEL_FLOATS), c.type("b", KERNEL_FLOATS)
    n, used, tokens = c.row("n", a, b), c.extent("used"), c.extent("tokens", FEW)
    experts = c.extent("experts", FEW)
    rows, biases = c.source("a", a, (n, used, tokens), ANY, ADDED_UP), c.source("b", b, (n, experts), ANY, ADDED_UP)
    return Drawn([rows, biases, c.indices("ids", (I32,), (used, tokens), experts)])


describe(ops.AddId, cases=[add_id_cases], draw=_draw_add_id, rule=of_result(1, "the sum"))

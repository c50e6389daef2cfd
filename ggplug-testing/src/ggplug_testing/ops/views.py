"""View ops: what they show, of leafs and of results, one after the other, under ops that read and write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from ggplug import ops
from ggplug.ops.base import Op
from ggplug.ops.unary import relu
from ggplug.ops.views import permute, reshape, transpose, view
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import QUANTIZED, Case, Leafs
from ggplug_testing.cases.making import Make, in_blocks, leaf, made, spell, whole_blocks
from ggplug_testing.description import describe
from ggplug_testing.drawing import ANY, ANYTHING, CONTIGUOUS, EVERY, Draw, Drawn, of_one
from ggplug_testing.ops.copies import regrouped


def _shown(op: type[Op], label: str, make: Make) -> Case:
    """A view, made contiguous so that it has bytes of its own to compare."""
    return Case(op.name, label, made(ops.Cont, make))


def reshape_cases(op: type[Op]) -> Iterator[Case]:
    """Leafs reshaped to fewer and to more dimensions, and with an inferred extent; a reshaped result of an op."""

    def shaped(label: str, type: Type, x: tuple[int, ...], *ne: int) -> Case:
        return _shown(op, label, lambda leafs: reshape(leafs.tensor(type, *x), *ne))

    for type in (*KERNEL_FLOATS, I32):
        yield shaped(f"{type.name} flat", type, (6, 5, 4), 120)
        yield shaped(f"{type.name} deep", type, (120,), 5, 4, 3, 2)
    for type in QUANTIZED:
        n = in_blocks(64, type)
        yield shaped(f"{type.name} rows", type, (n, 6), n, 2, 3)
    yield shaped("inferred", F32, (12, 5), 4, -1)
    yield _shown(op, "of a result", lambda leafs: reshape(relu(leafs.tensor(F32, 12, 5)), 4, 15))
    computed = made(ops.Relu, leaf(F32, (8, 6)))
    added = made(ops.Add, lambda leafs: reshape(computed(leafs), 6, 8), leaf(F32, (6, 8)))
    yield Case(op.name, "added to its source", added)


def _draw_reshape(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    return Drawn([c.source("x", kind, ne, CONTIGUOUS, ANYTHING)], {"ne": regrouped(c, ne, kind)})


describe(ops.Reshape, cases=[reshape_cases], draw=_draw_reshape)


def view_cases(op: type[Op]) -> Iterator[Case]:
    """One to four dimensions, offsets, strides that leave out rows or take them twice, views of views."""

    def window(leafs: Leafs, type: Type) -> Tensor:
        unit = in_blocks(32, type)
        x = leafs.tensor(type, 4 * unit, 6, 3)
        start = x.nb[1] + unit // type.block_size * type.block_bytes
        return view(x, 2 * unit, 3, 2, nb=(2 * x.nb[1], x.nb[2]), offset=start)

    def of_row(leafs: Leafs, type: Type) -> Tensor:
        return view(leafs.tensor(type, 40), 17, offset=5 * type.block_bytes)

    for type in (*KERNEL_FLOATS, I32, *QUANTIZED):
        yield _shown(op, f"{type.name} window, every other row", lambda leafs, t=type: window(leafs, t))  # type: ignore[misc]
        if not type.is_quantized:
            yield _shown(op, f"{type.name} flat", lambda leafs, t=type: of_row(leafs, t))  # type: ignore[misc]
    yield _shown(op, "rows that overlap", lambda leafs: view(leafs.tensor(F32, 40), 8, 5, nb=(4 * 4,)))
    yield _shown(op, "a row again and again", lambda leafs: view(leafs.tensor(F32, 40), 8, 5, nb=(0,), offset=16))
    yield _shown(op, "view of a view", _view_of_view)
    yield _shown(op, "of a result", lambda leafs: view(relu(leafs.tensor(F32, 40)), 8, 3, nb=(32,), offset=16))


def _view_of_view(leafs: Leafs) -> Tensor:
    x = leafs.tensor(F32, 20, 6, 4)
    outer = view(x, 10, 4, 3, nb=x.nb[1:], offset=x.nb[1])
    return view(outer, 5, 2, 2, nb=outer.nb[1:], offset=outer.nb[1] + 8)


def _draw_view(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    x = c.source("x", kind, ne, CONTIGUOUS, ANYTHING)
    inner = tuple(max(0, n - c.pick(f"less{i}", (0, 1)) * (kind.block_size if i == 0 else 1)) for i, n in enumerate(ne))
    row = kind.row_bytes(ne[0])
    nb = (row, row * ne[1], row * ne[1] * ne[2])
    start = sum((n - m) * s for n, m, s in zip(ne[1:], inner[1:], nb, strict=True))
    beyond = c.pick("beyond", (0, 1, 1000, 1 << 40), (12, 1, 1, 1))
    if beyond or 0 in inner:
        c.promised = False
    return Drawn([x], {"ne": inner, "nb": nb, "offset": (0 if 0 in inner else start) + beyond})


describe(ops.View, cases=[view_cases], draw=_draw_view)


def permute_cases(op: type[Op]) -> Iterator[Case]:
    """All orders of four dimensions, of a leaf and of a result."""

    def permuted(label: str, type: Type, ne: tuple[int, ...], *axes: int) -> Case:
        return _shown(op, label, lambda leafs: permute(leafs.tensor(type, *ne), *axes))

    for axes in permutations(range(4)):
        yield permuted(f"{axes}", F32, (7, 5, 3, 2), *axes)
    for type in QUANTIZED:
        ne = whole_blocks((64, 3, 2), type)
        yield permuted(spell(type, ne), type, ne, 0, 2, 1, 3)
    yield _shown(op, "of a result", lambda leafs: permute(relu(leafs.tensor(F32, 7, 5, 3)), 2, 0, 1, 3))


def _draw_permute(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    axes = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1))
    moved = ((1, 0, 2, 3), (2, 1, 0, 3), (3, 1, 2, 0), (1, 2, 3, 0))
    x = c.source("x", kind, c.shape(kind), ANY, ANYTHING)
    return Drawn([x], {"axes": c.pick("axes", axes if kind.block_size > 1 else (*axes, *moved))})


describe(ops.Permute, cases=[permute_cases], draw=_draw_permute)


def transpose_cases(op: type[Op]) -> Iterator[Case]:
    """Matrices, batches, twice, of a result."""
    for type in (*KERNEL_FLOATS, I32):
        yield _shown(op, type.name, lambda leafs, t=type: transpose(leafs.tensor(t, 19, 6, 2)))  # type: ignore[misc]
    yield _shown(op, "twice", lambda leafs: transpose(transpose(leafs.tensor(F32, 9, 4))))
    yield _shown(op, "of a result", lambda leafs: transpose(relu(leafs.tensor(F32, 9, 4))))


_PLAIN = tuple(type for type in EVERY if type.block_size == 1)
describe(ops.Transpose, cases=[transpose_cases], draw=of_one(_PLAIN, ANY, ANYTHING))

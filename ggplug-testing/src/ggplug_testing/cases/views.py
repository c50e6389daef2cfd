"""Cases of view ops: what they show, of leafs and of results, one after the other, under ops that read and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug.ops.base import Op
from ggplug.ops.copy import Cont
from ggplug.ops.elementwise import Add
from ggplug.ops.unary import Relu
from ggplug.ops.views import Permute, Reshape, Transpose, View, permute, reshape, transpose, view
from ggplug.types import F32, I32, KERNEL_FLOATS
from ggplug_testing.cases.case import QUANTIZED, Case, Leafs, generates, in_blocks, node, spell, whole_blocks


def _shown(cls: type[Op], label: str, make: Any) -> Case:
    """A view, made contiguous so that it has bytes of its own to compare."""
    return Case(cls.name, label, lambda leafs: node(Cont, make(leafs)))


@generates(Reshape)
def reshape_cases(cls: type[Op]) -> Iterator[Case]:
    """Fewer and more dimensions, an extent that is inferred, of a leaf and of a result."""
    for type in (*KERNEL_FLOATS, I32):
        yield _shown(cls, f"{type.name} flat", lambda leafs, t=type: reshape(leafs.tensor(t, 6, 5, 4), 120))
        yield _shown(cls, f"{type.name} deep", lambda leafs, t=type: reshape(leafs.tensor(t, 120), 5, 4, 3, 2))
    for type in QUANTIZED:
        n = in_blocks(64, type)
        yield _shown(cls, f"{type.name} rows", lambda leafs, t=type, n=n: reshape(leafs.tensor(t, n, 6), n, 2, 3))
    yield _shown(cls, "inferred", lambda leafs: reshape(leafs.tensor(F32, 12, 5), 4, -1))
    yield _shown(cls, "of a result", lambda leafs: reshape(node(Relu, leafs.tensor(F32, 12, 5)), 4, 15))
    yield Case(cls.name, "added to its source", _added_to_source)


def _added_to_source(leafs: Leafs) -> Any:
    x = node(Relu, leafs.tensor(F32, 8, 6))
    return node(Add, reshape(x, 6, 8), leafs.tensor(F32, 6, 8))


@generates(View)
def view_cases(cls: type[Op]) -> Iterator[Case]:
    """One to four dimensions, offsets, strides that leave out rows or take them twice, views of views."""
    for type in (*KERNEL_FLOATS, I32, *QUANTIZED):
        size = type.block_bytes

        def window(leafs: Leafs, t: Any = type) -> Any:
            unit = in_blocks(32, t)
            x = leafs.tensor(t, 4 * unit, 6, 3)
            start = x.nb[1] + unit // t.block_size * t.block_bytes
            return view(x, 2 * unit, 3, 2, nb=(2 * x.nb[1], x.nb[2]), offset=start)

        yield _shown(cls, f"{type.name} window, every other row", window)
        if not type.is_quantized:
            yield _shown(
                cls, f"{type.name} flat", lambda leafs, t=type, s=size: view(leafs.tensor(t, 40), 17, offset=5 * s)
            )
    yield _shown(cls, "rows that overlap", lambda leafs: view(leafs.tensor(F32, 40), 8, 5, nb=(4 * 4,)))
    yield _shown(cls, "a row again and again", lambda leafs: view(leafs.tensor(F32, 40), 8, 5, nb=(0,), offset=16))
    yield _shown(cls, "view of a view", _view_of_view)
    yield _shown(cls, "of a result", lambda leafs: view(node(Relu, leafs.tensor(F32, 40)), 8, 3, nb=(32,), offset=16))


def _view_of_view(leafs: Leafs) -> Any:
    x = leafs.tensor(F32, 20, 6, 4)
    outer = view(x, 10, 4, 3, nb=x.nb[1:], offset=x.nb[1])
    return view(outer, 5, 2, 2, nb=outer.nb[1:], offset=outer.nb[1] + 8)


@generates(Permute)
def permute_cases(cls: type[Op]) -> Iterator[Case]:
    """All orders of four dimensions, of a leaf and of a result."""
    for axes in _orders():
        yield _shown(cls, f"{axes}", lambda leafs, a=axes: permute(leafs.tensor(F32, 7, 5, 3, 2), *a))
    for type in QUANTIZED:
        ne = whole_blocks((64, 3, 2), type)
        yield _shown(cls, spell(type, ne), lambda leafs, t=type, ne=ne: permute(leafs.tensor(t, *ne), 0, 2, 1, 3))
    yield _shown(cls, "of a result", lambda leafs: permute(node(Relu, leafs.tensor(F32, 7, 5, 3)), 2, 0, 1, 3))


def _orders() -> Iterator[tuple[int, int, int, int]]:
    for i in range(4):
        for j in range(4):
            for k in range(4):
                if len({i, j, k}) == 3:
                    yield i, j, k, 6 - i - j - k


@generates(Transpose)
def transpose_cases(cls: type[Op]) -> Iterator[Case]:
    """Matrices, batches, twice, of a result."""
    for type in (*KERNEL_FLOATS, I32):
        yield _shown(cls, type.name, lambda leafs, t=type: transpose(leafs.tensor(t, 19, 6, 2)))
    yield _shown(cls, "twice", lambda leafs: transpose(transpose(leafs.tensor(F32, 9, 4))))
    yield _shown(cls, "of a result", lambda leafs: transpose(node(Relu, leafs.tensor(F32, 9, 4))))

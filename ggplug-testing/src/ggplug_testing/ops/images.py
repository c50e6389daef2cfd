"""What slides over images: convolutions, pooling, windows side by side; and images in other sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.interpolation import ScaleMode
from ggplug.ops.pooling import PoolKind
from ggplug.ops.views import permute, transpose
from ggplug.types import F32, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import LAYOUTS, ROWWISE, Case, Layout, Leafs, node
from ggplug_testing.cases.making import case, leaf, named, spell
from ggplug_testing.description import describe
from ggplug_testing.precision.rule import EXACT, MOVES, SUMMED, Node, element, of_magnitudes, row
from ggplug_testing.precision.sums import roundings

_SLIDES: tuple[dict[str, Any], ...] = (
    {},
    {"s0": 2, "p0": 1},
    {"s1": 3, "p0": 3, "p1": 2, "d0": 2},
    {"s0": 3, "s1": 2, "p0": 4, "d1": 3, "p1": 3},
)
"""Strides, paddings and dilations along two axes; some windows lie beyond the image as a whole."""

_SLIDES_1D: tuple[dict[str, Any], ...] = ({}, {"s0": 3, "p0": 2, "d0": 2})

_SLIDES_3D: tuple[dict[str, Any], ...] = (
    {},
    {"s0": 2, "p1": 2, "d2": 2},
    {"s2": 3, "p2": 2, "d0": 2, "s1": 2},
)


def _two(
    op: type[Op],
    kernel: tuple[int, ...],
    x: tuple[int, ...],
    types: tuple[Type, Type] = (F32, F32),
    layouts: tuple[Layout, Layout] = ("packed", "packed"),
    **parameters: Any,
) -> Case:
    label = f"{spell(types[0], kernel, layouts[0])} by {spell(types[1], x, layouts[1])} {named(parameters) or 'close'}"
    return case(op, label, leaf(types[0], kernel, layouts[0]), leaf(types[1], x, layouts[1]), **parameters)


# -- convolutions and what they are made of --------------------------------------------------------


def _convolved(node: Node, exact: Array, first: Array, second: Array) -> Array:
    terms = np.asarray(node.op.reference(first * first, second * second))
    count = np.asarray(node.op.reference(np.ones_like(first), np.ones_like(second)))
    return roundings(count, exact, terms, products=True)


CONVOLVED = row("6 sqrt((K + 1) / 3) size, as products without r", "the sums of K products", _convolved)
"""The rule of sums of products of two sources."""


def _gathered(node: Node, exact: Array, x: Array, *others: Array) -> Array:
    """Of ops that are sums of elements of x, or of equal parts of them."""
    count = np.asarray(node.op.reference(np.ones_like(x), *others))
    return np.asarray((6 + SUMMED * np.sqrt(count)) * np.asarray(node.op.reference(np.abs(x), *others)))


_GATHERED = element("(6 + 3.46 sqrt(K)) sum(abs(x))", "the sum of what K windows have for an element", _gathered)


def planar_cases(op: type[Op]) -> Iterator[Case]:
    """Kernels from one element up, several images, every way to slide, types and layouts."""
    images = (F32,) if op is ops.Conv2dDirect else KERNEL_FLOATS
    for kernel, x in (
        ((1, 1, 3, 5), (9, 7, 3, 2)),
        ((3, 3, 4, 6), (19, 11, 4, 2)),
        ((5, 2, 1, 1), (33, 5, 1, 1)),
        ((2, 3, 17, 33), (18, 9, 17)),
        ((4, 1, 2, 3), (70, 1, 2, 3)),
    ):
        yield _two(op, kernel, x)
        yield _two(op, kernel, x, s0=2, s1=2, p0=2, p1=1)
    for slide in _SLIDES[1:]:
        yield _two(op, (3, 3, 2, 5), (20, 17, 2, 2), **slide)
    for type in KERNEL_FLOATS:
        for image in images:
            yield _two(op, (3, 2, 3, 4), (13, 8, 3, 2), (type, image), p0=1)
    for layout in LAYOUTS[1:]:
        yield _two(op, (3, 3, 4, 5), (9, 8, 4, 2), layouts=("packed", layout), p1=1)
        if op is ops.Conv2dDirect:
            yield _two(op, (3, 2, 4, 5), (9, 8, 4, 2), (KERNEL_FLOATS[1], F32), (layout, "packed"))
    if op is ops.Conv2dDirect:
        yield _two(op, (3, 3, 40, 24), (24, 24, 40), p0=1, p1=1)
        yield _two(op, (3, 3, 130, 9), (12, 9, 130))
        return
    for type in KERNEL_FLOATS:
        yield _two(op, (3, 2, 3, 4), (13, 8, 3, 2), type=type.name, d0=2)
        for slide in _SLIDES_1D:
            yield _two(op, (3, 4, 5), (21, 4, 3), is_2d=False, type=type.name, **slide)
    yield _two(op, (3, 4, 5), (21, 4, 3), layouts=("packed", "window"), is_2d=False)
    yield _two(op, (5, 5, 60), (11, 10, 60), p0=2)


describe(ops.Conv2dDirect, cases=[planar_cases], rule=CONVOLVED)
describe(ops.Im2col, cases=[planar_cases], rule=EXACT)


def im2col_back_cases(op: type[Op]) -> Iterator[Case]:
    """The gradients of windows that overlap, touch, and leave elements out."""
    for slide in (*_SLIDES, {"s0": 4, "s1": 3}):
        like = node(ops.Im2col, Leafs(0).tensor(F32, 3, 2, 2, 1), Leafs(0).tensor(F32, 20, 17, 2, 3), **slide)
        yield _two(op, like.ne, (3, 2, 2, 1), ne=(20, 17, 2, 3), **slide)
    for slide in _SLIDES_1D:
        like = node(ops.Im2col, Leafs(0).tensor(F32, 4, 3, 1), Leafs(0).tensor(F32, 33, 3, 2), is_2d=False, **slide)
        yield _two(op, like.ne[:3], (4, 3, 1), is_2d=False, ne=(33, 3, 2), **slide)
    for layout in LAYOUTS[1:]:
        yield _two(op, (12, 6, 6, 2), (3, 2, 2, 1), layouts=(layout, "packed"), ne=(8, 7, 2, 2))


describe(ops.Im2colBack, cases=[im2col_back_cases], rule=_GATHERED)


def im2col_3d_cases(op: type[Op]) -> Iterator[Case]:
    """Volumes, several images, all ways to slide, types and layouts."""
    for slide in _SLIDES_3D:
        yield _two(op, (3, 2, 2, 6), (9, 8, 7, 4), channels=2, **slide)
    for type in KERNEL_FLOATS:
        yield _two(op, (2, 2, 2, 3), (6, 5, 4, 3), (F32, type), channels=3, type=type.name)
    for layout in LAYOUTS[1:]:
        yield _two(op, (2, 3, 1, 2), (7, 6, 5, 2), layouts=("packed", layout), channels=1, p0=1)
    yield _two(op, (2, 2, 2, 2), (6, 5, 4, 3), channels=2)


describe(ops.Im2col3d, cases=[im2col_3d_cases], rule=EXACT)


def conv_3d_cases(op: type[Op]) -> Iterator[Case]:
    """The same with kernels."""
    counts: dict[str, Any] = {"channels": 2, "images": 3, "out_channels": 5}
    for slide in _SLIDES_3D:
        yield _two(op, (3, 2, 2, 10), (9, 8, 7, 6), **counts, **slide)
    for type in KERNEL_FLOATS[1:]:
        yield _two(op, (3, 3, 3, 10), (9, 8, 7, 6), (type, F32), **counts, p0=1, p1=1, p2=1)
    for layout in LAYOUTS[1:]:
        yield _two(op, (2, 3, 1, 10), (7, 6, 5, 6), layouts=("packed", layout), **counts)
        yield _two(op, (2, 3, 1, 10), (7, 6, 5, 6), layouts=(layout, "packed"), **counts)


describe(ops.Conv3dDirect, cases=[conv_3d_cases], rule=CONVOLVED)


def conv_2d_dw_cases(op: type[Op]) -> Iterator[Case]:
    """Channels apart and side by side."""
    for slide in _SLIDES:
        yield _two(op, (3, 3, 1, 5), (20, 17, 5, 2), **slide)
    for type in KERNEL_FLOATS:
        yield _two(op, (5, 2, 1, 3), (37, 9, 3), (type, F32), p0=2)
    for layout in LAYOUTS[1:]:
        yield _two(op, (3, 2, 1, 4), (9, 8, 4, 2), layouts=("packed", layout), p0=1)
        yield _two(op, (3, 2, 1, 4), (9, 8, 4, 2), layouts=(layout, "packed"), p0=1)
    for slide in _SLIDES[:2]:

        def side_by_side(leafs: Leafs, slide: dict[str, int] = slide) -> Any:
            x = permute(leafs.tensor(F32, 5, 18, 9, 2), 2, 0, 1, 3)
            return node(op, leafs.tensor(F32, 3, 2, 1, 5), x, **slide)

        yield Case(op.name, f"channels side by side {named(slide) or 'close'}", side_by_side)


describe(ops.Conv2dDwDirect, cases=[conv_2d_dw_cases], rule=CONVOLVED)


def conv_transpose_1d_cases(op: type[Op]) -> Iterator[Case]:
    """Kernels shorter and longer than the stride, and longer than the row."""
    for kernel, x in (((1, 3, 2), (5, 2)), ((3, 9, 7), (13, 7)), ((70, 2, 1), (13, 1)), ((8, 4, 33), (20, 33))):
        for s0 in (1, 2, 3, 8):
            yield _two(op, kernel, x, s0=s0)
    for type in KERNEL_FLOATS[1:]:
        yield _two(op, (5, 4, 3), (9, 3), (type, F32), s0=2)
    for layout in LAYOUTS[1:]:
        yield _two(op, (5, 4, 3), (9, 3), layouts=(layout, layout), s0=2)


describe(ops.ConvTranspose1d, cases=[conv_transpose_1d_cases], rule=CONVOLVED)


def conv_transpose_2d_cases(op: type[Op]) -> Iterator[Case]:
    """The same in two dimensions."""
    for stride in (1, 2, 3, 5):
        yield _two(op, (3, 2, 4, 3), (9, 8, 3, 2), stride=stride)
        yield _two(op, (4, 4, 17, 6), (7, 5, 6), stride=stride)
    for type in KERNEL_FLOATS[1:]:
        yield _two(op, (3, 3, 2, 3), (9, 8, 3, 2), (type, F32), stride=2)
    for layout in LAYOUTS[1:]:
        yield _two(op, (3, 2, 4, 3), (5, 6, 3, 2), layouts=(layout, layout), stride=2)


describe(ops.ConvTranspose2d, cases=[conv_transpose_2d_cases], rule=CONVOLVED)


def col2im_1d_cases(op: type[Op]) -> Iterator[Case]:
    """Windows that overlap, touch, and leave gaps."""
    for type in KERNEL_FLOATS:
        for taps, channels, length, s0, p0 in (
            (1, 5, 13, 1, 0),
            (1, 5, 13, 3, 0),
            (8, 4, 13, 4, 2),
            (5, 3, 40, 2, 1),
            (8, 2, 3, 2, 5),
            (3, 1, 1, 2, 0),
        ):
            ne = taps * channels, length
            label = f"{spell(type, ne)} channels={channels} s0={s0} p0={p0}"
            yield case(op, label, leaf(type, ne), s0=s0, channels=channels, p0=p0)
        yield case(op, f"{spell(type, (15, 9), 'offset')}", leaf(type, (15, 9), "offset"), s0=2, channels=3)


describe(ops.Col2im1d, cases=[col2im_1d_cases], rule=_GATHERED, large=False)


# -- pools -----------------------------------------------------------------------------------------

_POOLS: tuple[dict[str, Any], ...] = (
    {"k0": 1, "k1": 1},
    {"k0": 3, "k1": 2},
    {"k0": 2, "k1": 3, "s0": 2, "s1": 3},
    {"k0": 3, "k1": 3, "p0": 2, "p1": 1},
    {"k0": 1, "k1": 2, "s0": 3, "p1": 1},
    {"k0": 2, "k1": 2, "s0": 2, "s1": 2, "p0": 0.5, "p1": 1.5},
)


def _pooled(node: Node, exact: Array, x: Array) -> Array:
    if node.op.kind == PoolKind.MAX:
        return np.zeros_like(exact)
    return (6 + SUMMED * math.sqrt(node.op.k0 * getattr(node.op, "k1", 1))) * np.asarray(node.op.reference(np.abs(x)))


_POOLED = element("0 of a maximum; (6 + 3.46 sqrt(k0 k1)) mean(abs(x))", "sums of the window, the quotient", _pooled)


def pool_1d_cases(op: type[Op]) -> Iterator[Case]:
    """Means and maxima, types, layouts."""
    for kind in PoolKind:
        for k0, s0, p0 in ((1, 1, 0), (3, 2, 2), (2, 3, 1), (4, 1, 3), (3, 3, 5)):
            for ne in ((11, 1, 3, 2), (130, 2)):
                label = f"{kind.name} k0={k0} s0={s0} p0={p0} {spell(F32, ne)}"
                yield case(op, label, leaf(F32, ne), kind=int(kind), k0=k0, s0=s0, p0=p0)
        for type in KERNEL_FLOATS:
            for layout in LAYOUTS:
                label = f"{kind.name} {spell(type, (20, 3, 4, 2), layout)}"
                yield case(op, label, leaf(type, (20, 3, 4, 2), layout), kind=int(kind), k0=3, s0=2, p0=1)


describe(ops.Pool1d, cases=[pool_1d_cases], rule=_POOLED)


def pool_2d_cases(op: type[Op]) -> Iterator[Case]:
    """The same in two dimensions; half paddings."""
    for kind in PoolKind:
        for parameters in _POOLS:
            label = f"{kind.name} {named(parameters)}"
            yield case(op, label, leaf(F32, (19, 11, 3, 2)), kind=int(kind), **parameters)
        for type in KERNEL_FLOATS:
            for layout in LAYOUTS:
                ne = (12, 9, 4, 2)
                label = f"{kind.name} {spell(type, ne, layout)}"
                yield case(op, label, leaf(type, ne, layout), kind=int(kind), k0=3, k1=2, s0=2, p0=1)


describe(ops.Pool2d, cases=[pool_2d_cases], rule=_POOLED)


def pool_2d_back_cases(op: type[Op]) -> Iterator[Case]:
    """Gradients of each; equal elements, of which the first counts."""

    def make(leafs: Leafs, type: Type, layout: Layout, parameters: dict[str, Any]) -> Any:
        few = (lambda random, shape: random.integers(0, 3, shape)) if parameters["k0"] == 3 else None
        x = leafs.tensor(type, 19, 11, 3, 2, layout=layout, values=few)
        grad = leafs.tensor(F32, *node(ops.Pool2d, x, **parameters).ne)
        return node(op, grad, x, **parameters)

    for kind in PoolKind:
        for slide in _POOLS:
            given = {"kind": int(kind), **slide}
            label = f"{kind.name} {named(slide)}"
            yield Case(op.name, label, functools.partial(make, type=F32, layout="packed", parameters=given))
        for type in KERNEL_FLOATS:
            for layout in LAYOUTS[1:]:
                given = {"kind": int(kind), "k0": 3, "k1": 2, "s0": 2, "p0": 1}
                label = f"{kind.name} {spell(type, (19, 11, 3, 2), layout)}"
                yield Case(op.name, label, functools.partial(make, type=type, layout=layout, parameters=given))


def _pooled_back(node: Node, exact: Array, grad: Array, x: Array) -> Array:
    return (6 + SUMMED * math.sqrt(node.op.k0 * node.op.k1)) * np.asarray(node.op.reference(np.abs(grad), x))


describe(
    ops.Pool2dBack,
    cases=[pool_2d_back_cases],
    rule=element("(6 + 3.46 sqrt(k0 k1)) sum(abs(grad))", "the quotient, the sums of windows", _pooled_back),
)


# -- images in other sizes, and in windows ---------------------------------------------------------


def interpolate_cases(op: type[Op]) -> Iterator[Case]:
    """Every mode and flag; larger, smaller, equal, single pixels."""
    corners, antialias = ScaleMode.ALIGN_CORNERS, ScaleMode.ANTIALIAS
    methods = ScaleMode.NEAREST, ScaleMode.BILINEAR, ScaleMode.BICUBIC
    modes = [*methods, *(m | corners for m in methods), methods[1] | antialias, methods[1] | antialias | corners]
    for mode in modes:
        for x, ne in (
            ((5, 7, 3, 2), (11, 9, 3, 2)),
            ((20, 17, 2), (7, 5, 2)),
            ((1, 1, 2), (4, 3, 2)),
            ((9, 8, 2), (9, 8, 2)),
            ((33, 3), (1, 40)),
            ((4, 3, 2, 3), (8, 6, 5, 7)),
        ):
            label = f"mode {int(mode)}: {spell(F32, x)} to {'x'.join(map(str, ne))}"
            yield case(op, label, leaf(F32, x), ne=ne, mode=int(mode))
    for mode in modes[:2]:
        for layout in LAYOUTS[1:]:
            label = f"mode {int(mode)} {layout}"
            yield case(op, label, leaf(F32, (9, 8, 4, 2), layout), ne=(5, 19, 4, 2), mode=int(mode))


def _interpolated(node: Node, exact: Array, x: Array) -> Array:
    if node.op.mode & 255 == ScaleMode.NEAREST:
        return np.zeros_like(exact)
    return np.full_like(exact, (32 + 8 * max(*node.op.ne, *x.shape)) * np.abs(x).max(initial=0))


describe(
    ops.Interpolate,
    cases=[interpolate_cases],
    rule=element(
        "(32 + 8 n) max(abs(x)), n the largest extent; 0 of NEAREST",
        "where a new pixel lies, of up to n; weights, products, sums",
        _interpolated,
    ),
)


def win_part_cases(op: type[Op]) -> Iterator[Case]:
    """Windows that fill the image, and that reach beyond it."""
    for ne, w in (((16, 8, 6), 2), ((7, 5, 9), 4), ((33, 3, 2), 7), ((1, 14, 14), 3)):
        for layout in LAYOUTS if w == 4 else LAYOUTS[:1]:
            yield case(op, f"{spell(F32, ne, layout)} w={w}", leaf(F32, ne, layout), w=w)


describe(ops.WinPart, cases=[win_part_cases], rule=EXACT)


def win_unpart_cases(op: type[Op]) -> Iterator[Case]:
    """From windows back to the image: windows that fill the image, and that reach beyond it."""
    for n, w0, h0, w in ((16, 8, 6, 2), (7, 5, 9, 4), (33, 3, 2, 7), (1, 14, 14, 3)):
        ne = (n, w, w, -(-w0 // w) * -(-h0 // w))
        for layout in LAYOUTS if w == 4 else LAYOUTS[:1]:
            yield case(op, f"{spell(F32, ne, layout)} to {w0}x{h0}", leaf(F32, ne, layout), w0=w0, h0=h0, w=w)


describe(ops.WinUnpart, cases=[win_unpart_cases], rule=EXACT)


def get_rel_pos_cases(op: type[Op]) -> Iterator[Case]:
    """Types and layouts."""
    for type in KERNEL_FLOATS:
        for n, size in ((64, 14), (33, 1), (1, 5)):
            ne = (n, 2 * size - 1)
            for layout in ROWWISE if size == 5 else ROWWISE[:1]:
                yield case(op, spell(type, ne, layout), leaf(type, ne, layout), qh=size, kh=size)

    def of_transposed(leafs: Leafs) -> Any:
        return node(op, transpose(leafs.array(F32, np.arange(63, dtype=np.float32).reshape(7, 9))), qh=5, kh=5)

    yield Case(op.name, "transposed", of_transposed)


describe(ops.GetRelPos, cases=[get_rel_pos_cases], rule=MOVES)


def add_rel_pos_cases(op: type[Op]) -> Iterator[Case]:
    """Rows of some lengths, and batches."""
    for size, wide, high, batches in ((1, 2, 3, 1), (5, 2, 3, 4), (7, 7, 7, 2), (18, 1, 2, 3)):
        added = (size, wide, high, batches)
        a = (size * size, wide * high, batches)
        label = f"{spell(F32, a)} and {spell(F32, added)}"
        yield case(op, label, leaf(F32, a), leaf(F32, added), leaf(F32, added, "offset"))


describe(
    ops.AddRelPos,
    cases=[add_rel_pos_cases],
    rule=of_magnitudes("2 (abs(a) + abs(pw) + abs(ph))", "two sums", lambda *sources: 2),
)

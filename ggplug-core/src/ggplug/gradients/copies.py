"""Rules of ops that move elements: views, copies, windows, padding."""

from __future__ import annotations

import functools

from ggplug import ops
from ggplug.gradients.rows import reversed_rows
from ggplug.gradients.rules import (
    Into,
    Missing,
    Parts,
    formula,
    gradient,
    packed,
    part,
    shaped,
    sources,
    summed,
    window,
    zeros,
)
from ggplug.tensor import Extents, Tensor, contiguous_strides
from ggplug.types import F32

# -- views -----------------------------------------------------------------------------------------


@gradient(ops.Reshape, ops.Cont)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    return (lambda: shaped(dy, x.ne),)


@gradient(ops.View)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    if not x.is_contiguous():
        return (Missing("the view may show bytes between its elements (use gg.cont first)"),)
    assert isinstance(node.op, ops.View)
    unit = x.type.block_bytes
    strides, offset = (node.nb[1] // unit, node.nb[2] // unit, node.nb[3] // unit), node.op.offset // unit
    span = node.ne[0]
    for stride, extent in sorted(zip(strides, node.ne[1:], strict=True)):
        if extent > 1 and stride < span:
            return (Missing("the view shows some of its elements several times (use gg.repeat)"),)
        span += (extent - 1) * stride
    if node.size and offset + span > x.size:
        return (Missing("the view shows bytes behind its last element"),)
    return (lambda: Into(dy, strides, offset),)


@gradient(ops.Permute)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Permute)
    axes = node.op.axes
    return (lambda: ops.permute(dy, *map(axes.index, range(4))),)


@gradient(ops.Transpose)
def _(node: Tensor, dy: Tensor) -> Parts:
    return (lambda: ops.transpose(dy),)


# -- copies ----------------------------------------------------------------------------------------


@gradient(ops.Dup)
def _(node: Tensor, dy: Tensor) -> Parts:
    return (lambda: dy,)


@gradient(ops.Cpy)
def _(node: Tensor, dy: Tensor) -> Parts:
    x, _ = sources(node)
    return lambda: shaped(dy, x.ne), None


@gradient(ops.Concat)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Concat)
    (a, b), dim = sources(node), node.op.dim
    return lambda: window(dy, a.ne), lambda: window(dy, b.ne, {dim: a.ne[dim]})


@gradient(ops.Repeat)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    return (lambda: summed(dy, x.ne),)


@gradient(ops.RepeatBack)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    return (lambda: dy if x.ne == dy.ne else ops.repeat(dy, x),)


# -- windows ---------------------------------------------------------------------------------------


def _window(op: ops.Window, x: Tensor, ne: Extents) -> Tensor:
    """The window of x, F32, with these extents that the op changes."""
    x = packed(x)
    return ops.view(x, *ne, nb=tuple(4 * stride for stride in op.strides), offset=4 * op.offset)


@gradient(ops.Set)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Set)
    op, (_, b) = node.op, sources(node)
    nb = 4 * op.strides[0], 4 * op.strides[1], 4 * op.strides[2]
    return lambda: ops.set(packed(dy), zeros(b.ne), nb=nb, offset=4 * op.offset), lambda: _window(op, dy, b.ne)


@gradient(ops.Acc)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Acc)
    op, (_, b) = node.op, sources(node)
    return lambda: dy, lambda: _window(op, dy, b.ne)


# -- padding ---------------------------------------------------------------------------------------


@gradient(ops.Roll)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Roll)
    back = [-shift for shift in node.op.shifts]
    return (lambda: ops.roll(dy, *back),)


@formula(ops.Pad)
def _(op: ops.Pad, x: Tensor) -> Tensor:
    ne = tuple(before + n + after for before, n, after in zip(op.before, x.ne, op.after, strict=True))
    if not op.circular:
        nb = contiguous_strides(F32, (ne[0], ne[1], ne[2], ne[3]))
        offset = sum(before * stride for before, stride in zip(op.before, nb, strict=True))
        return ops.set(zeros((ne[0], ne[1], ne[2], ne[3])), x, nb=nb[1:], offset=offset if x.size else 0)
    starts = [-before % n if n else 0 for before, n in zip(op.before, x.ne, strict=True)]
    times = [-(-(start + to) // n) if n else 0 for start, to, n in zip(starts, ne, x.ne, strict=True)]
    tiled = ops.repeat(x, *(n * count for n, count in zip(x.ne, times, strict=True)))
    return window(tiled, (ne[0], ne[1], ne[2], ne[3]), dict(enumerate(starts)))


@formula(ops.PadReflect1d)
def _(op: ops.PadReflect1d, x: Tensor) -> Tensor:
    columns = ops.cont(ops.transpose(shaped(x, (x.ne[0], x.nrows))))
    parts = [columns]
    if op.p0:
        parts.insert(0, reversed_rows(part(columns, 1, 1, op.p0)))
    if op.p1:
        parts.append(reversed_rows(part(columns, 1, x.ne[0] - 1 - op.p1, op.p1)))
    padded = functools.reduce(functools.partial(ops.concat, dim=1), parts)
    return shaped(ops.transpose(padded), (padded.ne[1], *x.ne[1:]))

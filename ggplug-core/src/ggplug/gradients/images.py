"""Rules of convolutions, pooling, resizing, and attention over windows of images."""

from __future__ import annotations

import functools

import numpy as np

from ggplug import ops
from ggplug.gradients.rules import Missing, Parts, formula, gradient, ones, packed, shaped, sources, summed, zeros
from ggplug.host import tensor as constant
from ggplug.ops.base import Array
from ggplug.tensor import Tensor

# -- windows as rows -------------------------------------------------------------------------------


@gradient(ops.Im2col)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Im2col)
    op, (kernel, x) = node.op, sources(node)
    steps = op.s0, op.s1, op.p0, op.p1, op.d0, op.d1
    return None, lambda: ops.im2col_back(packed(dy), kernel, *steps, op.is_2d, x.ne)


@gradient(ops.Im2colBack)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Im2colBack)
    op, (_, kernel) = node.op, sources(node)
    return lambda: ops.im2col(kernel, dy, op.s0, op.s1, op.p0, op.p1, op.d0, op.d1, op.is_2d), None


@gradient(ops.Col2im1d)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Col2im1d)
    op, (a,) = node.op, sources(node)
    kernel = (a.ne[0] // op.channels, op.channels, 1, 1)
    return (lambda: ops.im2col(zeros(kernel), dy, op.s0, 0, op.p0, 0, 1, 0, False),)


@formula(ops.Im2col3d)
def _(op: ops.Im2col3d, kernel: Tensor, x: Tensor) -> Tensor:
    """The windows of planes, for each tap along the depth, next to each other."""
    (width, height, taps, _), channels = kernel.ne, op.channels
    images = x.ne[3] // channels
    if x.ne[3] % channels:
        x = ops.view(packed(x), *x.ne[:3], images * channels, nb=packed(x).nb[1:])
    depth = op.axes(kernel.ne)[2].count(x.ne[2])
    # The last window may end behind the padding.
    behind = max(op.p2, (depth - 1) * op.s2 + op.d2 * (taps - 1) + 1 - op.p2 - x.ne[2])
    deep = ops.pad_ext(x, lp2=op.p2, rp2=behind)
    parts = []
    for tap in range(taps):
        strides = deep.nb[1], op.s2 * deep.nb[2], deep.nb[3]
        planes = ops.view(deep, *x.ne[:2], depth, x.ne[3], nb=strides, offset=tap * op.d2 * deep.nb[2])
        flat = shaped(planes, (*x.ne[:2], 1, depth * x.ne[3]))
        parts.append(ops.im2col(zeros((width, height, 1, 1)), flat, op.s0, op.s1, op.p0, op.p1, op.d0, op.d1))
    rows = functools.reduce(lambda a, b: ops.concat(a, b, 0), parts)
    size, *out, _ = rows.ne
    by_channels = ops.permute(shaped(rows, (size, out[0] * out[1] * depth, channels, images)), 0, 2, 1, 3)
    return shaped(by_channels, (size * channels, *out, depth * images))


# -- convolutions ----------------------------------------------------------------------------------


@formula(ops.Conv2dDirect)
def _(op: ops.Conv2dDirect, kernel: Tensor, x: Tensor) -> Tensor:
    rows = ops.im2col(kernel, x, op.s0, op.s1, op.p0, op.p1, op.d0, op.d1)
    taps, *out, images = rows.ne
    y = ops.mul_mat(shaped(rows, (taps, out[0] * out[1] * images)), shaped(kernel, (taps, kernel.ne[3])))
    return ops.permute(shaped(y, (*out, images, kernel.ne[3])), 0, 1, 3, 2)


@formula(ops.Conv2dDwDirect)
def _(op: ops.Conv2dDwDirect, kernel: Tensor, x: Tensor) -> Tensor:
    planes = shaped(x, (*x.ne[:2], 1, x.ne[2] * x.ne[3]))
    rows = ops.im2col(kernel, planes, op.s0, op.s1, op.p0, op.p1, op.d0, op.d1)
    taps, *out, _ = rows.ne
    flat = shaped(kernel, (taps, 1, x.ne[2]))
    y = ops.mul_mat(flat, shaped(rows, (taps, out[0] * out[1], *x.ne[2:])))
    return shaped(y, (*out, *x.ne[2:]))


@formula(ops.Conv3dDirect)
def _(op: ops.Conv3dDirect, kernel: Tensor, x: Tensor) -> Tensor:
    steps = op.s0, op.s1, op.s2, op.p0, op.p1, op.p2, op.d0, op.d1, op.d2
    rows = ops.im2col_3d(kernel, x, op.channels, *steps)
    taps, *out, many = rows.ne
    y = ops.mul_mat(shaped(rows, (taps, out[0] * out[1] * many)), shaped(kernel, (taps, op.out_channels)))
    depth = many // op.images
    by_images = ops.permute(shaped(y, (out[0] * out[1], depth, op.images, op.out_channels)), 0, 1, 3, 2)
    return shaped(by_images, (*out, depth, op.out_channels * op.images))


@formula(ops.ConvTranspose1d)
def _(op: ops.ConvTranspose1d, kernel: Tensor, x: Tensor) -> Tensor:
    taps, out, channels, _ = kernel.ne
    by_channels = shaped(ops.permute(kernel, 1, 2, 0, 3), (channels, taps * out))
    return ops.col2im_1d(ops.mul_mat(by_channels, ops.transpose(x)), op.s0, out)


@formula(ops.ConvTranspose2d)
def _(op: ops.ConvTranspose2d, kernel: Tensor, x: Tensor) -> Tensor:
    width, height, out, channels = kernel.ne
    by_channels = shaped(ops.permute(kernel, 1, 2, 3, 0), (channels, width * height * out))
    pixels = shaped(ops.permute(x, 1, 2, 0, 3), (channels, x.ne[0] * x.ne[1] * x.ne[3]))
    columns = shaped(ops.mul_mat(by_channels, pixels), (width * height * out, x.ne[0], x.ne[1], x.ne[3]))
    ne = ((x.ne[0] - 1) * op.stride + width, (x.ne[1] - 1) * op.stride + height, out, x.ne[3])
    return ops.im2col_back(columns, zeros((width, height, out, 1)), op.stride, op.stride, ne=ne)


# -- pooling ---------------------------------------------------------------------------------------


@formula(ops.Pool1d)
def _(op: ops.Pool1d, x: Tensor) -> Tensor:
    def pooled(rows: Tensor) -> Tensor:
        return ops.pool_2d(rows, op.kind, op.k0, 1, op.s0, 1, op.p0)

    if op.kind == ops.PoolKind.MAX or not op.p0:
        return pooled(x)
    # These means leave out the padding, those of planes count it as zeros.
    return ops.div(pooled(x), pooled(ones((x.ne[0], 1, 1, 1))))


@gradient(ops.Pool2d)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Pool2d)
    op, (x,) = node.op, sources(node)
    return (lambda: ops.pool_2d_back(packed(dy), x, op.kind, op.k0, op.k1, op.s0, op.s1, op.p0, op.p1),)


@gradient(ops.Pool2dBack)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Pool2dBack)
    op = node.op
    if op.kind == ops.PoolKind.MAX:
        return Missing("no op reads the elements that were the largest"), None
    return lambda: ops.pool_2d(dy, op.kind, op.k0, op.k1, op.s0, op.s1, op.p0, op.p1), None


# -- resizing --------------------------------------------------------------------------------------


@formula(ops.Interpolate)
def _(op: ops.Interpolate, x: Tensor) -> Tensor:
    for dim in range(4):
        at, weights = op.taps(dim, x.ne[dim])
        if at.size and not _same(at, weights, x.ne[dim]):
            x = _along(dim, _of_taps(at, weights, x.ne[dim]), x)
    return x


def _same(at: Array, weights: Array, extent: int) -> bool:
    """Whether new pixels are the old ones."""
    return at.shape == (extent, 1) and bool((at[:, 0] == np.arange(extent)).all()) and bool((weights == 1).all())


def _of_taps(at: Array, weights: Array, extent: int) -> Tensor:
    """A row for each new pixel: the weights of the old ones."""
    matrix = np.zeros((len(at), extent), np.float32)
    np.add.at(matrix, (np.arange(len(at))[:, np.newaxis], at), weights)
    return constant(matrix)


def _along(dim: int, matrix: Tensor, x: Tensor) -> Tensor:
    """The product of a matrix with each line of x along a dimension."""
    axes = list(range(4))
    axes[0], axes[dim] = dim, 0
    return ops.permute(ops.mul_mat(matrix, packed(ops.permute(x, *axes))), *axes)


# -- windows of attention --------------------------------------------------------------------------


@gradient(ops.WinPart)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.WinPart)
    (x,), w = sources(node), node.op.w
    return (lambda: ops.win_unpart(dy, x.ne[1], x.ne[2], w),)


@gradient(ops.WinUnpart)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.WinUnpart)
    w = node.op.w
    return (lambda: ops.win_part(dy, w),)


@formula(ops.GetRelPos)
def _(op: ops.GetRelPos, x: Tensor) -> Tensor:
    distance = op.kh - 1 - np.arange(op.kh) + np.arange(op.qh)[:, np.newaxis]
    return shaped(ops.get_rows(x, constant(distance.astype(np.int32).reshape(-1))), (x.ne[0], op.kh, op.qh))


@gradient(ops.AddRelPos)
def _(node: Tensor, dy: Tensor) -> Parts:
    _, pw, ph = sources(node)
    width, rows = pw.ne[0], pw.ne[1] * pw.ne[2]
    squares = shaped(dy, (width, width, rows, pw.ne[3]))
    return (
        lambda: dy,
        lambda: shaped(summed(squares, (width, 1, rows, pw.ne[3])), pw.ne),
        lambda: shaped(ops.sum_rows(squares), ph.ne),
    )

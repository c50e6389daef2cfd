"""Convolutions as im2col and a matrix product, as in ggml.

Windows are rounded to F16 (with a kernel of BF16 they stay F32), as in ggml.  The ops of :mod:`ggplug.ops.convolution`
do not round them and need no memory for them.
"""

from __future__ import annotations

from ggplug.ops.base import explained_by
from ggplug.ops.copy import cont
from ggplug.ops.im2col import im2col, im2col_3d
from ggplug.ops.matrix import mul_mat
from ggplug.ops.views import permute, reshape
from ggplug.tensor import Tensor
from ggplug.types import BF16

__all__ = [
    "conv_1d",
    "conv_1d_dw",
    "conv_1d_dw_ph",
    "conv_1d_ph",
    "conv_2d",
    "conv_2d_dw",
    "conv_2d_s1_ph",
    "conv_2d_sk_p0",
    "conv_3d",
]


def _windows_type(kernel: Tensor) -> str:
    return "f32" if kernel.type is BF16 else "f16"


def conv_1d(kernel: Tensor, x: Tensor, s0: int = 1, p0: int = 0, d0: int = 1) -> Tensor:
    """The convolution of x [L, C, N] with kernel [K, C, OC]: F32 [OL, OC, N]  (ggml_conv_1d).

    OL = (L + 2 p0 - d0 (K - 1) - 1) // s0 + 1.  Several images are convolved separately (ggml mixes them).
    """
    rows = im2col(kernel, x, s0, 0, p0, 0, d0, 0, False, _windows_type(kernel))
    flat = reshape(kernel, kernel.ne[0] * kernel.ne[1], kernel.ne[2])
    y = mul_mat(reshape(rows, rows.ne[0], rows.ne[1] * rows.ne[2]), flat)
    if rows.ne[2] == 1:
        return reshape(y, rows.ne[1], kernel.ne[2], 1)
    return cont(permute(reshape(y, rows.ne[1], rows.ne[2], kernel.ne[2]), 0, 2, 1))


@explained_by(conv_1d)
def conv_1d_ph(kernel: Tensor, x: Tensor, s: int = 1, d: int = 1) -> Tensor:
    """:func:`conv_1d`, padded by half of the kernel at both ends  (ggml_conv_1d_ph)."""
    return conv_1d(kernel, x, s, kernel.ne[0] // 2, d)


def conv_1d_dw(kernel: Tensor, x: Tensor, s0: int = 1, p0: int = 0, d0: int = 1) -> Tensor:
    """The convolution of each channel of x [L, C] with its own kernel [K, 1, C]: F32 [OL, C]  (ggml_conv_1d_dw)."""
    rows = im2col(kernel, reshape(x, x.ne[0], 1, x.ne[1], x.ne[2]), s0, 0, p0, 0, d0, 0, False, _windows_type(kernel))
    y = mul_mat(rows, kernel)
    return reshape(y, y.ne[0], y.ne[2], 1)


@explained_by(conv_1d_dw)
def conv_1d_dw_ph(kernel: Tensor, x: Tensor, s0: int = 1, d0: int = 1) -> Tensor:
    """:func:`conv_1d_dw`, padded by half of the kernel at both ends  (ggml_conv_1d_dw_ph)."""
    return conv_1d_dw(kernel, x, s0, kernel.ne[0] // 2, d0)


def conv_2d(
    kernel: Tensor, x: Tensor, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Tensor:
    """The convolution of x [W, H, C, N] with kernel [KW, KH, C, OC]: F32 [OW, OH, OC, N]  (ggml_conv_2d).

    OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1, OH likewise.
    """
    rows = im2col(kernel, x, s0, s1, p0, p1, d0, d1, True, _windows_type(kernel))
    flat = reshape(kernel, kernel.ne[0] * kernel.ne[1] * kernel.ne[2], kernel.ne[3])
    y = mul_mat(reshape(rows, rows.ne[0], rows.ne[1] * rows.ne[2] * rows.ne[3]), flat)
    return cont(permute(reshape(y, rows.ne[1], rows.ne[2], rows.ne[3], kernel.ne[3]), 0, 1, 3, 2))


@explained_by(conv_2d)
def conv_2d_sk_p0(kernel: Tensor, x: Tensor) -> Tensor:
    """:func:`conv_2d` with strides as large as the kernel and no padding: patches  (ggml_conv_2d_sk_p0)."""
    return conv_2d(kernel, x, kernel.ne[0], kernel.ne[1])


@explained_by(conv_2d)
def conv_2d_s1_ph(kernel: Tensor, x: Tensor) -> Tensor:
    """:func:`conv_2d`, padded by half of the kernel on all sides  (ggml_conv_2d_s1_ph)."""
    return conv_2d(kernel, x, 1, 1, kernel.ne[0] // 2, kernel.ne[1] // 2)


def conv_2d_dw(
    kernel: Tensor, x: Tensor, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Tensor:
    """The convolution of each channel of x [W, H, C, N] with its own kernel [KW, KH, 1, C]  (ggml_conv_2d_dw).

    F32 [OW, OH, C, N].
    """
    one = reshape(kernel, kernel.ne[0], kernel.ne[1], 1, kernel.ne[2] * kernel.ne[3])
    planes = reshape(x, x.ne[0], x.ne[1], 1, x.ne[2] * x.ne[3])
    rows = im2col(one, planes, s0, s1, p0, p1, d0, d1, True, _windows_type(kernel))
    flat = reshape(one, one.ne[0] * one.ne[1], 1, one.ne[3], 1)
    y = mul_mat(flat, reshape(rows, rows.ne[0], rows.ne[1] * rows.ne[2], x.ne[2], x.ne[3]))
    return reshape(y, rows.ne[1], rows.ne[2], x.ne[2], x.ne[3])


def conv_3d(
    kernel: Tensor,
    x: Tensor,
    channels: int,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
) -> Tensor:
    """The convolution of x [W, H, D, C N] with kernel [KW, KH, KD, C OC], C being ``channels``  (ggml_conv_3d).

    F32 [OW, OH, OD, OC N].
    """
    rows = im2col_3d(kernel, x, channels, s0, s1, s2, p0, p1, p2, d0, d1, d2, _windows_type(kernel))
    out, images = kernel.ne[3] // channels, x.ne[3] // channels
    flat = reshape(kernel, kernel.ne[0] * kernel.ne[1] * kernel.ne[2] * channels, out)
    y = mul_mat(reshape(rows, rows.ne[0], rows.ne[1] * rows.ne[2] * rows.ne[3]), flat)
    depth = rows.ne[3] // images
    permuted = cont(permute(reshape(y, rows.ne[1] * rows.ne[2], depth, images, out), 0, 1, 3, 2))
    return reshape(permuted, rows.ne[1], rows.ne[2], depth, out * images)

"""Convolutions, and transposed ones.  Kernels are not flipped (cross-correlation), as in all deep learning libraries.

Images are [W, H, C, N] and kernels [KW, KH, C, OC].  Images are padded with zeros; so a weight that is infinite or NaN
gives NaN where a window reaches into the padding, as in ggml.
"""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Op, builder, misfit, mismatch, require, require_float
from ggplug.ops.sliding import Axis, check_sliding, fold, unfold, windows
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32

__all__ = [
    "Conv2dDirect",
    "Conv2dDwDirect",
    "Conv3dDirect",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "conv_2d_direct",
    "conv_2d_dw_direct",
    "conv_3d_direct",
    "conv_transpose_1d",
    "conv_transpose_2d",
]


def _check_types(op: Op, kernel: Tensor, x: Tensor) -> None:
    require_float(op, kernel)
    if x.type is not F32:
        mismatch(op, "x must be f32", kernel, x)


class _Planar(Op, abstract=True):
    s0: int = 1
    s1: int = 1
    p0: int = 0
    p1: int = 0
    d0: int = 1
    d1: int = 1

    def validate(self) -> None:
        check_sliding(self)

    def axes(self, width: int, height: int) -> list[Axis]:
        """The steps of windows along ne0 and ne1, for a kernel of these extents."""
        return [Axis(width, self.s0, self.p0, self.d0), Axis(height, self.s1, self.p1, self.d1)]

    def extents(self, kernel: Tensor, x: Tensor) -> tuple[int, int]:
        """Numbers of windows along ne0 and ne1."""
        across, down = self.axes(*kernel.ne[:2])
        return windows(self, across, x.ne[0], kernel, x), windows(self, down, x.ne[1], kernel, x)


class Conv2dDirect(_Planar):
    """y[:, :, o, n] = the sum over c of x[:, :, c, n] convolved with kernel[:, :, c, o]  (ggml_conv_2d_direct).

    kernel: F32, F16 or BF16 [KW, KH, C, OC].  x: F32 [W, H, C, N].  Any strides.
    Result: F32 [OW, OH, OC, N], OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1, OH likewise.
    """

    name = "conv_2d_direct"

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        _check_types(self, kernel, x)
        if kernel.ne[2] != x.ne[2]:
            misfit(self, "kernel and x must have the same number of channels, ne2", kernel, x)
        width, height = self.extents(kernel, x)
        return Spec(F32, (width, height, kernel.ne[3], x.ne[3]), 4)

    def reference(self, kernel: Array, x: Array) -> Array:
        w = unfold(x, self.axes(kernel.shape[3], kernel.shape[2]))
        return np.einsum("nchkwl,ockl->nohw", w, kernel, optimize=True)

    def cost(self, node: Tensor) -> Cost:
        return Cost(2 * _taps(node, 3) * node.size, super().cost(node).bytes)


class Conv2dDwDirect(_Planar):
    """y[:, :, c, n] = x[:, :, c, n] convolved with kernel[:, :, 0, c]  (ggml_conv_2d_dw_direct).

    kernel: F32, F16 or BF16 [KW, KH, 1, C].  x: F32 [W, H, C, N], any strides.
    Result: F32 [OW, OH, C, N], OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1, OH likewise.  If channels are the innermost
    dimension of x in memory (``nb2 < nb0``), they are in the result too.  Taps in the padding are left out of the sums,
    so infinite weights do not give NaN there.
    """

    name = "conv_2d_dw_direct"

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        _check_types(self, kernel, x)
        if kernel.ne[2] != 1 or kernel.ne[3] != x.ne[2]:
            misfit(self, "the kernel must be [KW, KH, 1, C] for x with C channels, ne2", kernel, x)
        width, height = self.extents(kernel, x)
        channels, nb = x.ne[2], None
        if _channels_side_by_side(x):
            nb = (4 * channels, 4 * channels * width, 4, 4 * channels * width * height)
        return Spec(F32, (width, height, channels, x.ne[3]), 4, nb)

    def reference(self, kernel: Array, x: Array) -> Array:
        axes = self.axes(kernel.shape[3], kernel.shape[2])
        inside = unfold(np.ones(x.shape, bool), axes)
        return np.where(inside, unfold(x, axes) * kernel[:, 0, np.newaxis, :, np.newaxis], 0).sum(axis=(3, 5))

    def cost(self, node: Tensor) -> Cost:
        return Cost(2 * _taps(node, 2) * node.size, super().cost(node).bytes)


class Conv3dDirect(Op):
    """y[..., (n, o)] = the sum over c of x[..., (n, c)] convolved with kernel[..., (o, c)]  (ggml_conv_3d_direct).

    kernel: F32, F16 or BF16 [KW, KH, KD, C OC].  x: F32 [W, H, D, C N].  C, N and OC are ``channels``, ``images`` and
    ``out_channels``; of a pair such as (n, o), the last index is the fastest.
    Result: F32 [OW, OH, OD, OC N], OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1, OH and OD likewise.
    """

    name = "conv_3d_direct"
    channels: int
    images: int
    out_channels: int
    s0: int = 1
    s1: int = 1
    s2: int = 1
    p0: int = 0
    p1: int = 0
    p2: int = 0
    d0: int = 1
    d1: int = 1
    d2: int = 1

    def validate(self) -> None:
        check_sliding(self)
        if min(self.channels, self.images, self.out_channels) < 0:
            raise ParameterError(f"{self.name}: channels, images and out_channels must not be negative", op=self)

    def axes(self, kernel: tuple[int, ...]) -> list[Axis]:
        """The steps of windows along ne0, ne1 and ne2, for a kernel of these extents."""
        strides, paddings = (self.s0, self.s1, self.s2), (self.p0, self.p1, self.p2)
        return [Axis(*each) for each in zip(kernel, strides, paddings, (self.d0, self.d1, self.d2), strict=False)]

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        _check_types(self, kernel, x)
        if kernel.ne[3] != self.channels * self.out_channels or x.ne[3] != self.channels * self.images:
            misfit(self, "ne3 must be channels * out_channels of kernel, and channels * images of x", kernel, x)
        axes = self.axes(kernel.ne[:3])
        width, height, depth = (windows(self, axis, x.ne[i], kernel, x) for i, axis in enumerate(axes))
        return Spec(F32, (width, height, depth, self.out_channels * self.images), 4)

    def reference(self, kernel: Array, x: Array) -> Array:
        w = unfold(x.reshape(self.images, self.channels, *x.shape[1:]), self.axes(kernel.shape[:0:-1]))
        k = kernel.reshape(self.out_channels, self.channels, *kernel.shape[1:])
        y = np.einsum("ncdihjwk,ocijk->nodhw", w, k, optimize=True)
        return y.reshape(-1, *y.shape[2:])

    def cost(self, node: Tensor) -> Cost:
        return Cost(2 * self.channels * _taps(node, 3) * node.size, super().cost(node).bytes)


class ConvTranspose1d(Op):
    """y[t, o] = the sum over c, k and i with i s0 + k = t of kernel[k, o, c] x[i, c]  (ggml_conv_transpose_1d).

    kernel: F32, F16 or BF16 [K, OC, C].  x: F32 [L, C].  Result: F32 [(L - 1) s0 + K, OC].
    """

    name = "conv_transpose_1d"
    s0: int = 1

    def validate(self) -> None:
        check_sliding(self)

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        _check_types(self, kernel, x)
        if x.ne[2] != 1 or x.ne[3] != 1 or kernel.ne[3] != 1 or kernel.ne[2] != x.ne[1]:
            misfit(self, "kernel must be [K, OC, C] and x [L, C]", kernel, x)
        require(kernel.ne[0] > 0 < x.ne[0], self, "kernel and x must not be empty along ne0", kernel, x)
        return Spec(F32, ((x.ne[0] - 1) * self.s0 + kernel.ne[0], kernel.ne[1], 1, 1), 2)

    def reference(self, kernel: Array, x: Array) -> Array:
        w = np.einsum("cl,cok->olk", x[0, 0], kernel[0])
        length = (w.shape[1] - 1) * self.s0 + w.shape[2]
        return fold(w, [Axis(w.shape[2], self.s0)], [length])[np.newaxis, np.newaxis]

    def cost(self, node: Tensor) -> Cost:
        x = node.src[1]
        return Cost(2 * _taps(node, 2) * (0 if x is None else x.ne[0] * x.ne[1]), super().cost(node).bytes)


class ConvTranspose2d(Op):
    """y[:, :, o, n] = the sum of kernel[:, :, o, c] x[i, j, c, n], ``stride`` apart  (ggml_conv_transpose_2d_p0).

    kernel: F32, F16 or BF16 [KW, KH, OC, C].  x: F32 [W, H, C, N].
    Result: F32 [(W - 1) stride + KW, (H - 1) stride + KH, OC, N].
    """

    name = "conv_transpose_2d"
    stride: int = 1

    def validate(self) -> None:
        if self.stride < 1:
            raise ParameterError(f"{self.name}: stride must be 1 or more, got {self.stride}", op=self)

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        _check_types(self, kernel, x)
        if kernel.ne[3] != x.ne[2]:
            misfit(self, "ne3 of kernel and ne2 of x must be the same number of channels", kernel, x)
        require(min(*kernel.ne[:2], *x.ne[:2]) > 0, self, "windows and images must not be empty", kernel, x)
        width, height = ((x.ne[i] - 1) * self.stride + kernel.ne[i] for i in (0, 1))
        return Spec(F32, (width, height, kernel.ne[2], x.ne[3]), 4)

    def reference(self, kernel: Array, x: Array) -> Array:
        w = np.einsum("nchw,cokl->nohkwl", x, kernel, optimize=True)
        axes = [Axis(kernel.shape[3], self.stride), Axis(kernel.shape[2], self.stride)]
        extents = [(x.shape[3 - i] - 1) * self.stride + kernel.shape[3 - i] for i in (0, 1)]
        return fold(w, axes, extents)

    def cost(self, node: Tensor) -> Cost:
        x = node.src[1]
        return Cost(2 * _taps(node, 3) * (0 if x is None else x.size), super().cost(node).bytes)


def _channels_side_by_side(x: Tensor) -> bool:
    """Whether x lies as [C, W, H, N] rather than as [W, H, C, N]  (ggml_is_contiguous_channels)."""
    size = x.type.block_bytes
    return x.nb[0] > x.nb[2] and x.nb[1] > x.nb[0] and x.nb[2] == size


def _taps(node: Tensor, dims: int) -> int:
    """Number of elements of the kernel's first ``dims`` dimensions."""
    kernel = node.src[0]
    return 0 if kernel is None else int(np.prod(kernel.ne[:dims]))


conv_2d_direct = builder(Conv2dDirect)
conv_2d_dw_direct = builder(Conv2dDwDirect)
conv_3d_direct = builder(Conv3dDirect)
conv_transpose_1d = builder(ConvTranspose1d)
conv_transpose_2d = builder(ConvTranspose2d)

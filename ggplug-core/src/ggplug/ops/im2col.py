"""Windows of an image as rows for a matrix product (im2col), and back.

Images are [W, H, C, N] and kernels [KW, KH, C, OC].  A row holds the C KH KW elements of a window, channel by channel;
images are padded with zeros.
"""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, misfit, mismatch, require, require_float
from ggplug.ops.sliding import Axis, check_sliding, fold, unfold, windows
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS, TypeName, by_name

__all__ = ["Col2im1d", "Im2col", "Im2col3d", "Im2colBack", "col2im_1d", "im2col", "im2col_3d", "im2col_back"]


class _Im2col(Op, abstract=True):
    s0: int = 1
    s1: int = 1
    p0: int = 0
    p1: int = 0
    d0: int = 1
    d1: int = 1
    is_2d: bool = True

    def validate(self) -> None:
        if self.is_2d:
            check_sliding(self)
        elif self.s0 < 1 or self.p0 < 0 or self.d0 < 1:
            raise ParameterError(f"{self.name}: s0 and d0 must be 1 or more, p0 must not be negative", op=self)

    def axes(self, kernel: Tensor) -> tuple[Axis, Axis]:
        """The steps of windows along ne0 and ne1; with ``is_2d=False`` there is one row along ne1."""
        down = Axis(kernel.ne[1], self.s1, self.p1, self.d1) if self.is_2d else Axis(1)
        return Axis(kernel.ne[0], self.s0, self.p0, self.d0), down


class Im2col(_Im2col):
    """y[:, i, j, n] = the window of x at (i, j), with all channels  (ggml_im2col).

    kernel: [KW, KH, C, OC], of which only the extents are used.  x: F32, F16 or BF16 [W, H, C, N].
    Result: [C KH KW, OW, OH, N] of ``type``, OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1, OH likewise.
    ``is_2d=False``: kernel [K, C, OC], x [W, C, N], result [C K, OW, N]; then s1, p1 and d1 are not used.
    """

    type: TypeName = "f32"

    def validate(self) -> None:
        super().validate()
        if by_name(self.type) not in FLOATS:
            raise ParameterError(f"im2col: type must be a plain float, not {self.type}", op=self, got=self.type)

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        require_float(self, x, kernel)
        channels = 2 if self.is_2d else 1
        if kernel.ne[channels] != x.ne[channels]:
            misfit(self, "kernel and x must have the same number of channels", kernel, x)
        across, down = self.axes(kernel)
        width = windows(self, across, x.ne[0], kernel, x)
        if not self.is_2d:
            require(x.ne[3] == 1, self, "x must have at most three dimensions: width, channels, images", kernel, x)
            return Spec(by_name(self.type), (kernel.ne[0] * kernel.ne[1], width, x.ne[2], 1), 3)
        height = windows(self, down, x.ne[1], kernel, x)
        size = kernel.ne[0] * kernel.ne[1] * kernel.ne[2]
        return Spec(by_name(self.type), (size, width, height, x.ne[3]), 4)

    def reference(self, kernel: Array, x: Array) -> Array:
        if not self.is_2d:
            w = unfold(x[0, :, :, np.newaxis], [Axis(kernel.shape[3], self.s0, self.p0, self.d0), Axis(1)])
        else:
            down = Axis(kernel.shape[2], self.s1, self.p1, self.d1)
            w = unfold(x, [Axis(kernel.shape[3], self.s0, self.p0, self.d0), down])
        n, c, oh, kh, ow, kw = w.shape
        rows = w.transpose(0, 2, 4, 1, 3, 5).reshape(n, oh, ow, c * kh * kw)
        return rows if self.is_2d else rows.reshape(1, n, ow, c * kw)


class Im2colBack(_Im2col):
    """x[i, j, c, n] = the sum of all elements of ``grad`` to which :class:`Im2col` copies it  (ggml_im2col_back).

    grad: F32 [C KH KW, OW, OH, N].  kernel: [KW, KH, C, OC], of which only the extents are used.  ``ne``: the extents
    of the result, F32 [W, H, C, N].  ``is_2d=False``: grad [C K, OW, N], kernel [K, C, OC], result [W, C, N].
    """

    ne: tuple[int, ...] = ()

    def result(self, grad: Tensor, kernel: Tensor) -> Spec:
        if grad.type is not F32:
            mismatch(self, "grad must be f32", grad, kernel)
        require_float(self, kernel)
        require(
            0 < len(self.ne) <= 4 and min(self.ne) >= 0, self, f"ne must be four extents, got {self.ne}", grad, kernel
        )
        ne = (*self.ne, *(1,) * (4 - len(self.ne)))
        across, down = self.axes(kernel)
        if self.is_2d:
            wanted = (
                kernel.ne[0] * kernel.ne[1] * kernel.ne[2],
                windows(self, across, ne[0], grad, kernel),
                windows(self, down, ne[1], grad, kernel),
                ne[3],
            )
            require(kernel.ne[2] == ne[2], self, f"the kernel must have {ne[2]} channels", grad, kernel)
        else:
            wanted = (kernel.ne[0] * kernel.ne[1], windows(self, across, ne[0], grad, kernel), ne[2], 1)
            require(kernel.ne[1] == ne[1] and ne[3] == 1, self, f"the kernel must have {ne[1]} channels", grad, kernel)
        require(grad.ne == wanted, self, f"grad must have the extents {wanted} of im2col's result", grad, kernel)
        return Spec(F32, ne, 4 if self.is_2d else 3)  # type: ignore[arg-type]

    def reference(self, grad: Array, kernel: Array) -> Array:
        ne = (*self.ne, *(1,) * (4 - len(self.ne)))
        kw, kh, c = kernel.shape[3], kernel.shape[2], kernel.shape[1]
        if not self.is_2d:
            kh, c = 1, kernel.shape[2]
            grad = grad.reshape(ne[2], 1, *grad.shape[2:])
        n, oh, ow, _ = grad.shape
        w = grad.reshape(n, oh, ow, c, kh, kw).transpose(0, 3, 1, 4, 2, 5)
        down = Axis(kh, self.s1, self.p1, self.d1) if self.is_2d else Axis(1)
        x = fold(w, [Axis(kw, self.s0, self.p0, self.d0), down], [ne[0], ne[1] if self.is_2d else 1])
        return x.reshape(ne[::-1])


class Im2col3d(Op):
    """y[:, i, j, (n, l)] = the window of x at (i, j, l), with all channels  (ggml_im2col_3d).

    kernel: [KW, KH, KD, C OC], of which only the extents are used.  x: F32, F16 or BF16 [W, H, D, C N], C being
    ``channels``.  Result: [C KD KH KW, OW, OH, OD N] of ``type``, OW = (W + 2 p0 - d0 (KW - 1) - 1) // s0 + 1, OH
    and OD likewise.  Volumes of x after the first N times C are not read.
    """

    name = "im2col_3d"
    channels: int
    s0: int = 1
    s1: int = 1
    s2: int = 1
    p0: int = 0
    p1: int = 0
    p2: int = 0
    d0: int = 1
    d1: int = 1
    d2: int = 1
    type: TypeName = "f32"

    def validate(self) -> None:
        check_sliding(self)
        if self.channels < 1 or by_name(self.type) not in FLOATS:
            raise ParameterError(
                f"im2col_3d: channels must be 1 or more and type a plain float, got {self.channels} and {self.type}",
                op=self,
            )

    def axes(self, kernel: tuple[int, ...]) -> list[Axis]:
        """The steps of windows along ne0, ne1 and ne2, for a kernel of these extents."""
        strides, paddings = (self.s0, self.s1, self.s2), (self.p0, self.p1, self.p2)
        return [Axis(*each) for each in zip(kernel, strides, paddings, (self.d0, self.d1, self.d2), strict=False)]

    def result(self, kernel: Tensor, x: Tensor) -> Spec:
        require_float(self, x, kernel)
        axes = self.axes(kernel.ne[:3])
        width, height, depth = (windows(self, axis, x.ne[i], kernel, x) for i, axis in enumerate(axes))
        size = kernel.ne[0] * kernel.ne[1] * kernel.ne[2] * self.channels
        return Spec(by_name(self.type), (size, width, height, depth * (x.ne[3] // self.channels)), 4)

    def reference(self, kernel: Array, x: Array) -> Array:
        images = x.shape[0] // self.channels
        x = x[: images * self.channels].reshape(images, self.channels, *x.shape[1:])
        w = unfold(x, self.axes(kernel.shape[:0:-1]))
        n, c, od, kd, oh, kh, ow, kw = w.shape
        return w.transpose(0, 2, 4, 6, 1, 3, 5, 7).reshape(n * od, oh, ow, c * kd * kh * kw)


class Col2im1d(Op):
    """y[t, c] = the sum of a[c K + k, i] over all k and i with i s0 + k - p0 = t  (ggml_col2im_1d).

    a: F32, F16 or BF16 [K OC, L], contiguous; OC is ``channels``.  Result: [(L - 1) s0 + K - 2 p0, OC] of a's type.
    A transposed convolution applies it to the products of its kernel with L positions.
    """

    name = "col2im_1d"
    s0: int
    channels: int
    p0: int = 0

    def validate(self) -> None:
        check_sliding(self)
        if self.channels < 1:
            raise ParameterError(f"col2im_1d: channels must be 1 or more, got {self.channels}", op=self)

    def result(self, a: Tensor) -> Spec:
        require_float(self, a)
        require(a.ne[2] == 1 == a.ne[3] and a.is_contiguous(), self, "a must be a contiguous matrix", a)
        require(a.ne[0] % self.channels == 0 < a.ne[0], self, f"ne0 must be a multiple of {self.channels} channels", a)
        length = (a.ne[1] - 1) * self.s0 + a.ne[0] // self.channels - 2 * self.p0
        require(length > 0, self, f"the result would have the length {length}, which must be positive", a)
        return Spec(a.type, (length, self.channels, 1, 1), 2)

    def reference(self, a: Array) -> Array:
        taps = a.shape[3] // self.channels
        w = a[0, 0].reshape(-1, self.channels, taps).transpose(1, 0, 2)
        length = (a.shape[2] - 1) * self.s0 + taps - 2 * self.p0
        return fold(w, [Axis(taps, self.s0, self.p0)], [length]).reshape(1, 1, self.channels, length)


im2col = builder(Im2col)
im2col_back = builder(Im2colBack)
im2col_3d = builder(Im2col3d)
col2im_1d = builder(Col2im1d)

"""Transposed convolutions by kernels with a NaN or an infinity.

Transposed convolutions are computed as convolutions of a stretched image, with zeros between and around its elements.
Times a NaN or an infinity of the kernel these zeros are NaN.  So results of such kernels are computed again, from the
elements of the image only.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import aborted
from ggplug_cpu.parameters import Parameters, destination, integer, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.simd.values import F32, I64, Value, constant, emitted, loop, vector
from ggplug_cpu.types import PLAIN


class Stretched(Parameters):
    """Images of ``channels`` of ``width`` by ``height`` numbers; windows of ``taps0`` by ``taps1``, ``stride`` apart.

    ``rows``: for each channel of the result the kernel's numbers, one channel of x after the other.
    """

    y = destination("nb1", "nb2", "nb3")
    x = source("nb0", "nb1", "nb2", "nb3")
    rows = source("nb0", "nb1")
    channels = integer()
    width = integer()
    height = integer()
    taps0 = integer()
    taps1 = integer()
    stride = integer()
    out = integer()
    images = integer()


def _has_nonfinite(elem: str) -> Intrinsic:
    """``has_nonfinite(row, n)``: 1 if any of ``n`` contiguous numbers is not finite, else 0."""
    t = PLAIN[elem]

    def emit(row: Value, n: Value) -> Value:
        width = simd.width("f32")

        def add(i: Value, carried: list[Value]) -> list[Value]:
            x = t.read_first(row + i * (width * t.elem_bytes), width, n - i * width)
            return [carried[0] + (x - x)]  # 0 of finite numbers, NaN of others

        count = (n + (width - 1)).lshr(width.bit_length() - 1)
        (sums,) = loop(count, [constant(row.b, vector(F32, width), 0)], add)
        total = sums.sum()
        return total.unequal(total).zext(I64)

    return emitted("i64(i64, i64)")(emit)


@kernel
def conv_transpose_nonfinite(elem: str) -> Body:
    """Computes the channels of y whose kernel (of type ``elem``) has a number that is not finite."""
    has_nonfinite, load = _has_nonfinite(elem), simd.LOADS[elem]

    def body(ctx: int, params: Stretched) -> None:
        channels, images, stride = params.channels, params.images, params.stride
        wide, high = params.width, params.height
        taps0, taps1, size = params.taps0, params.taps1, params.rows.nb0
        first, end = thread_range(ctx, params.out)
        for o in range(first, end):
            row = params.rows.row(o)
            if has_nonfinite(row, channels * taps0 * taps1) == 0:
                continue
            for image in range(images):
                if aborted(ctx):
                    return
                x = params.x.address + image * params.x.nb3
                y = params.y.address + o * params.y.nb2 + image * params.y.nb3
                for j in range((high - 1) * stride + taps1):
                    for i in range((wide - 1) * stride + taps0):
                        # taps that meet a number of x: every stride-th, from that of the last number in reach on
                        last0, last1 = min(wide - 1, i // stride), min(high - 1, j // stride)
                        total = 0.0
                        for c in range(channels):
                            at = x + c * params.x.nb2
                            for n1 in range(last1, -1, -1):
                                k1 = j - n1 * stride
                                if k1 >= taps1:
                                    break
                                for n0 in range(last0, -1, -1):
                                    k0 = i - n0 * stride
                                    if k0 >= taps0:
                                        break
                                    weight = load(row + ((c * taps1 + k1) * taps0 + k0) * size)
                                    place = at + n0 * params.x.nb0 + n1 * params.x.nb1
                                    total += weight * simd.load_f32(place)
                        simd.store_f32(y + 4 * i + j * params.y.nb1, total)

    return body

"""Normalisation of rows: each is scaled by a number computed from it.

Sums are f64, as in ggml; the rest is f32.  A row is computed by one thread.  Where the number that it is scaled
by, or a distance from its mean, may leave the range of f32, the row is multiplied by a power of two before.
"""

from __future__ import annotations

import math

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.kernels.nest import Rows, over_rows, read_row, written_row
from ggplug_cpu.kernels.rows import ARGUMENTS, read, write
from ggplug_cpu.kernels.sums import row_sum
from ggplug_cpu.parameters import real

_LARGE, _SMALL = 1e33, 1e-36
"""Sizes of rows between which all is in the range of f32: a distance is at most the size times the root of 2**31."""
_DOWN, _UP = 2.0**-64, 2.0**64


class Norm(Rows):
    """Rows along ne0."""

    y = written_row()
    x = read_row()
    eps = real()


def scratch_bytes(n: int) -> int:
    """What the kernel needs of a thread's scratch for rows of ``n``."""
    return ARGUMENTS + 8 * n


@kernel
def norm(name: str) -> Body:
    """(x - mean) / sqrt(var + eps), x / sqrt(mean(x²) + eps) or, for ``l2_norm``, x / max(|x|, eps)."""
    F, step = simd.vec("f32"), simd.width("f32")
    load, load_first = simd.load(F), simd.load_first(F)
    sum_of, sum_of_squares = row_sum("x"), row_sum("(x-c)²" if name == "norm" else "x²")
    large, small, down, up = _LARGE, _SMALL, _DOWN, _UP
    centred, euclidean = name == "norm", name == "l2_norm"

    @device_function
    def visit(ctx, params, row, n, places):  # type: ignore[no-untyped-def]
        y, x = places
        eps, write_y = Norm.eps(params), Norm.y.convert(params)
        y_room = scratch(ctx) + ARGUMENTS
        whole = n - n % step
        p = read(ctx, Norm.x.convert(params), x, Norm.x.stride(params), n, y_room + 4 * n)
        r = y if write_y == 0 else y_room
        mean = sum_of(p, n, 0.0) / n if centred else 0.0
        squares = sum_of_squares(p, n, mean)
        size = math.sqrt(squares) if euclidean else math.sqrt(squares / n + eps)
        if euclidean and not size > eps:  # also where it is NaN
            size = eps
        if size > large or size < small:
            unit = down if size > large else up
            for i in range(0, 4 * whole, 4 * step):
                simd.store(r + i, simd.mul(load(p + i), unit))
            if whole < n:
                i, tail = 4 * whole, n - whole
                simd.store_first(r + i, simd.mul(load_first(p + i, tail), unit), tail)
            p = r
            mean = mean * unit
            size = size * unit
        factor = 1.0 / size
        for i in range(0, 4 * whole, 4 * step):
            v = load(p + i)
            simd.store(r + i, simd.mul(simd.sub(v, mean) if centred else v, factor))
        if whole < n:
            i, tail = 4 * whole, n - whole
            v = load_first(p + i, tail)
            simd.store_first(r + i, simd.mul(simd.sub(v, mean) if centred else v, factor), tail)
        write(ctx, write_y, y, Norm.y.stride(params), n, r)

    return over_rows(Norm, visit)

"""Copies that exchange two axes: the result is contiguous along one axis, the source along another.

A loop over rows of the result would use one element of each cache line of the source.  Here squares of :data:`TILE` by
:data:`TILE` elements are loaded along the source's axis, transposed in registers, and stored along the result's.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.ops.copy.kernels import Copied
from ggplug_cpu.parts.nest import locate, thread_range
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import I16, I32, Value, emitted, vector

#: Axes shorter than this are not worth a transposition in registers.
TILE = 8


@kernel
def copy_transposed(size: int) -> Body:
    """``y[r, c] = x[c, r]`` for matrices of elements of ``size`` bytes; c is the inner axis, r the first outer one."""
    T = simd.width("f32")
    transpose = _transpose_square(size, T)
    load, store = simd.LOADS[f"i{8 * size}"], simd.STORES[f"i{8 * size}"]
    find = locate(Copied)

    def body(ctx: int, params: Copied) -> None:
        columns, height = params.count, params.axes[0]
        x_column, y_row = params.x.stride, params.axes[1]
        strips = (height + T - 1) // T
        first, end = thread_range(ctx, params.rows // height * strips)
        for strip in range(first, end):
            r = strip % strips * T
            y, x = find(params, strip // strips * height + r)
            rows = min(T, height - r)
            whole = columns - columns % T if rows == T else 0
            for c in range(0, whole, T):
                transpose(y + c * size, y_row, x + c * x_column, x_column)
            for c in range(whole, columns):
                for i in range(rows):
                    store(y + i * y_row + c * size, load(x + c * x_column + i * size))

    return body


def _transpose_square(size: int, n: int) -> Intrinsic:
    """``transpose(y, y_row, x, x_row)`` transposes a square of ``n`` by ``n`` elements."""
    t = vector(I32 if size == 4 else I16, n)

    def emit(y: Value, y_row: Value, x: Value, x_row: Value) -> None:
        rows = []
        for i in range(n):
            rows.append(values.load(x + x_row * i, t))
        # rounds of interleaving the first half of the rows with the second: log2(n) of them transpose
        low = [lane // 2 + n * (lane % 2) for lane in range(n)]
        high = [lane + n // 2 for lane in low]
        for _ in range(n.bit_length() - 1):
            pairs = zip(rows[: n // 2], rows[n // 2 :], strict=True)
            rows = [a.shuffle(lanes, b) for a, b in pairs for lanes in (low, high)]
        for i, row in enumerate(rows):
            values.store(y + y_row * i, row)

    return emitted("void(i64, i64, i64, i64)")(emit)

"""Bands of matrices, and triangular systems of equations."""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import aborted, scratch
from ggplug_cpu.parameters import Parameters, destination, integer, real, source
from ggplug_cpu.parts.nest import Places, Rows, destination_row, over_rows, source_row, thread_range
from ggplug_cpu.parts.programs import row_program
from ggplug_cpu.parts.rows import ARGUMENTS, read, write


class Banded(Rows):
    """Rows of matrices of ``height`` rows; of row i, columns i + ``first`` to i + ``behind`` - 1 are kept."""

    y = destination_row()
    x = source_row()
    height = integer()
    first = integer()
    behind = integer()
    value = real()


class SolveTri(Parameters):
    """``batches`` systems of ``n`` equations with ``k`` right-hand sides each, all contiguous."""

    x = destination()
    a = source()
    b = source()
    n = integer()
    k = integer()
    batches = integer()


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory of :func:`banded` for rows of ``n`` elements."""
    return ARGUMENTS + 8 * n


@kernel
def banded() -> Body:
    """Keeps columns in the band, and stores a constant in all others."""
    fill = row_program("fill(x0)")

    @device_function
    def visit(ctx: int, params: Banded, row: int, n: int, places: Places) -> None:
        y, x = places
        i, value = row % params.height, params.value
        first = min(max(i + params.first, 0), n)
        behind = max(min(i + params.behind, n), first)
        write_y, y_scratch = params.y.convert, scratch(ctx) + ARGUMENTS
        p = read(ctx, params.x.convert, x, params.x.stride, n, y_scratch + 4 * n)
        r = y if write_y == 0 else y_scratch
        fill(r, p, first, value)
        if p != r:
            simd.copy_bytes(r + 4 * first, p + 4 * first, 4 * (behind - first))
        fill(r + 4 * behind, p + 4 * behind, n - behind, value)
        write(ctx, write_y, y, params.y.stride, n, r)

    return over_rows(Banded, visit)


@kernel
def solve_tri() -> Body:
    """Forward substitution, for a vector of right-hand sides at a time."""
    F, step = simd.vec("f32"), simd.width("f32")
    load_first, splat, zero = simd.load_first(F), simd.splat(F), simd.zero(F)

    def body(ctx: int, params: SolveTri) -> None:
        n, k = params.n, params.k
        pieces = (k + step - 1) // step
        first, end = thread_range(ctx, params.batches * pieces)
        for piece in range(first, end):
            if aborted(ctx):
                return
            batch, column = piece // pieces, piece % pieces * step
            count = min(step, k - column)
            row = params.a.address + batch * n * n * 4
            below = (batch * n * k + column) * 4
            top, b = params.x.address + below, params.b.address + below
            for i in range(n):
                total = zero()
                for t in range(i):
                    total = simd.fma(splat(simd.load_f32(row + 4 * t)), load_first(top + 4 * k * t, count), total)
                left = load_first(b + 4 * k * i, count) - total
                simd.store_first(top + 4 * k * i, left / splat(simd.load_f32(row + 4 * i)), count)
                row += 4 * n

    return body

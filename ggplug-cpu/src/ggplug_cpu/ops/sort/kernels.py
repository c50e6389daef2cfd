"""Sorting within rows: positions in the order of their elements."""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import aborted, scratch
from ggplug_cpu.parameters import integer
from ggplug_cpu.parts.nest import Places, Rows, destination_row, over_rows, source_row
from ggplug_cpu.parts.rows import ARGUMENTS, read

#: Elements that are sorted by insertion before runs are merged.
_RUN = 8


class Argsort(Rows):
    """Rows of x, and of the first ``kept`` positions in it; ``flip`` is -1 where the largest comes first, else 0."""

    y = destination_row()
    x = source_row()
    flip = integer()
    kept = integer()


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory for rows of ``n`` elements."""
    return ARGUMENTS + 20 * n


@kernel
def argsort() -> Body:
    """Merge sort of 64-bit words: the element as an integer of the same order in the upper half, its position in the
    lower.
    """

    @device_function
    def visit(ctx: int, params: Argsort, row: int, n: int, places: Places) -> None:
        if aborted(ctx):
            return
        y, x = places
        flip = params.flip
        words = scratch(ctx) + ARGUMENTS
        others = words + 8 * n
        p = read(ctx, params.x.convert, x, params.x.stride, n, others + 8 * n)
        for i in range(n):
            bits = simd.load_i32(p + 4 * i)
            # of two negative floats the one of larger magnitude is smaller
            key = bits ^ (bits >> 31 & 0x7FFFFFFF) ^ flip
            if bits & 0x7FFFFFFF > 0x7F800000:  # NaN is last
                key = 0x7FFFFFFF
            item = key << 32 | i
            j = 8 * i
            start = j - j % (8 * _RUN)
            while j > start and simd.load_i64(words + j - 8) > item:
                simd.store_i64(words + j, simd.load_i64(words + j - 8))
                j -= 8
            simd.store_i64(words + j, item)
        here, there = words, others
        run = 8 * _RUN
        while run < 8 * n:
            for start in range(0, 8 * n, 2 * run):
                middle, stop = min(start + run, 8 * n), min(start + 2 * run, 8 * n)
                i, j, k = start, middle, start
                while i < middle and j < stop:
                    a, b = simd.load_i64(here + i), simd.load_i64(here + j)
                    simd.store_i64(there + k, min(a, b))
                    i += 8 * (a < b)
                    j += 8 * (b < a)
                    k += 8
                simd.copy_bytes(there + k, here + i, middle - i)
                simd.copy_bytes(there + k + middle - i, here + j, stop - j)
            here, there = there, here
            run *= 2
        for i in range(params.kept):
            simd.store_i32(y + 4 * i, simd.load_i64(here + 8 * i) & 0x7FFFFFFF)

    return over_rows(Argsort, visit)

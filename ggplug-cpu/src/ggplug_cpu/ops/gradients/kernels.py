"""Gradients of normalisation, softmax and repetition.  Sums are f64."""

from __future__ import annotations

import math

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import integer, real
from ggplug_cpu.parts.nest import BLOCK, Places, Rows, destination_row, locate, over_rows, source_row, thread_range
from ggplug_cpu.parts.programs import row_program
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, read, write
from ggplug_cpu.parts.sums import row_dot, row_sum
from ggplug_cpu.simd.values import F32, F64, Value, emitted, first_lanes, loop, masked_load, masked_store, vector


class RowGradient(Rows):
    """Rows of the result, of the gradient, and of the forward op's source or result; ``number``: the op's parameter."""

    y = destination_row()
    dy = source_row()
    x = source_row()
    number = real()


class RepeatBack(Rows):
    """Rows of the result, and of their first repetition in x; there are ``count0`` to ``count3`` repetitions along the
    axes.
    """

    y = destination_row()
    x = source_row()
    count0 = integer()
    count1 = integer()
    count2 = integer()
    count3 = integer()
    step0 = integer()
    """Bytes from one repetition to the next."""
    step1 = integer()
    step2 = integer()
    step3 = integer()


#: Elements of the result that a thread adds up at a time.
PIECE = 256


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory of :func:`row_gradient` for rows of ``n`` elements."""
    return ARGUMENTS + 12 * n


#: Bytes of scratch memory of :func:`repeat_back`.
REPEAT_SCRATCH_BYTES = ARGUMENTS + 2 * ROW_BYTES + 8 * PIECE


@kernel
def row_gradient(name: str) -> Body:
    """``rms_norm_back`` (``number`` is eps) and ``soft_max_back`` (``number`` is the scale)."""
    combine = row_program("weighted(x0,x1)" if name == "rms_norm_back" else "probabilities_back(x0,x1)")
    of_norm = name == "rms_norm_back"

    @device_function
    def visit(ctx: int, params: RowGradient, row: int, n: int, places: Places) -> None:
        y, dy, x = places
        number, scratch_row = params.number, scratch(ctx) + ARGUMENTS
        write_y = params.y.convert
        p = read(ctx, params.dy.convert, dy, params.dy.stride, n, scratch_row)
        q = read(ctx, params.x.convert, x, params.x.stride, n, scratch_row + 4 * n)
        r = y if write_y == 0 else scratch_row + 8 * n
        dot = row_dot(p, q, n)
        if of_norm:
            size = row_dot(q, q, n) / n + number
            factor = 1.0 / math.sqrt(size)
            combine(r, p, q, n, factor, -(dot / n) / size * factor)
        else:
            combine(r, p, q, n, dot, number)
        write(ctx, write_y, y, params.y.stride, n, r)

    return over_rows(RowGradient, visit)


@emitted("void(i64, i64, i64)")
def _added(totals: Value, x: Value, n: Value) -> None:
    """Adds the ``n`` f32 at ``x`` to the f64 at ``totals``, which has a vector of padding."""
    half = simd.width("f32") // 2

    def one(i: Value, _: list[Value]) -> list[Value]:
        done = i * half
        mask = first_lanes(half, n - done)
        place = totals + done * 8
        numbers = masked_load(x + done * 4, vector(F32, half), mask).convert(F64)
        masked_store(place, masked_load(place, vector(F64, half), mask) + numbers, mask)
        return []

    loop((n + (half - 1)).lshr(half.bit_length() - 1), [], one)


@emitted("void(i64, i64, i64)")
def _narrowed(y: Value, totals: Value, n: Value) -> None:
    """Stores the ``n`` f64 at ``totals`` as f32 at ``y``."""
    half = simd.width("f32") // 2

    def one(i: Value, _: list[Value]) -> list[Value]:
        done = i * half
        mask = first_lanes(half, n - done)
        masked_store(y + done * 4, masked_load(totals + done * 8, vector(F64, half), mask).convert(F32), mask)
        return []

    loop((n + (half - 1)).lshr(half.bit_length() - 1), [], one)


@kernel
def repeat_back() -> Body:
    """Pieces of the result's rows, each the sum of all its repetitions.  A row of one element sums rows of x."""
    find = locate(RepeatBack)

    @device_function
    def added_row(ctx: int, params: RepeatBack, x: int, scratch_row: int) -> float:
        total, convert = 0.0, params.x.convert
        step, count = params.step0, params.count0
        for start in range(0, count, BLOCK):
            m = min(BLOCK, count - start)
            p = read(ctx, convert, x + start * step, step, m, scratch_row)
            total += row_sum(p, m)
        return total

    def body(ctx: int, params: RepeatBack) -> None:
        rows, n = params.rows, params.count
        write_y, y_stride = params.y.convert, params.y.stride
        read_x, x_stride = params.x.convert, params.x.stride
        scratch_row = scratch(ctx) + ARGUMENTS
        y_scratch, totals = scratch_row + ROW_BYTES, scratch_row + 2 * ROW_BYTES
        pieces = (n + PIECE - 1) // PIECE
        first, end = thread_range(ctx, rows * pieces)
        for piece in range(first, end):
            y, x = find(params, piece // pieces)
            start = piece % pieces * PIECE
            m = min(PIECE, n - start)
            y += start * y_stride
            x += start * x_stride
            simd.fill_bytes(totals, 0, 8 * m)
            total = 0.0
            for k in range(params.count3):
                for j in range(params.count2):
                    for i in range(params.count1):
                        at = x + k * params.step3 + j * params.step2
                        at += i * params.step1
                        if n == 1:
                            total += added_row(ctx, params, at, scratch_row)
                            continue
                        for h in range(params.count0):
                            p = read(ctx, read_x, at + h * params.step0, x_stride, m, scratch_row)
                            _added(totals, p, m)
            if n == 1:
                simd.store_f64(totals, total)
            r = y if write_y == 0 else y_scratch
            _narrowed(r, totals, m)
            write(ctx, write_y, y, y_stride, m, r)

    return body

"""Sums, means and positions of maxima.  Sums are f64; one thread adds up a row, or a piece of fixed length."""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import CONVERTED, Parameters, destination, integer, real, source
from ggplug_cpu.parts.nest import Places, Rows, destination_row, over_rows, source_row
from ggplug_cpu.parts.rows import ARGUMENTS, read, write
from ggplug_cpu.parts.sums import row_sum
from ggplug_cpu.simd.values import (
    F32,
    F64,
    I32,
    I64,
    Value,
    constant,
    emitted,
    first_lanes,
    loop,
    masked_load,
    masked_store,
    vector,
)

_LOWEST = -(2**31)


class SumRows(Rows):
    """Rows of x, each with an element of y, which is the sum divided by ``divisor``."""

    y = destination_row()
    x = source_row()
    divisor = real()


class SumPieces(Rows):
    """Pieces of x, each with an f64 for its sum."""

    sums = destination_row()
    x = source_row()


class SumUp(Parameters):
    """``count`` f64 to add up."""

    y = destination(CONVERTED)
    sums = source()
    count = integer()


class Argmax(Rows):
    """Rows of x, each with an element of y."""

    y = destination_row()
    x = source_row()


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory of these kernels for rows of ``n`` elements."""
    return 2 * ARGUMENTS + 4 * n


@kernel
def sum_rows() -> Body:
    """The sum of each row, divided by ``divisor``."""

    @device_function
    def visit(ctx: int, params: SumRows, row: int, n: int, places: Places) -> None:
        y, x = places
        write_y, y_scratch = params.y.convert, scratch(ctx) + ARGUMENTS
        p = read(ctx, params.x.convert, x, params.x.stride, n, y_scratch + ARGUMENTS)
        r = y if write_y == 0 else y_scratch
        simd.store_f32(r, row_sum(p, n) / params.divisor)
        write(ctx, write_y, y, 0, 1, r)

    return over_rows(SumRows, visit)


@kernel
def sum_pieces() -> Body:
    """The sum of each row as f64."""

    @device_function
    def visit(ctx: int, params: SumPieces, row: int, n: int, places: Places) -> None:
        total, x = places
        scratch_row = scratch(ctx) + ARGUMENTS
        p = read(ctx, params.x.convert, x, params.x.stride, n, scratch_row)
        simd.store_f64(total, row_sum(p, n))

    return over_rows(SumPieces, visit)


@kernel
def sum_up() -> Body:
    """The sum of f64 in their order, in the result's type."""

    def body(ctx: int, params: SumUp) -> None:
        y, write_y, sums = params.y.address, params.y.convert, params.sums.address
        total = 0.0
        for i in range(params.count):
            total += simd.load_f64(sums + 8 * i)
        r = y if write_y == 0 else scratch(ctx) + ARGUMENTS
        simd.store_f32(r, total)
        write(ctx, write_y, y, 0, 1, r)

    return body


class Cumsum(Rows):
    """Rows of x, and of their cumulative sums."""

    y = destination_row()
    x = source_row()


class CountPieces(Rows):
    """Pieces of a and b (i32), each with an i64 for its number of equal elements."""

    counts = destination_row()
    a = source_row()
    b = source_row()


class CountUp(Parameters):
    """``count`` i64 to add up."""

    y = destination()
    counts = source()
    count = integer()


@emitted("void(i64, i64, i64)")
def _sums_so_far(y: Value, x: Value, n: Value) -> None:
    """Cumulative sums of the ``n`` f32 at ``x``, in f64: a vector is added to itself shifted by one, two and four
    lanes.
    """
    half = simd.width("f32") // 2
    lanes = vector(F64, half)

    def one(i: Value, carried: list[Value]) -> list[Value]:
        mask = first_lanes(half, n - i * half)
        sums = masked_load(x + i * (4 * half), vector(F32, half), mask).convert(F64)
        nothing, distance = constant(n.b, lanes, 0), 1
        while distance < half:
            sums = sums + nothing.shuffle([*range(distance), *range(half, 2 * half - distance)], sums)
            distance *= 2
        sums = sums + carried[0].splat(half)
        masked_store(y + i * (4 * half), sums.convert(F32), mask)
        return [sums.lane(half - 1)]

    loop((n + (half - 1)).lshr(half.bit_length() - 1), [constant(n.b, F64, 0)], one)


@kernel
def cumsum() -> Body:
    """The cumulative sums of each row."""

    @device_function
    def visit(ctx: int, params: Cumsum, row: int, n: int, places: Places) -> None:
        y, x = places
        write_y, y_scratch = params.y.convert, scratch(ctx) + ARGUMENTS
        p = read(ctx, params.x.convert, x, params.x.stride, n, y_scratch + 4 * n)
        r = y if write_y == 0 else y_scratch
        _sums_so_far(r, p, n)
        write(ctx, write_y, y, params.y.stride, n, r)

    return over_rows(Cumsum, visit)


@emitted("i64(i64, i64, i64)")
def _equal(a: Value, b: Value, n: Value) -> Value:
    """The number of equal i32 among the ``n`` at ``a`` and ``b``; at most 2**31."""
    width = simd.width("f32")
    lanes = vector(I32, width)

    def one(i: Value, counts: list[Value]) -> list[Value]:
        mask, at = first_lanes(width, n - i * width), i * (4 * width)
        same = masked_load(a + at, lanes, mask).equal(masked_load(b + at, lanes, mask)) & mask
        return [counts[0] + same.zext(I32)]

    (counts,) = loop((n + (width - 1)).lshr(width.bit_length() - 1), [constant(n.b, lanes, 0)], one)
    return counts.sum().convert(I64)


@kernel
def count_pieces() -> Body:
    """The number of equal elements of each row."""

    @device_function
    def visit(ctx: int, params: CountPieces, row: int, n: int, places: Places) -> None:
        counts, a, b = places
        a_stride, b_stride = params.a.stride, params.b.stride
        if a_stride == 4 and b_stride == 4:
            simd.store_i64(counts, _equal(a, b, n))
        else:
            count = 0
            for i in range(n):
                count += simd.load_i32(a + i * a_stride) == simd.load_i32(b + i * b_stride)
            simd.store_i64(counts, count)

    return over_rows(CountPieces, visit)


@kernel
def count_up() -> Body:
    """The sum of i64 counts."""

    def body(ctx: int, params: CountUp) -> None:
        total = 0
        for i in range(params.count):
            total += simd.load_i64(params.counts.address + 8 * i)
        simd.store_i64(params.y.address, total)

    return body


@kernel
def argmax() -> Body:
    """Every lane keeps its largest number and its position; of equal numbers the first one counts.

    Numbers are compared as integers of the same order, in which NaN is the smallest.
    """
    F, I, step = simd.vec("f32"), simd.vec("i32", simd.width("f32")), simd.width("f32")
    load, load_first, lanes = simd.load(F), simd.load_first(F), simd.first_lanes(step)
    bits, number, iota = simd.bitcast(I), simd.splat(I), simd.iota(I)
    lowest = _LOWEST

    @device_function
    def ordered(v: simd.Vector) -> simd.Vector:
        x = bits(simd.add(v, 0.0))  # -0 becomes 0
        return simd.select(simd.unequal(v, v), lowest, x ^ ((x >> number(31)) & number(0x7FFFFFFF)))

    @device_function
    def visit(ctx: int, params: Argmax, row: int, n: int, places: Places) -> None:
        y, x = places
        whole, tail = 4 * (n - n % step), n % step
        p = read(ctx, params.x.convert, x, params.x.stride, n, scratch(ctx) + ARGUMENTS)
        largest, where, here = number(lowest), iota(), iota()
        for i in range(0, whole, 4 * step):
            v = ordered(load(p + i))
            better = simd.greater(v, largest)
            largest, where = simd.select(better, v, largest), simd.select(better, here, where)
            here = simd.add(here, step)
        if tail > 0:
            v = simd.select(lanes(tail), ordered(load_first(p + whole, tail)), lowest)
            better = simd.greater(v, largest)
            largest, where = simd.select(better, v, largest), simd.select(better, here, where)
        winners = simd.equal(largest, simd.hmax(largest))
        simd.store_i32(y, simd.hmin(simd.select(winners, where, 2**31 - 1)))

    return over_rows(Argmax, visit)

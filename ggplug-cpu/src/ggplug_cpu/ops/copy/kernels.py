"""Copies: of rows of bytes, of elements at any strides, into other types by way of f32."""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import integer
from ggplug_cpu.parts.nest import BLOCK, Places, Rows, destination_row, over_rows, source_row
from ggplug_cpu.parts.rows import ARGUMENTS, read, write


class Copied(Rows):
    """Elements that are copied as they are."""

    y = destination_row()
    x = source_row()


class CopiedRows(Copied):
    """Rows of elements of ``size`` bytes without gaps."""

    size = integer()


class Zeroed(Rows):
    """Rows of elements of ``size`` bytes without gaps, all of which become zero."""

    y = destination_row()
    size = integer()


class Converted(Rows):
    """Elements that change their type."""

    y = destination_row()
    x = source_row()


@kernel
def copy_rows() -> Body:
    """Rows of bytes that are contiguous on both sides."""

    @device_function
    def visit(ctx: int, params: CopiedRows, row: int, n: int, places: Places) -> None:
        y, x = places
        simd.copy_bytes(y, x, n * params.size)

    return over_rows(CopiedRows, visit)


@kernel
def zero_rows() -> Body:
    """Rows of bytes that become zero."""

    @device_function
    def visit(ctx: int, params: Zeroed, row: int, n: int, places: Places) -> None:
        simd.fill_bytes(places[0], 0, n * params.size)

    return over_rows(Zeroed, visit)


@kernel
def copy_strided(size: int) -> Body:
    """Elements of ``size`` bytes at any strides."""
    load, store = simd.LOADS[f"i{8 * size}"], simd.STORES[f"i{8 * size}"]

    @device_function
    def visit(ctx: int, params: Copied, row: int, n: int, places: Places) -> None:
        y, x = places
        y_stride, x_stride = params.y.stride, params.x.stride
        for i in range(n):
            store(y + y_stride * i, load(x + x_stride * i))

    return over_rows(Copied, visit)


@kernel
def convert() -> Body:
    """Elements of one type to another, through blocks of f32."""

    @device_function
    def visit(ctx: int, params: Converted, row: int, n: int, places: Places) -> None:
        y, x = places
        write_y, y_stride = params.y.convert, params.y.stride
        read_x, x_stride = params.x.convert, params.x.stride
        scratch_row = scratch(ctx) + ARGUMENTS
        for start in range(0, n, BLOCK):
            m = min(BLOCK, n - start)
            # one of the two is f32 in place, or neither
            p = read(ctx, read_x, x, x_stride, m, y if write_y == 0 else scratch_row)
            write(ctx, write_y, y, y_stride, m, p)
            y += params.y.block_bytes
            x += params.x.block_bytes

    return over_rows(Converted, visit)

"""Loops over the rows of strided tensors, for kernels that visit every element of their operands.

Such a kernel sees *rows*, runs of elements along the innermost axis, of any number of operands.  The axes above are any
number of extents with a byte stride for each operand; :mod:`ggplug_cpu.choosing.nest` plans them.  A kernel declares
its operands and a function for one row; :func:`over_rows` makes the loop::

    class Doubled(Rows):
        y = destination_row()
        x = source_row()

    @kernel
    def doubled():
        @device_function
        def visit(ctx: int, params: Doubled, row: int, n: int, places: Places) -> None:
            y, x = places                   # addresses of row number ``row``, of ``n`` elements
            ...
        return over_rows(Doubled, visit)
"""

from __future__ import annotations

from ggplug_cpu.compiler import Body, DeviceFunction, Intrinsic, device_function
from ggplug_cpu.context import thread_count, thread_index
from ggplug_cpu.parameters import CONVERTED, Operand, Parameters, emitted_number, integer, integers
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import I64, Value, emitted

#: Elements that a kernel converts at a time; 4 KiB as f32, so a few of them stay in the first-level cache.
BLOCK = 1024
#: The addresses of a row, one for each operand.
Places = tuple[int, ...]


class RowOperand(Operand):
    """An operand whose rows the loop goes over; the elements of a row lie ``stride`` bytes apart."""

    def __init__(self, writes: bool) -> None:
        super().__init__(writes, "stride", *CONVERTED)


def source_row() -> RowOperand:
    """An operand of which every row is read."""
    return RowOperand(False)


def destination_row() -> RowOperand:
    """An operand of which every row is written, and perhaps read."""
    return RowOperand(True)


class Rows(Parameters):
    """Parameters of the loop: number and length of rows, length of the last one, and the axes above."""

    rows = integer()
    count = integer()
    last = integer()
    depth = integer()
    axes = integers()
    """For each axis, innermost first, its extent and the byte stride of every row operand."""

    @classmethod
    def row_operands(cls) -> list[RowOperand]:
        return [field for field in cls.fields.values() if isinstance(field, RowOperand)]


@device_function
def thread_range(ctx: int, count: int) -> tuple[int, int]:
    """(first, end) of the part of ``range(count)`` that this thread computes."""
    threads = thread_count(ctx)
    if threads == 1:
        return 0, count
    index = thread_index(ctx)
    return count * index // threads, count * (index + 1) // threads


def locate(parameters: type[Rows]) -> Intrinsic:
    """``locate(parameters)(params, row)``: the addresses of row number ``row`` of all row operands."""
    operands = parameters.row_operands()

    def emit(params: Value, row: Value) -> Value:
        b = params.b
        starts = [emitted_number(operand.address, params) for operand in operands]
        depth = emitted_number(parameters.depth, params)

        def offset(axis: Value, index: Value, places: list[Value]) -> list[Value]:
            strides = [emitted_number(parameters.axes, params, axis + (1 + k)) for k in range(len(operands))]
            return [place + index * stride for place, stride in zip(places, strides, strict=True)]

        def inner(_: Value, carried: list[Value]) -> list[Value]:
            axis, row, *places = carried
            extent = emitted_number(parameters.axes, params, axis)
            above = Value(b, b.sdiv(row.ir, extent.ir))
            return [axis + (1 + len(operands)), above, *offset(axis, row - above * extent, places)]

        def outermost(_: Value, carried: list[Value]) -> list[Value]:
            axis, row, *places = carried
            return [axis, row, *offset(axis, row, places)]

        # the outermost axis needs no division
        carried = values.loop(depth - 1, [values.constant(b, I64, 0), row, *starts], inner)
        return values.packed(values.loop(depth.minimum(1), carried, outermost)[2:])

    return emitted(f"i64*{len(operands)}(i64, i64)")(emit)


def next_row(parameters: type[Rows]) -> Intrinsic:
    """``next_row(parameters)(params, places)``: the addresses of the next row of a run; see :func:`run_length`."""
    operands = parameters.row_operands()

    def emit(params: Value, places: Value) -> Value:
        strides = [emitted_number(parameters.axes, params, 1 + k) for k in range(len(operands))]
        return values.packed([place + s for place, s in zip(values.unpacked(places), strides, strict=True)])

    return emitted(f"i64*{len(operands)}(i64, i64*{len(operands)})")(emit)


def next_block(parameters: type[Rows]) -> Intrinsic:
    """``next_block(parameters)(params, places)``: the addresses :data:`BLOCK` elements further on in the row."""
    operands = parameters.row_operands()

    def emit(params: Value, places: Value) -> Value:
        sizes = [emitted_number(operand.block_bytes, params) for operand in operands]
        return values.packed([place + size for place, size in zip(values.unpacked(places), sizes, strict=True)])

    return emitted(f"i64*{len(operands)}(i64, i64*{len(operands)})")(emit)


@device_function
def run_length(params: Rows, row: int, end: int) -> int:
    """The number of rows from ``row`` on whose addresses differ by the strides of the innermost outer axis."""
    if params.depth <= 1:
        return end - row
    extent = params.axes[0]
    return min(end - row, extent - row % extent)


def over_rows(parameters: type[Rows], visit: DeviceFunction | Intrinsic) -> Body:
    """A kernel's body: each thread calls ``visit(ctx, params, row, n, places)`` for its rows."""
    find, following = locate(parameters), next_row(parameters)

    def body(ctx: int, params: Rows) -> None:
        rows, count, last = params.rows, params.count, params.last
        row, end = thread_range(ctx, rows)
        while row < end:
            places = find(params, row)
            stop = row + run_length(params, row, end)
            while row < stop:
                visit(ctx, params, row, last if row == rows - 1 else count, places)
                places = following(params, places)
                row += 1

    return body

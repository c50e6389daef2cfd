"""Windows of images as rows: see :class:`ggplug.ops.Im2col`.

A thread first lists, for each element of a row, its offset from the window's first element, in bytes and along each
axis; with these lists it gathers a row a vector at a time.
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import CONVERTED, Parameters, destination, integer, source
from ggplug_cpu.parts.nest import BLOCK, thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, write
from ggplug_cpu.parts.sliding import (
    Sliding,
    counted,
    narrow,
    number,
    numbers_of,
    quotient,
    tap_at,
)
from ggplug_cpu.simd import values, width
from ggplug_cpu.simd.values import F32, I32, Value, emitted, first_lanes, loop, vector

#: Lists are padded to a multiple of the widest vector.
_PADDING = 16


class Im2col(Parameters):
    """Each of y's ``rows`` has the ``n`` numbers of a window of x, which is f32; an image has ``rows_of_image``.

    Rows of y lie ``row_bytes`` apart, images of x ``image_bytes``.  The words of
    :class:`~ggplug_cpu.parts.sliding.Sliding` follow.
    """

    y = destination("nb0", CONVERTED)
    x = source()
    n = integer()
    rows = integer()
    rows_of_image = integer()
    row_bytes = integer()
    image_bytes = integer()


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory for rows of ``n`` elements."""
    return ARGUMENTS + ROW_BYTES + 16 * (n + _PADDING)


@kernel
def im2col() -> Body:
    """Gathers row after row of y."""
    list_numbers, read_row = _list_numbers(), _read_row()
    behind = 8 * Im2col.word_count()

    def body(ctx: int, params: Im2col) -> None:
        n, of_image, words = params.n, params.rows_of_image, int(params) + behind
        write_y, y_stride, block_bytes = params.y.convert, params.y.nb0, params.y.block_bytes
        scratch_row = scratch(ctx) + ARGUMENTS
        lists = scratch_row + 4 * BLOCK
        apart = 4 * (n + _PADDING)
        first, end = thread_range(ctx, params.rows)
        if first < end:
            list_numbers(words, lists, apart, n)
        for row in range(first, end):
            image = row // of_image
            x = params.x.address + image * params.image_bytes
            y = params.y.address + row * params.row_bytes
            for start in range(0, n, BLOCK):
                m = min(BLOCK, n - start)
                place = y if write_y == 0 else scratch_row
                read_row(words, x, row - image * of_image, lists + 4 * start, apart, place, m)
                write(ctx, write_y, y, y_stride, m, place)
                y += block_bytes

    return body


@functools.cache
def _list_numbers() -> Intrinsic:
    """``(words, lists, apart, n)`` lists for each element of a row its offset in bytes and along the axes (int32)."""
    lanes = width("f32")

    def emit(words: Value, lists: Value, apart: Value, n: Value) -> None:
        taps0, taps1, taps2 = numbers_of("taps", words)
        taps, strides = taps0 * taps1 * taps2, numbers_of("nb", words)
        channel_bytes = narrow(number(Sliding.channel, words), lanes)

        def some(v: Value, _: list[Value]) -> list[Value]:
            k = counted(v * lanes, lanes)
            channels = quotient(k, taps)
            distances = tap_at(k - channels * narrow(taps, lanes), words)
            offsets = channels * channel_bytes
            for distance, stride in zip(distances, strides, strict=True):
                offsets = offsets + distance * narrow(stride, lanes)
            for i, each in enumerate([offsets, *distances]):
                values.store(lists + apart * i + v * (4 * lanes), each)
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

    return emitted("void(i64, i64, i64, i64)")(emit)


@functools.cache
def _read_row() -> Intrinsic:
    """``(words, x, row, lists, apart, place, n)`` stores ``n`` elements of window ``row`` of an image at ``place``, as
    f32.
    """
    lanes = width("f32")
    floats, ints = vector(F32, lanes), vector(I32, lanes)

    def emit(words: Value, x: Value, row: Value, lists: Value, apart: Value, place: Value, n: Value) -> None:
        b = words.b
        windows0, windows1 = number(Sliding.windows0, words), number(Sliding.windows1, words)
        rows = Value(b, b.sdiv(row.ir, windows0.ir))
        planes = Value(b, b.sdiv(rows.ir, windows1.ir))
        at = [row - rows * windows0, rows - planes * windows1, planes]
        begins, strides = [], numbers_of("nb", words)
        paddings = numbers_of("padding", words)
        for position, stride, padding in zip(at, numbers_of("stride", words), paddings, strict=True):
            begins.append(position * stride - padding)
        start = x
        for begin, stride in zip(begins, strides, strict=True):
            start = start + begin * stride
        extents = numbers_of("extent", words)

        def some(v: Value, _: list[Value]) -> list[Value]:
            here = lists + v * (4 * lanes)
            inside = present = first_lanes(lanes, n - v * lanes)
            for i, (begin, extent) in enumerate(zip(begins, extents, strict=True)):
                position = values.load(here + apart * (i + 1), ints) + narrow(begin, lanes)
                inside = inside & (position >= 0) & (position < narrow(extent, lanes))
            read = values.masked_gather(start, values.load(here, ints), floats, inside)
            values.masked_store(place + v * (4 * lanes), read, present)
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)

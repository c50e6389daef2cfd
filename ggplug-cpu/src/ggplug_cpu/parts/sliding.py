"""Emits the positions of sliding windows and their taps in an image, and the masks of taps inside it.

Along an axis, tap k of window o reads element ``(o stride - padding + k dilation) / quotient`` of the image if that is
a whole number and inside, and else 0.  A quotient above 1 makes a transposed convolution of it, or a gradient: there
stride is 1 and the dilation negative.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ggplug_cpu.parameters import Number, Parameters, emitted_number, integer
from ggplug_cpu.simd.values import F64, I32, Value, constants


class Sliding(Parameters):
    """Windows over images of up to three dimensions; distances in bytes.  They stand behind a kernel's own words."""

    windows0 = integer()
    windows1 = integer()
    extent0 = integer()
    extent1 = integer()
    extent2 = integer()
    taps0 = integer()
    taps1 = integer()
    taps2 = integer()
    stride0 = integer()
    stride1 = integer()
    stride2 = integer()
    padding0 = integer()
    padding1 = integer()
    padding2 = integer()
    dilation0 = integer()
    dilation1 = integer()
    dilation2 = integer()
    quotient0 = integer()
    quotient1 = integer()
    quotient2 = integer()
    nb0 = integer()
    nb1 = integer()
    nb2 = integer()
    channel = integer()
    """From one channel to the next."""


def numbers_of(field: str, words: Value) -> list[Value]:
    """The values of the parameters ``field0``, ``field1`` and ``field2`` of :class:`Sliding`, for the three axes."""
    return [emitted_number(getattr(Sliding, f"{field}{axis}"), words) for axis in range(3)]


def number(field: Number[int], words: Value) -> Value:
    return emitted_number(field, words)


def quotient(numbers: Value, divisor: Value) -> Value:
    """Lanes of int32 divided by one number above 0, rounded down.  Exact: float64 holds far more than 32 bits."""
    one = numbers.b.fdiv(ir.Constant(F64, 1.0), divisor.convert(F64).ir)
    return ((numbers.convert(F64) + 0.5) * Value(numbers.b, one).splat(numbers.count)).floor().convert(I32)


def scalar_quotient(a: Value, b: Value) -> Value:
    return Value(a.b, a.b.sdiv(a.ir, b.ir))


def narrow(number: Value, lanes: int) -> Value:
    """An int64 in every lane of int32."""
    return number.convert(I32).splat(lanes)


def counted(first: Value, lanes: int) -> Value:
    """``first``, ``first + 1``, ... as int32."""
    return narrow(first, lanes) + constants(first.b, I32, range(lanes))


def windows_at(numbers: Value, words: Value) -> list[Value]:
    """The positions along each axis at which windows of these numbers (int32, ne0 counting fastest) begin."""
    lanes = numbers.count
    across, down = (narrow(number(each, words), lanes) for each in (Sliding.windows0, Sliding.windows1))
    rows = quotient(numbers, number(Sliding.windows0, words))
    planes = quotient(rows, number(Sliding.windows1, words))
    places = [numbers - rows * across, rows - planes * down, planes]
    strides, paddings = numbers_of("stride", words), numbers_of("padding", words)
    return [
        place * narrow(stride, lanes) - narrow(padding, lanes)
        for place, stride, padding in zip(places, strides, paddings, strict=True)
    ]


def tap_at(tap: Value, words: Value) -> list[Value]:
    """The offset of tap ``tap`` from the window's beginning along each axis, in elements: int64 or lanes."""
    taps, dilations = numbers_of("taps", words), numbers_of("dilation", words)
    if tap.count > 1:
        lanes = tap.count
        rows = quotient(tap, taps[0])
        planes = quotient(rows, taps[1])
        parts = [tap - rows * narrow(taps[0], lanes), rows - planes * narrow(taps[1], lanes), planes]
        return [part * narrow(dilation, lanes) for part, dilation in zip(parts, dilations, strict=True)]
    rows = scalar_quotient(tap, taps[0])
    planes = scalar_quotient(rows, taps[1])
    parts = [tap - rows * taps[0], rows - planes * taps[1], planes]
    return [part * dilation for part, dilation in zip(parts, dilations, strict=True)]


def read_at(positions: Sequence[Value], words: Value, stretched: bool) -> tuple[Value, Value]:
    """Bytes from an image's first element to those at ``positions`` (int32 for each axis), and which are inside.

    ``stretched``: whether there are quotients.
    """
    extents, strides, quotients = (numbers_of(field, words) for field in ("extent", "nb", "quotient"))
    lanes = positions[0].count
    offsets = inside = None
    for position, extent, nb, divisor in zip(positions, extents, strides, quotients, strict=True):
        element = quotient(position, divisor) if stretched else position
        ok = (element >= 0) & (element < narrow(extent, lanes))
        if stretched:
            ok = ok & (element * narrow(divisor, lanes)).equal(position)
        offset = element * narrow(nb, lanes)
        offsets = offset if offsets is None else offsets + offset
        inside = ok if inside is None else inside & ok
    assert offsets is not None
    assert inside is not None
    return offsets, inside

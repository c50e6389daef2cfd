"""Converts rows of any type to rows of f32 and back, so that kernels are written once, for contiguous f32.

A *converter* is a kernel that other kernels call by its address.  Its arguments are a row of f32 and its parameters
(:class:`Conversion`).  An operand that is contiguous f32 has no converter and is used in place.
The converters are in :mod:`.converters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ggplug_cpu.compiler import device_function
from ggplug_cpu.context import call_2, scratch, store_word
from ggplug_cpu.parameters import Parameters, emitted_number, integer
from ggplug_cpu.parts.nest import BLOCK, RowOperand
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import Value

#: Bytes at the start of a thread's scratch memory that hold a converter's parameters; rows follow.
ARGUMENTS = 64
#: Bytes of a block of converted elements.
ROW_BYTES = 4 * BLOCK


class Conversion(Parameters):
    """Parameters of converters: ``count`` elements at ``address``, ``stride`` bytes apart, of another type than f32."""

    address = integer()
    stride = integer()
    count = integer()


@device_function
def read(ctx: int, convert: int, address: int, stride: int, n: int, scratch_row: int) -> int:
    """``n`` elements from ``address`` on, as contiguous f32; returns their address: in place, or ``scratch_row``."""
    if convert == 0:
        return address
    _convert(ctx, convert, address, stride, n, scratch_row)
    return scratch_row


@device_function
def write(ctx: int, convert: int, address: int, stride: int, n: int, scratch_row: int) -> None:
    """Store ``n`` f32 from ``scratch_row`` at ``address``; does nothing without a converter, as they are there
    already.
    """
    if convert != 0:
        _convert(ctx, convert, address, stride, n, scratch_row)


@device_function
def _convert(ctx: int, convert: int, address: int, stride: int, n: int, scratch_row: int) -> None:
    arguments = scratch(ctx)
    store_word(arguments, address)
    store_word(arguments + 8, stride)
    store_word(arguments + 16, n)
    call_2(convert, scratch_row, arguments)


# -- for any number of operands, where code is emitted ------------------------------------------------


def read_rows(
    operands: Sequence[RowOperand],
    memory: Value,
    params: Value,
    places: Sequence[Value],
    n: Value,
    scratch_rows: Sequence[Value],
) -> list[Value]:
    """The addresses of ``n`` elements of each operand as contiguous f32: in place, or converted into its scratch row.

    ``memory``: the thread's scratch memory.
    """
    b, found = params.b, []
    for operand, place, scratch_row in zip(operands, places, scratch_rows, strict=True):
        convert = emitted_number(operand.convert, params)
        before = b.block
        with b.if_then(convert.unequal(0).ir):
            _emit_convert(memory, convert, place, emitted_number(operand.stride, params), n, scratch_row)
            after = b.block
        where = b.phi(place.type)
        where.add_incoming(place.ir, before)
        where.add_incoming(scratch_row.ir, after)
        found.append(Value(b, where))
    return found


@contextmanager
def write_row(
    operand: RowOperand, memory: Value, params: Value, place: Value, n: Value, scratch_row: Value
) -> Iterator[Value]:
    """A context whose value is the address to store ``n`` f32 at: in place, or ``scratch_row``, converted at its
    end.
    """
    convert = emitted_number(operand.convert, params)
    yield convert.equal(0).select(place, scratch_row)
    with params.b.if_then(convert.unequal(0).ir):
        _emit_convert(memory, convert, place, emitted_number(operand.stride, params), n, scratch_row)


def _emit_convert(memory: Value, convert: Value, address: Value, stride: Value, n: Value, scratch_row: Value) -> None:
    for i, word in enumerate((address, stride, n)):
        values.store(memory, word, 8 * i)
    call_2.function(address.b, convert.ir, scratch_row.ir, memory.ir)

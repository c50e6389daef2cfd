"""Rows of any type as rows of f32, and back: so that kernels are written once, for contiguous f32.

A *converter* is a kernel that other kernels call by its address, with a row of f32 and a few argument words in place of
a context and parameters.  An operand that is contiguous f32 has none and is used where it lies.  A new type becomes
known to every operation by its pair of converters here.
"""

from __future__ import annotations

import functools

from ggplug import types
from ggplug.types import Type
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Kernel, device_function, kernel
from ggplug_cpu.context import call_2, scratch, store_word, word
from ggplug_cpu.kernels import quantize
from ggplug_cpu.kernels.nest import BLOCK, Operand
from ggplug_cpu.tape import Ref
from ggplug_cpu.types import BLOCKS, ENCODED

#: Bytes at the start of a thread's scratch memory where a call's arguments lie; room for rows follows.
ARGUMENTS = 64
#: Bytes of a block of converted elements.
ROOM = 4 * BLOCK

PLAIN = {types.F32: "f32", types.F16: "f16", types.BF16: "bf16"}
INTEGERS = {types.I32: "i32"}

_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4}


@functools.cache
def reader(type: Type) -> Kernel | None:
    """The kernel that reads a row of ``type`` as f32, or None if there is none."""
    if type in PLAIN:
        return read_plain(PLAIN[type])
    if type in INTEGERS:
        return read_integers(INTEGERS[type])
    if type.name in BLOCKS:
        return read_blocks(type.name)
    return None


@functools.cache
def writer(type: Type) -> Kernel | None:
    """The kernel that writes f32 as a row of ``type``, or None if there is none."""
    if type in PLAIN:
        return write_plain(PLAIN[type])
    if type in INTEGERS:
        return write_integers(INTEGERS[type])
    if type.name in ENCODED:
        return write_blocks(type.name)
    return None


def read_operand(place: Ref, type: Type, stride: int) -> Operand:
    """A source whose elements lie ``stride`` bytes apart; the type must have a reader."""
    convert = None if type is types.F32 and stride == 4 else reader(type)
    return Operand(place, convert or 0, type.block_size)


def write_operand(place: Ref, type: Type, stride: int) -> Operand:
    """A result whose elements lie ``stride`` bytes apart; the type must have a writer."""
    convert = None if type is types.F32 and stride == 4 else writer(type)
    return Operand(place, convert or 0, type.block_size)


# -- in kernels -------------------------------------------------------------------------------------


@device_function
def read(ctx, convert, address, stride, n, room):  # type: ignore[no-untyped-def]
    """``n`` elements from ``address`` on, as contiguous f32: where they lie, or converted into ``room``."""
    if convert == 0:
        return address
    arguments = scratch(ctx)
    store_word(arguments, address)
    store_word(arguments + 8, stride)
    store_word(arguments + 16, n)
    call_2(convert, room, arguments)
    return room


@device_function
def write(ctx, convert, address, stride, n, room):  # type: ignore[no-untyped-def]
    """Store ``n`` f32 from ``room`` at ``address``; without a converter they are there already."""
    if convert != 0:
        arguments = scratch(ctx)
        store_word(arguments, address)
        store_word(arguments + 8, stride)
        store_word(arguments + 16, n)
        call_2(convert, room, arguments)


# -- converters -------------------------------------------------------------------------------------


@kernel
def read_plain(elem: str) -> Body:
    """f32, f16 or bf16, at any stride, to contiguous f32; stride 0 repeats one element.  Of none, none is read."""
    F, step, size = simd.vec("f32"), simd.width("f32"), _BYTES[elem]
    load, load_first = simd.load_as_f32(elem, F), simd.load_first_as_f32(elem, F)
    load_one, splat = simd.LOADS[elem], simd.splat(F)

    def body(room: int, arguments: int) -> None:
        x, stride, n = word(arguments, 0), word(arguments, 1), word(arguments, 2)
        whole = n - n % step
        if stride == size:
            for i in range(0, whole, step):
                simd.store(room + 4 * i, load(x + size * i))
            if whole < n:
                simd.store_first(room + 4 * whole, load_first(x + size * whole, n - whole), n - whole)
        elif stride == 0 and n > 0:
            value = splat(load_one(x))
            for i in range(0, whole, step):
                simd.store(room + 4 * i, value)
            if whole < n:
                simd.store_first(room + 4 * whole, value, n - whole)
        else:
            for i in range(n):
                simd.store_f32(room + 4 * i, load_one(x + stride * i))

    return body


@kernel
def write_plain(elem: str) -> Body:
    """Contiguous f32 to f32, f16 or bf16 at any stride, rounded to nearest even."""
    F, step, size = simd.vec("f32"), simd.width("f32"), _BYTES[elem]
    load, load_first = simd.load(F), simd.load_first(F)
    store, store_first, store_one = simd.store_as(elem), simd.store_first_as(elem), simd.STORES[elem]

    def body(room: int, arguments: int) -> None:
        y, stride, n = word(arguments, 0), word(arguments, 1), word(arguments, 2)
        if stride == size:
            whole = n - n % step
            for i in range(0, whole, step):
                store(y + size * i, load(room + 4 * i))
            if whole < n:
                store_first(y + size * whole, load_first(room + 4 * whole, n - whole), n - whole)
        else:
            for i in range(n):
                store_one(y + stride * i, simd.load_f32(room + 4 * i))

    return body


@kernel
def read_integers(elem: str) -> Body:
    """Integers at any stride to contiguous f32."""
    load = simd.LOADS[elem]

    def body(room: int, arguments: int) -> None:
        x, stride, n = word(arguments, 0), word(arguments, 1), word(arguments, 2)
        for i in range(n):
            simd.store_f32(room + 4 * i, load(x + stride * i))

    return body


@kernel
def write_integers(elem: str) -> Body:
    """Contiguous f32 to 32-bit integers at any stride: cut towards zero, the nearest beyond their range, 0 for NaN."""
    store = simd.STORES[elem]

    def body(room: int, arguments: int) -> None:
        y, stride, n = word(arguments, 0), word(arguments, 1), word(arguments, 2)
        for i in range(n):
            store(y + stride * i, simd.saturated_i32(simd.load_f32(room + 4 * i)))

    return body


@kernel
def read_blocks(type_name: str) -> Body:
    """Quantised blocks, one after the other, to contiguous f32."""
    dequantize = quantize.dequantize_row(type_name)

    def body(room: int, arguments: int) -> None:
        dequantize(room, word(arguments, 0), word(arguments, 2))

    return body


@kernel
def write_blocks(type_name: str) -> Body:
    """Contiguous f32 to quantised blocks, one after the other, as ggml's reference rounds."""
    quantise = quantize.quantize_row(type_name)

    def body(room: int, arguments: int) -> None:
        quantise(word(arguments, 0), room, word(arguments, 2))

    return body

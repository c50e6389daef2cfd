"""Places of operands, with the kernels that convert their rows to f32 and back."""

from __future__ import annotations

import functools

from ggplug import types
from ggplug.types import Type
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.parts import converters
from ggplug_cpu.parts.nest import BLOCK
from ggplug_cpu.types import BLOCKS, ENCODED

PLAIN = {types.F32: "f32", types.F16: "f16", types.BF16: "bf16"}
INTEGERS = {types.I32: "i32"}


@functools.cache
def reader(type: Type) -> Kernel | None:
    """The kernel that reads a row of ``type`` as f32, or None if there is none."""
    if type in PLAIN:
        return converters.read_plain(PLAIN[type])
    if type in INTEGERS:
        return converters.read_integers(INTEGERS[type])
    if type.name in BLOCKS:
        return converters.read_blocks(type.name)
    return None


@functools.cache
def writer(type: Type) -> Kernel | None:
    """The kernel that writes f32 as a row of ``type``, or None if there is none."""
    if type in PLAIN:
        return converters.write_plain(PLAIN[type])
    if type in INTEGERS:
        return converters.write_integers(INTEGERS[type])
    if type.name in ENCODED:
        return converters.write_blocks(type.name)
    return None


def reading(address: Ref, type: Type, *nb: int) -> Place:
    """The place of a source with byte strides ``nb``, whose rows are read as f32.  Its type must have a reader."""
    return _place(address, type, nb, reader(type))


def writing(address: Ref, type: Type, *nb: int) -> Place:
    """The place of a result with byte strides ``nb``, stored from rows of f32.  Its type must have a writer."""
    return _place(address, type, nb, writer(type))


def _place(address: Ref, type: Type, nb: tuple[int, ...], convert: Kernel | None) -> Place:
    in_place = type is types.F32 and nb[0] == 4
    return Place(address, nb, 0 if in_place else convert or 0, BLOCK // type.block_size * nb[0])

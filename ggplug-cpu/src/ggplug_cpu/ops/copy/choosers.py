"""Copies between any strides, conversions, concatenation and repetition.

Copies between equal types move bytes (of block types whole blocks); other copies convert through f32, as in ggml.
"""

from __future__ import annotations

from collections.abc import Iterable

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Extents, Tensor, contiguous_strides
from ggplug.types import F32, Type
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Axis, Nest, Shape, element_nest, words_of
from ggplug_cpu.choosing.places import reader, reading, writer, writing
from ggplug_cpu.ops.copy.kernels import (
    Converted,
    Copied,
    CopiedRows,
    Zeroed,
    convert,
    copy_rows,
    copy_strided,
    zero_rows,
)
from ggplug_cpu.ops.copy.transposed import TILE, copy_transposed
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES
from ggplug_cpu.tape import WORKSPACE, Entry

#: Element sizes that strided copies are compiled for; elements of other sizes are copied by memcpy, one by one.
_SIZES = (1, 2, 4, 8)


def copy(node: Tensor) -> Entries | Decline:
    """y = x, converted to y's type: cpy, cont, dup.

    Tensors of different shapes correspond in the order of their elements.
    """
    x = source_tensor(node, 0)
    no = _unable(x.type, node.type)
    if no is not None:
        return no
    place_x, place_y = Ref(source(0)), Ref(RESULT)
    if x.ne == node.ne:
        return Entries(*copied(x.type, node.type, node.ne, place_x, x.nb, place_y, node.nb))
    if x.is_contiguous() and node.ne[0] % x.type.block_size == 0:
        nb = contiguous_strides(x.type, node.ne)
        return Entries(*copied(x.type, node.type, node.ne, place_x, nb, place_y, node.nb))
    if node.is_contiguous() and x.ne[0] % node.type.block_size == 0:
        nb = contiguous_strides(node.type, x.ne)
        return Entries(*copied(x.type, node.type, x.ne, place_x, x.nb, place_y, nb))
    # Neither shape fits both tensors: copy through contiguous memory, of f32 where rows of y are no whole blocks of x.
    between, kind = Ref(WORKSPACE), x.type if node.ne[0] % x.type.block_size == 0 else F32
    packed = contiguous_strides(kind, x.ne)
    first, _, first_scratch = copied(x.type, kind, x.ne, place_x, x.nb, between, packed)
    packed = contiguous_strides(kind, node.ne)
    second, _, second_scratch = copied(kind, node.type, node.ne, between, packed, place_y, node.nb)
    return Entries((*first, *second), kind.row_bytes(x.ne[0]) * x.nrows, max(first_scratch, second_scratch))


def repeat(node: Tensor) -> Entries:
    """y = x, repeated to y's extents."""
    x = source_tensor(node, 0)
    shapes = Shape(node.ne, node.nb), Shape(x.ne, x.nb)
    return Entries((copy_bytes(node.type, node.ne, *shapes, Ref(RESULT), Ref(source(0))),))


def concat(node: Tensor) -> Entries:
    """y = a followed by b along one axis."""
    op, a, b = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.Concat)
    entries: list[Entry] = []
    offset = 0
    for position, part in enumerate((a, b)):
        if part.size:
            place = Ref(RESULT, offset)
            shapes = Shape(part.ne, node.nb), Shape(part.ne, part.nb)
            entry = copy_bytes(node.type, part.ne, *shapes, place, Ref(source(position)))
            entries.append(Entry(entry.kernel, entry.words, entry.tasks, barrier_before=not entries))
        if op.dim == 0:
            offset += node.type.row_bytes(part.ne[0])
        else:
            offset += part.ne[op.dim] * node.nb[op.dim]
    return Entries(tuple(entries))


def _unable(x: Type, y: Type) -> Decline | None:
    if x is y or (reader(x) is not None and writer(y) is not None):
        return None
    return Decline(f"the CPU device does not convert {x.name} to {y.name}")


def copied(
    x: Type, y: Type, ne: Extents, place_x: Ref, nb_x: Extents, place_y: Ref, nb_y: Extents
) -> tuple[tuple[Entry, ...], int, int]:
    """Entries, workspace and scratch for y = x with the same extents."""
    if x is y:
        return (copy_bytes(x, ne, Shape(ne, nb_y), Shape(ne, nb_x), place_y, place_x),), 0, 0
    nest = element_nest(ne, Shape(ne, nb_y, y.block_size), Shape(ne, nb_x, x.block_size))
    y_stride, x_stride = nest.inner.strides
    words = words_of(Converted, nest, writing(place_y, y, y_stride), reading(place_x, x, x_stride))
    entry = Entry(convert(), words, tasks(nest.elements, 2))
    return (entry,), 0, ARGUMENTS + ROW_BYTES


def copy_bytes(type: Type, ne: Extents, y: Shape, x: Shape, place_y: Ref, place_x: Ref) -> Entry:
    """y = x as bytes; x may repeat.  Elements of block types are their blocks."""
    blocks = type.block_size

    def in_blocks(extents: Extents) -> Extents:
        return (extents[0] // blocks, *extents[1:])

    size = type.block_bytes
    nest = element_nest(in_blocks(ne), Shape(in_blocks(y.ne), y.nb), Shape(in_blocks(x.ne), x.nb))
    work = tasks(nest.elements * size // 4)
    if nest.inner.strides == (size, size):
        return Entry(copy_rows(), words_of(CopiedRows, nest, *_bytes(nest, place_y, place_x), size=size), work)
    if size not in _SIZES:
        # every block is a row of bytes
        outer = (nest.inner, *nest.outer)
        if nest.last != nest.inner.extent:  # one long axis was cut into pieces: undo that
            outer = (Axis(nest.elements, nest.inner.strides),)
        nest = Nest(Axis(size, (1, 1)), outer, size)
        return Entry(copy_rows(), words_of(CopiedRows, nest, *_bytes(nest, place_y, place_x), size=1), work)
    nest = _along_y(nest, size)
    transposed = _transposed(nest, size)
    if transposed is not None:
        words = words_of(Copied, transposed, *_bytes(transposed, place_y, place_x))
        return Entry(copy_transposed(size), words, max(1, work // 2))
    words = words_of(Copied, nest, *_bytes(nest, place_y, place_x))
    return Entry(copy_strided(size), words, tasks(nest.elements * 4))


def zero_bytes(node: Tensor) -> Entry:
    """y = 0, as bytes."""
    size = node.type.block_bytes
    shape = Shape((node.ne[0] // node.type.block_size, *node.ne[1:]), node.nb)
    nest = element_nest(shape.ne, shape)
    assert nest.inner.strides == (size,)
    words = words_of(Zeroed, nest, Place(Ref(RESULT), (size,)), size=size)
    return Entry(zero_rows(), words, tasks(nest.elements * size // 4))


def _bytes(nest: Nest, y: Ref, x: Ref) -> tuple[Place, Place]:
    """The places of operands that are copied as bytes."""
    y_stride, x_stride = nest.inner.strides
    return Place(y, (y_stride,)), Place(x, (x_stride,))


def _along_y(nest: Nest, size: int) -> Nest:
    """The same loop with the axis along which y is contiguous as the inner one, if there is such an axis."""
    for axis in nest.outer:
        if axis.strides[0] == size and nest.inner.strides[0] != size and axis.extent > 1:
            others = [other for other in nest.outer if other is not axis]
            return Nest(axis, (nest.inner, *others), axis.extent)
    return nest


def _transposed(nest: Nest, size: int) -> Nest | None:
    """The same loop with the axis along which x is contiguous as the first outer one; None if that axis is missing or
    short.
    """
    if size not in (2, 4) or nest.inner.strides[0] != size or nest.inner.extent < TILE:
        return None
    for axis in nest.outer:
        if axis.strides[1] == size and axis.extent >= TILE:
            others: Iterable[Axis] = (other for other in nest.outer if other is not axis)
            return Nest(nest.inner, (axis, *others), nest.last)
    return None


CHOOSERS = (
    Chooser(ops.Cpy, "any any > any", copy),
    Chooser(ops.Cont, "any > any", copy),
    Chooser(ops.Dup, "any > any", copy),
    Chooser(ops.Concat, "any any > any", concat),
    Chooser(ops.Repeat, "any > any", repeat),
)

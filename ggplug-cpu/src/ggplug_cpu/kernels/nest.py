"""Loops over strided tensors: planned in Python as axes, walked in kernels row by row.

A kernel with up to three operands (the result ``y``, sources ``a`` and ``b``) sees *rows*: runs of elements along the
innermost axis.  The axes above are any number of extents with a byte stride for each operand.  Planning

1. splits an axis along which a source repeats (``ggml_can_repeat``: not only from 1) into the part that advances and
   the part that has stride 0 (the part that advances is whole blocks of every operand),
2. drops extents of one, and merges neighbours that follow each other without a gap in every operand.

So contiguous tensors of any shape become one row; it is cut into pieces of :data:`PIECE` for the threads.

Parameters of such kernels are words: the head and operands below, up to four numbers of the op's own, then the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ggplug.tensor import Extents, Tensor
from ggplug_cpu.compiler import Kernel, device_function
from ggplug_cpu.context import load_word, thread_count, thread_index, word
from ggplug_cpu.tape import Ref

# Word indices of the parameter block.
ROWS = 0
COUNT = 1
LAST = 2
AXES = 3
Y, A, B = 4, 8, 12
# Of an operand, from its first word:
ADDRESS, CONVERT, STRIDE, BLOCK_BYTES = 0, 1, 2, 3
OWN = 16
NEST = 20
_AXIS_BYTES = 32

#: Elements that a kernel converts at a time; 4 KiB as f32, so a few of them stay in the first-level cache.
BLOCK = 1024
#: Elements of a row when one-dimensional work is cut.  Fixed, so that results do not depend on the number of threads.
PIECE = 4 * BLOCK


class Axis(NamedTuple):
    """An extent, and for each operand the bytes from one index to the next."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """``inner`` is the axis of a row, ``outer`` those above it from the inside out; the last row is ``last`` long."""

    inner: Axis
    outer: tuple[Axis, ...]
    last: int

    @property
    def rows(self) -> int:
        count = 1
        for axis in self.outer:
            count *= axis.extent
        return count

    @property
    def elements(self) -> int:
        return self.inner.extent * (self.rows - 1) + self.last


@dataclass(frozen=True, slots=True)
class Shape:
    """What planning needs to know of an operand: extents, byte strides and the type's blocks."""

    ne: Extents
    nb: Extents
    block_size: int = 1

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        return cls(tensor.ne, tensor.nb, tensor.type.block_size)


def element_nest(ne: Extents, *operands: Shape) -> Nest:
    """Axes for work in which every element is independent: rows as long as strides allow."""
    axes = _merged(_split(ne, operands), [shape.block_size for shape in operands])
    inner, outer = axes[0], axes[1:]
    if not outer and inner.extent > PIECE:
        strides = tuple(
            PIECE // shape.block_size * stride for stride, shape in zip(inner.strides, operands, strict=True)
        )
        pieces = -(-inner.extent // PIECE)
        last = inner.extent - PIECE * (pieces - 1)
        return Nest(Axis(PIECE, inner.strides), (Axis(pieces, strides),), last)
    return Nest(inner, tuple(outer), inner.extent)


def row_nest(ne: Extents, *operands: Shape) -> Nest:
    """Axes for work on whole rows along ne0; only the axes above are merged.  All operands have the extents above."""
    strides = [tuple(shape.nb[i] for shape in operands) for i in range(4)]
    outer = _merged([Axis(ne[i], strides[i]) for i in range(1, 4)], [1] * len(operands))
    return Nest(Axis(ne[0], strides[0]), tuple(outer), ne[0])


def _split(ne: Extents, operands: Sequence[Shape]) -> list[Axis]:
    """Four axes, or more where an operand repeats."""
    axes = []
    for i in range(4):
        repeated = next((s.ne[i] for s in operands if 1 < s.ne[i] < ne[i]), ne[i])
        strides = tuple(s.nb[i] if s.ne[i] > 1 or ne[i] == 1 else 0 for s in operands)
        axes.append(Axis(repeated, strides))
        if repeated != ne[i]:
            sizes = [s.block_size if i == 0 else 1 for s in operands]
            assert not any(repeated % size for size in sizes)
            over = tuple(
                stride * (repeated // size) if s.ne[i] == ne[i] else 0
                for stride, size, s in zip(strides, sizes, operands, strict=True)
            )
            axes.append(Axis(ne[i] // repeated, over))
    return axes


def _merged(axes: Sequence[Axis], block_sizes: Sequence[int]) -> list[Axis]:
    """Fewer axes over the same elements; at least one."""
    first, *rest = axes
    merged = [first]
    for axis in rest:
        if axis.extent == 1:
            continue
        below = merged[-1]
        sizes = block_sizes if len(merged) == 1 else [1] * len(block_sizes)
        if below.extent == 1 and all(size == 1 for size in sizes):
            merged[-1] = axis
        elif all(
            below.extent // size * inner == outer
            for size, inner, outer in zip(sizes, below.strides, axis.strides, strict=True)
        ):
            merged[-1] = Axis(below.extent * axis.extent, below.strides)
        else:
            merged.append(axis)
    return merged


class Operand(NamedTuple):
    """Where an operand lies and how its rows become f32: by ``convert``, or 0 where they are contiguous f32 already."""

    place: Ref
    convert: Kernel | int = 0
    block_size: int = 1


def nest_words(
    nest: Nest, operands: Sequence[Operand], own: Sequence[int | float | Ref] = ()
) -> list[int | float | Ref | Kernel]:
    """The parameter block: at most three operands in the order ``y a b``, at most four words of the op's own."""
    words: list[int | float | Ref | Kernel] = [nest.rows, nest.inner.extent, nest.last, len(nest.outer)]
    for position, (place, convert, block_size) in enumerate(operands):
        stride = nest.inner.strides[position]
        words += [place, convert, stride, BLOCK // block_size * stride]
    words += [0] * (OWN - len(words))
    words += own
    words += [0] * (NEST - len(words))
    for axis in nest.outer or (Axis(1, ()),):
        words += [axis.extent, *axis.strides, *[0] * (3 - len(axis.strides))]
    return words


# -- in kernels -------------------------------------------------------------------------------------


@device_function
def share(ctx, count):  # type: ignore[no-untyped-def]
    """This thread's part of ``range(count)``: its first and the one after its last."""
    threads = thread_count(ctx)
    if threads == 1:
        return 0, count
    index = thread_index(ctx)
    return count * index // threads, count * (index + 1) // threads


@device_function
def locate(params, row):  # type: ignore[no-untyped-def]
    """Addresses of row ``row`` in y, a and b."""
    y, a, b = word(params, Y), word(params, A), word(params, B)
    axis = params + 8 * NEST
    axes = word(params, AXES)
    for i in range(axes):
        index = row
        if i < axes - 1:
            extent = load_word(axis)
            row = index // extent
            index -= row * extent
        y += index * load_word(axis + 8)
        a += index * load_word(axis + 16)
        b += index * load_word(axis + 24)
        axis += _AXIS_BYTES
    return y, a, b


@device_function
def run_length(params, row, end):  # type: ignore[no-untyped-def]
    """How many rows from ``row`` on follow each other by the strides of the innermost outer axis."""
    if word(params, AXES) <= 1:
        return end - row
    extent = word(params, NEST)
    return min(end - row, extent - row % extent)


@device_function
def row_strides(params):  # type: ignore[no-untyped-def]
    """Bytes from one row to the next of a run, in y, a and b."""
    return word(params, NEST + 1), word(params, NEST + 2), word(params, NEST + 3)

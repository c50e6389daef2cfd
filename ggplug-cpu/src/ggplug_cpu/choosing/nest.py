"""Plans loops over strided tensors: as few and as long rows as possible.

Planning

1. splits an axis along which a source repeats (``ggml_can_repeat``: not only from 1) into the part that advances and
   the part that has stride 0 (the part that advances is whole blocks of every operand),
2. drops extents of one, and merges neighbours that follow each other without a gap in every operand.

So contiguous tensors of any shape become one row, which is cut into pieces of :data:`PIECE` elements for the threads.
:mod:`ggplug_cpu.parts.nest` has the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ggplug.tensor import Extents, Tensor
from ggplug_cpu.parameters import Place, Words
from ggplug_cpu.parts.nest import BLOCK, RowOperand, Rows

#: Elements of a piece of a row that is cut.  Fixed, so that results do not depend on the number of threads.
PIECE = 4 * BLOCK


class Axis(NamedTuple):
    """An extent, and for each operand its byte stride along the axis."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """A loop: ``inner`` is the axis of a row, ``outer`` are the axes above it, innermost first; ``last``: length of the
    last row.
    """

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
    """An operand as planning sees it: extents, byte strides and the block size of its type."""

    ne: Extents
    nb: Extents
    block_size: int = 1

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        return cls(tensor.ne, tensor.nb, tensor.type.block_size)


def element_nest(ne: Extents, *operands: Shape) -> Nest:
    """The loop for an op that treats every element independently: rows as long as strides allow."""
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
    """The loop for an op on whole rows along ne0: only the axes above are merged.

    ``ne[1:]`` are those of all operands.
    """
    strides = [tuple(shape.nb[i] for shape in operands) for i in range(4)]
    outer = _merged([Axis(ne[i], strides[i]) for i in range(1, 4)], [1] * len(operands))
    return Nest(Axis(ne[0], strides[0]), tuple(outer), ne[0])


def numbered(nest: Nest) -> Nest:
    """The same loop with one more operand in front: eight contiguous bytes for each row."""
    outer, below = [], 8
    for axis in nest.outer:
        outer.append(Axis(axis.extent, (below, *axis.strides)))
        below *= axis.extent
    return Nest(Axis(nest.inner.extent, (0, *nest.inner.strides)), tuple(outer), nest.last)


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


def words_of(parameters: type[Rows], nest: Nest, *places: Place, **own: Any) -> Words:
    """The words of a kernel over ``nest``: ``places`` are its row operands, in the order of the nest's strides.

    ``own``: the values of the kernel's other fields.
    """
    operands = [name for name, field in parameters.fields.items() if isinstance(field, RowOperand)]
    axes = [word for axis in nest.outer or (Axis(1, (0,) * len(operands)),) for word in (axis.extent, *axis.strides)]
    return parameters.words(
        rows=nest.rows,
        count=nest.inner.extent,
        last=nest.last,
        depth=len(nest.outer),
        axes=axes,
        **dict(zip(operands, places, strict=True)),
        **own,
    )

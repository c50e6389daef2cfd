"""Cases that are made alike for every op, from its sketches, as far as its shape rule takes them.

=================  =============================================================================================
``source_cases``   each source in the middle of a larger tensor, and with gaps: a kernel that takes a second or
                   third source for contiguous, or for the first bytes of its buffer, is wrong here
``wild_cases``     a number that is not finite in each source of floats: everything that does not depend on it has
                   to stay as it is, so what pads a vector, a window or a tile must not be multiplied with it
``ones_cases``     extents of one with unusual strides, which leave a tensor contiguous: a kernel that merges
                   several axes and uses the stride of the first is wrong here
``large_cases``    one extent of more than 65,535, all others one, as vocabularies and long texts have: a kernel
                   that counts in 16 bits, or launches more work-groups than a GPU allows, is wrong here
``empty_cases``    one extent of its sources after the other is zero
=================  =============================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ggplug.backend import limit_of_ids
from ggplug.ops.base import Op
from ggplug.ops.custom import PythonCall
from ggplug.ops.matrix import MulMat, MulMatId
from ggplug.sketches import EXTENTS, Sizes, Sketch, first_sketch, maker, sketches
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import KERNEL_FLOATS
from ggplug.values.arrays import decode, encode
from ggplug_testing.cases.case import Bytes, Case, Layout, Leafs
from ggplug_testing.cases.making import taken
from ggplug_testing.description import description_of

LARGE = 65568
"""A whole number of blocks."""

_MOST = 4 * LARGE
"""Numbers of a tensor, so that a case takes milliseconds."""

_APART: tuple[Layout, ...] = ("elements apart", "rows apart")
"""Elements that are not adjacent, or rows, whichever an op takes first."""

_NUMBERS = (math.nan, math.inf, -math.inf)

_SIZES = {**EXTENTS, "n": 38, "m": 70, "K": 70}, EXTENTS
"""Extents of rows that end within a vector, where the types let them, and those for ops and types that need others."""


def _distinct(op: type[Op], by: Callable[[Sketch], object]) -> list[Sketch]:
    """The first sketch of an op with each value of ``by``; none for views."""
    first: dict[object, Sketch] = {}
    for sketch in sketches(op):
        if sketch.view is None:
            first.setdefault(by(sketch), sketch)
    return list(first.values())


def _case(
    op: type[Op], label: str, sketch: Sketch, sizes: Sizes, layouts: Sequence[Layout] = ()
) -> tuple[Case, Tensor] | None:
    """A case with such extents, and its node; None where the op's shape rule refuses them."""
    case = Case(op.name, label, maker(op, sketch, sizes, layouts or sketch.layouts()))
    node = taken(case)
    return (case, node) if isinstance(node, Tensor) else None


def source_cases(op: type[Op]) -> Iterator[Case]:
    """The cases of an op with several sources; none of others, whose own cases have all layouts."""
    for sketch in _distinct(op, Sketch.kinds):
        kinds = sketch.kinds()
        for position in range(len(kinds)) if len(kinds) > 1 else ():
            for options in (_APART, ("offset",)):
                for layout in options:
                    if layout == "elements apart" and kinds[position].is_quantized:
                        continue
                    layouts = sketch.layouts()
                    layouts[position] = layout
                    where = "in the middle of a larger tensor" if layout == "offset" else f"with its {layout}"
                    label = f"{op.sources[position]} {where}, {', '.join(kind.name for kind in kinds)}"
                    # Every third element of a tensor takes one of four dimensions.
                    if made := _case(op, label, sketch, {**EXTENTS, "c": 1}, layouts):
                        yield made[0]
                        break


def wild_cases(op: type[Op]) -> Iterator[Case]:
    """A case for each of :data:`_NUMBERS` in each source of each sketch with other types."""
    for sketch in () if issubclass(op, PythonCall) else _distinct(op, Sketch.kinds):
        kinds = sketch.kinds()
        lost = issubclass(op, (MulMat, MulMatId)) and any(kind.is_quantized for kind in kinds)
        made = next(filter(None, (_case(op, "", sketch, sizes) for sizes in _SIZES)), None)
        if made is None:
            continue  # these types are not for every op that has the sketch
        for position, kind in enumerate(kinds):
            for number in _NUMBERS if kind in KERNEL_FLOATS else ():
                label = f"special: {number} in {op.sources[position]} of {', '.join(each.name for each in kinds)}"
                # where products round activations to blocks, another number that is not finite may take its place
                yield Case(op.name, label, _with(made[0].make, position, number), "not finite" if lost else "values")


def _with(make: Callable[[Leafs], Any], position: int, number: float) -> Callable[[Leafs], Any]:
    """What makes the same node of positive floats, with ``number`` in the middle of the source at ``position``.

    Positive, as sums of infinities of both signs are NaN, behind which faults hide.
    """

    def put(values: dict[Tensor, Bytes]) -> None:
        for each in values:
            if each.type in KERNEL_FLOATS:
                values[each] = encode(np.abs(decode(values[each], each)), each.type)
        root = list(values)[position]
        elements = values[root].view(root.type.dtype)
        elements[len(elements) // 2] = encode(np.array([number]), root.type).view(root.type.dtype)[0]

    def changed(leafs: Leafs) -> Any:
        made = make(leafs)
        leafs.change(put)
        return made

    return changed


def ones_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent of each sketch of an op made one, and all but each."""
    for sketch in _distinct(op, lambda sketch: sketch.sources):
        names = sketch.names()
        layouts: list[Layout] = ["ones outermost"] * len(sketch.sources)
        for name in names:
            for which, ones in ((f"{name} = 1", [name]), (f"all but {name} = 1", [n for n in names if n != name])):
                made = _case(op, sketch.label(which), sketch, {**EXTENTS, **dict.fromkeys(ones, 1)}, layouts)
                sources = () if made is None else (each for each in made[1].src if each is not None)
                if made and any(each.nb != contiguous_strides(each.type, each.ne) for each in sources):
                    yield made[0]


def large_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent of the first sketch of an op made large; a single id is the last one, so 16 bits do not hold it."""
    sketch = first_sketch(op)
    if sketch is None or not description_of(op).large:
        return
    for name in sketch.names():
        sizes = {**dict.fromkeys(EXTENTS, 1), name: LARGE}
        made = _case(op, sketch.label(f"{name} = {LARGE}, all others 1"), sketch, sizes)
        if made and all(tensor is None or tensor.size <= _MOST for tensor in (made[1], *made[1].src)):
            yield Case(op.name, made[0].label, _with_the_last_id(made[0].make))


def _with_the_last_id(make: Callable[[Leafs], Any]) -> Callable[[Leafs], Any]:
    """The same node, but where it has a single id, that is the largest there is."""

    def made(leafs: Leafs) -> Any:
        node = make(leafs)
        indexes = node.op.indexes
        ids = None if indexes is None else node.src[indexes.ids]
        if ids is not None and ids.size == 1 and ids.root is ids:
            last = encode(np.full(ids.ne[::-1], limit_of_ids(node) - 1), ids.type)
            leafs.change(lambda values: values.update({ids: last}))
        return node

    return made


def empty_cases(op: type[Op]) -> Iterator[Case]:
    """Each extent of each sketch of an op made zero."""
    for sketch in sketches(op):
        for zero in sketch.zeros or sketch.names():
            if made := _case(op, sketch.label(f"{zero} = 0"), sketch, {**EXTENTS, zero: 0}):
                yield made[0]

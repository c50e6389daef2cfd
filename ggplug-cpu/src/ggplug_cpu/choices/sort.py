"""Sorting within rows."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choices.nest import Shape, row_nest, words_of
from ggplug_cpu.choices.places import reading
from ggplug_cpu.choices.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.kernels.sort import Argsort, scratch_bytes
from ggplug_cpu.kernels.sort import argsort as kernel
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def argsort(node: Tensor) -> Steps:
    """y = positions of x in sorted order, NaN last; equal elements keep theirs."""
    op, x = node.op, given(node, 0)
    assert isinstance(op, ops.Argsort)
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    places = Place(Ref(RESULT), node.nb), reading(Ref(source(0)), x.type, x.nb[0])
    flip = -1 if op.order == ops.SortOrder.DESC else 0
    entry = Entry(kernel(), words_of(Argsort, nest, *places, flip=flip), tasks(node.size, 2 * node.ne[0].bit_length()))
    return Steps((entry,), scratch_bytes=scratch_bytes(node.ne[0]))

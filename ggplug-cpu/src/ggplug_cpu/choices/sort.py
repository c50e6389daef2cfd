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
    op = node.op
    assert isinstance(op, ops.Argsort)
    return _sorted(node, op.order == ops.SortOrder.DESC)


def top_k(node: Tensor) -> Steps:
    """y = positions of the k largest elements of x, the largest first."""
    return _sorted(node, True)


def _sorted(node: Tensor, descending: bool) -> Steps:
    """The first positions of the sorted order, as many as rows of the result hold."""
    x = given(node, 0)
    nest = row_nest(x.ne, Shape.of(node), Shape.of(x))
    places = Place(Ref(RESULT), node.nb), reading(Ref(source(0)), x.type, x.nb[0])
    words = words_of(Argsort, nest, *places, flip=-1 if descending else 0, kept=node.ne[0])
    entry = Entry(kernel(), words, tasks(x.size, 2 * x.ne[0].bit_length()))
    return Steps((entry,), scratch_bytes=scratch_bytes(x.ne[0]))

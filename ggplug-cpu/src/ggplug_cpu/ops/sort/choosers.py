"""Sorting within rows."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Shape, row_nest, words_of
from ggplug_cpu.choosing.places import reading
from ggplug_cpu.ops.sort.kernels import Argsort, scratch_bytes
from ggplug_cpu.ops.sort.kernels import argsort as kernel
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def argsort(node: Tensor) -> Entries:
    """y = positions of x in sorted order, NaN last; equal elements keep their order."""
    op = node.op
    assert isinstance(op, ops.Argsort)
    return _sorted(node, op.order == ops.SortOrder.DESC)


def top_k(node: Tensor) -> Entries:
    """y = positions of the k largest elements of x, the largest first."""
    return _sorted(node, True)


def _sorted(node: Tensor, descending: bool) -> Entries:
    """The first positions in sorted order, as many as a row of the result holds."""
    x = source_tensor(node, 0)
    nest = row_nest(x.ne, Shape.of(node), Shape.of(x))
    places = Place(Ref(RESULT), node.nb), reading(Ref(source(0)), x.type, x.nb[0])
    words = words_of(Argsort, nest, *places, flip=-1 if descending else 0, kept=node.ne[0])
    entry = Entry(kernel(), words, tasks(x.size, 2 * x.ne[0].bit_length()))
    return Entries((entry,), scratch_bytes=scratch_bytes(x.ne[0]))


CHOOSERS = (
    Chooser(ops.Argsort, "float > i32", argsort),
    Chooser(ops.TopK, "float > i32", top_k),
)

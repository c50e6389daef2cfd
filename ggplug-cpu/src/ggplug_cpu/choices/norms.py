"""Normalisation of rows."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choices.nest import Shape, row_nest, words_of
from ggplug_cpu.choices.places import reading, writing
from ggplug_cpu.choices.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.kernels.norms import Norm, norm, scratch_bytes
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import Entry


def row_norm(node: Tensor) -> Steps:
    """y = f(row of x) x, perhaps less the row's mean."""
    op, x = node.op, given(node, 0)
    assert isinstance(op, ops.RowNorm)
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    places = writing(Ref(RESULT), node.type, node.nb[0]), reading(Ref(source(0)), x.type, x.nb[0])
    entry = Entry(norm(op.name), words_of(Norm, nest, *places, eps=op.eps), tasks(node.size, 2))
    return Steps((entry,), scratch_bytes=scratch_bytes(node.ne[0]))

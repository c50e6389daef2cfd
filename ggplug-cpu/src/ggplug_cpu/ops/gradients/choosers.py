"""Gradients of normalisation, softmax and repetition."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Shape, row_nest, words_of
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.gradients import kernels
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import Entry


def row_gradient(node: Tensor) -> Entries:
    """Each row is computed from a row of the gradient, and a row of the forward op's source or result."""
    op, dy, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, (ops.RmsNormBack, ops.SoftMaxBack))
    places = (
        writing(Ref(RESULT), node.type, node.nb[0]),
        reading(Ref(source(0)), dy.type, dy.nb[0]),
        reading(Ref(source(1)), x.type, x.nb[0]),
    )
    number = op.eps if isinstance(op, ops.RmsNormBack) else op.scale
    nest = row_nest(node.ne, *map(Shape.of, (node, dy, x)))
    words = words_of(kernels.RowGradient, nest, *places, number=number)
    entry = Entry(kernels.row_gradient(op.name), words, tasks(node.size, 3))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(node.ne[0]))


def repeat_back(node: Tensor) -> Entries:
    """y = the sum of its repetitions in x."""
    x = source_tensor(node, 0)
    counts = [wide // narrow for wide, narrow in zip(x.ne, node.ne, strict=True)]
    steps = [stride * narrow for stride, narrow in zip(x.nb, node.ne, strict=True)]
    words = words_of(
        kernels.RepeatBack,
        row_nest(node.ne, Shape.of(node), Shape(node.ne, x.nb)),
        writing(Ref(RESULT), node.type, node.nb[0]),
        reading(Ref(source(0)), x.type, x.nb[0]),
        **{f"count{i}": count for i, count in enumerate(counts)},
        **{f"step{i}": step for i, step in enumerate(steps)},
    )
    return Entries((Entry(kernels.repeat_back(), words, tasks(x.size)),), scratch_bytes=kernels.REPEAT_SCRATCH_BYTES)


CHOOSERS = (
    Chooser(ops.RowGradient, "float float > float", row_gradient),
    Chooser(ops.RepeatBack, "float > float", repeat_back),
)

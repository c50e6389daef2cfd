"""The softmax of attention."""

from __future__ import annotations

from ggplug import ops
from ggplug.ops import alibi_slopes
from ggplug.tensor import Tensor
from ggplug_cpu.choices.places import reading, writing
from ggplug_cpu.choices.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.kernels import soft_max as kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def soft_max(node: Tensor) -> Steps:
    """y = softmax over ne0 of (scale x + slope mask)."""
    op, x, mask, sinks = node.op, given(node, 0), *node.src[1:]
    assert isinstance(op, ops.SoftMax)
    n, rows, heads, batches = node.ne
    words = kernels.SoftMax.words(
        # Not nb[1]: of a dimension of one element it says nothing about where the next row is.
        y=writing(Ref(RESULT), node.type, node.nb[0], node.type.row_bytes(n)),
        x=reading(Ref(source(0)), x.type, x.nb[0], x.type.row_bytes(n)),
        mask=Place() if mask is None else reading(Ref(source(1)), mask.type, *mask.nb),
        sinks=Place() if sinks is None else Place(Ref(source(2))),
        n=n,
        rows=rows,
        heads=heads,
        batches=batches,
        mask_heads=1 if mask is None else mask.ne[2],
        mask_batches=1 if mask is None else mask.ne[3],
        scale=op.scale,
        slopes=[] if mask is None else [float(slope) for slope in alibi_slopes(heads, op.max_bias)],
    )
    entry = Entry(kernels.soft_max(), words, tasks(node.size, 6))
    return Steps((entry,), scratch_bytes=kernels.scratch_bytes(n))

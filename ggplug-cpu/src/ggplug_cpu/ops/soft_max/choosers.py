"""The softmax of attention."""

from __future__ import annotations

from ggplug import ops
from ggplug.ops import alibi_slopes
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.soft_max import kernels
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.tape import Entry


def soft_max(node: Tensor) -> Entries:
    """y = softmax over ne0 of (scale x + slope mask)."""
    x, n = source_tensor(node, 0), node.ne[0]
    # Not nb[1]: along a dimension of one element it is not the stride of rows.
    y_place = writing(Ref(RESULT), node.type, node.nb[0], node.type.row_bytes(n))
    x_place = reading(Ref(source(0)), x.type, x.nb[0], x.type.row_bytes(n))
    words = soft_max_words(node, y_place, x_place, Ref(source(1)), Ref(source(2)))
    entry = Entry(kernels.soft_max(), words, tasks(node.size, 6))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(n))


def soft_max_words(node: Tensor, y: Place, x: Place, mask_at: Ref | None, sinks_at: Ref | None) -> Words:
    """The parameters of a softmax at the places of its result, its logits, its mask and its sinks (None if it has
    none).
    """
    op, mask, sinks = node.op, *node.src[1:]
    assert isinstance(op, ops.SoftMax)
    n, rows, heads, batches = node.ne
    return kernels.SoftMax.words(
        y=y,
        x=x,
        mask=Place() if mask is None or mask_at is None else reading(mask_at, mask.type, *mask.nb),
        sinks=Place() if sinks is None or sinks_at is None else Place(sinks_at, sinks.nb[:1]),
        n=n,
        rows=rows,
        heads=heads,
        batches=batches,
        mask_heads=1 if mask is None else mask.ne[2],
        mask_batches=1 if mask is None else mask.ne[3],
        scale=op.scale,
        slopes=[] if mask is None else [float(slope) for slope in alibi_slopes(heads, op.max_bias)],
    )


CHOOSERS = (Chooser(ops.SoftMax, "float f32|f16? f32? > float", soft_max),)

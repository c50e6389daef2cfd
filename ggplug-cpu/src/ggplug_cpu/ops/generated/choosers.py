"""Values computed from positions: ranges, embeddings of time steps."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.ops.generated import kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def arange(node: Tensor) -> Entries:
    """start, start + step, ..."""
    op = node.op
    assert isinstance(op, ops.Arange)
    words = kernels.Arange.words(y=Place(Ref(RESULT)), start=op.start, step=op.step, count=node.ne[0])
    return Entries((Entry(kernels.arange(), words, tasks(node.size)),))


def timestep_embedding(node: Tensor) -> Entries:
    """Cosines and sines of time steps times frequencies."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.TimestepEmbedding)
    half = op.dim // 2
    words = kernels.TimestepEmbedding.words(
        y=Place(Ref(RESULT)),
        x=Place(Ref(source(0)), x.nb),
        count=x.ne[0],
        dim=op.dim,
        half=half,
        frequencies=[op.max_period ** (-i / half) for i in range(half)],
    )
    entry = Entry(kernels.timestep_embedding(), words, tasks(node.size, 8))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(half))


CHOOSERS = (
    Chooser(ops.Arange, "> f32", arange),
    Chooser(ops.TimestepEmbedding, "f32 > f32", timestep_embedding),
)

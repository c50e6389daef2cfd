"""Outer products summed over columns (``out_prod``)."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import reading
from ggplug_cpu.ops.out_prod import kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def out_prod(node: Tensor) -> Entries:
    """y[m, n] = sum over k of a[m, k] b[n, k]."""
    a, b = source_tensor(node, 0), source_tensor(node, 1)
    words = kernels.OutProd.words(
        y=Place(Ref(RESULT)),
        a=reading(Ref(source(0)), a.type, *a.nb),
        b=reading(Ref(source(1)), b.type, *b.nb),
        m=node.ne[0],
        n=node.ne[1],
        k=a.ne[1],
        batches2=node.ne[2],
        batches3=node.ne[3],
        each2=b.ne[2] // max(1, a.ne[2]),
        each3=b.ne[3] // max(1, a.ne[3]),
    )
    entry = Entry(kernels.out_prod(), words, tasks(node.size, max(1, a.ne[1])))
    return Entries((entry,), scratch_bytes=kernels.SCRATCH_BYTES)


CHOOSERS = (Chooser(ops.OutProd, "float|block float > f32", out_prod),)

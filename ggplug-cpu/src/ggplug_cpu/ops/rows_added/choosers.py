"""Sums of rows selected by index."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import FAULTS, POSITION, RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.rows_added import kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def add_id(node: Tensor) -> Entries:
    """y[:, i, j] = a[:, i, j] + b[:, ids[i, j]]."""
    a, b, ids = source_tensor(node, 0), source_tensor(node, 1), source_tensor(node, 2)
    words = kernels.AddId.words(
        y=writing(Ref(RESULT), node.type, *node.nb),
        a=reading(Ref(source(0)), a.type, *a.nb),
        b=reading(Ref(source(1)), b.type, *b.nb),
        ids=Place(Ref(source(2)), ids.nb),
        faults=Place(Ref(FAULTS)),
        position=Ref(POSITION),
        n=node.ne[0],
        ni=node.ne[1],
        nj=node.ne[2],
        limit=b.ne[1],
    )
    return Entries((Entry(kernels.add_id(), words, tasks(node.size)),), scratch_bytes=kernels.SCRATCH_BYTES)


def get_rows_back(node: Tensor) -> Entries:
    """y[:, r] = the sum of all dy[:, i] with ids[i] = r."""
    dy, ids = source_tensor(node, 0), source_tensor(node, 1)
    words = kernels.GetRowsBack.words(
        y=Place(Ref(RESULT)),
        dy=reading(Ref(source(0)), dy.type, *dy.nb),
        ids=Place(Ref(source(1)), ids.nb),
        faults=Place(Ref(FAULTS)),
        position=Ref(POSITION),
        n=node.ne[0],
        count=ids.ne[0],
        limit=node.ne[1],
    )
    work = tasks(node.size + dy.size)
    return Entries((Entry(kernels.get_rows_back(), words, work),), scratch_bytes=kernels.SCRATCH_BYTES)


CHOOSERS = (
    Chooser(ops.AddId, "float float i32 > float", add_id),
    Chooser(ops.GetRowsBack, "float i32 > f32", get_rows_back),
)

"""Partition of images into windows, the reverse, and relative positions."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.ops.copy.choosers import copied
from ggplug_cpu.ops.copy.ready import in_f32
from ggplug_cpu.ops.partition.kernels import Partition, RelativePositions, add_relative_positions, partition
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def win_part(node: Tensor) -> Entries:
    """y[:, i, j, window] = a row of x, or zeros."""
    assert isinstance(node.op, ops.WinPart)
    x = source_tensor(node, 0)
    return _entries(node, "apart", node.op.w, x.ne[1], x.ne[2])


def win_unpart(node: Tensor) -> Entries:
    """y[:, i, j] = a row of a window of x."""
    assert isinstance(node.op, ops.WinUnpart)
    return _entries(node, "together", node.op.w, node.ne[1], node.ne[2])


def _entries(node: Tensor, direction: str, w: int, width: int, height: int) -> Entries:
    ready = in_f32(source_tensor(node, 0), Ref(source(0)), rows=True)
    words = Partition.words(
        y=Place(Ref(RESULT), node.nb),
        x=ready.as_place(),
        size=4 * node.ne[0],
        width=width,
        height=height,
        across=-(-width // w),
        down=-(-height // w),
        w=w,
    )
    entry = Entry(partition(direction), words, tasks(node.size))
    return Entries((*ready.entries, entry), ready.workspace_bytes, ready.scratch_bytes)


def get_rel_pos(node: Tensor) -> Entries:
    """y[:, i, j] = x[:, n - 1 - i + j]: a copy with a negative stride along ne1."""
    x = source_tensor(node, 0)
    last = Ref(source(0), (node.ne[1] - 1) * x.nb[1])
    nb = (x.nb[0], -x.nb[1], x.nb[1], 0)
    return Entries(*copied(x.type, node.type, node.ne, last, nb, Ref(RESULT), node.nb))


def add_rel_pos(node: Tensor) -> Entries:
    """y[i + K j, row] = a[i + K j, row] + pw[i, row] + ph[j, row]."""
    pw = source_tensor(node, 1)
    words = RelativePositions.words(
        y=Place(Ref(RESULT)),
        a=Place(Ref(source(0))),
        pw=Place(Ref(source(1))),
        ph=Place(Ref(source(2))),
        k=pw.ne[0],
        rows=node.ne[1] * node.ne[2],
    )
    return Entries((Entry(add_relative_positions(), words, tasks(node.size, 2)),))


CHOOSERS = (
    Chooser(ops.WinPart, "f32 > f32", win_part),
    Chooser(ops.WinUnpart, "f32 > f32", win_unpart),
    Chooser(ops.GetRelPos, "float > f16", get_rel_pos),
    Chooser(ops.AddRelPos, "f32 f32 f32 > f32", add_rel_pos),
)

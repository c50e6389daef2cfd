"""The lightning indexer of sparse attention, and hyper-connections."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import reading
from ggplug_cpu.ops.copy.ready import Ready, in_f32
from ggplug_cpu.ops.deepseek import kernels
from ggplug_cpu.ops.deepseek.kernels import Combined, Gated, Indexed, Mixed
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def _rows(node: Tensor, *indexes: int) -> list[Ready]:
    """Prepares these sources as contiguous rows of f32; the last one has the size of the workspace."""
    found: list[Ready] = []
    for index in indexes:
        at = found[-1].workspace_bytes if found else 0
        found.append(in_f32(source_tensor(node, index), Ref(source(index)), at, rows=True))
    return found


def _entries(ready: list[Ready], entry: Entry, scratch_bytes: int = 0) -> Entries:
    before = [each for one in ready for each in one.entries]
    scratch = max([scratch_bytes, *(one.scratch_bytes for one in ready)])
    return Entries((*before, entry), ready[-1].workspace_bytes, scratch)


def lightning_indexer(node: Tensor) -> Entries:
    """y[j, t] = the sum over heads of max(q . k, 0) times a weight, plus the mask."""
    q, k, weights = (source_tensor(node, i) for i in range(3))
    ready = _rows(node, 0, 3)
    words = Indexed.words(
        y=Place(Ref(RESULT)),
        q=ready[0].as_place(),
        k=reading(Ref(source(1)), k.type, *k.nb),
        weights=Place(Ref(source(2)), weights.nb),
        mask=ready[1].as_place(),
        n=q.ne[0],
        heads=q.ne[1],
        keys=k.ne[2],
        tokens=q.ne[2],
        sequences=q.ne[3],
        masks=max(1, source_tensor(node, 3).ne[3]),
    )
    work = tasks(node.size, max(1, q.ne[0] * q.ne[1]))
    return _entries(ready, Entry(kernels.index(), words, work), kernels.scratch_bytes(q.ne[0]))


def combined(node: Tensor) -> Entries:
    """Matrices of 4 by 4, whose columns and rows are divided by their sums alternately."""
    op = node.op
    assert isinstance(op, ops.Dsv4HcComb)
    ready = _rows(node, 0, 2)
    words = Combined.words(
        y=Place(Ref(RESULT)),
        mixes=ready[0].as_place(),
        scale=Place(Ref(source(1)), source_tensor(node, 1).nb),
        base=ready[1].as_place(),
        tokens=node.ne[2],
        n_iter=op.n_iter,
        eps=op.eps,
    )
    return _entries(ready, Entry(kernels.combine(), words, tasks(node.size, 4 * op.n_iter)))


def before(node: Tensor) -> Entries:
    """y[i, t] = the sum over streams of x[i, h, t] weights[h, t]."""
    x, weights = source_tensor(node, 0), source_tensor(node, 1)
    ready = _rows(node, 0)
    n, streams, tokens = x.ne[:3]
    # As ``behind``, with one target.
    of_stream = Place(Ref(source(1)), (0, weights.nb[0], weights.nb[1], 0))
    words = Mixed.words(
        y=Place(Ref(RESULT)),
        x=Place(),
        factors=Place(),
        rows=ready[0].as_place(),
        weights=of_stream,
        n=n,
        targets=1,
        streams=streams,
        tokens=tokens,
    )
    return _entries(ready, Entry(kernels.mix(False), words, tasks(x.size)))


def gated(node: Tensor) -> Entries:
    """y[i, t] = scale times the sum over streams of x[i, h, t] sigmoid(gate[i, h, t])."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.Dsv4HcPreGated)
    ready = _rows(node, 0, 1)
    n, streams, tokens = x.ne[:3]
    words = Gated.words(
        y=Place(Ref(RESULT)),
        x=ready[0].as_place(),
        gate=ready[1].as_place(),
        n=n,
        streams=streams,
        tokens=tokens,
        scale=op.scale,
    )
    return _entries(ready, Entry(kernels.gate(), words, tasks(x.size, 4)))


def behind(node: Tensor) -> Entries:
    """y[i, d, t] = x[i, t] post[d, t] + the sum over streams of residual[i, s, t] comb[d, s, t]."""
    ready = _rows(node, 0, 1)
    n, streams, tokens = node.ne[:3]
    words = Mixed.words(
        y=Place(Ref(RESULT)),
        x=ready[0].as_place(),
        factors=Place(Ref(source(2)), source_tensor(node, 2).nb),
        rows=ready[1].as_place(),
        weights=Place(Ref(source(3)), source_tensor(node, 3).nb),
        n=n,
        targets=streams,
        streams=streams,
        tokens=tokens,
    )
    return _entries(ready, Entry(kernels.mix(True), words, tasks(node.size, streams)))


CHOOSERS = (
    Chooser(ops.LightningIndexer, "f32 float|block f32 f16 > f32", lightning_indexer),
    Chooser(ops.Dsv4HcComb, "f32 f32 f32 > f32", combined),
    Chooser(ops.Dsv4HcPre, "f32 f32 > f32", before),
    Chooser(ops.Dsv4HcPreGated, "f32 f32 > f32", gated),
    Chooser(ops.Dsv4HcPost, "f32 f32 f32 f32 > f32", behind),
)

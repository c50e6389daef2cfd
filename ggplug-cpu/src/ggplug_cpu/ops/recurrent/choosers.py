"""Recurrent layers."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import FAULTS, POSITION, RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.ops.recurrent import kernels
from ggplug_cpu.ops.recurrent.kernels import Convolved, Delta, Matrices, Scanned
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def _placed(node: Tensor, index: int) -> Place:
    return Place(Ref(source(index)), source_tensor(node, index).nb)


def ssm_conv(node: Tensor) -> Entries | Decline:
    """y[c, t, s] = the sum over k of x[t + k, c, s] kernel[k, c]."""
    x, weights = source_tensor(node, 0), source_tensor(node, 1)
    if max(x.nb[1], weights.nb[1]) >= 1 << 26:
        return Decline("rows of 64 MiB and more are not gathered on the CPU")
    words = Convolved.words(
        y=Place(Ref(RESULT)),
        x=_placed(node, 0),
        weights=_placed(node, 1),
        channels=node.ne[0],
        tokens=node.ne[1],
        sequences=node.ne[2],
        taps=weights.ne[0],
    )
    return Entries((Entry(kernels.convolve(), words, tasks(node.size, 2 * weights.ne[0])),))


def ssm_scan(node: Tensor) -> Entries:
    """Each row of the state decays and accumulates an input; y is its product with c."""
    s, x, a, b = source_tensor(node, 0), source_tensor(node, 1), source_tensor(node, 3), source_tensor(node, 4)
    assert isinstance(node.op, ops.SsmScan)
    words = Scanned.words(
        y=Place(Ref(RESULT)),
        s=_placed(node, 0),
        x=_placed(node, 1),
        dt=_placed(node, 2),
        a=_placed(node, 3),
        b=_placed(node, 4),
        c=_placed(node, 5),
        ids=_placed(node, 6),
        faults=Place(Ref(FAULTS)),
        position=Ref(POSITION),
        size=s.ne[0],
        dim=s.ne[1],
        heads=s.ne[2],
        groups=b.ne[1],
        tokens=x.ne[2],
        sequences=x.ne[3],
        limit=s.ne[3],
        decays=a.ne[0],
        snapshots=node.op.snapshots,
        states=4 * x.size,
    )
    return Entries((Entry(kernels.scan(a.ne[0] > 1), words, tasks(s.ne[0] * x.size, 2)),))


def matrices(node: Tensor) -> Entries:
    """The state of each head is a matrix: rwkv_wkv6, rwkv_wkv7, gated_linear_attn."""
    op, like = node.op, source_tensor(node, 0)
    assert op is not None
    last = len(node.src) - 1
    places = {name: _placed(node, i) if i < last else Place() for i, name in enumerate(_SOURCES)}
    size, heads, tokens = like.ne[:3]
    words = Matrices.words(
        y=Place(Ref(RESULT)),
        state=_placed(node, last),
        **places,
        size=size,
        heads=heads,
        tokens=tokens,
        sequences=source_tensor(node, last).ne[1],
        scale=op.scale if isinstance(op, ops.GatedLinearAttn) else 1.0,
    )
    return Entries((Entry(kernels.matrices(op.name), words, tasks(size * like.size, 2)),))


_SOURCES = ("first", "second", "third", "fourth", "fifth", "sixth")


def gated_delta_net(node: Tensor) -> Entries:
    """The state of each head is a matrix, updated by the delta rule."""
    q, k, v, g = (source_tensor(node, i) for i in range(4))
    assert isinstance(node.op, ops.GatedDeltaNet)
    size, heads, tokens, sequences = v.ne
    words = Delta.words(
        y=Place(Ref(RESULT)),
        q=_placed(node, 0),
        k=_placed(node, 1),
        v=_placed(node, 2),
        g=_placed(node, 3),
        beta=_placed(node, 4),
        state=_placed(node, 5),
        size=size,
        heads=heads,
        tokens=tokens,
        sequences=sequences,
        q_heads=q.ne[1],
        k_heads=k.ne[1],
        q_ratio=sequences // q.ne[3],
        k_ratio=sequences // k.ne[3],
        gates=g.ne[0],
        snapshots=node.op.snapshots,
        states=4 * v.size,
        scale=size**-0.5,
    )
    entry = Entry(kernels.delta(), words, tasks(size * v.size, 4))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(size))


CHOOSERS = (
    Chooser(ops.SsmConv, "f32 f32 > f32", ssm_conv),
    Chooser(ops.SsmScan, "f32 f32 f32 f32 f32 f32 i32 > f32", ssm_scan),
    Chooser(ops.RwkvWkv6, "f32 f32 f32 f32 f32 f32 > f32", matrices),
    Chooser(ops.RwkvWkv7, "f32 f32 f32 f32 f32 f32 f32 > f32", matrices),
    Chooser(ops.GatedLinearAttn, "f32 f32 f32 f32 f32 > f32", matrices),
    Chooser(ops.GatedDeltaNet, "f32 f32 f32 f32 f32 f32 > f32", gated_delta_net),
)

"""Ops on sliding windows of planes: pooling, depthwise convolutions, and ops that sum windows back into planes."""

from __future__ import annotations

from typing import Any

from ggplug import ops
from ggplug.backend import Decline
from ggplug.ops import PoolKind
from ggplug.ops.sliding import Axis
from ggplug.tensor import Extents, Tensor, contiguous_strides
from ggplug.types import F32
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import writing
from ggplug_cpu.ops.copy.ready import Ready, in_f32
from ggplug_cpu.ops.windows.kernels import SCRATCH_BYTES, Windows, windows
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry

_ONE = Axis(1)
#: Offsets within a row are int32.
_FARTHEST = 1 << 31


def pool_1d(node: Tensor) -> Entries | Decline:
    """y = the maximum or mean of windows of a row."""
    op = node.op
    assert isinstance(op, ops.Pool1d)
    axes = Axis(op.k0, op.s0, op.p0), _ONE
    x = in_f32(source_tensor(node, 0), Ref(source(0)))
    return _entries(node, x, _windows("largest" if op.kind == PoolKind.MAX else "mean", node, x, axes, x.ne[:2]))


def pool_2d(node: Tensor) -> Entries | Decline:
    """y = the maximum or mean of windows of a plane."""
    op = node.op
    assert isinstance(op, ops.Pool2d)
    x = in_f32(source_tensor(node, 0), Ref(source(0)))
    largest = op.kind == PoolKind.MAX
    entry = _windows(
        "largest" if largest else "sum", node, x, op.axes(), x.ne[:2], divisor=1.0 if largest else op.k0 * op.k1
    )
    return _entries(node, x, entry)


def pool_2d_back(node: Tensor) -> Entries | Decline:
    """Each element is the sum of the gradients of windows: of which it is the maximum, or of its part of their
    means.
    """
    op, grad = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.Pool2dBack)
    axes = op.axes()
    planes = Ready(Ref(source(0)), grad.ne, grad.nb)
    if op.kind == PoolKind.AVG:
        back = _windows("sum", node, planes, axes, grad.ne[:2], back=True, divisor=op.k0 * op.k1)
        return _entries(node, planes, back)
    x = in_f32(source_tensor(node, 1), Ref(source(1)))
    at = -(-x.workspace_bytes // 64) * 64
    chosen = Place(Ref(WORKSPACE, at), contiguous_strides(F32, grad.ne))
    first = _windows("place", node, x, axes, x.ne[:2], ne=grad.ne, y=chosen)
    back = _windows("chosen", node, planes, axes, grad.ne[:2], back=True, other=chosen)
    if isinstance(first, Decline):
        return first
    if isinstance(back, Decline):
        return back
    return Entries((*x.entries, first, back), at + 4 * grad.size, max(SCRATCH_BYTES, x.scratch_bytes))


def conv_2d_dw(node: Tensor) -> Entries | Decline:
    """The convolution of each channel with its own kernel."""
    op, weights = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.Conv2dDwDirect)
    x, taps = source_tensor(node, 1), in_f32(weights, Ref(source(0)))
    ready = Ready(Ref(source(1)), x.ne, x.nb, taps.entries, taps.workspace_bytes, taps.scratch_bytes)
    other = Place(taps.place, (taps.nb[0], taps.nb[1], taps.nb[3], 0))
    axes = op.axes(weights.ne[0], weights.ne[1])
    return _entries(node, ready, _windows("weighted", node, ready, (axes[0], axes[1]), x.ne[:2], other=other))


def im2col_back(node: Tensor) -> Entries | Decline:
    """Each element is the sum of its copies in the windows."""
    op, grad, kernel = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.Im2colBack)
    axes = op.axes(kernel)
    size, taps = grad.nb[0], axes[0].taps * axes[1].taps
    if op.is_2d:
        ne, nb = node.ne, node.nb
        strides = grad.nb[1], grad.nb[2], taps * size, grad.nb[3]
    else:
        ne, nb = (node.ne[0], 1, node.ne[1], node.ne[2]), (node.nb[0], 0, node.nb[1], node.nb[2])
        strides = grad.nb[1], 0, taps * size, grad.nb[2]
    columns = Ready(Ref(source(0)), grad.ne, strides)
    extents = grad.ne[1], grad.ne[2] if op.is_2d else 1
    y = writing(Ref(RESULT), F32, *nb)
    moved = size, axes[0].taps * size
    return _entries(node, columns, _windows("sum", node, columns, axes, extents, back=True, ne=ne, y=y, moved=moved))


def col2im_1d(node: Tensor) -> Entries | Decline:
    """Each position is the sum of the windows' elements there."""
    op, a = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.Col2im1d)
    taps = a.ne[0] // op.channels
    ready = in_f32(a, Ref(source(0)))
    size = ready.nb[0]
    columns = Ready(
        ready.place, a.ne, (ready.nb[1], 0, taps * size, 0), ready.entries, ready.workspace_bytes, ready.scratch_bytes
    )
    y = writing(Ref(RESULT), node.type, node.nb[0], 0, node.nb[1], 0)
    ne = node.ne[0], 1, node.ne[1], 1
    axes = Axis(taps, op.s0, op.p0), _ONE
    entry = _windows("sum", node, columns, axes, (a.ne[1], 1), back=True, ne=ne, y=y, moved=(size, 0))
    return _entries(node, columns, entry)


def _entries(node: Tensor, x: Ready, entry: Entry | Decline) -> Entries | Decline:
    if isinstance(entry, Decline):
        return entry
    return Entries((*x.entries, entry), x.workspace_bytes, max(SCRATCH_BYTES, x.scratch_bytes))


def _windows(
    rule: str,
    node: Tensor,
    x: Ready,
    axes: tuple[Axis, Axis],
    extents: tuple[int, ...],
    *,
    back: bool = False,
    other: Place | None = None,
    y: Place | None = None,
    ne: Extents | None = None,
    moved: tuple[int, int] = (0, 0),
    divisor: float = 1.0,
) -> Entry | Decline:
    """The entry of a kernel that gathers windows of ``x``, a plane of which has ``extents``.

    ``back``: x has windows, and each element of the result gathers the windows that contain it.  ``moved``: ``tap0``
    and ``tap1`` of :class:`~ggplug_cpu.ops.windows.kernels.Windows`.
    """
    extents_of_y = ne or node.ne
    reached = max(extents[0], extents_of_y[0] * (1 if back else axes[0].stride) + axes[0].padding)
    if abs(x.nb[0]) * reached >= _FARTHEST:
        return Decline("rows of 2 GiB and more are not gathered on the CPU")
    reach = "apart"
    if back and any(axis.stride > 1 for axis in axes):
        reach = "stretched"
    elif (back or axes[0].stride == 1) and x.nb[0] == 4:
        reach = "adjacent"
    steps = [axis.stride if back and axis.dilation == 1 else 1 for axis in axes]
    values: dict[str, Any] = {}
    for i, axis in enumerate(axes):
        values |= {
            f"taps{i}": axis.taps,
            f"stride{i}": 1 if back else axis.stride,
            f"padding{i}": -axis.padding if back else axis.padding,
            f"dilation{i}": -axis.dilation if back else axis.dilation,
            f"quotient{i}": axis.stride if back else 1,
            f"step{i}": steps[i],
            f"tap{i}": moved[i],
        }
    words = Windows.words(
        y=y or writing(Ref(RESULT), node.type, *node.nb),
        x=x.as_place(),
        other=other or Place(),
        ne0=extents_of_y[0],
        ne1=extents_of_y[1],
        ne2=extents_of_y[2],
        ne3=extents_of_y[3],
        width=extents[0],
        height=extents[1],
        divisor=float(divisor),
        **values,
    )
    visited = [
        min(-(-axis.taps // step), extent) if back else axis.taps
        for axis, step, extent in zip(axes, steps, extents, strict=True)
    ]
    work = tasks(extents_of_y[0] * extents_of_y[1] * extents_of_y[2] * extents_of_y[3], visited[0] * visited[1])
    return Entry(windows(rule, reach, back), words, work)


CHOOSERS = (
    Chooser(ops.Im2colBack, "f32 float > f32", im2col_back),
    Chooser(ops.Col2im1d, "float > float", col2im_1d),
    Chooser(ops.Conv2dDwDirect, "float f32 > f32", conv_2d_dw),
    Chooser(ops.Pool1d, "float > f32", pool_1d),
    Chooser(ops.Pool2d, "float > f32", pool_2d),
    Chooser(ops.Pool2dBack, "f32 float > f32", pool_2d_back),
)

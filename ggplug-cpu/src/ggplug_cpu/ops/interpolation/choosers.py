"""Interpolation: images resized."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.ops.copy.ready import in_f32
from ggplug_cpu.ops.interpolation.kernels import Interpolation, scratch_bytes
from ggplug_cpu.ops.interpolation.kernels import interpolate as kernel
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def interpolate(node: Tensor) -> Entries | Decline:
    """y = weighted sums of elements of x, which the op lists for each axis."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.Interpolate)
    if 4 * x.ne[0] >= 1 << 31:
        return Decline("rows of 2 GiB and more are not gathered on the CPU")
    ready = in_f32(x, Ref(source(0)), rows=True)
    (at0, weights0), (at1, weights1), (at2, _), (at3, _) = (op.taps(dim, x.ne[dim]) for dim in range(4))
    words = Interpolation.words(
        y=Place(Ref(RESULT), node.nb),
        x=ready.as_place(),
        ne0=node.ne[0],
        ne1=node.ne[1],
        ne2=node.ne[2],
        ne3=node.ne[3],
        width=x.ne[0],
        taps0=at0.shape[1],
        taps1=at1.shape[1],
        at0=at0.T.reshape(-1).tolist(),
        weights0=weights0.T.reshape(-1).tolist(),
        at1=at1.reshape(-1).tolist(),
        weights1=weights1.reshape(-1).tolist(),
        at2=at2.reshape(-1).tolist(),
        at3=at3.reshape(-1).tolist(),
    )
    entry = Entry(kernel(), words, tasks(node.size, 4 * at0.shape[1] + at1.shape[1]))
    scratch = max(scratch_bytes(node.ne[0], at0.shape[1], x.ne[0]), ready.scratch_bytes)
    return Entries((*ready.entries, entry), ready.workspace_bytes, scratch)


CHOOSERS = (Chooser(ops.Interpolate, "f32 > f32", interpolate),)

"""The softmax of attention, with mask, ALiBi slopes and sinks."""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F16, F32
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument


def soft_max(profile: Profile, node: Tensor) -> Launches | Decline:
    """One group a row.  Slopes are as :func:`ggplug.ops.alibi_slopes` has them."""
    refused = refuse(node, FLOATS, FLOATS, {F32, F16}, {F32})
    if refused is not None:
        return refused
    x, mask, sinks = node.src
    assert isinstance(node.op, ops.SoftMax)
    assert x is not None
    tensors = {"dst": argument(DST, node), "x": argument(0, x)}
    defines: dict[str, object] = {"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name}
    if mask is not None:
        tensors["mask"] = argument(1, mask)
        defines |= {"MASKED": 1, "TM": mask.type.name}
    if sinks is not None:
        tensors["sinks"] = argument(2, sinks)
        defines["SINKS"] = 1
    power = 1 << math.floor(math.log2(max(1, x.ne[2])))
    return launches_of(
        launch(
            "attention", "soft_max", tensors, groups=node.nrows, lanes=profile.row_lanes, defines=defines,
            scale=node.op.scale, max_bias=node.op.max_bias, slope=2.0 ** (-node.op.max_bias / power),
            slope_between=2.0 ** (-node.op.max_bias / 2 / power), heads_power=power,
        )
    )  # fmt: skip


CHOOSERS = {ops.SoftMax: soft_max}

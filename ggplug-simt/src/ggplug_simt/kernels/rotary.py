"""Rotary position embedding."""

from __future__ import annotations

import math

import numpy as np

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, RopeMode
from ggplug_simt.kernels.accepted import FLOATS, refuse
from ggplug_simt.launch import DST, Kernel, kernel_of, launch, operand
from ggplug_simt.profile import Profile

_MODES: dict[int, tuple[str, ...]] = {
    RopeMode.NORMAL: ("NORMAL",),
    RopeMode.NEOX: (),
    RopeMode.MROPE: ("SEVERAL_AXES",),
    RopeMode.IMROPE: ("SEVERAL_AXES", "INTERLEAVED"),
    RopeMode.VISION: ("SEVERAL_AXES", "RESTARTED"),
}


def rope(profile: Profile, node: Tensor) -> Kernel | Decline:
    """One item a pair, or an element that is copied."""
    refused = refuse(node, FLOATS, FLOATS, {I32}, {F32})
    if refused is not None:
        return refused
    x, pos, freq_factors = node.src
    op = node.op
    assert isinstance(op, ops.Rope)
    assert x is not None
    assert pos is not None
    operands = {"dst": operand(DST, node), "x": operand(0, x), "pos": operand(1, pos)}
    defines: dict[str, object] = {"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name}
    defines |= dict.fromkeys(_MODES[op.mode], 1)
    if freq_factors is not None:
        operands["freq_factors"] = operand(2, freq_factors)
        defines["FREQ_FACTORS"] = 1
    low, high, magnitude = 0.0, 1.0, op.attn_factor
    if op.ext_factor:
        low, high = (float(bound) for bound in op.correction_range())
        magnitude *= 1 + 0.1 * math.log(1 / op.freq_scale)
    items = (node.ne[0] - op.pairs) * node.nrows
    # freq_base**(-2 power / n_dims) = 2**(power step); the step as a sum of two floats
    step = -2 / op.n_dims * math.log2(op.freq_base)
    step_high = float(np.float32(step))
    s0, s1, s2, s3 = op.sections
    return kernel_of(
        launch(
            "rotary", "rope", operands, groups=-(-items // profile.unit_lanes), lanes=profile.unit_lanes,
            defines=defines, pairs=op.pairs, first=op.n_offs,
            section_0=s0, section_1=s1, section_2=s2, section_3=s3,
            step_high=step_high, step_low=step - step_high, freq_scale=op.freq_scale, ext_factor=op.ext_factor,
            low=low, width=max(0.001, high - low), magnitude=magnitude,
        )
    )  # fmt: skip


CHOOSERS = {ops.Rope: rope}

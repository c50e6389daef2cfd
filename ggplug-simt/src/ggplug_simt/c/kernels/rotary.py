"""Rotary position embedding."""

from __future__ import annotations

import math

import numpy as np

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, RopeMode
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument

_MODES: dict[int, tuple[str, ...]] = {
    RopeMode.NORMAL: ("NORMAL",),
    RopeMode.NEOX: (),
    RopeMode.MROPE: ("SEVERAL_AXES",),
    RopeMode.IMROPE: ("SEVERAL_AXES", "INTERLEAVED"),
    RopeMode.VISION: ("SEVERAL_AXES", "RESTARTED"),
}


def rope(profile: Profile, node: Tensor) -> Launches | Decline:
    """One item a pair, or an element that is copied, of a few heads."""
    refused = refuse(node, FLOATS, FLOATS, {I32}, {F32})
    if refused is not None:
        return refused
    x, pos, freq_factors = node.src
    op = node.op
    assert isinstance(op, ops.Rope)
    assert x is not None
    assert pos is not None
    tensors = {"dst": argument(DST, node), "x": argument(0, x), "pos": argument(1, pos)}
    defines: dict[str, object] = {"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name}
    defines |= dict.fromkeys(_MODES[op.mode], 1)
    if freq_factors is not None:
        tensors["freq_factors"] = argument(2, freq_factors)
        defines["FREQ_FACTORS"] = 1
    if op.freq_scale * max(1.0, op.freq_base ** (-2.0 * (op.pairs - 1) / op.n_dims)) > _LARGEST:
        return Decline(f"rope with freq_base {op.freq_base} and freq_scale {op.freq_scale} has angles beyond float32")
    # The power of a pair is a sum of powers of two, and its frequency the product of theirs.
    bits = max(1, (op.pairs - 1).bit_length())
    exact = {f"step_{k}": op.freq_base ** (-2.0 * 2**k / op.n_dims) for k in range(bits)} | {"scale": op.freq_scale}
    defines["STEPS"] = " ".join(f"STEP({k})" for k in range(bits))
    first, magnitude = {}, op.attn_factor
    if op.ext_factor:
        low, high = op.correction_range()
        exact |= {"slope": 1 / max(0.001, high - low), "ext": op.ext_factor}
        first["low"] = int(min(low, op.n_dims))
        defines["YARN"] = 1
        magnitude *= 1 + 0.1 * math.log(1 / op.freq_scale)
    pairs = {f"{name}_{part}": value for name, whole in exact.items() for part, value in _parts(whole).items()}
    defines["HEADS"] = _HEADS
    items = (node.ne[0] - op.pairs) * -(-node.ne[1] // _HEADS) * node.ne[2] * node.ne[3]
    s0, s1, s2, s3 = op.sections
    return launches_of(
        launch(
            "rotary", "rope", tensors, groups=-(-items // profile.unit_lanes), lanes=profile.unit_lanes,
            defines=defines, pairs=op.pairs, first=op.n_offs,
            section_0=s0, section_1=s1, section_2=s2, section_3=s3, magnitude=magnitude, **first, **pairs,
        )
    )  # fmt: skip


_HEADS = 8  # rows of one position that an item turns by the angle that it computed
_LARGEST = 1e28  # angle of position 1; those of the last position have to be numbers of float32 too


def _parts(value: float) -> dict[str, float]:
    """A number as the sum of two of float32."""
    with np.errstate(over="ignore"):
        high = float(np.float32(value))
    return {"high": high, "low": value - high if math.isfinite(high) else 0.0}


CHOOSERS = {ops.Rope: rope}

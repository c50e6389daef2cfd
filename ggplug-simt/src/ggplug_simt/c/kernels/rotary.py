"""Rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.patterns import Names, Pattern, of, pattern, viewed
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, I64, RopeMode, Type
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.kernels.epilogue import GroupChooser, checked, position
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launch, Launches, TensorArgument, argument

_MODES: dict[int, tuple[str, ...]] = {
    RopeMode.NORMAL: ("NORMAL",),
    RopeMode.NEOX: (),
    RopeMode.MROPE: ("SEVERAL_AXES",),
    RopeMode.IMROPE: ("SEVERAL_AXES", "INTERLEAVED"),
    RopeMode.VISION: ("SEVERAL_AXES", "RESTARTED"),
}


def rope(profile: Profile, node: Tensor) -> Launches | Decline:
    """One work-item for each pair, or element that is copied, of a few heads."""
    refused = refuse(node, FLOATS, FLOATS, {I32}, {F32})
    if refused is not None:
        return refused
    places = [None if source is None else argument(n, source) for n, source in enumerate(node.src)]
    return launches_of(_launch(profile, node, argument(DST, node), node.type, places))


def stored(profile: Profile, group: Group, names: Names) -> Launches | Decline:
    """A rotation whose results are stored in rows of a cache by index."""
    node, cache, ids = names["rope"], group.node, names["rows"]
    rows = cache.src[1]
    assert rows is not None
    for declined in (checked(group, None), refuse(node, FLOATS, FLOATS, {I32}, {F32})):
        if declined is not None:
            return declined
    if cache.type not in FLOATS:
        return Decline(f"a rotation is stored as {cache.type.name} by two launches")
    heads, positions = node.ne[0] * node.ne[1], node.ne[2] * node.ne[3]
    if rows.ne != (heads, positions, 1, 1) or not (rows.is_contiguous() and node.is_contiguous()):
        return Decline("rows of a cache have all heads of one position")
    places = [None if each is None else argument(position(group, each), each) for each in node.src]
    by_id = {"ids": argument(position(group, ids), ids)}
    defines = {"SCATTERED": 1, "ID_TYPE": "int64_t" if ids.type is I64 else "int32_t", "FUSED": "set_rows"}
    return launches_of(_launch(profile, node, argument(DST, cache), cache.type, places, by_id, defines))


def _launch(
    profile: Profile,
    node: Tensor,
    dst: TensorArgument,
    kind: Type,
    places: Sequence[TensorArgument | None],
    more: Mapping[str, TensorArgument] | None = None,
    further: Mapping[str, object] | None = None,
) -> Launch | Decline:
    """``kind``: the type of dst; ``places``: of x, the positions, and the frequency factors if there are some."""
    x, _, freq_factors = node.src
    op = node.op
    assert isinstance(op, ops.Rotary)
    assert x is not None
    tensors = {"dst": dst}
    tensors |= {name: place for name, place in zip(("x", "pos", "freq_factors"), places, strict=True) if place}
    tensors |= more or {}
    defines: dict[str, object] = {"VEC": profile.vec, "TD": kind.name, "TX": x.type.name, **(further or {})}
    defines |= dict.fromkeys(_MODES[op.mode], 1)
    if freq_factors is not None:
        defines["FREQ_FACTORS"] = 1
    if isinstance(op, ops.RopeBack):
        defines["BACK"] = 1
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
    return launch(
        "rotary",
        "rope",
        tensors,
        groups=-(-items // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines=defines,
        pairs=op.pairs,
        first=op.n_offs,
        section_0=s0,
        section_1=s1,
        section_2=s2,
        section_3=s3,
        magnitude=magnitude,
        **first,
        **pairs,
    )


_HEADS = 8  # heads of one position that a work-item rotates by one angle
_LARGEST = 1e28  # angle of position 1; those of the last position have to be in the range of float32 too


def _parts(value: float) -> dict[str, float]:
    """A number as the sum of two float32 numbers, high and low."""
    with np.errstate(over="ignore"):
        high = float(np.float32(value))
    return {"high": high, "low": value - high if math.isfinite(high) else 0.0}


ROPE, SET_ROWS = of(ops.Rotary, name="rope"), of(ops.SetRows)

GROUPS: dict[Pattern, GroupChooser] = {
    pattern(
        "rope_stored", lambda cache, x, pos, rows, factors=None: SET_ROWS(cache, viewed(ROPE(x, pos, factors)), rows)
    ): stored,
}

CHOOSERS = {ops.Rotary: rope}

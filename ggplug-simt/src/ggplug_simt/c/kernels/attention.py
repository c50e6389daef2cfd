"""The softmax of attention, with mask, ALiBi slopes and sinks, attention as a whole, and its gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import F16, F32
from ggplug_simt.c.kernels.accepted import FLOATS, READABLE, refuse
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, SCRATCH, Launch, Launches, TensorArgument, argument, argument_of

_KEYS = (32, 16)
"""Keys of a block of attention, and queries: as many as local memory holds."""
_QUERIES = (16, 4, 1)
_TOGETHER = 4
"""Queries that a work-item computes at once."""
_ROWS_BACK = (4, 1)
"""Queries, or keys, of a block of attention's gradient: as many as local memory holds."""
_PART = 1024
"""Keys of a work-group of one lane: the same whatever is computed at the same time, so that a query has the bits that
it has alone."""
_OCCUPYING, _FEWEST = 512, 32
"""Work-groups of many lanes that occupy a device, and the least keys of one if there are few queries."""


def soft_max(profile: Profile, node: Tensor) -> Launches | Decline:
    """Softmax: each work-group computes one row, with the slopes of :func:`ggplug.ops.alibi_slopes`."""
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
    return launches_of(
        launch(
            "attention",
            "soft_max",
            tensors,
            groups=node.nrows,
            lanes=profile.row_lanes,
            defines=defines,
            scale=node.op.scale,
            **_slopes(x.ne[2], node.op.max_bias),
        )
    )


def _slopes(heads: int, max_bias: float) -> dict[str, float | int]:
    """The arguments from which kernels compute slopes."""
    power = 1 << math.floor(math.log2(max(1, heads)))
    return {
        "max_bias": max_bias,
        "slope": 2.0 ** (-max_bias / power),
        "slope_between": 2.0 ** (-max_bias / 2 / power),
        "heads_power": power,
    }


class _Attention(NamedTuple):
    """The common arguments of the kernels of attention and of its gradients; ``sunk`` and ``last`` are for sinks."""

    tensors: dict[str, TensorArgument]
    defines: dict[str, object]
    last: dict[str, TensorArgument]
    sunk: dict[str, object]
    values: dict[str, float | int]


def _of_attention(
    profile: Profile,
    op: ops.FlashAttnExt | ops.FlashAttnBack,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: int,
    mask: Tensor | None,
    sinks: Tensor | None,
) -> _Attention:
    """The common arguments; ``position``: the mask's index among the sources; the sinks follow it."""
    tensors = {"q": argument(0, q), "k": argument(1, k), "v": argument(2, v)}
    defines: dict[str, object] = {
        "VEC": profile.vec,
        "TK": k.type.name,
        "TV": v.type.name,
        "DK": k.ne[0],
        "DV": v.ne[0],
    }
    if mask is not None:
        tensors["mask"] = argument(position, mask)
        defines["MASKED"] = 1
    last = {} if sinks is None else {"sinks": argument(position + 1, sinks)}
    scale, cap = op.capped()
    values = {"scale": scale, "cap": cap, "head_ratio": _head_ratio(q, k), **_slopes(q.ne[2], op.max_bias)}
    return _Attention(tensors, defines, last, {} if sinks is None else {"SINKS": 1}, values)


def _head_ratio(q: Tensor, k: Tensor) -> int:
    """The number of heads of queries that use one head of keys."""
    return q.ne[2] // max(1, k.ne[2])


def flash_attn_ext(profile: Profile, node: Tensor) -> Launches | Decline:
    """A work-group computes some queries with all keys or a part of them; a second launch merges the parts."""
    refused = refuse(node, {F32}, {F32}, READABLE, READABLE, {F16}, {F32})
    if refused is not None:
        return refused
    q, k, v, mask, sinks = node.src
    assert isinstance(node.op, ops.FlashAttnExt)
    assert q is not None
    assert k is not None
    assert v is not None
    rows = q.ne[1] * _head_ratio(q, k)
    block = _block(profile, rows, k.ne[0], v.ne[0])
    if isinstance(block, Decline):
        return block
    queries, keys = block
    groups = -(-rows // queries) * k.ne[2] * k.ne[3]
    part = _PART
    if profile.row_lanes > 1:
        parts = max(1, min(-(-_OCCUPYING // groups), k.ne[1] // _FEWEST))
        part = max(1, -(-k.ne[1] // (parts * keys))) * keys
    parts = max(1, -(-k.ne[1] // part))
    dst = argument(DST, node)
    tensors, defines, last, sunk, values = _of_attention(profile, node.op, q, k, v, 3, mask, sinks)
    defines |= {"QUERIES": queries, "KEYS": keys, "TOGETHER": min(queries, _TOGETHER)}
    values |= {"part": part, "parts": parts}
    if parts == 1:
        return launches_of(
            launch(
                "attention",
                "flash_attention",
                {"dst": dst, **tensors, **last},
                groups=groups,
                lanes=profile.row_lanes,
                defines={**defines, **sunk},
                **values,
            )
        )
    ne = (profile.vec * (1 + -(-v.ne[0] // profile.vec)), parts, q.ne[1] * q.ne[2], q.ne[3])
    nb = contiguous_strides(F32, ne)
    kept = argument_of(SCRATCH, F32, ne, nb)
    return launches_of(
        launch(
            "attention",
            "flash_attention",
            {"kept": kept._replace(written=True), **tensors},
            groups=groups * parts,
            lanes=profile.row_lanes,
            defines={**defines, "IN_PARTS": 1},
            **values,
        ),
        launch(
            "attention",
            "flash_merge",
            {"dst": dst, "kept": kept, **last},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec, **sunk},
        ),
        scratch=nb[3] * ne[3],
    )


def _block(profile: Profile, rows: int, dk: int, dv: int) -> tuple[int, int] | Decline:
    """(queries, keys) of a work-group: all of them, or as many as local memory holds."""
    dk, dv = (-(-n // profile.vec) * profile.vec for n in (dk, dv))
    wide = max(dk, dv) + profile.vec
    for keys in _KEYS:
        for queries in _QUERIES:
            if queries > 1 and queries // 4 >= rows:
                continue
            numbers = queries * (dk + dv + keys + 3) + keys * wide + 1
            if 4 * numbers <= profile.local_bytes:
                return queries, keys
    return Decline(f"heads of {max(dk, dv)} numbers are more than local memory of {profile.local_bytes} bytes holds")


def flash_attn_back(profile: Profile, node: Tensor) -> Launches | Decline:
    """Three launches: gradients of queries, over all keys; of keys and values, over all queries; of sinks, and
    zeros.
    """
    refused = refuse(node, {F32}, {F32}, FLOATS, FLOATS, {F32}, {F16}, {F32})
    if refused is not None:
        return refused
    q, k, v, d, mask, sinks = node.src
    assert isinstance(node.op, ops.FlashAttnBack)
    assert q is not None
    assert k is not None
    assert v is not None
    assert d is not None
    rows = _rows_back(profile, k.ne[0], v.ne[0])
    if isinstance(rows, Decline):
        return rows
    parts = ops.flash_attn_back_parts(node)
    of_q, of_k, of_v = (argument_of(DST, F32, each.ne, each.nb, each.view_offset) for each in parts[:3])
    queries, heads, batches = q.ne[1:]
    ne = (queries, 4, heads, batches)
    saved = argument_of(SCRATCH, F32, ne, contiguous_strides(F32, ne))
    tensors, defines, last, sunk, values = _of_attention(profile, node.op, q, k, v, 4, mask, sinks)
    tensors["d"] = argument(3, d)
    defines |= {"ROWS": rows, "KEYS": _keys_back(profile)}
    values["masked"] = int(node.op.masked)
    ratio = _head_ratio(q, k)
    matrices, lanes = k.ne[2] * k.ne[3], profile.row_lanes
    made: list[Launch | Decline] = []
    if queries * ratio * matrices:
        written = {"of_q": of_q, "saved": saved._replace(written=True)}
        made.append(
            launch(
                "attention",
                "flash_back_queries",
                {**written, **tensors, **last},
                groups=-(-queries * ratio // rows) * matrices,
                lanes=lanes,
                defines={**defines, **sunk},
                **values,
            )
        )
    if k.ne[1] * matrices:
        made.append(
            launch(
                "attention",
                "flash_back_keys",
                {"of_k": of_k, "of_v": of_v, "saved": saved, **tensors},
                groups=-(-k.ne[1] // rows) * matrices,
                lanes=lanes,
                defines=defines,
                **values,
            )
        )
    starts = [*(each.view_offset // 4 for each in parts), node.ne[0]]
    ends = [start + each.size for start, each in zip(starts, parts, strict=False)]
    between = {
        "end_q": ends[0],
        "start_k": starts[1],
        "end_k": ends[1],
        "start_v": starts[2],
        "end_v": ends[2],
        "start_sinks": starts[3],
        "end_sinks": starts[3] if sinks is None else ends[3],
    }
    if sinks is not None or ends != starts[1:]:
        made.append(
            launch(
                "attention",
                "flash_back_rest",
                {"dst": argument(DST, node), "saved": saved},
                groups=heads if sinks is not None else 1,
                lanes=lanes,
                defines={"VEC": profile.vec, **sunk},
                **between,
            )
        )
    return launches_of(*made, scratch=4 * math.prod(ne))


def _keys_back(profile: Profile) -> int:
    """Rows of the other operand that a work-group of the gradient reads at a time."""
    return max(profile.row_lanes, _KEYS[0])


def _rows_back(profile: Profile, dk: int, dv: int) -> int | Decline:
    """Queries, or keys, of a work-group of the gradient: as many as local memory holds."""
    wide = sum(max(1, -(-n // profile.vec)) * profile.vec for n in (dk, dv))
    for rows in _ROWS_BACK:
        if 4 * (2 * rows * (wide + _keys_back(profile)) + profile.row_lanes) <= profile.local_bytes:
            return rows
    return Decline(f"heads of {max(dk, dv)} numbers are more than local memory of {profile.local_bytes} bytes holds")


CHOOSERS = {ops.SoftMax: soft_max, ops.FlashAttnExt: flash_attn_ext, ops.FlashAttnBack: flash_attn_back}

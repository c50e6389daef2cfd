"""Rotary position embedding.

The angle of a pair is its position times a constant of the pair (frequency, interpolation and YaRN's mixing together)
that is known when the node is planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ggplug import ops
from ggplug.backend import Decline
from ggplug.nodes.groups import Group
from ggplug.patterns import Names, Pattern, of, pattern, viewed
from ggplug.tensor import Tensor
from ggplug.types import F32, RopeMode
from ggplug_cpu.choosing.chooser import Chooser, GroupChooser
from ggplug_cpu.choosing.entries import FAULTS, POSITION, RESULT, Entries, slot_of, source, source_tensor, tasks
from ggplug_cpu.choosing.places import reading, writer, writing
from ggplug_cpu.ops.rotary import kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def rope(node: Tensor) -> Entries:
    """y = x with pairs of elements rotated."""
    values = _values(node, [Ref(source(i)) for i in range(3)])
    words = kernels.Rope.words(y=writing(Ref(RESULT), node.type, *node.nb), **values)
    entry = Entry(kernels.rope(_pairing(node)), words, tasks(node.size, 3))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(node.ne[0], values["pairs"]))


def rope_into_rows(group: Group, names: Names) -> Entries | Decline:
    """dst[:, rows[i], j] = all heads of position i, rotated: rope, and set_rows into a cache."""
    node, rotated, indices = group.node, names["rope"], source_tensor(group.node, 2)
    n, heads, positions, batches = rotated.ne
    rows = source_tensor(node, 1)
    if sum(group.kept) > 1:
        return Decline("the result of rope is read by other nodes, too")
    if rotated.type is not F32 or n % node.type.block_size:
        return Decline(f"heads of {n} {rotated.type.name} cannot be written one by one into {node.type.name}")
    if rows.ne != (n * heads, positions, batches, 1) or not rows.is_contiguous() or writer(node.type) is None:
        return Decline("rows that are written by index have to be all heads of a position")
    sources = [None if tensor is None else Ref(slot_of(group, tensor)) for tensor in rotated.src]
    values = _values(rotated, sources)
    words = kernels.RopeIntoRows.words(
        y=writing(Ref(RESULT), node.type, node.nb[0], node.type.row_bytes(n), 0, node.nb[2]),
        rows=Place(Ref(slot_of(group, indices)), indices.nb),
        batches_of_rows=indices.ne[1],
        row_bytes=node.nb[1],
        limit=node.ne[1],
        faults=Place(Ref(FAULTS)),
        position=Ref(POSITION, len(group) - 1),
        **values,
    )
    entry = Entry(kernels.rope(_pairing(rotated), indices.type.name), words, tasks(rotated.size, 4))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(n, values["pairs"]))


def _pairing(node: Tensor) -> str:
    assert isinstance(node.op, ops.Rotary)
    return "neighbours" if node.op.mode == RopeMode.NORMAL else "halves"


def _values(node: Tensor, sources: Sequence[Ref | None]) -> dict[str, Any]:
    """The values of the kernel's fields, but for its result."""
    op, x, ids, factors = node.op, source_tensor(node, 0), source_tensor(node, 1), node.src[2]
    assert isinstance(op, ops.Rotary)
    n, heads, positions, batches = node.ne
    pairs = op.n_dims if op.mode == RopeMode.VISION else op.n_dims // 2
    magnitude, angles = _constants(op, pairs)
    at, at_ids, at_factors = sources
    assert at is not None
    assert at_ids is not None
    return {
        "x": reading(at, x.type, *x.nb),
        "ids": Place(at_ids, ids.nb),
        "factors": Place() if factors is None or at_factors is None else Place(at_factors, factors.nb),
        "n": n,
        "heads": heads,
        "positions": positions,
        "batches": batches,
        "pairs": pairs,
        "offset": op.n_offs,
        "magnitude": magnitude,
        "angles": angles,
        "axes": _axes(op, pairs),
    }


def _axes(op: ops.Rotary, pairs: int) -> list[int]:
    """For each pair which of the four positions (time, height, width, extra) rotates it."""
    if not op.several_axes:
        return [0] * pairs
    time, height, width, _ = op.sections
    axes = []
    for pair in range(pairs):
        sector = pair % sum(op.sections)
        if op.mode == RopeMode.IMROPE:
            axis = sector % 3
            axes.append(axis if sector < 3 * op.sections[axis] else 3)
        else:
            bounds = (time, time + height, time + height + width)
            axes.append(next((axis for axis, bound in enumerate(bounds) if sector < bound), 3))
    return axes


def _constants(op: ops.Rotary, pairs: int) -> tuple[float, list[float]]:
    """The magnitude of all pairs, and for each the angle of position 1."""
    starts = (0, op.sections[0], op.sections[0] + op.sections[1], sum(op.sections[:3]))
    low, high = op.correction_range() if op.ext_factor else (0.0, 0.0)
    constants = []
    for pair, axis in enumerate(_axes(op, pairs)):
        # in mode VISION every section has the same frequencies
        power = pair % sum(op.sections) - starts[axis] if op.mode == RopeMode.VISION else pair
        frequency = op.freq_base ** (-2 * power / op.n_dims)
        scale = op.freq_scale
        if op.ext_factor:
            ramp = min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))
            mix = (1 - ramp) * op.ext_factor
            scale = op.freq_scale * (1 - mix) + mix
        # rotated back by the negative angle
        constants.append(-frequency * scale if isinstance(op, ops.RopeBack) else frequency * scale)
    magnitude = op.attn_factor
    if op.ext_factor:
        magnitude *= 1 + 0.1 * math.log(1 / op.freq_scale)
    return magnitude, constants


CHOOSERS = (Chooser(ops.Rotary, "float i32 f32? > float", rope),)


ROPE, SET_ROWS = of(ops.Rotary, name="rope"), of(ops.SetRows)

GROUPS: dict[Pattern, GroupChooser] = {
    pattern(
        "rope into rows", lambda a, x, ids, rows, f=None: SET_ROWS(a, viewed(ROPE(x, ids, f)), rows)
    ): rope_into_rows,
}

"""Rotary position embedding.

The angle of a pair is its position times a constant of the pair (frequency, interpolation and YaRN's mixing together)
that is known when the node is planned.
"""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_cpu.choices.places import reading, writing
from ggplug_cpu.choices.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.kernels import rotary as kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry


def rope(node: Tensor) -> Steps:
    """y = x, pairs of elements turned."""
    op, x, ids, factors = node.op, given(node, 0), given(node, 1), node.src[2]
    assert isinstance(op, ops.Rope)
    n, heads, positions, batches = node.ne
    pairs = op.n_dims if op.mode == RopeMode.VISION else op.n_dims // 2
    magnitude, angles = _constants(op, pairs)
    words = kernels.Rope.words(
        y=writing(Ref(RESULT), node.type, *node.nb),
        x=reading(Ref(source(0)), x.type, *x.nb),
        ids=Place(Ref(source(1)), ids.nb),
        factors=Place() if factors is None else Place(Ref(source(2)), factors.nb),
        n=n,
        heads=heads,
        positions=positions,
        batches=batches,
        pairs=pairs,
        offset=op.n_offs,
        magnitude=magnitude,
        angles=angles,
        axes=_axes(op, pairs),
    )
    entry = Entry(kernels.rope("neighbours" if op.mode == RopeMode.NORMAL else "halves"), words, tasks(node.size, 3))
    return Steps((entry,), scratch_bytes=kernels.scratch_bytes(n, pairs))


def _axes(op: ops.Rope, pairs: int) -> list[int]:
    """Which of the four positions (time, height, width, extra) turns each pair."""
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


def _constants(op: ops.Rope, pairs: int) -> tuple[float, list[float]]:
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
        constants.append(frequency * scale)
    magnitude = op.attn_factor
    if op.ext_factor:
        magnitude *= 1 + 0.1 * math.log(1 / op.freq_scale)
    return magnitude, constants

"""Values computed from positions: ranges, embeddings of time steps."""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument


def arange(profile: Profile, node: Tensor) -> Launches | Decline:
    """start, start + step, ..."""
    op = node.op
    assert isinstance(op, ops.Arange)
    return launches_of(
        launch(
            "generated",
            "arange",
            {"dst": argument(DST, node)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec},
            start=op.start,
            step=op.step,
        )
    )


def timestep_embedding(profile: Profile, node: Tensor) -> Launches | Decline:
    """Cosines and sines of time steps times frequencies."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.TimestepEmbedding)
    assert x is not None
    half = op.dim // 2
    return launches_of(
        launch(
            "generated",
            "timestep_embedding",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec},
            slope=-math.log(op.max_period) / max(1, half),
            half_of=half,
        )
    )


CHOOSERS = {ops.Arange: arange, ops.TimestepEmbedding: timestep_embedding}

"""Normalisation along rows."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument

_VARIANTS = {ops.Norm: {"CENTRED": 1}, ops.RmsNorm: {}, ops.L2Norm: {"EUCLIDEAN": 1}}


def normalise(profile: Profile, node: Tensor) -> Launches | Decline:
    """One group a row."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert isinstance(node.op, ops.RowNorm)
    assert x is not None
    return launches_of(
        launch(
            "norms", "normalise", {"dst": argument(DST, node), "x": argument(0, x)},
            groups=node.nrows, lanes=profile.row_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name, **_VARIANTS[type(node.op)]},
            eps=node.op.eps,
        )
    )  # fmt: skip


CHOOSERS = dict.fromkeys(_VARIANTS, normalise)

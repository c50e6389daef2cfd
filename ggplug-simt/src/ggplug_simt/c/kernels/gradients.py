"""Gradients of normalisation, softmax and repetition."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument


def row_gradient(profile: Profile, node: Tensor) -> Launches | Decline:
    """The gradients of norms and softmax: one work-group for each row."""
    refused = refuse(node, FLOATS, FLOATS, FLOATS)
    if refused is not None:
        return refused
    op, (dy, x) = node.op, node.src
    assert isinstance(op, (ops.RmsNormBack, ops.SoftMaxBack))
    assert dy is not None
    assert x is not None
    of_norm = isinstance(op, ops.RmsNormBack)
    return launches_of(
        launch(
            "gradients",
            "row_gradient",
            {"dst": argument(DST, node), "dy": argument(0, dy), "x": argument(1, x)},
            groups=node.nrows,
            lanes=profile.row_lanes,
            defines={
                "VEC": profile.vec,
                "TD": node.type.name,
                "TX": x.type.name,
                "TY": dy.type.name,
                **({"OF_NORM": 1} if of_norm else {}),
            },
            number=float(op.eps if isinstance(op, ops.RmsNormBack) else op.scale),
        )
    )


def repeat_back(profile: Profile, node: Tensor) -> Launches | Decline:
    """The sum of all repetitions: one work-item for each element of the result."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    x = node.src[0]
    assert x is not None
    return launches_of(
        launch(
            "gradients",
            "repeat_back",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=-(-node.size // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name},
        )
    )


CHOOSERS = {ops.RowGradient: row_gradient, ops.RepeatBack: repeat_back}

"""Normalisation along rows."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_simt.kernels.accepted import FLOATS, refuse
from ggplug_simt.launch import DST, Kernel, kernel_of, launch, operand
from ggplug_simt.profile import Profile

_VARIANTS = {ops.Norm: {"CENTRED": 1}, ops.RmsNorm: {}, ops.L2Norm: {"EUCLIDEAN": 1}}


def normalise(profile: Profile, node: Tensor) -> Kernel | Decline:
    """One group a row."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert isinstance(node.op, ops.RowNorm)
    assert x is not None
    return kernel_of(
        launch(
            "norms", "normalise", {"dst": operand(DST, node), "x": operand(0, x)},
            groups=node.nrows, lanes=profile.row_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name, **_VARIANTS[type(node.op)]},
            eps=node.op.eps,
        )
    )  # fmt: skip


CHOOSERS = dict.fromkeys(_VARIANTS, normalise)

"""Outer products summed over columns (``out_prod``)."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_simt.c.kernels.accepted import FLOATS, READABLE, refuse
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument


def out_prod(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[m, n] = sum over k of a[m, k] b[n, k]."""
    refused = refuse(node, {F32}, READABLE, FLOATS)
    if refused is not None:
        return refused
    a, b = node.src
    assert a is not None
    assert b is not None
    return launches_of(
        launch(
            "out_prod",
            "out_prod",
            {"dst": argument(DST, node), "a": argument(0, a), "b": argument(1, b)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "TA": a.type.name, "TB": b.type.name},
            each_2=b.ne[2] // max(1, a.ne[2]),
            each_3=b.ne[3] // max(1, a.ne[3]),
        )
    )


CHOOSERS = {ops.OutProd: out_prod}

"""Bands and diagonals of matrices, and triangular systems of equations."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_simt.c.kernels.accepted import FLOATS, KEPT, refuse
from ggplug_simt.c.launch import LIMIT, launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument


def banded(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst = x in a band along the diagonal, and a constant outside it."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.Banded)
    assert x is not None
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    first, last = op.band
    return launches_of(
        launch(
            "triangles",
            "banded",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name, **KEPT},
            first=1 - LIMIT if first is None else first,
            behind=LIMIT - 1 if last is None else min(last + 1, LIMIT - 1),
            value=float(op.outside),
        )
    )


def diagonal(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[i, i] = x[i], all other elements are 0."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    x = node.src[0]
    assert x is not None
    return launches_of(
        launch(
            "triangles",
            "diagonal",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name, **KEPT},
        )
    )


def solve_tri(profile: Profile, node: Tensor) -> Launches | Decline:
    """a dst = b, by forward substitution."""
    refused = refuse(node, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    a, b = node.src
    assert a is not None
    assert b is not None
    items = node.ne[0] * node.ne[2] * node.ne[3]
    return launches_of(
        launch(
            "triangles",
            "solve_tri",
            {"dst": argument(DST, node), "a": argument(0, a), "b": argument(1, b)},
            groups=-(-items // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec},
        )
    )


CHOOSERS = {ops.Banded: banded, ops.Diag: diagonal, ops.SolveTri: solve_tri}

"""Sorting within rows."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import I32
from ggplug_simt.kernels.accepted import FLOATS, refuse
from ggplug_simt.launch import DST, Kernel, kernel_of, launch, operand, units
from ggplug_simt.profile import Profile

LONGEST = 1 << 16
"""Elements of a row up to which comparing all pairs is taken."""


def argsort(profile: Profile, node: Tensor) -> Kernel | Decline:
    """The positions of each row's elements in sorted order; of equal ones the first comes first."""
    refused = refuse(node, {I32}, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert isinstance(node.op, ops.Argsort)
    assert x is not None
    if x.ne[0] > LONGEST:
        return Decline(f"argsort compares all pairs of a row, {x.ne[0]} elements are too many (up to {LONGEST})")
    order = {"DESCENDING": 1} if node.op.order else {}
    return kernel_of(
        launch(
            "sort", "argsort", {"dst": operand(DST, node), "x": operand(0, x)},
            groups=-(-units(node.ne, 1) // profile.unit_lanes), lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "TX": x.type.name, **order},
        )
    )  # fmt: skip


CHOOSERS = {ops.Argsort: argsort}

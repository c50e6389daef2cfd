"""Sums, means and positions of maxima."""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import I32, I64, Type
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.launch import collapsed, launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launch, Launches, TensorArgument, argument

_CHUNK = 4096  # elements that are added up without compensation


def sum_rows(profile: Profile, node: Tensor) -> Launches | Decline:
    """The sum or the mean of each row."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    factor = 1.0
    if isinstance(node.op, ops.Mean):
        factor = 1.0 / x.ne[0] if x.ne[0] else math.inf  # 0 * inf: the mean of nothing is NaN
    return launches_of(
        launch(
            "reduce",
            "sum_rows",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=x.nrows,
            lanes=profile.row_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name},
            factor=factor,
        )
    )


def sum_all(profile: Profile, node: Tensor) -> Launches | Decline:
    """The sum of all elements."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    (place,) = collapsed((argument(0, x),), (1,))
    return launches_of(add_up(profile, argument(DST, node), node.type, place, x.type, 1.0))


def add_up(
    profile: Profile, dst: TensorArgument, dst_type: Type, x: TensorArgument, x_type: Type, factor: float
) -> Launch | Decline:
    """dst = factor * the sum of all elements of x."""
    return launch(
        "reduce",
        "sum_all",
        {"dst": dst, "x": x},
        groups=1,
        lanes=profile.row_lanes,
        defines={"VEC": profile.vec, "CHUNK": _CHUNK, "TD": dst_type.name, "TX": x_type.name},
        factor=factor,
    )


def cumsum(profile: Profile, node: Tensor) -> Launches | Decline:
    """The cumulative sums of each row."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    return launches_of(
        launch(
            "reduce",
            "cumsum",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=node.nrows,
            lanes=profile.row_lanes,
            defines={"VEC": profile.vec, "TD": node.type.name, "TX": x.type.name},
        )
    )


def count_equal(profile: Profile, node: Tensor) -> Launches | Decline:
    """The number of equal elements of two tensors."""
    refused = refuse(node, {I64}, {I32}, {I32})
    if refused is not None:
        return refused
    a, b = node.src
    assert a is not None
    assert b is not None
    one, other = collapsed((argument(0, a), argument(1, b)), (1, 1))
    return launches_of(
        launch(
            "reduce",
            "count_equal",
            {"dst": argument(DST, node), "a": one, "b": other},
            groups=1,
            lanes=profile.row_lanes,
            defines={"VEC": profile.vec},
        )
    )


def argmax(profile: Profile, node: Tensor) -> Launches | Decline:
    """The position of each row's largest element."""
    refused = refuse(node, {I32}, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    return launches_of(
        launch(
            "reduce",
            "argmax",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=x.ne[1],
            lanes=profile.row_lanes,
            defines={"VEC": profile.vec, "TX": x.type.name},
        )
    )


CHOOSERS = {
    ops.Argmax: argmax,
    ops.CountEqual: count_equal,
    ops.Cumsum: cumsum,
    ops.Mean: sum_rows,
    ops.Sum: sum_all,
    ops.SumRows: sum_rows,
}

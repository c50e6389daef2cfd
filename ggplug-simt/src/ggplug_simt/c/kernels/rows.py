"""Rows gathered and scattered by index."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, I64
from ggplug_simt.c.kernels.accepted import FLOATS, KEPT, READABLE, WRITABLE, refuse
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, NOTHING, Launches, argument


def get_rows(profile: Profile, node: Tensor) -> Launches | Decline:
    """y[:, i, j, k] = x[:, ids[i, j, k], j, k]; blocks are decoded, integers stay as they are."""
    refused = refuse(node, {F32, I32}, READABLE | {I32}, {I32})
    if refused is not None:
        return refused
    x, ids = node.src
    assert x is not None
    assert ids is not None
    types = {"WORD": "int32_t"} if x.type is I32 else {"TX": x.type.name, "TD": node.type.name, **KEPT}
    return launches_of(
        launch(
            "rows",
            "get_rows",
            {"dst": argument(DST, node), "x": argument(0, x), "ids": argument(1, ids)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec, "ID_TYPE": "int32_t", **types},
        )
    )


def set_rows(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[:, ids[i, j', k'], j, k] = rows[:, i, j, k], rounded or quantised to dst's type."""
    _, rows, ids = node.src
    assert rows is not None
    if rows.size == 0:
        return NOTHING
    refused = refuse(node, WRITABLE | {I32}, WRITABLE | {I32}, FLOATS, {I32, I64})
    if refused is not None:
        return refused
    assert ids is not None
    unit = max(profile.vec, node.type.block_size)
    return launches_of(
        launch(
            "rows",
            "set_rows",
            {"dst": argument(DST, node), "rows": argument(1, rows), "ids": argument(2, ids)},
            groups=-(-units(rows.ne, unit) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={
                "VEC": profile.vec,
                "UNIT": unit,
                "TX": rows.type.name,
                "TD": node.type.name,
                "ID_TYPE": "int64_t" if ids.type is I64 else "int32_t",
            },
        )
    )


def add_id(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[:, i, j] = a[:, i, j] + b[:, ids[i, j]]."""
    refused = refuse(node, FLOATS, FLOATS, FLOATS, {I32})
    if refused is not None:
        return refused
    a, b, ids = node.src
    assert a is not None
    assert b is not None
    assert ids is not None
    tensors = {"dst": argument(DST, node), "a": argument(0, a), "b": argument(1, b), "ids": argument(2, ids)}
    types = {"TD": node.type.name, "TA": a.type.name, "TB": b.type.name, "ID_TYPE": "int32_t"}
    return launches_of(
        launch(
            "rows",
            "add_id",
            tensors,
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec, **types},
        )
    )


def get_rows_back(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[:, r] = the sum of all dy[:, i] with ids[i] = r."""
    refused = refuse(node, {F32}, FLOATS, {I32})
    if refused is not None:
        return refused
    dy, ids = node.src
    assert dy is not None
    assert ids is not None
    tensors = {"dst": argument(DST, node), "dy": argument(0, dy), "ids": argument(1, ids)}
    types = {"TX": dy.type.name, "ID_TYPE": "int32_t"}
    return launches_of(
        launch(
            "rows",
            "get_rows_back",
            tensors,
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec, **types},
        )
    )


CHOOSERS = {ops.GetRows: get_rows, ops.SetRows: set_rows, ops.AddId: add_id, ops.GetRowsBack: get_rows_back}

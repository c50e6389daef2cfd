"""Rows picked and rows written, by index."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, I64
from ggplug_simt.kernels.accepted import FLOATS, KEPT, READABLE, WRITABLE, refuse
from ggplug_simt.launch import DST, NOTHING, Kernel, kernel_of, launch, operand, units
from ggplug_simt.profile import Profile


def get_rows(profile: Profile, node: Tensor) -> Kernel | Decline:
    """y[:, i, j, k] = x[:, ids[i, j, k], j, k]; blocks are decoded, integers stay as they are."""
    refused = refuse(node, {F32, I32}, READABLE | {I32}, {I32})
    if refused is not None:
        return refused
    x, ids = node.src
    assert x is not None
    assert ids is not None
    types = {"WORD": "int32_t"} if x.type is I32 else {"TX": x.type.name, "TD": node.type.name, **KEPT}
    return kernel_of(
        launch(
            "rows", "get_rows", {"dst": operand(DST, node), "x": operand(0, x), "ids": operand(1, ids)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes), lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec, "ID_TYPE": "int32_t", **types},
        )
    )  # fmt: skip


def set_rows(profile: Profile, node: Tensor) -> Kernel | Decline:
    """dst[:, ids[i, j', k'], j, k] = rows[:, i, j, k], rounded or quantised to dst's type."""
    _, rows, ids = node.src
    assert rows is not None
    if rows.size == 0:
        return NOTHING
    refused = refuse(node, WRITABLE, WRITABLE, FLOATS, {I32, I64})
    if refused is not None:
        return refused
    assert ids is not None
    unit = max(profile.vec, node.type.block_size)
    return kernel_of(
        launch(
            "rows", "set_rows", {"dst": operand(DST, node), "rows": operand(1, rows), "ids": operand(2, ids)},
            groups=-(-units(rows.ne, unit) // profile.unit_lanes), lanes=profile.unit_lanes,
            defines={
                "VEC": profile.vec, "UNIT": unit, "TX": rows.type.name, "TD": node.type.name,
                "ID_TYPE": "int64_t" if ids.type is I64 else "int32_t",
            },
        )
    )  # fmt: skip


CHOOSERS = {ops.GetRows: get_rows, ops.SetRows: set_rows}

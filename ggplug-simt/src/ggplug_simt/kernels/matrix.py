"""Matrix products: by rows for few columns, by tiles through local memory for many."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32, I32
from ggplug_simt.kernels.accepted import READABLE, refuse
from ggplug_simt.launch import DST, Kernel, kernel_of, launch, operand
from ggplug_simt.profile import Profile

FEW = 8
"""Columns up to which blocks of a are decoded in registers, for all columns at once."""


def _dot(profile: Profile, columns: int, a: Tensor, b: Tensor) -> dict[str, object]:
    """Sizes of ``dot_rows``: parts add to chains of sums that do not wait for each other."""
    chains = 1 if profile.dot_lanes > 1 or columns > 4 else 2 if columns > 1 else 4
    part = _part(profile, a)
    while a.ne[0] % (chains * part) and chains > 1:
        chains //= 2
    return {
        "VEC": profile.vec, "ROWS": profile.dot_rows, "COLUMNS": columns, "CHUNK": chains * part, "CHAINS": chains,
        **_types(profile, a, b),
    }  # fmt: skip


def _part(profile: Profile, a: Tensor) -> int:
    """Elements of a that are read together: a block, or a vector."""
    return max(profile.vec, a.type.block_size)


def _types(profile: Profile, a: Tensor, b: Tensor) -> dict[str, object]:
    """Types, and whether rows are as plain as they mostly are: dense, whole vectors, b not of blocks."""
    found: dict[str, object] = {"TA": a.type.name, "TB": b.type.name, "PART": _part(profile, a)}
    dense = all(t.nb[0] == t.type.block_bytes for t in (a, b))
    if dense and a.ne[0] % _part(profile, a) == 0 and not b.type.is_quantized:
        found["PLAIN_ROWS"] = 1
        if a.type.is_quantized:
            found["SCALED"] = 1
    return found


def mul_mat(profile: Profile, node: Tensor) -> Kernel | Decline:
    """dst[m, n] = sum over k of a[k, m] b[k, n]."""
    refused = refuse(node, {F32}, READABLE, READABLE)
    if refused is not None:
        return refused
    a, b = node.src
    assert a is not None
    assert b is not None
    operands = {"dst": operand(DST, node), "a": operand(0, a), "b": operand(1, b)}
    m, n, batches = node.ne[0], node.ne[1], node.ne[2] * node.ne[3]
    shares = {"share_2": b.ne[2] // a.ne[2], "share_3": b.ne[3] // a.ne[3]}
    if n <= FEW:
        return kernel_of(
            launch(
                "matrix", "mul_mat_rows", operands,
                groups=-(-m // profile.dot_rows) * batches, lanes=profile.dot_lanes,
                defines=_dot(profile, 1 << (n - 1).bit_length(), a, b), **shares,
            )
        )  # fmt: skip
    tile = profile.tile.fitted(m, n)
    return kernel_of(
        launch(
            "matrix", "mul_mat_tiles", operands,
            groups=-(-m // tile.m) * -(-n // tile.n) * batches, lanes=profile.tile_lanes or tile.blocks,
            defines={
                "VEC": profile.vec, "TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": tile.k, "ITEM_M": tile.item_m,
                "ITEM_N": tile.item_n, **_types(profile, a, b),
            },
            **shares,
        )
    )  # fmt: skip


def mul_mat_id(profile: Profile, node: Tensor) -> Kernel | Decline:
    """The product with the chosen expert, column by column."""
    refused = refuse(node, {F32}, READABLE, READABLE, {I32})
    if refused is not None:
        return refused
    a, b, ids = node.src
    assert a is not None
    assert b is not None
    assert ids is not None
    operands = {"dst": operand(DST, node), "a": operand(0, a), "b": operand(1, b), "ids": operand(2, ids)}
    return kernel_of(
        launch(
            "matrix", "mul_mat_id", operands,
            groups=-(-node.ne[0] // profile.dot_rows) * node.ne[1] * node.ne[2], lanes=profile.dot_lanes,
            defines=_dot(profile, 1, a, b),
        )
    )  # fmt: skip


CHOOSERS = {ops.MulMat: mul_mat, ops.MulMatId: mul_mat_id}

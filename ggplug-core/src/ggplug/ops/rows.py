"""Rows read, added or written by ids.

An id that is out of range raises a ComputeError; see the contract in :mod:`ggplug.backend`.
"""

from __future__ import annotations

import numpy as np

from ggplug.ops.base import Array, Cost, Indexes, Op, builder, is_multiple, misfit, mismatch
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS, I32, I64, INTEGERS

__all__ = ["AddId", "GetRows", "SetRows", "add_id", "get_rows", "set_rows"]


class GetRows(Op):
    """y[:, i, j, k] = a[:, ids[i, j, k], j, k]  (ggml_get_rows).

    a: [n, m, A2, A3], of any type.  ids: I32 [r, A2, A3], each in 0..m-1.
    Result: [n, r, A2, A3]; I32 if a is I32, else F32 (quantised rows are decoded).  An id that is out of range gives a
    row of zeros, and raises a ComputeError.
    """

    moves = True
    indexes = Indexes(ids=1, of=0, dim=1)

    def result(self, a: Tensor, ids: Tensor) -> Spec:
        if ids.type is not I32:
            mismatch(self, "ids must be i32", a, ids)
        na, ni = a.ne, ids.ne
        if na[2] != ni[1] or na[3] != ni[2] or ni[3] != 1:
            misfit(self, "ne1 and ne2 of ids must be ne2 and ne3 of a", a, ids)
        kind = I32 if a.type is I32 else F32
        return Spec(kind, (na[0], ni[0], ni[1], ni[2]), min(4, max(a.rank, ids.rank + 1, 2)))

    def reference(self, a: Array, ids: Array) -> Array:
        rows = ids[0, :, :, :, np.newaxis]
        inside = (rows >= 0) & (rows < a.shape[2])
        if not inside.any():
            return np.zeros((*ids.shape[1:], a.shape[3]), a.dtype)
        return np.where(inside, np.take_along_axis(a, np.where(inside, rows, 0), axis=2), 0)

    def cost(self, node: Tensor) -> Cost:
        a, ids = node.src
        if a is None or ids is None:
            return Cost(0, 0)
        return Cost(node.size, node.nbytes + ids.nbytes + a.type.row_bytes(a.ne[0]) * node.nrows)


class AddId(Op):
    """y[:, u, t] = a[:, u, t] + b[:, ids[u, t]]: adds the bias of each expert  (ggml_add_id).

    a: [n, U, T] of a float type, any strides.  b: a float [n, E].  ids: I32 [U, T], each in 0..E-1.  Result: like a.
    An id that is out of range gives a row of zeros, and raises a ComputeError.
    """

    inplace = (0,)
    indexes = Indexes(ids=2, of=1, dim=1)

    def result(self, a: Tensor, b: Tensor, ids: Tensor) -> Spec:
        if ids.type is not I32:
            mismatch(self, "ids must be i32", a, b, ids)
        if a.type not in FLOATS or b.type not in FLOATS:
            mismatch(self, "a and b must be floats", a, b, ids)
        if a.ne[0] != b.ne[0] or b.ne[2:] != (1, 1):
            misfit(self, "b must be a matrix of rows as long as a's", a, b, ids)
        if a.ne[1:] != (*ids.ne[:2], 1) or ids.ne[2:] != (1, 1):
            misfit(self, "there must be one id for each row of a (ne0 and ne1 of ids are ne1 and ne2 of a)", a, b, ids)
        return Spec(a.type, a.ne, a.rank)

    def reference(self, a: Array, b: Array, ids: Array) -> Array:
        chosen, experts = ids[0, 0], b[0, 0]
        inside = (chosen >= 0) & (chosen < len(experts))
        out = np.zeros(a.shape)
        with np.errstate(all="ignore"):
            out[0][inside] = a[0][inside] + experts[chosen[inside]]
        return out


class SetRows(Op):
    """dst[:, ids[i, j', k'], j, k] = rows[:, i, j, k], j' = j mod I1 and k' = k mod I2  (ggml_set_rows).

    dst: [n, m, D2, D3], I32 or of any float or quantised type, with contiguous rows.  rows: F32, F16 or BF16
    [n, r, D2, D3].  ids: I64 or I32 [r, I1, I2], D2 a multiple of I1 and D3 of I2; each in 0..m-1, and no row twice.
    Writes dst; the result is a view of all of dst.  A row whose id is out of range is left out, and a ComputeError is
    raised.  Conversions are those of :class:`~ggplug.ops.Dup`.
    """

    writes = (0,)
    moves = True
    indexes = Indexes(ids=2, of=0, dim=1)

    def result(self, dst: Tensor, rows: Tensor, ids: Tensor) -> Spec:
        if ids.type is not I64 and ids.type is not I32:
            mismatch(self, "ids must be i64 or i32", dst, rows, ids)
        if rows.type not in FLOATS or (dst.type in INTEGERS and dst.type is not I32):
            mismatch(self, "rows must be f32, f16 or bf16, dst i32 or a float or quantised type", dst, rows, ids)
        nd, nr, ni = dst.ne, rows.ne, ids.ne
        if nd[0] != nr[0] or nd[2] != nr[2] or nd[3] != nr[3]:
            misfit(self, "dst and rows must have the same ne0, ne2 and ne3", dst, rows, ids)
        if nr[1] != ni[0]:
            misfit(self, "there must be one id for each row (ne0 of ids is ne1 of rows)", dst, rows, ids)
        if not (is_multiple(nr[2], ni[1]) and is_multiple(nr[3], ni[2])) or ni[3] != 1:
            misfit(self, "ne2 and ne3 of rows must be multiples of ne1 and ne2 of ids", dst, rows, ids)
        if dst.nb[0] != dst.type.block_bytes or rows.nb[0] != rows.type.block_bytes:
            misfit(self, "rows of dst and of rows must be contiguous", dst, rows, ids)
        return Spec(dst.type, nd, dst.rank, dst.nb, dst)

    def reference(self, dst: Array, rows: Array, ids: Array) -> Array:
        out = dst.astype(
            np.result_type(dst, rows)
        )  # values out of the range of integers are converted when the result is stored
        for k in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                chosen = ids[0, k % ids.shape[1], j % ids.shape[2]]
                inside = (chosen >= 0) & (chosen < dst.shape[2])
                out[k, j, chosen[inside]] = rows[k, j, inside]
        return out

    def cost(self, node: Tensor) -> Cost:
        dst, rows, ids = node.src
        if dst is None or rows is None or ids is None:
            return Cost(0, 0)
        return Cost(rows.size, rows.nbytes + ids.nbytes + dst.type.row_bytes(dst.ne[0]) * rows.nrows)


get_rows = builder(GetRows)
set_rows = builder(SetRows)
add_id = builder(AddId)

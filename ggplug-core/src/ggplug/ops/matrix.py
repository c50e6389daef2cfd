"""Matrix products.  Weights are the first source and are read by rows: an element is the dot product of two rows."""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Indexes, Op, builder, is_multiple, misfit, mismatch
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS, I32, Precision

__all__ = ["MulMat", "MulMatId", "OutProd", "mul_mat", "mul_mat_id", "out_prod"]


def check_precision(op: Op, precision: int) -> None:
    if precision not in list(Precision):
        known = ", ".join(f"{each.name} {int(each)}" for each in Precision)
        raise ParameterError(f"{op.name}: precision {precision} is none of {known}", op=op, got=precision)


def check_rows(op: Op, name: str, weights: Tensor, *others: Tensor) -> None:
    """Raises ShapeError if the weights, called ``name`` in the message, are transposed or repeat one row."""
    if weights.nb[0] <= weights.nb[1] or 0 in weights.ne:
        return
    if weights.nb[1] < weights.type.block_bytes:
        wrong = f"rows of {name} must not overlap, but are {weights.nb[1]} bytes apart"
    else:
        wrong = f"{name} must not be transposed"
    misfit(op, f"{wrong} (use gg.cont first)", weights, *others)


class MulMat(Op):
    """y[m, n] = sum over k of a[k, m] b[k, n], for each matrix of b  (ggml_mul_mat).

    a: [K, M, A2, A3], of any float or quantised type, not transposed.
    b: [K, N, B2, B3], B2 a multiple of A2 and B3 of A3: a matrix of a is used for B2/A2 consecutive ones of b.
    Result: F32 [M, N, B2, B3]; a vector b gives a vector.  In NumPy's terms, ``b @ a.T``.
    ``precision``: a :class:`~ggplug.types.Precision`; F32 asks to accumulate in float32.

    With K = 0 the result is zeros.  If a is quantised, devices may round b to eight bits: a NaN or an infinity in a row
    of b, or in the scale of a block of a, then gives either NaN or infinity in the results that depend on it.  Devices
    may multiply BF16 with instructions that treat subnormal numbers as zero, so that infinity times one of them is NaN.
    """

    precision: int = 0

    def validate(self) -> None:
        check_precision(self, self.precision)

    def result(self, a: Tensor, b: Tensor) -> Spec:
        na, nb = a.ne, b.ne
        if na[0] != nb[0]:
            misfit(self, "a and b must have the same ne0", a, b)
        if not (is_multiple(nb[2], na[2]) and is_multiple(nb[3], na[3])):
            misfit(self, "ne2 and ne3 of b must be multiples of a's", a, b)
        check_rows(self, "a", a, b)
        if a.type.dtype.kind == "i" or b.type.dtype.kind == "i":
            mismatch(self, "takes no integers", a, b)
        return Spec(F32, (na[1], nb[1], nb[2], nb[3]), b.rank if a.rank <= 2 else max(a.rank, b.rank))

    def reference(self, a: Array, b: Array) -> Array:
        for axis in (0, 1):
            a = np.repeat(a, b.shape[axis] // max(1, a.shape[axis]), axis=axis)
        return b @ a.swapaxes(-1, -2)

    def cost(self, node: Tensor) -> Cost:
        k = node.src[0].ne[0] if node.src[0] is not None else 0
        return Cost(2 * k * node.size, super().cost(node).bytes)


class MulMatId(Op):
    """y[:, u, t] = as[:, :, ids[u, t]]ᵀ b[:, u mod R, t], the product with the chosen expert  (ggml_mul_mat_id).

    as_: [K, M, E], of any float or quantised type, not transposed.  ids: I32 [U, T], each in 0..E-1.
    b: [K, R, T] float, U a multiple of R: a token has a row for each of its U experts (R = U), one for all of them
    (R = 1), or R rows that are used cyclically.
    Result: F32 [M, U, T].  An id that is out of range gives a row of zeros and raises a ComputeError; for the rest see
    :class:`MulMat`.
    """

    indexes = Indexes(ids=2, of=0, dim=2)

    precision: int = 0

    def validate(self) -> None:
        check_precision(self, self.precision)

    def result(self, as_: Tensor, b: Tensor, ids: Tensor) -> Spec:
        if ids.type is not I32:
            mismatch(self, "ids must be i32", as_, b, ids)
        if as_.type.dtype.kind == "i" or b.type.dtype.kind == "i":
            mismatch(self, "as_ and b must not be integers", as_, b, ids)
        na, nb, ni = as_.ne, b.ne, ids.ne
        if na[0] != nb[0]:
            misfit(self, "as_ and b must have the same ne0", as_, b, ids)
        if na[3] != 1 or nb[3] != 1 or ni[2] != 1 or ni[3] != 1:
            misfit(self, "as_ and b have at most three dimensions, ids two", as_, b, ids)
        if ni[1] != nb[2]:
            misfit(self, "ne1 of ids and ne2 of b must be the same number of tokens", as_, b, ids)
        if not is_multiple(ni[0], nb[1]):
            misfit(self, "ne0 of ids must be a multiple of b's ne1", as_, b, ids)
        check_rows(self, "as_", as_, b, ids)
        return Spec(F32, (na[1], ni[0], nb[2], 1), 3)

    def reference(self, as_: Array, b: Array, ids: Array) -> Array:
        chosen, experts = ids[0, 0], as_[0]
        token, slot = np.nonzero((chosen >= 0) & (chosen < len(experts)))
        result = np.zeros((1, *chosen.shape, experts.shape[1]))
        rows = b[0][token, slot % max(1, b.shape[2])]
        result[0, token, slot] = np.einsum("imk,ik->im", experts[chosen[token, slot]], rows)
        return result

    def cost(self, node: Tensor) -> Cost:
        experts, b, ids = node.src
        if experts is None or b is None or ids is None or not experts.ne[2]:
            return Cost(0, 0)
        # An expert is read once if it is chosen at all.
        read = experts.nbytes * min(ids.size, experts.ne[2]) // experts.ne[2]
        return Cost(2 * experts.ne[0] * node.size, node.nbytes + read + b.nbytes + ids.nbytes)


class OutProd(Op):
    """y[m, n] = sum over k of a[m, k] b[n, k], for each matrix of b  (ggml_out_prod).

    a: [M, K, A2, A3], of any float or quantised type, not transposed.
    b: a float [N, K, B2, B3], any strides, B2 a multiple of A2 and B3 of A3: a matrix of a is used for B2/A2
    consecutive ones of b.  Result: F32 [M, N, B2, B3].  In NumPy's terms, ``b.T @ a``.
    """

    def result(self, a: Tensor, b: Tensor) -> Spec:
        na, nb = a.ne, b.ne
        if na[1] != nb[1]:
            misfit(self, "a and b must have the same ne1", a, b)
        if not (is_multiple(nb[2], na[2]) and is_multiple(nb[3], na[3])):
            misfit(self, "ne2 and ne3 of b must be multiples of a's", a, b)
        check_rows(self, "a", a, b)
        if a.type.dtype.kind == "i" or b.type not in FLOATS:
            mismatch(self, "a must be a float or quantised, b a float", a, b)
        return Spec(F32, (na[0], nb[0], nb[2], nb[3]), max(2, a.rank, b.rank))

    def reference(self, a: Array, b: Array) -> Array:
        for axis in (0, 1):
            a = np.repeat(a, b.shape[axis] // max(1, a.shape[axis]), axis=axis)
        return b.swapaxes(-1, -2) @ a

    def cost(self, node: Tensor) -> Cost:
        k = node.src[0].ne[1] if node.src[0] is not None else 0
        return Cost(2 * k * node.size, super().cost(node).bytes)


mul_mat = builder(MulMat)
mul_mat_id = builder(MulMatId)
out_prod = builder(OutProd)

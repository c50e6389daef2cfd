"""Rules of matrix products.

The gradients are products again, of transposed operands.  Those of :class:`~ggplug.ops.MulMat` copy what they
transpose: its kernels take a fraction of the time of those of an outer product, and the copies take less.
"""

from __future__ import annotations

from ggplug import ops
from ggplug.gradients.rows import chosen, flat_ids
from ggplug.gradients.rules import Parts, gradient, shaped, sources, summed, wide
from ggplug.ops.copy import cast
from ggplug.tensor import Extents, Tensor
from ggplug.types import BF16


@gradient(ops.MulMat)
def _(node: Tensor, dy: Tensor) -> Parts:
    a, b = sources(node)

    def of_a() -> Tensor:
        one = a.ne[2:] == (1, 1) and b.is_contiguous()  # a matrix for all of b: one large product
        x, rows = (_matrix(b), _matrix(dy)) if one else (b, dy)
        return _of_groups(ops.mul_mat(_turned(x), _turned(rows)), a.ne)

    return of_a, lambda: ops.mul_mat(_turned(a), dy)


def _turned(x: Tensor) -> Tensor:
    """x transposed, without gaps, in F32: products would round the other operand to the type of a shorter one.

    Quantised weights are in BF16: their own products round the other operand, too, and the gradient costs half as much.
    """
    return ops.cont(ops.transpose(cast(x, BF16) if x.type.is_quantized else wide(x)))


@gradient(ops.OutProd)
def _(node: Tensor, dy: Tensor) -> Parts:
    a, b = sources(node)
    return (
        lambda: _of_groups(ops.out_prod(by_rows(dy), ops.transpose(b)), a.ne),
        lambda: ops.transpose(ops.mul_mat(a, dy)),
    )


def _matrix(x: Tensor) -> Tensor:
    """All rows of x as one matrix."""
    return shaped(x, (x.ne[0], x.nrows, 1, 1))


def by_rows(x: Tensor) -> Tensor:
    """x with strides as the first operand of a product has to have them."""
    return ops.cont(x) if x.is_transposed() else x


def _of_groups(x: Tensor, ne: Extents) -> Tensor:
    """The sums of consecutive matrices of x for which a product uses the same matrix of a tensor with these extents."""
    size, (n2, n3) = ne[0] * ne[1], ne[2:]
    if x.ne[2] != n2:
        x = shaped(summed(shaped(x, (size, x.ne[2] // n2, n2, x.ne[3])), (size, 1, n2, x.ne[3])), (*ne[:3], x.ne[3]))
    if x.ne[3] != n3:
        x = summed(shaped(x, (size * n2, x.ne[3] // n3, n3, 1)), (size * n2, 1, n3, 1))
    return shaped(x, ne)


@gradient(ops.MulMatId)
def _(node: Tensor, dy: Tensor) -> Parts:
    experts, b, ids = sources(node)

    def of_experts() -> Tensor:
        # The gradient of each row, in the matrix of its expert; zeros in those of the others.
        rows = dy.ne[1] * dy.ne[2]
        used = ops.repeat(b, b.ne[0], *dy.ne[1:]) if b.ne[1] != dy.ne[1] else b
        mine = ops.permute(chosen(flat_ids(ids), experts.ne[2]), 2, 1, 0, 3)  # [1, rows, E]
        each = ops.mul(ops.repeat(shaped(dy, (dy.ne[0], rows, 1, 1)), dy.ne[0], rows, experts.ne[2], 1), mine)
        return ops.out_prod(wide(shaped(used, (b.ne[0], rows, 1, 1))), each)

    def of_b() -> Tensor:
        transposed = ops.cont(ops.transpose(wide(experts)))
        return summed(ops.mul_mat_id(transposed, dy, ids), b.ne)

    return of_experts, of_b, None

"""Rules of diagonals and triangles of matrices."""

from __future__ import annotations

import functools

from ggplug import ops
from ggplug.gradients.rows import reversed_rows
from ggplug.gradients.rules import Parts, gradient, packed, sources
from ggplug.tensor import Tensor


@gradient(ops.DiagMask)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.DiagMask)
    n_past = node.op.n_past
    return (lambda: ops.diag_mask_zero(dy, n_past),)


@gradient(ops.Tri)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.Tri)
    type = node.op.type
    return (lambda: ops.tri(dy, type),)


@gradient(ops.Diag)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)

    def of_x() -> Tensor:
        whole = packed(dy)
        diagonal = ops.view(whole, 1, *x.ne[:1], *x.ne[2:], nb=(whole.nb[1] + 4, *whole.nb[2:]))
        return ops.cont(diagonal, *x.ne)

    return (of_x,)


@gradient(ops.SolveTri)
def _(node: Tensor, dy: Tensor) -> Parts:
    a, _ = sources(node)

    @functools.cache
    def of_b() -> Tensor:
        # The transpose of a is upper triangular; with its rows and columns in reverse order it is lower triangular.
        mirrored = reversed_rows(ops.cont(ops.transpose(reversed_rows(a))))
        return reversed_rows(ops.solve_tri(mirrored, reversed_rows(dy)))

    def of_a() -> Tensor:
        return ops.neg(ops.tri(ops.mul_mat(node, of_b()), ops.TriType.LOWER_DIAG))

    return of_a, of_b

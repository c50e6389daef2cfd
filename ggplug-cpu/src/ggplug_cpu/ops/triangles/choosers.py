"""Bands and diagonals of matrices, and triangular systems of equations."""

from __future__ import annotations

from ggplug import ops
from ggplug.ops.triangles import Banded
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Shape, row_nest, words_of
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.copy.choosers import copy_bytes, zero_bytes
from ggplug_cpu.ops.triangles import kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry

#: More columns than any row has: the limit of an unlimited band.
_FAR = 1 << 40


def banded(node: Tensor) -> Entries:
    """y = x in a band along the diagonal, and a constant outside it."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, Banded)
    first, last = op.band
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    words = words_of(
        kernels.Banded,
        nest,
        writing(Ref(RESULT), node.type, node.nb[0]),
        reading(Ref(source(0)), x.type, x.nb[0]),
        height=node.ne[1],
        first=-_FAR if first is None else first,
        behind=_FAR if last is None else last + 1,
        value=op.outside,
    )
    entry = Entry(kernels.banded(), words, tasks(node.size))
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(node.ne[0]))


def diag(node: Tensor) -> Entries:
    """y[i, i] = x[i], all other elements are 0."""
    x = source_tensor(node, 0)
    zeros = zero_bytes(node)
    along = Shape(x.ne, (node.nb[0] + node.nb[1], node.nb[1], *node.nb[2:]))
    copied = copy_bytes(node.type, x.ne, along, Shape(x.ne, x.nb), Ref(RESULT), Ref(source(0)))
    return Entries((zeros, copied))


def solve_tri(node: Tensor) -> Entries:
    """a y = b, a being lower triangular."""
    k, n, batches2, batches3 = node.ne
    words = kernels.SolveTri.words(
        x=Place(Ref(RESULT)),
        a=Place(Ref(source(0))),
        b=Place(Ref(source(1))),
        n=n,
        k=k,
        batches=batches2 * batches3,
    )
    return Entries((Entry(kernels.solve_tri(), words, tasks(node.size, max(1, n))),))


CHOOSERS = (
    Chooser(ops.Banded, "float > float", banded),
    Chooser(ops.Diag, "float > float", diag),
    Chooser(ops.SolveTri, "f32 f32 > f32", solve_tri),
)

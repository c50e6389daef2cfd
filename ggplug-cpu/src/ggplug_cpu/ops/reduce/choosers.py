"""Sums, means and positions of maxima."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Axis, Nest, Shape, element_nest, numbered, row_nest, words_of
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.reduce import kernels
from ggplug_cpu.ops.reduce.kernels import scratch_bytes
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry


def sum_rows(node: Tensor) -> Entries:
    """y = the sum of each row, or its mean."""
    x = source_tensor(node, 0)
    nest = row_nest(x.ne, Shape.of(node), Shape.of(x))
    divisor = float(x.ne[0]) if isinstance(node.op, ops.Mean) else 1.0
    places = writing(Ref(RESULT), node.type, 4), reading(Ref(source(0)), x.type, x.nb[0])
    entry = Entry(kernels.sum_rows(), words_of(kernels.SumRows, nest, *places, divisor=divisor), tasks(x.size))
    return Entries((entry,), scratch_bytes=scratch_bytes(x.ne[0]))


def sum_all(node: Tensor) -> Entries:
    """y = the sum of all elements: sums of pieces, then their sum."""
    x = source_tensor(node, 0)
    pieces = numbered(element_nest(x.ne, Shape.of(x)))
    places = Place(Ref(WORKSPACE)), reading(Ref(source(0)), x.type, pieces.inner.strides[1])
    partial = Entry(kernels.sum_pieces(), words_of(kernels.SumPieces, pieces, *places), tasks(x.size))
    words = kernels.SumUp.words(y=writing(Ref(RESULT), node.type, 4), sums=Place(Ref(WORKSPACE)), count=pieces.rows)
    total = Entry(kernels.sum_up(), words, 1)
    return Entries((partial, total), 8 * pieces.rows, scratch_bytes(pieces.inner.extent))


def cumsum(node: Tensor) -> Entries:
    """y = the cumulative sums of each row."""
    x = source_tensor(node, 0)
    nest = row_nest(node.ne, Shape.of(node), Shape.of(x))
    places = writing(Ref(RESULT), node.type, node.nb[0]), reading(Ref(source(0)), x.type, x.nb[0])
    entry = Entry(kernels.cumsum(), words_of(kernels.Cumsum, nest, *places), tasks(node.size, 2))
    return Entries((entry,), scratch_bytes=scratch_bytes(2 * node.ne[0]))


def count_equal(node: Tensor) -> Entries:
    """y = how many elements are equal: counts of pieces, then their sum."""
    a, b = source_tensor(node, 0), source_tensor(node, 1)
    pieces = numbered(element_nest(a.ne, Shape.of(a), Shape.of(b)))
    places = Place(Ref(WORKSPACE)), *(Place(Ref(source(i)), (pieces.inner.strides[1 + i],)) for i in range(2))
    partial = Entry(kernels.count_pieces(), words_of(kernels.CountPieces, pieces, *places), tasks(a.size))
    words = kernels.CountUp.words(y=Place(Ref(RESULT)), counts=Place(Ref(WORKSPACE)), count=pieces.rows)
    return Entries((partial, Entry(kernels.count_up(), words, 1)), 8 * pieces.rows)


def argmax(node: Tensor) -> Entries:
    """y = the position of each row's largest element."""
    x = source_tensor(node, 0)
    nest = Nest(Axis(x.ne[0], (0, x.nb[0])), (Axis(x.ne[1], (node.nb[0], x.nb[1])),), x.ne[0])
    places = Place(Ref(RESULT)), reading(Ref(source(0)), x.type, x.nb[0])
    entry = Entry(kernels.argmax(), words_of(kernels.Argmax, nest, *places), tasks(x.size))
    return Entries((entry,), scratch_bytes=scratch_bytes(x.ne[0]))


CHOOSERS = (
    Chooser(ops.SumRows, "float > float", sum_rows),
    Chooser(ops.Mean, "float > f32", sum_rows),
    Chooser(ops.Sum, "float > float", sum_all),
    Chooser(ops.Argmax, "float > i32", argmax),
    Chooser(ops.Cumsum, "float > float", cumsum),
    Chooser(ops.CountEqual, "i32 i32 > i64", count_equal),
)

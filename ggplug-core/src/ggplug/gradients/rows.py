"""Rules of ops that read, add or write rows by ids."""

from __future__ import annotations

from ggplug import ops
from ggplug.gradients.rules import Parts, gradient, ones, packed, shaped, sources, zeros
from ggplug.tensor import Extents, Tensor


@gradient(ops.GetRows)
def _(node: Tensor, dy: Tensor) -> Parts:
    a, ids = sources(node)
    return lambda: _added(dy, ids, a.ne), None


def _added(dy: Tensor, ids: Tensor, ne: Extents) -> Tensor:
    """A tensor with these extents, whose rows are the sums of the rows of dy with their ids."""
    flat = shaped(dy, (dy.ne[0], dy.nrows, 1, 1))
    return shaped(ops.get_rows_back(flat, flat_ids(ids, ne[1]), ne[1] * ne[2] * ne[3]), ne)


def flat_ids(ids: Tensor, rows: int = 0) -> Tensor:
    """All ids as a vector; those of each batch count from its first row on, if a batch has ``rows`` of them."""
    if ids.ne[1:] == (1, 1, 1) or not rows:
        return shaped(ids, (ids.size, 1, 1, 1))
    return shaped(_counted(shaped(ids, (ids.ne[0], ids.nrows, 1, 1)), rows), (ids.size, 1, 1, 1))


def _counted(ids: Tensor, rows: int) -> Tensor:
    """The ids of a matrix plus ``rows`` times the number of their row."""
    first = ops.scale(shaped(ops.arange(0, ids.ne[1]), (1, ids.ne[1], 1, 1)), rows)
    # In floats, which are exact up to 2**24.
    return ops.cast(ops.add(ops.cast(ids, "f32"), first), "i32")


def chosen(ids: Tensor, rows: int) -> Tensor:
    """For each of the ids, which are a vector, a row of F32 with 1 at that place and 0 at the others."""
    count = ids.ne[0]
    places = shaped(_counted(shaped(ids, (1, count, 1, 1)), rows), (count, 1, 1, 1))
    marked = ops.set_rows(zeros((1, rows * count, 1, 1)), ones((1, count, 1, 1)), places)
    return shaped(marked, (rows, count, 1, 1))


def reversed_rows(x: Tensor) -> Tensor:
    """The rows of each matrix in reverse order."""
    count = x.ne[1]
    last_to_first = ops.scale(ops.arange(0, count), -1, count - 1)
    return ops.get_rows(x, ops.cast(ops.repeat(last_to_first, *x.ne[1:]), "i32"))


@gradient(ops.GetRowsBack)
def _(node: Tensor, dy: Tensor) -> Parts:
    rows, ids = sources(node)

    def of_rows() -> Tensor:
        found = ops.get_rows(dy, ids)
        return ops.pad(found, 0, rows.ne[1] - ids.ne[0]) if rows.ne[1] > ids.ne[0] else found

    return of_rows, None


@gradient(ops.AddId)
def _(node: Tensor, dy: Tensor) -> Parts:
    _, b, ids = sources(node)
    flat = shaped(dy, (dy.ne[0], dy.nrows, 1, 1))
    return lambda: dy, lambda: ops.get_rows_back(flat, flat_ids(ids), b.ne[1]), None


@gradient(ops.SetRows)
def _(node: Tensor, dy: Tensor) -> Parts:
    dst, rows, ids = sources(node)

    def of_rows() -> Tensor:
        # The ids may be i64, which no other op reads.  So this one writes the numbers of rows, from 1 on, to their
        # places, and each place adds its gradient to the row of that number; those without one have 0.
        count = rows.ne[1]
        numbers = ops.repeat(shaped(ops.arange(1, count + 1), (1, count, 1, 1)), 1, *rows.ne[1:])
        placed = ops.cast(ops.set_rows(zeros((1, *dst.ne[1:])), numbers, ids), "i32")
        found = _added(dy, shaped(placed, (*dst.ne[1:], 1)), (dy.ne[0], count + 1, *rows.ne[2:]))
        return ops.view(found, *rows.ne, nb=found.nb[1:], offset=found.nb[1])

    return lambda: ops.set_rows(ops.dup(packed(dy)), zeros(rows.ne), ids), of_rows, None

"""Rules of ops that read, add or write rows by ids."""

from __future__ import annotations

from ggplug import ops
from ggplug.gradients.rules import Parts, gradient, halves, ones, packed, shaped, sources, with_extent, zeros
from ggplug.tensor import Extents, Tensor

EXACT = 2**24
"""The number up to which F32, in which ops count, has all whole numbers; what has more rows is divided."""


@gradient(ops.GetRows)
def _(node: Tensor, dy: Tensor) -> Parts:
    a, ids = sources(node)
    return lambda: _added(dy, ids, a.ne), None


def _added(dy: Tensor, ids: Tensor, ne: Extents) -> Tensor:
    """A tensor with these extents, whose rows are the sums of the rows of dy with their ids."""
    if ne[1] * ne[2] * ne[3] > EXACT and ne[2:] != (1, 1):
        dim = 3 if ne[3] > 1 else 2
        pairs = zip(halves(dy, dim), halves(ids, dim - 1), strict=True)
        first, second = (_added(each, places, with_extent(ne, dim, each.ne[dim])) for each, places in pairs)
        return ops.concat(first, second, dim=dim)
    flat = shaped(dy, (dy.ne[0], dy.nrows, 1, 1))
    return shaped(ops.get_rows_back(flat, flat_ids(ids, ne[1]), ne[1] * ne[2] * ne[3]), ne)


def flat_ids(ids: Tensor, rows: int = 0) -> Tensor:
    """All ids as a vector; those of each batch count from its first row on, if a batch has ``rows`` of them.

    All batches have :data:`EXACT` rows at most.
    """
    if ids.ne[1:] != (1, 1, 1) and rows:
        each = shaped(ids, (ids.ne[0], ids.nrows, 1, 1))
        first = ops.scale(shaped(ops.arange(0, each.ne[1]), (1, each.ne[1], 1, 1)), rows)
        ids = ops.cast(ops.add(ops.cast(each, "f32"), first), "i32")
    return shaped(ids, (ids.size, 1, 1, 1))


def chosen(ids: Tensor, rows: int) -> Tensor:
    """For each of the ids, which are a vector, a row of F32 with 1 at that place and 0 at the others."""
    count = ids.ne[0]
    marked = ops.set_rows(zeros((1, rows, count, 1)), ones((1, 1, count, 1)), shaped(ids, (1, count, 1, 1)))
    return shaped(marked, (rows, count, 1, 1))


def reversed_rows(x: Tensor) -> Tensor:
    """The rows of each matrix in reverse order."""
    count = x.ne[1]
    if count > EXACT:
        first, second = halves(x, 1)
        return ops.concat(reversed_rows(second), reversed_rows(first), dim=1)
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
    _, rows, ids = sources(node)

    def of_rows() -> Tensor:
        return _of_places(dy, rows.ne, ids)

    return lambda: ops.set_rows(ops.dup(packed(dy)), zeros(rows.ne), ids), of_rows, None


def _of_places(dy: Tensor, ne: Extents, ids: Tensor) -> Tensor:
    """The rows of dy with these ids, which differ from each other: the gradient of rows with extents ``ne``."""
    count = ne[1]
    if count >= EXACT:
        first, second = (_of_places(dy, with_extent(ne, 1, each.ne[0]), each) for each in halves(ids, 0))
        return ops.concat(first, second, dim=1)
    # The ids may be i64, which no other op reads.  So set_rows writes the numbers of rows, from 1 on, to their places,
    # and each place adds its gradient to the row of that number; those without one have 0.
    numbers = ops.repeat(shaped(ops.arange(1, count + 1), (1, count, 1, 1)), 1, *ne[1:])
    placed = ops.cast(ops.set_rows(zeros((1, *dy.ne[1:])), numbers, ids), "i32")
    found = _added(dy, shaped(placed, (*dy.ne[1:], 1)), (dy.ne[0], count + 1, *ne[2:]))
    return ops.view(found, *ne, nb=found.nb[1:], offset=found.nb[1])

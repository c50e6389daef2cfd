"""Rows gathered and scattered by index."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug.types import I32
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import FAULTS, POSITION, RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.rows_by_index.kernels import SCRATCH_BYTES, RowsByIndex, rows_by_index
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.parts.converters import read_plain
from ggplug_cpu.parts.nest import BLOCK
from ggplug_cpu.tape import Entry

#: Most bytes of a row that are prefetched; the hardware prefetcher fetches the rest of longer rows.
_FETCHED = 2048


def get_rows(node: Tensor) -> Entries:
    """y[:, i, j, k] = a[:, ids[i, j, k], j, k]."""
    a, ids = source_tensor(node, 0), source_tensor(node, 1)
    words = _words(node, Ref(source(0)), a, Ref(source(1)), ids, node, a.ne[1])
    entry = Entry(rows_by_index("get", ids.type.name), words, tasks(node.size))
    return Entries((entry,), scratch_bytes=SCRATCH_BYTES)


def set_rows(node: Tensor) -> Entries:
    """dst[:, ids[i, j mod J, k mod K], j, k] = rows[:, i, j, k]."""
    dst, rows, ids = source_tensor(node, 0), source_tensor(node, 1), source_tensor(node, 2)
    words = _words(node, Ref(source(1)), rows, Ref(source(2)), ids, rows, dst.ne[1])
    entry = Entry(rows_by_index("set", ids.type.name), words, tasks(rows.size, 2))
    return Entries((entry,), scratch_bytes=SCRATCH_BYTES)


def _words(node: Tensor, x: Ref, rows: Tensor, at: Ref, ids: Tensor, numbered: Tensor, limit: int) -> Words:
    """The kernel's parameters: ``rows``, at ``x``, are read; ``ids``, at ``at``, select rows of ``numbered``."""
    y_place, x_place, size = _conversion(x, rows, node)
    n, ni, nj, nk = numbered.ne
    return RowsByIndex.words(
        y=y_place,
        x=x_place,
        ids=Place(at, ids.nb),
        faults=Place(Ref(FAULTS)),
        position=Ref(POSITION),
        n=n,
        ni=ni,
        nj=nj,
        nk=nk,
        ids_nj=ids.ne[1],
        ids_nk=ids.ne[2],
        limit=limit,
        size=size,
        fetched=min(rows.type.row_bytes(rows.ne[0]), _FETCHED) if rows.nb[0] == rows.type.block_bytes else 0,
    )


def _conversion(x: Ref, rows: Tensor, y: Tensor) -> tuple[Place, Place, int]:
    """(place of y, place of x, bytes of a row that is copied without conversion, or 0).  Rows of y are contiguous."""
    if rows.type is y.type and rows.nb[0] == rows.type.block_bytes:
        return Place(Ref(RESULT), y.nb), Place(x, rows.nb), rows.type.row_bytes(rows.ne[0])
    if rows.type is I32:  # copied as bits: f32 does not hold all integers
        return (
            Place(Ref(RESULT), y.nb, 0, BLOCK * y.nb[0]),
            Place(x, rows.nb, read_plain("f32"), BLOCK * rows.nb[0]),
            0,
        )
    return writing(Ref(RESULT), y.type, *y.nb), reading(x, rows.type, *rows.nb), 0


CHOOSERS = (
    Chooser(ops.GetRows, "float|block i32 > f32", get_rows),
    Chooser(ops.GetRows, "i32 i32 > i32", get_rows),
    Chooser(ops.SetRows, "float|encoded|i32 float i64|i32 > float|encoded|i32", set_rows),
)

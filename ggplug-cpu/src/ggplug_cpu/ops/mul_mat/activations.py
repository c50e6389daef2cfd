"""Activations as products read them: in place, or converted to rows in the workspace first."""

from __future__ import annotations

from dataclasses import dataclass

from ggplug.tensor import Tensor
from ggplug_cpu.choosing.entries import tasks
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.ops.mul_mat import dot
from ggplug_cpu.ops.mul_mat.kinds import order_of
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.prepare import Prepared, int8_row_bytes, mul_mat_narrow, mul_mat_round, mul_mat_widen
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry
from ggplug_cpu.types import BLOCKS


@dataclass(frozen=True)
class Activations:
    """Rows of activations as a product reads them: place, element type, and the entries that prepare them.

    ``elem``: a plain type's name, or ``int8``; ``order`` is ``rows`` or ``scattered``, ``nb`` are strides in bytes.
    ``workspace_bytes``: end of the workspace that they use.
    """

    place: Ref | int
    elem: str
    order: str
    nb: tuple[int, int, int, int]
    entries: tuple[Entry, ...] = ()
    workspace_bytes: int = 0
    scratch_bytes: int = 0


def in_place(b: Tensor, place: Ref | int) -> Activations:
    order = "rows" if order_of(b) == "rows" else "scattered"
    return Activations(place, b.type.name, order, b.nb)


def for_dot(a: Tensor, b: Tensor, place: Ref | int, offset: int) -> Activations:
    """The activations of ``mul_mat_dot``: int8 with sums for block types, contiguous f32 for others.

    ``offset``: bytes of the workspace that are taken already.
    """
    if a.type.name in BLOCKS:
        weights = a.type.name
        return _rounded(b, place, offset, dot.offset_of_sums(weights, b.type.name), dot.totals_of(weights))
    if b.type.name == "f32" and order_of(b) == "rows":
        return in_place(b, place)
    return _widened(b, place, offset)


def for_gemm(kind: str, b: Tensor, place: Ref | int, offset: int) -> Activations:
    shape = layout(kind)
    if shape.kind == "i8":
        return _rounded(b, place, offset, 0, shape.quantum if shape.has_minima else 0)
    return _widened(b, place, offset) if b.type.name in BLOCKS else in_place(b, place)


def _rounded(b: Tensor, place: Ref | int, at: int, sums: int, totals: int) -> Activations:
    order = in_place(b, place).order
    row_bytes = int8_row_bytes(b.ne[0], sums, totals)
    scratch = 4 * b.ne[0] if order == "scattered" else 0
    kernel = mul_mat_round(b.type.name, order, sums, totals)
    return _rows_in_workspace(b, place, at, row_bytes, "int8", kernel, scratch)


def _widened(b: Tensor, place: Ref | int, at: int) -> Activations:
    row_bytes = -(-4 * b.ne[0] // 64) * 64
    return _rows_in_workspace(b, place, at, row_bytes, "f32", mul_mat_widen(b.type.name), 0)


def narrowed(b: Tensor, place: Ref | int) -> Activations:
    if b.type.name == "bf16" and order_of(b) == "rows":
        return in_place(b, place)
    order = in_place(b, place).order
    lines = -(-2 * b.ne[0] // 64) | 1  # an odd number, so rows of a tile lie in different sets of a cache
    scratch = 4 * b.ne[0] if order == "scattered" else 0
    return _rows_in_workspace(b, place, 0, 64 * lines, "bf16", mul_mat_narrow(b.type.name, order), scratch)


def _rows_in_workspace(
    b: Tensor, place: Ref | int, at: int, row_bytes: int, elem: str, kernel: Kernel, scratch: int
) -> Activations:
    words = Prepared.words(
        x=Place(place, b.nb),
        y=Place(Ref(WORKSPACE, at)),
        K=b.ne[0],
        ne1=b.ne[1],
        ne2=b.ne[2],
        ne3=b.ne[3],
        row_bytes=row_bytes,
    )
    nb = (0, row_bytes, row_bytes * b.ne[1], row_bytes * b.ne[1] * b.ne[2])
    entry = Entry(kernel, words, tasks(b.size))
    return Activations(Ref(WORKSPACE, at), elem, "rows", nb, (entry,), at + row_bytes * b.nrows, scratch)

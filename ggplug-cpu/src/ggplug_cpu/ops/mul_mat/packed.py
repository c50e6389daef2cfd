"""Packed weights: the layout of their bytes, and how ``mul_mat_gemm`` finds their panels.

A packed matrix is cut along K into slices, as many numbers as ``mul_mat_gemm`` packs at a time, and a slice into panels
of ``Layout.columns`` rows of weights, the last filled up with zeros.  A panel consists of blocks along K, a block of
*fields* of a row's block, and a field of units: ``[slice][panel][block][field][unit][row of the panel]``.  So a product
reads memory sequentially.  Only the order of bytes changes: any bytes can be unpacked again, and a matrix grows by no
more than the padding of the last panel and block.

Tiles read these panels in place, so a product has no weights to pack.  They widen F16 when they load it, and BF16 if
the processor does not multiply it.  Of block types they read the numbers as unsigned bytes, and the scales, as
``Blocks.side_by_side`` says; the start value of a sum, ``-offset`` times the sum of a group's activations, is packed
with the activations.

Other block types, and all of them on AMX or with other int8 instructions, are stored twice (``keeps_rows``): as plain
rows, for products of few columns, and after these as the panels that a product would pack itself.  Such weights grow:
int8 with its factors takes 1.25 bytes a number and more, bf16 two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ggplug_cpu.compiler import DeviceFunction, device_function
from ggplug_cpu.ops.mul_mat.layout import Layout, base_of, layout
from ggplug_cpu.ops.mul_mat.rows import Product
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import I8, Value, vector
from ggplug_cpu.types import BLOCKS, PLAIN, Blocks
from ggplug_cpu.types.blocks import ANY_NUMBER, PREPARED, Read, offset_of


class PackedField(NamedTuple):
    """Bytes ``offset`` to ``offset + size`` of a row's block, packed in units of ``unit`` adjacent bytes."""

    offset: int
    size: int
    unit: int


@dataclass(frozen=True)
class Form:
    """The layout of packed weights of one type, for products of one ``kind`` on one target.

    ``rows``: rows of weights in a panel.  ``numbers``: numbers of a row in a block.  ``shape``: the layout of products.
    ``keeps_rows``: whether the plain rows are stored, too, followed by panels in the layout of products.
    ``block_size``: numbers of a block of the type.
    """

    kind: str
    rows: int
    numbers: int
    shape: Layout
    fields: tuple[PackedField, ...] = ()
    keeps_rows: bool = False
    block_size: int = 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one row's block."""
        return self.shape.quantum_bytes // self.rows if self.keeps_rows else sum(field.size for field in self.fields)

    def panels_at(self, nbytes: int) -> int:
        """Offset of the panels of weights that have ``nbytes`` bytes as plain rows."""
        return -(-nbytes // 64) * 64 if self.keeps_rows else 0

    def slice_numbers(self, K: int, M: int) -> int:
        """Numbers of a row in a slice of ``M`` rows with ``K`` numbers."""
        return self.shape.k_block(K, M, self.block_size)

    def matrix_bytes(self, K: int, M: int) -> int:
        """Bytes of ``M`` rows with ``K`` numbers."""
        return -(-M // self.rows) * -(-K // self.numbers) * self.block_bytes * self.rows


def form_of(type_name: str, kind: str) -> Form | None:
    """The layout of packed weights of a type for products of a kind on the current target."""
    s = layout(kind)
    if type_name in PLAIN:
        size = PLAIN[type_name].elem_bytes
        return Form(kind, s.columns, s.quantum, s, (PackedField(0, size * s.quantum, size * s.unit),))
    t = BLOCKS[type_name]
    by_lanes = base_of(kind) == "i8" and s.rows_of_sums == 1 and (s.unsigned or (s.way is not None and s.way.signs))
    if t.side_by_side is None or not by_lanes:
        return Form(kind, s.columns, s.quantum, s, keeps_rows=True, block_size=t.block_size)
    fields = tuple(_field(t, *field) for field in t.side_by_side.fields)
    return Form(kind, s.columns, t.block_size, s, fields, block_size=t.block_size)


def _field(t: Blocks, field: str, unit: int) -> PackedField:
    offset = offset_of(t.type, field)
    size = t.type.dtype[field].itemsize
    return PackedField(offset, size, unit)


class PackedPanel:
    """Reads a panel of a type's own blocks with LLVM's values: the numbers and factors of each vector of rows."""

    def __init__(self, kind: str, stored: str) -> None:
        form, t = form_of(stored, kind), BLOCKS[stored]
        assert form is not None
        assert t.side_by_side is not None
        self._form, self._type, self._reading = form, t, t.side_by_side
        self.groups_at_once = t.side_by_side.groups_at_once
        self.block_bytes = form.rows * form.block_bytes
        self._fields, at = {}, 0
        for name, unit in t.side_by_side.fields:
            self._fields[name] = at, unit
            at += form.rows * t.type.dtype[name].itemsize
        self._stack: Value | None = None

    def begin(self, block: Value) -> None:
        """Continues with the block of each row at this address."""
        self._block = block
        if self._reading.prepared is None:
            return
        prepared = self._reading.prepared(partial(self._read, 0, self._form.rows))
        if self._stack is None:
            self._stack = values.on_stack(block.b, sum(each.count for each in prepared))
        place = self._stack
        for each in prepared:
            values.store(place, each)
            place = place + each.count

    def numbers(self, step: Value, group: int, *, signed: bool) -> Iterator[tuple[int, list[Value]]]:
        """Four numbers of each row, as bytes in the lanes of vectors, and which of the group's units of four."""
        offset = self._type.offset if signed else 0
        for several in zip(*(self._reading.numbers(each, step, group) for each in self._readers()), strict=True):
            yield several[0][0], [each - offset if offset else each for _, each in several]

    def factors(self, step: Value, group: int) -> tuple[list[Value], list[Value]]:
        """The scales of each vector of rows, and the minima if there are any."""
        number = step * self.groups_at_once + group
        found = [self._reading.factors(each, number) for each in self._readers()]
        return [scale for scale, _ in found], [minimum for _, minimum in found if minimum is not None]

    def _readers(self) -> list[Read]:
        width = self._form.shape.width
        return [partial(self._read, first, width) for first in range(0, self._form.rows, width)]

    def _read(self, first: int, rows: int, field: str, at: Value | int, count: int = 1) -> Value:
        """Units of ``rows`` rows from row ``first`` on."""
        if field == PREPARED:
            assert self._stack is not None
            place, unit = self._stack, 1
        else:
            offset, unit = self._fields[field]
            place = self._block + offset
        return values.load(place + at * self._form.rows, vector(I8, rows * unit * count), first * unit)


def packed_as(kind: str, type_name: str) -> str:
    """The name of a packed layout: ``packed q4_0`` for panels of blocks of that type.

    ``packed`` without a type stands for the panels that a product would pack itself, whatever the type was.
    """
    form = form_of(type_name, kind)
    assert form is not None
    just_so = form.keeps_rows or (type_name in PLAIN and form.block_bytes * form.rows == layout(kind).quantum_bytes)
    return "packed" if just_so else f"packed {type_name}"


def stored_in(packed: str) -> str:
    """The type in the name of a packed layout (:func:`packed_as`), or an empty text for panels that a product packs."""
    return packed.partition(" ")[2]


def most_in_place(kind: str, packed: str) -> int:
    """Most rows of activations that are multiplied with panels as they are.

    For more rows, int8 panels are made of a type's own blocks first.
    """
    stored, shape = stored_in(packed), layout(kind)
    if stored not in BLOCKS:
        return ANY_NUMBER
    order = BLOCKS[stored].side_by_side
    assert order is not None
    assert shape.way is not None
    if not shape.way.is_instruction:
        return order.in_place.several
    return order.in_place.wide if shape.width == 16 else ANY_NUMBER


def first_panel(kind: str, packed: str) -> DeviceFunction:
    """``find(params, base, m_first, m_last, k, numbers, panels, x)``: the address of the panel of row ``m_first``.

    ``base``: address of the packed matrix; ``k``: the first of ``numbers`` numbers of a slice.  The other arguments are
    for weights that a product packs.  ``packed``: see :func:`packed_as`.
    """
    shape, stored = layout(kind), stored_in(packed)
    rows, block_numbers, block_bytes = shape.columns, shape.quantum, shape.quantum_bytes
    if stored:
        form = form_of(stored, kind)
        assert form is not None
        rows, block_numbers, block_bytes = form.rows, form.numbers, form.rows * form.block_bytes

    @device_function
    def find(params: Product, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int, x: int) -> int:
        all_panels = -(-params.M // rows)
        before = k // block_numbers * all_panels + m_first // rows * -(-numbers // block_numbers)
        return base + before * block_bytes

    return find

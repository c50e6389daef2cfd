"""Weights that were packed once: how their bytes lie, and how ``mul_mat_gemm`` reads them.

A packed matrix is a run of panels, each of ``Layout.columns`` rows of weights (the last filled up with zeros) and all
their numbers along K.  A panel goes along K in blocks, a block in *pieces* of a row's bytes, and a piece in units:
``[panel][block][piece][unit][row of the panel]``.  Nothing but the order of bytes changes, so the original bytes can be
had back whatever they are, and a matrix grows by no more than the rows and numbers that fill up the last panel and
block.

Where units are what tiles multiply (*direct*: F32, and BF16 if the processor multiplies it) the packed matrix is the
panels of :mod:`.mul_mat_layout` themselves, and a product has nothing to pack.  Else each chunk widens its rows into
panels in the thread's scratch: straight on, without transposing anything.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from ggplug_cpu import compiler
from ggplug_cpu.compiler import DeviceFunction, device_function
from ggplug_cpu.kernels.mul_mat_layout import layout
from ggplug_cpu.kernels.mul_mat_rows import Product
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import Value, emitted, loop
from ggplug_cpu.types import PLAIN


class Piece(NamedTuple):
    """Bytes ``offset`` to ``offset + size`` of a row's block, of which ``unit`` stay adjacent."""

    offset: int
    size: int
    unit: int


@dataclass(frozen=True)
class Form:
    """How weights of one type lie packed for products of one ``kind``, on one target.

    ``rows``: of weights, in a panel.  ``numbers``: of a row, in a block.  ``direct``: whether panels are read in place.
    """

    kind: str
    rows: int
    numbers: int
    pieces: tuple[Piece, ...]
    direct: bool

    @property
    def block_bytes(self) -> int:
        """Bytes of one row's block."""
        return sum(piece.size for piece in self.pieces)

    def panel_bytes(self, K: int) -> int:
        """Bytes of a panel of rows with ``K`` numbers."""
        return -(-K // self.numbers) * self.block_bytes * self.rows

    def matrix_bytes(self, K: int, M: int) -> int:
        """Bytes of ``M`` rows with ``K`` numbers."""
        return -(-M // self.rows) * self.panel_bytes(K)


def form_of(type_name: str, kind: str) -> Form | None:
    """How weights of a type are packed for products of a kind on the current target; None where they are not."""
    s = layout(kind)
    if type_name in PLAIN:
        size = PLAIN[type_name].elem_bytes
        direct = (type_name == "f32") if s.unit == 1 else type_name == "bf16"
        if not direct and s.unit != 1:
            return None
        return Form(kind, s.columns, s.quantum, (Piece(0, size * s.quantum, size * s.unit),), direct)
    return None


def is_direct(kind: str, type_name: str) -> bool:
    """Whether packed weights of a type are the panels that products of a kind multiply."""
    form = form_of(type_name, kind)
    return form is not None and form.direct


def read_packed(kind: str, weights: str) -> DeviceFunction:
    """``read(params, base, m_first, m_last, k, numbers, panels, x)``: panels of rows from ``m_first`` on, in place or
    in ``panels``."""
    form = form_of(weights, kind)
    assert form is not None
    rows, block_numbers, block_bytes = form.rows, form.numbers, form.rows * form.block_bytes
    if form.direct:

        @device_function
        def read(params, base, m_first, m_last, k, numbers, panels, x):  # type: ignore[no-untyped-def]
            return base + m_first // rows * Product.weights.nb1(params) + k // block_numbers * block_bytes

        return read

    quantum, quantum_bytes = layout(kind).quantum, layout(kind).quantum_bytes
    widen = _widen(weights)

    @device_function
    def read(params, base, m_first, m_last, k, numbers, panels, x):  # type: ignore[no-untyped-def]
        stride = Product.weights.nb1(params)
        blocks = -(-numbers // block_numbers)
        panel_bytes = -(-numbers // quantum) * quantum_bytes
        source = base + m_first // rows * stride + k // block_numbers * block_bytes
        for panel in range(-(-(m_last - m_first) // rows)):
            widen(panels + panel * panel_bytes, source + panel * stride, blocks)
        return panels

    return read


@functools.cache
def _widen(type_name: str) -> compiler.Intrinsic:
    """``widen(type)(panel, source, blocks)``: packed numbers of a plain type as f32."""

    def emit(panel: Value, source: Value, blocks: Value) -> None:
        s, t = layout("f32"), PLAIN[type_name]
        lines = s.quantum * s.columns // s.width

        def line(_: Value, carried: list[Value]) -> list[Value]:
            place, at = carried
            for i in range(4):
                values.store(place, t.read(at + i * s.width * t.elem_bytes, s.width), i * s.width * 4)
            return [place + 4 * s.width * 4, at + 4 * s.width * t.elem_bytes]

        loop(blocks * (lines // 4), [panel, source], line)

    return emitted("void(i64, i64, i64)")(emit)

"""Packs weights into the panels of a matrix product; products call this kernel by its address.

A product's kernel multiplies panels; this kernel makes panels of a kind (:mod:`.layout`) from weights of a type, in any
order.  So every type can be combined with every product without being compiled for it.  The same kernel makes packed
weights, for :mod:`ggplug_cpu.packed`.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import call_2, store_word
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.pack import (
    expand_panel,
    pack_columns,
    pack_columns_of_blocks,
    pack_own_blocks,
    pack_weights,
)
from ggplug_cpu.ops.mul_mat.packed import first_panel, form_of, packed_as
from ggplug_cpu.ops.mul_mat.patches import pack_patches
from ggplug_cpu.ops.mul_mat.rows import Product
from ggplug_cpu.parameters import Parameters, destination, integer, source
from ggplug_cpu.types import BLOCKS, GROUP, PLAIN


class Packing(Parameters):
    """A block of weights: ``numbers`` numbers, from ``k`` on, of rows ``m_first`` to ``m_last`` of a matrix."""

    weights = source("nb0", "nb1")
    """The matrix."""
    panels = destination()
    m_first = integer()
    m_last = integer()
    k = integer()
    numbers = integer()
    gathered_at = integer()
    """The address at which scattered numbers are gathered: a vector's width of rows, as f32."""


class Panels(Parameters):
    """``count`` panels of a slice of weights, ``blocks`` blocks of each row, of which the first begins at ``rows``."""

    rows = source("nb1")
    panels = destination()
    count = integer()
    blocks = integer()


@device_function
def pack_block(
    product: Product,
    base: int,
    m_first: int,
    m_last: int,
    k: int,
    numbers: int,
    panels: int,
    words: int,
    gathered_at: int,
) -> None:
    """Calls the packing kernel of a product for a block of the matrix at ``base``; stores its parameters at
    ``words``.
    """
    store_word(words, base)
    store_word(words + 8, product.weights.nb0)
    store_word(words + 16, product.weights.nb1)
    store_word(words + 24, panels)
    store_word(words + 32, m_first)
    store_word(words + 40, m_last)
    store_word(words + 48, k)
    store_word(words + 56, numbers)
    store_word(words + 64, gathered_at)
    call_2(product.pack, product, words)


@kernel
def pack_panels(kind: str, weights: str, order: str = "rows", through: str = "") -> Body:
    """Packs a block of weights of a type into panels of ``kind``.

    Orders: ``rows`` where the numbers of a row are adjacent, ``columns`` where the first numbers of neighbouring rows
    are, or blocks of these, ``scattered`` where neither, of a plain type.  The last two are not for int8, and numbers
    of columns are rounded to the type ``through`` first.  ``packed``: weights are packed in their own blocks already
    (:mod:`.packed`), and become int8.  ``windows`` and ``stretched windows``, with kind ``f32``, are weights that are
    an image's: see :mod:`.patches`.

    Its first argument is the address of the product's parameters, in place of a context; only windows read them.
    """
    if order == "columns":
        pack = _adjacent_rows(kind, weights, through)
    elif order == "scattered":
        pack = _scattered_rows(kind, weights)
    elif order == "packed":
        pack = _packed(kind, weights)
    elif order.endswith("windows"):
        pack = _windows(order.startswith("stretched"))
    else:
        pack = _rows(kind, weights)

    def body(product: Product, params: Packing) -> None:
        m_first, m_last = params.m_first, params.m_last
        k, numbers, panels = params.k, params.numbers, params.panels.address
        pack(product, params, params.weights.address, m_first, m_last, k, numbers, panels)

    return body


@kernel
def pack_own_panels(kind: str, weights: str) -> Body:
    """Packs whole panels in a type's own blocks: see :mod:`.packed`.  It has no context."""
    form = form_of(weights, kind)
    assert form is not None
    rows, panel_bytes = form.rows, form.rows * form.block_bytes
    pack = pack_own_blocks(kind, weights)

    def body(ctx: int, params: Panels) -> None:
        blocks, stride = params.blocks, params.rows.nb1
        for panel in range(params.count):
            source = params.rows.address + panel * rows * stride
            pack(params.panels.address + panel * blocks * panel_bytes, source, stride, blocks)

    return body


def _rows(kind: str, weights: str) -> DeviceFunction:
    shape = layout(kind)
    width, columns, unit_bytes = shape.width, shape.columns, shape.unit_bytes
    quantum, quantum_bytes = shape.quantum, shape.quantum_bytes
    pack_some = pack_weights(kind, weights)
    if weights in BLOCKS:
        group, group_bytes = BLOCKS[weights].block_size, BLOCKS[weights].block_bytes
    else:
        group, group_bytes = 1, PLAIN[weights].elem_bytes

    @device_function
    def pack(
        product: Product, params: Packing, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int
    ) -> None:
        stride = params.weights.nb1
        panel_bytes = -(-numbers // quantum) * quantum_bytes
        source = base + k // group * group_bytes
        for m in range(m_first, m_last, width):
            column = m - m_first
            place = panels + column // columns * panel_bytes + column % columns * unit_bytes
            pack_some(place, source + m * stride, stride, min(m_last - m, width), numbers)

    return pack


def _packed(kind: str, weights: str) -> DeviceFunction:
    shape = layout(kind)
    columns, quantum, quantum_bytes = shape.columns, shape.quantum, shape.quantum_bytes
    form = form_of(weights, kind)
    assert form is not None
    block_numbers, block_bytes = form.numbers, form.rows * form.block_bytes
    find, expand = first_panel(kind, packed_as(kind, weights)), expand_panel(kind, weights)

    @device_function
    def pack(
        product: Product, params: Packing, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int
    ) -> None:
        source = find(product, base, m_first, m_last, k, numbers, panels, 0)
        place, blocks = panels, numbers // block_numbers
        for _ in range(m_first, m_last, columns):
            expand(place, source, numbers)
            place += numbers // quantum * quantum_bytes
            source += blocks * block_bytes

    return pack


def _adjacent_rows(kind: str, weights: str, through: str) -> DeviceFunction:
    """Of a block type, ``m_first`` and ``m_last`` are multiples of :data:`GROUP`."""
    shape = layout(kind)
    columns, quantum, quantum_bytes = shape.columns, shape.quantum, shape.quantum_bytes
    if weights in BLOCKS:
        at_once, block_size, block_bytes = GROUP, BLOCKS[weights].block_size, BLOCKS[weights].block_bytes
        pack_blocks = pack_columns_of_blocks(kind, weights, through)

        @device_function
        def pack_some(place: int, panel_bytes: int, first: int, stride: int, m: int, m_last: int, numbers: int) -> None:
            block, part = first + m // block_size * block_bytes, m % block_size // GROUP
            pack_blocks(place, panel_bytes, block, part, stride, numbers)

    else:
        at_once, elem_bytes = columns, PLAIN[weights].elem_bytes
        pack_plain = pack_columns(kind, weights, through)

        @device_function
        def pack_some(place: int, panel_bytes: int, first: int, stride: int, m: int, m_last: int, numbers: int) -> None:
            pack_plain(place, first + m * elem_bytes, stride, m_last - m, numbers)

    @device_function
    def pack(
        product: Product, params: Packing, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int
    ) -> None:
        stride = params.weights.nb0
        panel_bytes = -(-numbers // quantum) * quantum_bytes
        for m in range(m_first, m_last, at_once):
            place = panels + (m - m_first) // columns * panel_bytes
            pack_some(place, panel_bytes, base + k * stride, stride, m, m_last, numbers)

    return pack


def _scattered_rows(kind: str, weights: str) -> DeviceFunction:
    shape = layout(kind)
    width, columns, unit_bytes = shape.width, shape.columns, shape.unit_bytes
    quantum, quantum_bytes = shape.quantum, shape.quantum_bytes
    pack_some = pack_weights(kind, "f32")
    read, store_f32 = simd.LOADS[weights], simd.store_f32

    @device_function
    def pack(
        product: Product, params: Packing, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int
    ) -> None:
        row_stride, stride, gathered_at = (
            params.weights.nb1,
            params.weights.nb0,
            params.gathered_at,
        )
        panel_bytes = -(-numbers // quantum) * quantum_bytes
        for m in range(m_first, m_last, width):
            rows = min(m_last - m, width)
            for r in range(rows):
                for i in range(numbers):
                    store_f32(gathered_at + 4 * (r * numbers + i), read(base + (m + r) * row_stride + (k + i) * stride))
            column = m - m_first
            place = panels + column // columns * panel_bytes + column % columns * unit_bytes
            pack_some(place, gathered_at, numbers * 4, rows, numbers)

    return pack


def _windows(stretched: bool) -> DeviceFunction:
    pack_windows = pack_patches(stretched)

    @device_function
    def pack(
        product: Product, params: Product, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int
    ) -> None:
        pack_windows(product, base, m_first, m_last, k, numbers, panels)

    return pack

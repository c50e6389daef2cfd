"""Matrix products of many columns: a thread packs a block of weights into its scratch memory, and multiplies rows with
it.

The work is cut into chunks of (matrix, block of weights, block of rows of activations), which threads take by
``next_chunk``; each chunk packs its own weights, so threads never wait for each other.  Along K a chunk goes in steps
of ``Product.k_block`` numbers, which accumulate in the result.  None of this depends on the number of threads, and no
number in the result depends on how it is cut: results are bit-identical for any number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel, shared
from ggplug_cpu.context import aborted, load_word, next_chunk, scratch, store_word
from ggplug_cpu.ops.mul_mat.amx import STATE_AND_SUMS_BYTES, Activations, NextRows, distance, run_tiles
from ggplug_cpu.ops.mul_mat.epilogue import MOST_ROWS, TILE_BYTES
from ggplug_cpu.ops.mul_mat.layout import layout, layout_for
from ggplug_cpu.ops.mul_mat.pack import pack_activations, pack_quantized
from ggplug_cpu.ops.mul_mat.packed import first_panel, form_of, most_in_place, stored_in
from ggplug_cpu.ops.mul_mat.rows import (
    Block,
    Product,
    Step,
    fill_table,
    finish,
    from_result_to_residual,
    locate,
    matrix_address,
)
from ggplug_cpu.ops.mul_mat.tiles import Finish, tile, unit_bytes_of
from ggplug_cpu.ops.mul_mat.weights import Packing, pack_block
from ggplug_cpu.types import BLOCKS, PLAIN

#: Before the packed activations lie two addresses for each row of a tile, and the parameters of the kernels that pack
#: weights and finish tiles.
_PACKING_AT = 16 * MOST_ROWS
_TABLE_BYTES = -(-(_PACKING_AT + 8 * Packing.word_count() + TILE_BYTES) // 128) * 128
#: Distance of prefetches from panels in memory, in bytes, for few rows.
_AHEAD = 8192


class Rows(NamedTuple):
    """Rows in scratch memory, from ``base`` on, ``stride`` bytes apart."""

    base: int
    stride: int


@kernel
def mul_mat_gemm(kind: str, activations: str, order: str = "rows", packed: str = "") -> Body:
    """A product of ``kind``, which decides how numbers are packed and multiplied: see :mod:`.layout`.

    ``activations`` is their type in memory, ``int8`` for those that :mod:`.prepare` rounded, and ``order``
    theirs: ``rows`` where the numbers of a row are adjacent, else ``scattered``.  ``packed``: the layout of packed
    weights (:func:`.packed.packed_as`); if it is empty, the kernel that the product's parameters name packs them.
    """
    multiply = product_of_blocks(kind, activations, order, packed)

    def body(ctx: int, params: Product) -> None:
        panels = scratch(ctx)
        x = panels + params.x_offset
        m_all, matrices = params.M, params.matrices
        m_block, v_block = params.m_block, params.v_block
        matrix, before = 0, 0
        while not aborted(ctx):
            matrix, m_chunk, v_chunk, rows, before = locate(params, next_chunk(ctx), matrix, before)
            if matrix >= matrices:
                return
            m_first, v_first = m_chunk * m_block, v_chunk * v_block
            m_last, v_last = min(m_first + m_block, m_all), min(v_first + v_block, rows)
            multiply(params, Block(matrix, m_first, m_last, v_first, v_last), panels, x, None)

    return body


@device_function
def _as_they_lie(table: int, capacity: int, row: int, count: int, rows: None) -> None:
    pass


@device_function
def results_to_scratch(table: int, capacity: int, row: int, count: int, rows: Rows) -> None:
    """For :func:`product_of_blocks`: stores the result in ``rows``."""
    for r in range(capacity):
        store_word(table + 8 * r, rows.base + (row + min(r, count - 1)) * rows.stride)


@device_function
def activations_from_scratch(table: int, capacity: int, row: int, count: int, rows: Rows) -> None:
    """For :func:`product_of_blocks`: reads activations from ``rows``."""
    for r in range(capacity):
        store_word(table + 8 * (capacity + r), rows.base + (row + min(r, count - 1)) * rows.stride)


@shared
def product_of_blocks(
    kind: str, activations: str, order: str = "rows", packed: str = "", relocate: DeviceFunction = _as_they_lie
) -> DeviceFunction:
    """``multiply(params, block, panels, x, rows)``: a block of a product; ``panels`` and ``x`` are scratch for both
    sides packed.

    The first four arguments are those of :func:`mul_mat_gemm`.  ``relocate(table, capacity, row, count, rows)`` may
    replace addresses in the table of ``count`` rows, the first of which is row ``row`` of the block (see
    :func:`.rows.fill_table`), by those of ``rows`` in scratch memory.
    """
    part = _part(kind, activations, order, packed, relocate)
    begin, end = _tiles_of_a_chunk() if kind == "amx" else (_nothing, _nothing)

    @device_function
    def multiply(params: Product, block: Block, panels: int, x: int, rows: Rows) -> None:
        k_all, k_block = params.K, params.k_block
        begin(x)
        for k in range(0, max(k_all, 1), k_block):  # once for empty sums, which are zero
            part(params, block, k, min(k_block, k_all - k), panels, x, rows)
        end(x)

    return multiply


@shared
def slice_of_blocks(kind: str, activations: str, packed: str, relocate: DeviceFunction) -> DeviceFunction:
    """``add(params, block, k, numbers, panels, x, rows)``: a step along K.

    As :func:`product_of_blocks`, for ``numbers`` numbers of each row from ``k`` on, which are a whole step.  Steps are
    computed in order; the last one runs the epilogue.
    """
    part = _part(kind, activations, "rows", packed, relocate)
    begin, end = _tiles_of_a_chunk() if kind == "amx" else (_nothing, _nothing)

    @device_function
    def add(params: Product, block: Block, k: int, numbers: int, panels: int, x: int, rows: Rows) -> None:
        begin(x)
        part(params, block, k, numbers, panels, x, rows)
        end(x)

    return add


@shared
def _part(kind: str, activations: str, order: str, packed: str, relocate: DeviceFunction) -> DeviceFunction:
    """As :func:`slice_of_blocks`, while the tile registers are configured."""
    step_numbers = layout(kind).step_numbers
    find = first_panel(kind, packed) if packed else _packed_by_a_kernel
    run_tile = _run_tile(kind, packed, activations, order, relocate)

    @device_function
    def part(params: Product, block: Block, k: int, numbers: int, panels: int, x: int, rows: Rows) -> None:
        is_last = k + numbers >= params.K
        step = Step(k, numbers, -(-numbers // step_numbers))
        m_first, m_last = block.m_first, block.m_last
        first = find(params, matrix_address(params, block.matrix), m_first, m_last, k, numbers, panels, x)
        v = block.v_first
        while v < block.v_last:
            count = run_tile(params, block, step, first, x, v, rows)
            if is_last:
                finish(params, x + _TABLE_BYTES - TILE_BYTES, x, count, m_first, m_last)
            v += count

    return part


@device_function
def _packed_by_a_kernel(
    params: Product, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int, x: int
) -> int:
    pack_block(params, base, m_first, m_last, k, numbers, panels, x + _PACKING_AT, x + _TABLE_BYTES)
    return panels


@shared
def _run_tile(kind: str, packed: str, activations: str, order: str, relocate: DeviceFunction) -> DeviceFunction:
    """``run(params, block, step, packed, x, v, rows)`` multiplies a tile of rows from ``v`` on with all panels.

    Returns how many rows.  ``packed``: see :func:`mul_mat_gemm`.
    """
    stored, ahead = stored_in(packed), _AHEAD if packed else 0

    def of_size(size: int, least: int, otherwise: DeviceFunction | None) -> DeviceFunction:
        """Runs a tile of ``size`` rows if at least ``least`` are left, else calls ``otherwise``."""
        run = _run_rows(kind, activations, order, size, stored, ahead)

        @device_function
        def tile_of_size(params: Product, block: Block, step: Step, packed: int, x: int, v: int, rows: Rows) -> int:
            count = min(block.v_last - v, size)
            fill_table(params, block.matrix, v, count, x, size)
            relocate(x, size, v - block.v_first, count, rows)
            run(params, block, step, packed, x, count)
            return count

        if otherwise is None:
            return tile_of_size

        @device_function
        def one_of_them(params: Product, block: Block, step: Step, packed: int, x: int, v: int, rows: Rows) -> int:
            if block.v_last - v >= least:
                return tile_of_size(params, block, step, packed, x, v, rows)
            done: int = otherwise(params, block, step, packed, x, v, rows)
            return done

        return one_of_them

    found = None
    for size, least in reversed(layout(kind).tiles):
        if found is not None and least > most_in_place(kind, packed):
            break  # it would take long to compile, and there are hardly ever as many rows
        found = of_size(size, least, found)
    assert found is not None
    return found


def scratch_plan(kind: str, m_block: int, k_block: int, packed: str = "") -> tuple[int, int]:
    """(offset of packed activations, size) of scratch memory for ``m_block`` rows of ``k_block`` numbers of weights.

    ``packed``: see :func:`mul_mat_gemm`; then ``m_block`` is 0.
    """
    shape = layout_for(kind, stored_in(packed))
    panels = -(-m_block // shape.columns) * shape.panel_bytes(k_block)
    x_offset = -(-panels // 128) * 128
    return x_offset, x_offset + _TABLE_BYTES + shape.x_bytes + (STATE_AND_SUMS_BYTES if kind == "amx" else _gathered())


def _gathered() -> int:
    """Bytes of a vector's width of rows, into which scattered numbers are gathered before they are packed."""
    shape = layout("f32")
    return shape.width * shape.k_numbers * 4


# -- activations -----------------------------------------------------------------------------------------


@shared
def _run_rows(kind: str, activations: str, order: str, rows: int, stored: str, ahead: int = 0) -> DeviceFunction:
    """``run(params, block, step, panels, x, count)`` multiplies a tile of ``rows`` rows with all panels.

    Stores ``count`` of them; the table at ``x`` holds their addresses.  ``stored`` and ``ahead``: see
    :func:`~.tiles.tile`.
    """
    shape = layout(kind)
    columns, quantum, quantum_bytes = shape.columns, shape.quantum, shape.quantum_bytes
    if stored:
        form = form_of(stored, kind)
        assert form is not None
        quantum, quantum_bytes = form.numbers, form.rows * form.block_bytes
    pack = _pack_rows(kind, activations, order, rows, stored)
    if kind == "amx":
        return _run_rows_amx(activations, order, rows, pack)
    multiply = multiply_panel(kind, rows, stored, ahead)

    @device_function
    def run(params: Product, block: Block, step: Step, panels: int, x: int, count: int) -> None:
        packed = x + _TABLE_BYTES
        pack(params, x, packed, step.k, step.numbers)
        panel_bytes = -(-step.numbers // quantum) * quantum_bytes
        last = _finish_of(params, step)
        for m in range(block.m_first, block.m_last, columns):
            panel = panels + (m - block.m_first) // columns * panel_bytes
            multiply(x, packed, panel, step.units, block.m_last - m, 4 * m, last)

    return run


@device_function
def _finish_of(params: Product, step: Step) -> Finish:
    """What becomes of the sums of a step."""
    is_last = step.k + step.numbers >= params.K
    return Finish(min(step.k, 1), params.bias.address if is_last else 0, from_result_to_residual(params))


@shared
def multiply_panel(kind: str, rows: int, stored: str = "", ahead: int = 0) -> DeviceFunction:
    """``multiply(table, packed, panel, steps, left, offset, finish)`` multiplies a tile of rows with a panel.

    ``left``: number of columns from this panel on; those of the panel are stored.  The other arguments are as for
    :func:`~.tiles.tile`.
    """
    shape = layout(kind)
    columns, width, unit_bytes = shape.columns, shape.width, unit_bytes_of(kind, stored)
    whole = tile(kind, rows, 2, False, stored, ahead)
    if stored in BLOCKS:  # factors and units have different layouts, so columns cannot be skipped
        rest = tile(kind, rows, 2, True, stored, ahead)

        @device_function
        def multiply_blocks(
            table: int, packed: int, panel: int, steps: int, left: int, offset: int, finish: Finish
        ) -> None:
            if left >= columns:
                whole(panel, packed, steps, table, offset, left, *finish)
            else:
                rest(panel, packed, steps, table, offset, left, *finish)

        return multiply_blocks
    part = tile(kind, rows, 1, True, stored)

    @device_function
    def multiply(table: int, packed: int, panel: int, steps: int, left: int, offset: int, finish: Finish) -> None:
        if left >= columns:
            whole(panel, packed, steps, table, offset, left, *finish)
        else:
            for column in range(0, left, width):
                place, at = panel + unit_bytes * column, offset + 4 * column
                part(place, packed, steps, table, at, left - column, *finish)

    return multiply


@shared
def _run_rows_amx(activations: str, order: str, rows: int, pack: DeviceFunction) -> DeviceFunction:
    """:func:`_run_rows` with tile registers.

    Rows of bf16 that are equally far apart are read in place, and the next ones are prefetched meanwhile.
    """
    shape = layout("amx")
    columns, row_bytes, step_numbers = shape.columns, shape.row_bytes, shape.step_numbers
    elem_bytes = PLAIN[activations].elem_bytes
    multiply, between, state_offset = run_tiles(rows, elem_bytes), distance(rows), _state_offset()
    adjacent, in_tiles = order == "rows", order == "rows" and activations == "bf16"

    @device_function
    def run(params: Product, block: Block, step: Step, panels: int, x: int, count: int) -> None:
        sources = x + 8 * rows
        stride = between(sources) if adjacent else 0
        apart = between(x)
        first = load_word(sources) + step.k * elem_bytes
        if in_tiles and stride != 0 and step.numbers % step_numbers == 0:
            at, at_row, at_step = first, stride, row_bytes
        else:
            at, at_row, at_step = x + _TABLE_BYTES, row_bytes, rows * row_bytes
            pack(params, x, at, step.k, step.numbers)
        activations, last = Activations(at, at_row, at_step), _finish_of(params, step)
        ahead, fetched = first + rows * stride, 0
        if stride != 0:
            fetched = -(-rows * columns // max(1, block.m_last - block.m_first))
        for m in range(block.m_first, block.m_last, columns):
            panel, left = panels + (m - block.m_first) * step.units * row_bytes, block.m_last - m
            next_rows = NextRows(ahead, stride, fetched)
            multiply(x + state_offset, x, apart, activations, panel, step.units, left, 4 * m, count, last, next_rows)
            ahead += fetched * stride

    return run


def _state_offset() -> int:
    """Offset of the tiles' state: after the table and the packed activations."""
    return _TABLE_BYTES + -(-layout("amx").x_bytes // 128) * 128


def _tiles_of_a_chunk() -> tuple[DeviceFunction, DeviceFunction]:
    """(configure, release) for tile registers: between chunks a thread may run Python code."""
    state_offset = _state_offset()

    @device_function
    def begin(x: int) -> None:
        simd.tile_configure(x + state_offset)

    @device_function
    def end(x: int) -> None:
        simd.tile_release(x + state_offset)

    return begin, end


@device_function
def _nothing(x: int) -> None:
    pass


@shared
def _pack_rows(kind: str, activations: str, order: str, rows: int, stored: str) -> DeviceFunction:
    """``pack(params, table, packed, k, numbers)`` packs the numbers from ``k`` on of the rows in the table's second
    half.
    """
    row_bytes, x_bytes, scale_bytes = layout(kind).row_bytes, layout(kind).x_bytes, layout(kind).unit_bytes
    if layout(kind).kind == "i8":
        pack_int8, group = pack_quantized(kind, rows, stored), layout(kind).quantum

        @device_function
        def pack(params: Product, table: int, packed: int, k: int, numbers: int) -> None:
            for r in range(rows):
                place, scale_place = packed + r * row_bytes, packed + rows * group + r * scale_bytes
                pack_int8(place, scale_place, load_word(table + 8 * (rows + r)), params.K, k, numbers)

    elif order == "rows":
        pack_row = pack_activations(kind, activations, rows)
        elem_bytes = PLAIN[activations].elem_bytes

        @device_function
        def pack(params: Product, table: int, packed: int, k: int, numbers: int) -> None:
            for r in range(rows):
                pack_row(packed + r * row_bytes, load_word(table + 8 * (rows + r)) + k * elem_bytes, numbers)

    else:
        pack_row = pack_activations(kind, "f32", rows)
        read, store_f32 = simd.LOADS[activations], simd.store_f32

        @device_function
        def pack(params: Product, table: int, packed: int, k: int, numbers: int) -> None:
            stride = params.activations.nb0
            gathered = packed + x_bytes
            for r in range(rows):
                source = load_word(table + 8 * (rows + r)) + k * stride
                for i in range(numbers):
                    store_f32(gathered + 4 * i, read(source + i * stride))
                pack_row(packed + r * row_bytes, gathered, numbers)

    return pack

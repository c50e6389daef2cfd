"""Attention of many queries: both products in register tiles, a block of keys at a time.

The tiles are those of :mod:`ggplug_cpu.ops.mul_mat.tiles`.  A unit packs its queries once, and each block of keys and
of values once for all of its rows.  The logits, their powers and the weighted sums of values stay in the thread's
scratch memory.
"""

from __future__ import annotations

from llvmlite import ir

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import aborted, load_word, next_chunk, scratch, store_word
from ggplug_cpu.ops.flash_attention.kernels import (
    KEPT,
    KEYS,
    Flash,
    accumulate_softmax,
    begin,
    converted,
    key_rows,
    leave,
    mixing,
    query_of,
    rows_of,
    scaled,
    shown,
    value_rows,
)
from ggplug_cpu.ops.mul_mat.gemm import multiply_panel
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.pack import pack_activations, pack_columns, pack_weights
from ggplug_cpu.ops.mul_mat.tiles import Finish
from ggplug_cpu.parameters import integer
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I64, Value, constant, emitted, loop, vector
from ggplug_cpu.types import PLAIN


class Tiled(Flash):
    """Offsets in a thread's scratch memory: tables of row addresses, packed rows, and panels."""

    tables_at = integer()
    """The tables of queries, of logits and of weighted sums, ``table_bytes`` each; the last address is repeated."""
    table_bytes = integer()
    queries_at = integer()
    powers_at = integer()
    panels_at = integer()


def rows_of_tiles(rows: int) -> int:
    """``rows`` rounded up to whole tiles."""
    few = layout("f32").fewest_rows
    return -(-rows // few) * few


def table_bytes(rows: int) -> int:
    """Bytes of a table of ``rows`` addresses."""
    return 8 * (rows + layout("f32").rows)


def side_bytes(rows: int, numbers: int) -> int:
    """Bytes of ``rows`` packed rows of ``numbers`` numbers."""
    return rows_of_tiles(rows) * 4 * padded(numbers)


def panels_bytes(columns: int, numbers: int) -> int:
    """Bytes of the panels of ``columns`` columns of ``numbers`` numbers."""
    shape = layout("f32")
    return -(-columns // shape.columns) * shape.panel_bytes(numbers)


def padded(numbers: int) -> int:
    """``numbers`` rounded up to what a packed row holds."""
    quantum = layout("f32").quantum
    return -(-numbers // quantum) * quantum


@kernel
def flash_attention_tiles(keys_type: str, values_type: str) -> Body:
    """Units of any number of rows.  The arguments are the types that rows are read as: ``f32`` for converted rows."""
    shape = layout("f32")
    columns, width, quantum, quantum_bytes = shape.columns, shape.width, shape.quantum, shape.quantum_bytes
    step, elem_bytes = shape.step_numbers, PLAIN[values_type].elem_bytes
    pack_keys, pack_values = pack_weights("f32", keys_type), pack_columns("f32", values_type)
    pack, multiply, mix = _pack_rows(), _multiply_panels(), mixing(values_type)

    def body(ctx: int, params: Tiled) -> None:
        memory = scratch(ctx)
        scratch_rows, panels = memory + params.rows_at, memory + params.panels_at
        queries, powers = memory + params.queries_at, memory + params.powers_at
        queries_table, table_size = memory + params.tables_at, params.table_bytes
        logits_table, mixed_table = queries_table + table_size, queries_table + 2 * table_size
        dk, dv, n_rows, n_keys = params.dk, params.dv, rows_of(params), params.keys
        block, part, parts = params.block, params.part, params.parts
        kept_bytes, k_stride, v_stride = params.kept_bytes, params.k.nb1, params.v.nb1
        k_panel = -(-dk // quantum) * quantum_bytes
        blocks = -(-n_rows // block)
        units = params.batches * params.groups * blocks * parts
        while not aborted(ctx):
            unit = next_chunk(ctx)
            if unit >= units:
                return
            matrix, inside = unit // (blocks * parts), unit % (blocks * parts)
            first, number = inside // parts * block, inside % parts
            last = min(first + block, n_rows)
            rows = last - first
            for entry in range(table_size // 8):
                r = min(entry, rows - 1)
                store_word(queries_table + 8 * entry, query_of(params, matrix, first + r))
                store_word(logits_table + 8 * entry, memory + params.logits_at + r * (4 * KEYS))
                store_word(mixed_table + 8 * entry, memory + params.mixed_at + r * kept_bytes + KEPT)
            for r in range(rows):
                begin(params, load_word(mixed_table + 8 * r) - KEPT)
            pack(queries, queries_table, rows, dk)
            end = min((number + 1) * part, n_keys)
            for key in range(number * part, end, KEYS):
                count = shown(params, matrix, first, last, key, min(KEYS, end - key))
                if count == 0:
                    continue
                k, stride = converted(
                    ctx, params.k.convert, key_rows(params, matrix, key), k_stride, count, dk, scratch_rows
                )
                for j in range(0, count, width):
                    place = panels + j // columns * k_panel + j % columns * 4
                    pack_keys(place, k + j * stride, stride, min(count - j, width), dk)
                multiply(queries, panels, k_panel, -(-dk // step), logits_table, rows, dk, count, 0)
                for r in range(rows):
                    kept, logits = load_word(mixed_table + 8 * r) - KEPT, load_word(logits_table + 8 * r)
                    factor = accumulate_softmax(params, matrix, first + r, key, count, kept, logits)
                    if factor != 1.0:
                        scaled(kept + KEPT, dv, factor)
                v, stride = converted(
                    ctx, params.v.convert, value_rows(params, matrix, key), v_stride, count, dv, scratch_rows
                )
                v_panel = -(-count // quantum) * quantum_bytes
                for d in range(0, dv, columns):
                    pack_values(panels + d // columns * v_panel, v + d * elem_bytes, stride, dv - d, count)
                if _is_finite(panels, -(-dv // columns), v_panel, -(-count // step) * (step * columns)) != 0:
                    pack(powers, logits_table, rows, count)
                    multiply(powers, panels, v_panel, -(-count // step), mixed_table, rows, count, dv, 1)
                else:
                    for r in range(rows):
                        mix(load_word(mixed_table + 8 * r), 0, dv, load_word(logits_table + 8 * r), v, stride, count)
            for r in range(rows):
                leave(params, matrix, first + r, number, load_word(mixed_table + 8 * r) - KEPT)

    return body


def _pack_rows() -> DeviceFunction:
    """``pack(sides, table, rows, numbers)`` packs the rows in the table, tile after tile."""
    shape = layout("f32")
    many, few, row_bytes, quantum = shape.rows, shape.fewest_rows, shape.row_bytes, shape.quantum
    pack_many, pack_few = pack_activations("f32", "f32", many), pack_activations("f32", "f32", few)

    @device_function
    def pack(sides: int, table: int, rows: int, numbers: int) -> None:
        bytes_of_row = -(-numbers // quantum) * (4 * quantum)
        first = 0
        while first < rows:
            if rows - first > many - few:
                for r in range(many):
                    pack_many(sides + r * row_bytes, load_word(table + 8 * (first + r)), numbers)
                sides += many * bytes_of_row
                first += many
            else:
                for r in range(few):
                    pack_few(sides + r * row_bytes, load_word(table + 8 * (first + r)), numbers)
                sides += few * bytes_of_row
                first += few

    return pack


def _multiply_panels() -> DeviceFunction:
    """``multiply(sides, panels, panel_bytes, steps, table, rows, numbers, columns, accumulate)``.

    Multiplies the packed rows with all panels.
    """
    shape = layout("f32")
    many, few, quantum, wide = shape.rows, shape.fewest_rows, shape.quantum, shape.columns
    multiply_many, multiply_few = multiply_panel("f32", many), multiply_panel("f32", few)

    @device_function
    def multiply(
        sides: int,
        panels: int,
        panel_bytes: int,
        steps: int,
        table: int,
        rows: int,
        numbers: int,
        columns: int,
        accumulate: int,
    ) -> None:
        bytes_of_row, finish = -(-numbers // quantum) * (4 * quantum), Finish(accumulate, 0, 0)
        first = 0
        while first < rows:
            place = table + 8 * first
            if rows - first > many - few:
                for m in range(0, columns, wide):
                    panel = panels + m // wide * panel_bytes
                    multiply_many(place, sides, panel, steps, columns - m, 4 * m, finish)
                sides += many * bytes_of_row
                first += many
            else:
                for m in range(0, columns, wide):
                    panel = panels + m // wide * panel_bytes
                    multiply_few(place, sides, panel, steps, columns - m, 4 * m, finish)
                sides += few * bytes_of_row
                first += few

    return multiply


@emitted("i64(i64, i64, i64, i64)")
def _is_finite(panels: Value, count: Value, panel_bytes: Value, numbers: Value) -> Value:
    """1 if all of the first ``numbers`` numbers of ``count`` panels are finite, else 0."""
    width = simd.width("f32")
    lanes = vector(F32, width)

    def panel(p: Value, carried: list[Value]) -> list[Value]:
        place = panels + p * panel_bytes

        def some(i: Value, carried: list[Value]) -> list[Value]:
            return [values.load(place + i * (4 * width), lanes).fma(0.0, carried[0])]

        return loop(numbers.lshr(width.bit_length() - 1), carried, some)

    (zeros,) = loop(count, [constant(panels.b, lanes, 0)], panel)
    return zeros.equal(0.0).bitcast(ir.IntType(width)).equal(-1).zext(I64)

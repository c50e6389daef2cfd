"""Kernels that prepare activations in the workspace, as int8, bf16 or contiguous f32, and that sort routes by expert.

A row rounded to int8 is, for K numbers: K int8; K / 32 f32, the scale of every 32 of them; on demand, a total
(f32) for every group of weights with minima, the sum of its numbers times their scale; and K / 4 int32: ``-offset``
times the sum of every four of them, with which a dot product with unsigned bytes ``q + offset`` begins.  A scale is the
largest magnitude / 127 and stays f32 (ggml rounds it to f16).
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, Intrinsic, device_function, kernel
from ggplug_cpu.context import load_word, scratch, store_word, thread_count, thread_index
from ggplug_cpu.ops.mul_mat.pack import pack_activations
from ggplug_cpu.ops.mul_mat.rows import SLOT_SHIFT
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, source
from ggplug_cpu.parts.faults import fault
from ggplug_cpu.parts.quantize import dequantize_row
from ggplug_cpu.simd import dots, values
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, constant, emitted, loop, vector
from ggplug_cpu.types import BLOCKS, GROUP, PLAIN


class Prepared(Parameters):
    """The parameters of the kernels that prepare rows: ``x`` has ``ne1`` by ``ne2`` by ``ne3`` of ``K`` numbers."""

    x = source(STRIDES)
    y = destination()
    K = integer()
    ne1 = integer()
    ne2 = integer()
    ne3 = integer()
    row_bytes = integer()
    """The byte stride of rows of ``y``."""


@device_function
def _row_address(params: Prepared, row: int, ne1: int, ne2: int) -> int:
    i3 = row // (ne1 * ne2)
    rest = row - i3 * (ne1 * ne2)
    i2 = rest // ne1
    i1 = rest - i2 * ne1
    matrix = params.x.address + i2 * params.x.nb2 + i3 * params.x.nb3
    return matrix + i1 * params.x.nb1


def totals_at(K: int) -> int:
    """Offset of the totals in a row of ``K`` numbers rounded to int8; ``K`` may be a kernel's integer."""
    return K + K // 8


def int8_row_bytes(K: int, offset: int, totals: int) -> int:
    """Bytes of a row of ``K`` numbers that :func:`mul_mat_round` makes; rows begin at multiples of 64."""
    return -(-(totals_at(K) + (4 * K // totals if totals else 0) + (K if offset else 0)) // 64) * 64


@kernel
def mul_mat_round(activations: str, order: str = "rows", offset: int = 0, totals: int = 0) -> Body:
    """Rounds rows of ``activations`` to int8; they are f32, or blocks of int8, which are only copied.

    Adds sums for ``offset`` unless that is 0, and totals of every ``totals`` numbers unless that is 0.  ``order`` is
    ``scattered`` where the numbers of a row are not adjacent.
    """
    convert = _round_blocks(activations, offset, totals) if activations in BLOCKS else round_floats(offset, totals)

    @device_function
    def round_row(target: int, source: int, K: int) -> None:
        convert(target, source, K, 0, K)

    return _row_by_row(round_row, order)


@kernel
def mul_mat_narrow(activations: str, order: str = "rows") -> Body:
    """Converts rows of f32, f16 or bf16 to contiguous bf16, for tile registers; ``order`` as for :func:`mul_mat_round`.

    Rows are padded with zeros to multiples of 32 numbers.
    """
    return _row_by_row(pack_activations("amx", activations if order == "rows" else "f32", rows=1), order, activations)


def _row_by_row(convert: DeviceFunction | Intrinsic, order: str, elem: str = "f32") -> Body:
    """Calls ``convert(target, source, K)`` for each row: of ``elem``, or of gathered f32 for scattered rows."""
    gather = order == "scattered"
    read = simd.LOADS[elem]

    def body(ctx: int, params: Prepared) -> None:
        K, ne1, ne2 = params.K, params.ne1, params.ne2
        rows = ne1 * ne2 * params.ne3
        first = rows * thread_index(ctx) // thread_count(ctx)
        last = rows * (thread_index(ctx) + 1) // thread_count(ctx)
        for row in range(first, last):
            source = _row_address(params, row, ne1, ne2)
            if gather:
                scratch_row, stride = scratch(ctx), params.x.nb0
                for i in range(K):
                    simd.store_f32(scratch_row + 4 * i, read(source + i * stride))
                source = scratch_row
            convert(params.y.address + row * params.row_bytes, source, K)

    return body


def _write_group(row: Value, K: Value, i: Value, quants: Value, scale: Value, offset: int, totals: int) -> None:
    values.store(row + i * GROUP, quants)
    values.store(row + K + i * 4, scale)
    behind = row + K + K.lshr(3)
    if totals:
        numbers = quants.convert(I32)
        for part in range(GROUP // totals):
            total = numbers.part(part * totals, totals).sum().convert(F32) * scale
            values.store(behind + i * (4 * GROUP // totals), total, 4 * part)
        behind = behind + (K << 2).lshr(totals.bit_length() - 1)
    if offset:
        zero = constant(row.b, vector(I32, GROUP // 4), 0)
        weight = constant(row.b, quants.type, offset - 256 if offset > 127 else offset)
        sums = zero - dots.emit_dot("u8i8", zero, weight, quants)
        values.store(behind + i * GROUP, sums)


def round_floats(offset: int, totals: int) -> Intrinsic:
    """``convert(row, source, K, k, numbers)`` rounds numbers from ``k`` on of a row of ``K``, f32 at ``source``.

    Both counts are multiples of 32; the rest is as for :func:`mul_mat_round`.
    """

    def emit(row: Value, source: Value, K: Value, k: Value, numbers: Value) -> None:
        first = k.lshr(GROUP.bit_length() - 1)

        def group(i: Value, _: list[Value]) -> list[Value]:
            x = values.load(source + i * (4 * GROUP), vector(F32, GROUP))
            # as integers, so that a NaN is larger than any number and makes all products of the group NaN
            largest = (x.bits() & 0x7FFFFFFF).max().bitcast(F32)
            # below, the scale's inverse would overflow; a group so small is zero
            tiny = largest < 1e-35
            inverse = tiny.select(0.0, 127.0 / largest)
            # of non-finite numbers the scale makes products NaN; converted to integers they would be undefined
            scaled = (largest < float("inf")).select(x * inverse.splat(GROUP), 0.0)
            quants = scaled.round_even().convert(I32).convert(I8)
            _write_group(row, K, first + i, quants, tiny.select(0.0, largest / 127.0), offset, totals)
            return []

        loop(numbers.lshr(GROUP.bit_length() - 1), [], group)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


def round_rows(totals: int) -> DeviceFunction:
    """``rounded(rows, row_bytes, source, source_bytes, count, K, k, numbers)``.

    Rounds ``count`` rows as :func:`round_floats` does one; number ``k`` of the first row is at ``source``.
    """
    convert = round_floats(0, totals)

    @device_function
    def rounded(
        rows: int, row_bytes: int, source: int, source_bytes: int, count: int, K: int, k: int, numbers: int
    ) -> None:
        for row in range(count):
            convert(rows + row * row_bytes, source + row * source_bytes, K, k, numbers)

    return rounded


def _round_blocks(activations: str, offset: int, totals: int) -> Intrinsic:
    """As :func:`round_floats`, of blocks."""
    t = BLOCKS[activations]
    assert t.group == GROUP

    def emit(row: Value, source: Value, K: Value, k: Value, numbers: Value) -> None:
        first = k.lshr(GROUP.bit_length() - 1)

        def of_block(i: Value, _: list[Value]) -> list[Value]:
            block = source + i * t.block_bytes
            scales = t.factors([block]).scales
            for part in range(t.parts):
                quants = t.signed(block, constant(K.b, I64, part))
                _write_group(row, K, first + i * t.parts + part, quants, scales.lane(part), offset, totals)
            return []

        loop(numbers.lshr(t.block_size.bit_length() - 1), [], of_block)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)


@kernel
def mul_mat_widen(activations: str) -> Body:
    """Converts rows of f32, f16 or bf16, contiguous or not, or of blocks, to contiguous f32."""
    convert = _widen_blocks(activations) if activations in BLOCKS else _widen_plain(activations)

    def body(ctx: int, params: Prepared) -> None:
        K, ne1, ne2 = params.K, params.ne1, params.ne2
        rows = ne1 * ne2 * params.ne3
        stride = params.x.nb0
        first = rows * thread_index(ctx) // thread_count(ctx)
        last = rows * (thread_index(ctx) + 1) // thread_count(ctx)
        for row in range(first, last):
            target = params.y.address + row * params.row_bytes
            convert(target, _row_address(params, row, ne1, ne2), stride, K)

    return body


def _widen_plain(activations: str) -> DeviceFunction:
    F, width = simd.vec("f32"), simd.width()
    load, load_first = simd.load_as_f32(activations, F), simd.load_first_as_f32(activations, F)
    read, elem_bytes = simd.LOADS[activations], PLAIN[activations].elem_bytes

    @device_function
    def widen(target: int, source: int, stride: int, n: int) -> None:
        if stride == elem_bytes:
            whole = n - n % width
            for i in range(0, whole, width):
                simd.store(target + 4 * i, load(source + elem_bytes * i))
            if whole < n:
                simd.store_first(target + 4 * whole, load_first(source + elem_bytes * whole, n - whole), n - whole)
        else:
            for i in range(n):
                simd.store_f32(target + 4 * i, read(source + i * stride))

    return widen


def _widen_blocks(activations: str) -> DeviceFunction:
    dequantize = dequantize_row(activations)

    @device_function
    def widen(target: int, source: int, stride: int, n: int) -> None:
        dequantize(target, source, n)

    return widen


class Routes(Parameters):
    """The parameters of :func:`mul_mat_route`; rows of the result have ``M`` numbers."""

    ids = source("nb0", "nb1")
    routes = destination()
    result = destination("nb1", "nb2")
    faults = destination()
    position = integer()
    experts = integer()
    slots = integer()
    tokens = integer()
    M = integer()


def routes_bytes(experts: int, slots: int, tokens: int) -> int:
    """Bytes of the routes that :func:`mul_mat_route` writes."""
    return 8 * (experts + 1 + slots * tokens)


@kernel
def mul_mat_route() -> Body:
    """Sort the (slot, token) pairs of ``ids`` by expert; runs on one thread.

    Writes where each expert's pairs begin (``experts + 1`` words), then the pairs, in the order of tokens and slots.
    An id out of range is recorded as a fault, and its row of the result is zero.
    """

    def body(ctx: int, params: Routes) -> None:
        ids, starts, result = params.ids.address, params.routes.address, params.result.address
        experts, slots, tokens = params.experts, params.slots, params.tokens
        nb0, nb1 = params.ids.nb0, params.ids.nb1
        pairs = starts + 8 * (experts + 1)
        for e in range(experts + 1):
            store_word(starts + 8 * e, 0)
        for token in range(tokens):
            for slot in range(slots):
                e = simd.load_i32(ids + slot * nb0 + token * nb1)
                if e >= 0 and e < experts:
                    store_word(starts + 8 * e, load_word(starts + 8 * e) + 1)
                else:
                    fault(params.faults.address, params.position, token * slots + slot, e)
                    row = result + slot * params.result.nb1 + token * params.result.nb2
                    simd.fill_bytes(row, 0, 4 * params.M)
        # counts become ends; filling from the end makes starts of them
        total = 0
        for e in range(experts):
            total += load_word(starts + 8 * e)
            store_word(starts + 8 * e, total)
        store_word(starts + 8 * experts, total)
        for token in range(tokens - 1, -1, -1):
            for slot in range(slots - 1, -1, -1):
                e = simd.load_i32(ids + slot * nb0 + token * nb1)
                if e >= 0 and e < experts:
                    place = load_word(starts + 8 * e) - 1
                    store_word(starts + 8 * e, place)
                    store_word(pairs + 8 * place, slot << SLOT_SHIFT | token)

    return body

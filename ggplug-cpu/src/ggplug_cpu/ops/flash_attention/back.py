"""The gradients of attention: :class:`ggplug.ops.FlashAttnBack`.

Probabilities are computed again where they are needed, a row at a time.  The first kernel computes the gradient of each
query, and saves the statistics of its softmax (:class:`Back`, ``saved``); the second one sums for each key its gradient
and that of its value over all queries that see it.  So no two threads add to one sum (T. Dao, *FlashAttention-2*,
arXiv:2307.08691).  Sources are f32.
"""

from __future__ import annotations

import math

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import aborted, scratch, store_word
from ggplug_cpu.ops.flash_attention.kernels import (
    Flash,
    accumulate_softmax,
    begin_softmax,
    head_of,
    key_rows,
    mask_of,
    mixing,
    query_of,
    rows_of,
    shown,
    value_rows,
)
from ggplug_cpu.ops.mul_mat.dot import dot_plain
from ggplug_cpu.parameters import STRIDES, destination, integer, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.parts.rows import ARGUMENTS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.transcendental import emit_exp, emit_tanh
from ggplug_cpu.simd.values import F32, Value, constant, emitted, first_lanes, loop, vector

#: Offset of rows in scratch memory.  Before it lie the addresses of a result and a source of products, and the softmax
#: state of a row.
ROWS_BEGIN = ARGUMENTS + 128
_TABLE, _KEPT = ARGUMENTS, ARGUMENTS + 16
#: Rows whose products are computed together.
_TOGETHER = 4


class Back(Flash):
    """As for attention.  ``y``: the gradients; those of k, v and sinks begin at offsets from those of q.

    Scratch memory has rows of products q k at ``logits_at``, of products with d at ``wanted_at``, of uncapped logits or
    masks at ``rows_at``, and of sums at ``mixed_at``.
    """

    d = source(STRIDES[1:])
    saved = destination()
    """For each head four rows of ``saved_bytes`` with a number for each query: the logit that is subtracted before
    powers are taken, 1 over their sum, the mean of the products with d, and the query's term in the gradient of the
    sink.
    """
    saved_bytes = integer()
    masked = integer()
    wanted_at = integer()
    keys_at = integer()
    values_at = integer()
    sinks_at = integer()
    end_at = integer()


@device_function
def _gradient_of_result(params: Back, matrix: int, row: int) -> int:
    place = params.d.address + row % params.queries * params.d.nb2
    place += head_of(params, matrix, row) * params.d.nb1
    return place + matrix // params.groups * params.d.nb3


@device_function
def _number_of_head(params: Flash, matrix: int, row: int) -> int:
    return matrix // params.groups * params.heads + head_of(params, matrix, row)


def _products() -> DeviceFunction:
    """``products(memory, rows, stride, count, other, numbers, results)``: dot products of ``count`` rows and another
    one.
    """
    some = dot_plain("f32", _TOGETHER, 1)

    @device_function
    def products(memory: int, rows: int, stride: int, count: int, other: int, numbers: int, results: int) -> None:
        store_word(memory + _TABLE, results)
        store_word(memory + _TABLE + 8, other)
        for r in range(0, count, _TOGETHER):
            valid = min(count - r, _TOGETHER)
            some(rows + r * stride, stride, valid, memory + _TABLE, memory + _TABLE + 8, 4 * r, numbers)

    return products


@kernel
def flash_attention_back_queries() -> Body:
    """The gradient of each query."""
    products, mix = _products(), mixing("f32")

    def body(ctx: int, params: Back) -> None:
        memory = scratch(ctx)
        powers, wanted = memory + params.logits_at, memory + params.wanted_at
        dots, sums, kept = memory + params.rows_at, memory + params.mixed_at, memory + _KEPT
        dk, dv, rows, keys = params.dk, params.dv, rows_of(params), params.keys
        k_stride, v_stride, queries = params.k.nb1, params.v.nb1, params.queries
        row_bytes = params.saved_bytes
        first, end = thread_range(ctx, rows * params.groups * params.batches)
        for number in range(first, end):
            if aborted(ctx):
                return
            matrix, row = number // rows, number % rows
            seen = keys
            if params.masked != 0:
                seen = min(keys, max(0, row % queries + keys - queries + 1))
            seen = shown(params, matrix, row, row + 1, 0, seen)
            k, query = key_rows(params, matrix, 0), query_of(params, matrix, row)
            products(memory, k, k_stride, seen, query, dk, powers)
            d = _gradient_of_result(params, matrix, row)
            products(memory, value_rows(params, matrix, 0), v_stride, seen, d, dv, wanted)
            simd.copy_bytes(dots, powers, 4 * seen)
            begin_softmax(kept)
            accumulate_softmax(params, matrix, row, 0, seen, kept, powers)
            sinks = params.sinks.address
            sink = -math.inf
            if sinks != 0:
                sink = simd.load_f32(sinks + head_of(params, matrix, row) * params.sinks.nb0)
            head, scale, cap = _number_of_head(params, matrix, row), params.scale, params.cap
            saved = params.saved.address + head * 4 * row_bytes + 4 * (row % queries)
            _gradients_of_query(powers, wanted, dots, seen, kept, sink, scale, cap, saved, row_bytes)
            simd.fill_bytes(sums, 0, params.kept_bytes)
            mix(sums, 0, dk, powers, k, k_stride, seen)
            place = head * queries + row % queries
            simd.copy_bytes(params.y.address + 4 * dk * place, sums, 4 * dk)

    return body


@emitted("void(i64, i64, i64, i64, i64, f32, f32, f32, i64, i64)")
def _gradients_of_query(
    x: Value,
    wanted: Value,
    dots: Value,
    n: Value,
    kept: Value,
    sink: Value,
    scale: Value,
    cap: Value,
    saved: Value,
    row_bytes: Value,
) -> None:
    """Replaces powers by the gradients of products, and saves the statistics of the softmax."""
    b, width = n.b, simd.width("f32")
    lanes = vector(F32, width)
    count = (n + (width - 1)).lshr(width.bit_length() - 1)
    top, total = values.load(kept, F32), values.load(kept, F32, 4)
    highest = sink.maximum(top)
    base = highest.equal(-math.inf).select(0.0, highest)
    raised = [emit_exp((logit - base).splat(width), positive=False).lane(0) for logit in (top, sink)]
    whole = total * raised[0] + raised[1]
    inverse = whole.equal(0.0).select(0.0, 1.0 / whole)
    factor = (raised[0] * inverse).splat(width)

    def mean(i: Value, carried: list[Value]) -> list[Value]:
        present = first_lanes(width, n - i * width)
        probabilities = values.load(x + i * (4 * width), lanes) * factor
        product = probabilities * values.masked_load(wanted + i * (4 * width), lanes, present)
        return [carried[0] + (present & probabilities.unequal(0.0)).select(product, 0.0)]

    (sums,) = loop(count, [constant(b, lanes, 0)], mean)
    middle = sums.sum()

    def moved(i: Value, _: list[Value]) -> list[Value]:
        probabilities = values.load(x + i * (4 * width), lanes) * factor
        away = values.load(wanted + i * (4 * width), lanes) - middle.splat(width)
        derivative = _derivative(values.load(dots + i * (4 * width), lanes), scale, cap)
        values.store(x + i * (4 * width), probabilities.unequal(0.0).select(probabilities * away * derivative, 0.0))
        return []

    loop(count, [], moved)
    for row, number in enumerate((base, inverse, middle, raised[1] * inverse * middle)):
        values.store(saved + row_bytes * row, number)


def _derivative(dots: Value, scale: Value, cap: Value) -> Value:
    """The derivative of logits by products: the scale, times 1 - tanh^2 where logits are capped."""
    width = dots.count
    power = emit_exp((dots * scale.splat(width)).abs() * -2.0, positive=False)
    # as a quotient of powers: 1 - tanh^2 loses its digits where tanh is near 1
    capped = power * 4.0 / ((power + 1.0) * (power + 1.0)) * (scale * cap).splat(width)
    return cap.equal(0.0).splat(width).select(scale.splat(width), capped)


@kernel
def flash_attention_back_keys() -> Body:
    """The gradient of each key, and that of its value."""
    products, mix = _products(), mixing("f32")

    def body(ctx: int, params: Back) -> None:
        memory = scratch(ctx)
        powers, wanted = memory + params.logits_at, memory + params.wanted_at
        mask_row, sums = memory + params.rows_at, memory + params.mixed_at
        mixed = sums + params.kept_bytes
        dk, dv, keys, queries = params.dk, params.dv, params.keys, params.queries
        q_stride, d_stride, row_bytes = params.q.nb1, params.d.nb2, params.saved_bytes
        has_mask, mask_stride = min(params.mask.address, 1), params.mask.nb1
        first, end = thread_range(ctx, keys * params.groups * params.batches)
        for number in range(first, end):
            if aborted(ctx):
                return
            matrix, key = number // keys, number % keys
            simd.fill_bytes(sums, 0, 2 * params.kept_bytes)
            least = 0
            if params.masked != 0:
                least = min(queries, max(0, key - (keys - queries)))
            for first_row in range(0, rows_of(params), max(1, queries)):
                start, last = least, queries
                mask = mask_of(params, matrix, first_row, key)
                if has_mask != 0:  # rows from which the key is hidden add nothing
                    while start < last and simd.load_f16(mask + start * mask_stride) == -math.inf:
                        start += 1
                    while last > start and simd.load_f16(mask + (last - 1) * mask_stride) == -math.inf:
                        last -= 1
                count = last - start
                query, d = query_of(params, matrix, first_row), _gradient_of_result(params, matrix, first_row)
                query, d = query + start * q_stride, d + start * d_stride
                products(memory, query, q_stride, count, key_rows(params, matrix, key), dk, powers)
                products(memory, d, d_stride, count, value_rows(params, matrix, key), dv, wanted)
                if has_mask != 0:
                    slope = params.slopes[head_of(params, matrix, first_row)]
                    for r in range(count):
                        simd.store_f32(mask_row + 4 * r, slope * simd.load_f16(mask + (start + r) * mask_stride))
                head, scale, cap = _number_of_head(params, matrix, first_row), params.scale, params.cap
                saved = params.saved.address + head * 4 * row_bytes + 4 * start
                _gradients_of_key(powers, wanted, mask_row, count, has_mask, scale, cap, saved, row_bytes)
                mix(sums, 0, dk, wanted, query, q_stride, count)
                mix(mixed, 0, dv, powers, d, d_stride, count)
            simd.copy_bytes(params.y.address + params.keys_at + 4 * dk * number, sums, 4 * dk)
            simd.copy_bytes(params.y.address + params.values_at + 4 * dv * number, mixed, 4 * dv)

    return body


@emitted("void(i64, i64, i64, i64, i64, f32, f32, i64, i64)")
def _gradients_of_key(
    x: Value,
    wanted: Value,
    mask_row: Value,
    n: Value,
    has_mask: Value,
    scale: Value,
    cap: Value,
    saved: Value,
    row_bytes: Value,
) -> None:
    """Replaces products by probabilities, and products with d by the gradients of products."""
    width = simd.width("f32")
    lanes = vector(F32, width)
    masks = has_mask.unequal(0).splat(width)

    def one(i: Value, _: list[Value]) -> list[Value]:
        at, present = i * (4 * width), first_lanes(width, n - i * width)
        base, inverse, middle = (values.masked_load(saved + row_bytes * row + at, lanes, present) for row in range(3))
        dots = values.load(x + at, lanes)
        raw = dots * scale.splat(width)
        logit = cap.equal(0.0).splat(width).select(raw, emit_tanh(raw) * cap.splat(width))
        added = values.masked_load(mask_row + at, lanes, present & masks)
        logit = added.equal(-math.inf).select(added, logit + added)
        probabilities = emit_exp(logit - base) * inverse
        probabilities = (present & probabilities.unequal(0.0)).select(probabilities, 0.0)
        moved = probabilities * (values.load(wanted + at, lanes) - middle) * _derivative(dots, scale, cap)
        values.store(x + at, probabilities)
        values.store(wanted + at, probabilities.equal(0.0).select(added.constant(0), moved))
        return []

    loop((n + (width - 1)).lshr(width.bit_length() - 1), [], one)


@kernel
def flash_attention_back_sinks() -> Body:
    """The gradients of sinks, and zeros in the padding between the gradients."""

    def body(ctx: int, params: Back) -> None:
        y, row_bytes = params.y.address, params.saved_bytes
        heads, queries, batches = params.heads, params.queries, params.batches
        matrices, keys = params.groups * batches, params.keys
        of_queries = 4 * params.dk * heads * queries * batches
        simd.fill_bytes(y + of_queries, 0, params.keys_at - of_queries)
        behind = params.keys_at + 4 * params.dk * keys * matrices
        simd.fill_bytes(y + behind, 0, params.values_at - behind)
        behind = params.values_at + 4 * params.dv * keys * matrices
        simd.fill_bytes(y + behind, 0, params.end_at - behind)
        if params.sinks.address != 0:
            for head in range(heads):
                total = 0.0
                for batch in range(batches):
                    row = params.saved.address + ((batch * heads + head) * 4 + 3) * row_bytes
                    total += _sum(row, queries)
                simd.store_f32(y + params.sinks_at + 4 * head, -total)

    return body


@emitted("f32(i64, i64)")
def _sum(row: Value, n: Value) -> Value:
    width = simd.width("f32")
    lanes = vector(F32, width)

    def add(i: Value, carried: list[Value]) -> list[Value]:
        present = first_lanes(width, n - i * width)
        return [carried[0] + values.masked_load(row + i * (4 * width), lanes, present)]

    (sums,) = loop((n + (width - 1)).lshr(width.bit_length() - 1), [constant(row.b, lanes, 0)], add)
    return sums.sum()

"""Attention by blocks of keys: the parts common to its kernels (:class:`ggplug.ops.FlashAttnExt`).

Keys are processed a block at a time.  Each row of queries keeps the largest logit so far, and relative to it the sum of
its powers and the weighted sum of values; when a block has a larger logit, both sums are scaled down
(M. Milakov, N. Gimelshein, arXiv:1805.02867; T. Dao et al., arXiv:2205.14135).  So the logits of a row never lie in
memory as a whole.

A head of keys and values is a *matrix*; its *rows* are the queries of all heads that it serves, one head after the
other.  The work is cut into units of (matrix, block of rows, part of the keys).  Where there are several parts, each
stores the state of its rows in the workspace, and :func:`merge` combines them.  The cut does not depend on the number
of threads, so results are bit-identical for any number of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from llvmlite import ir

from ggplug_cpu import features, simd
from ggplug_cpu.compiler import Body, Intrinsic, device_function, kernel
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, real, reals, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.parts.rows import read as read_row
from ggplug_cpu.simd import values
from ggplug_cpu.simd.transcendental import emit_exp, emit_tanh
from ggplug_cpu.simd.values import F32, I16, I64, Value, constant, emitted, first_lanes, loop, vector
from ggplug_cpu.types import PLAIN

#: Keys of a block.
KEYS = 128
#: Bytes of a row's state before the weighted sum of values: the largest logit, the sum of powers, and the least power
#: of the last block, f32.
KEPT = 64
#: A mask's bits that hide a key: -inf as f16.
_HIDDEN = 0xFC00 - 0x10000


class Flash(Parameters):
    """Of ``batches`` times ``groups`` matrices: ``keys`` of ``dk`` numbers with values of ``dv``.

    ``nb0`` of k and v are the bytes of a row.  ``heads`` heads of ``queries`` queries; a unit has ``block`` rows of a
    matrix and ``part`` keys, of ``parts``.
    """

    y = destination(STRIDES[1:])
    q = source(STRIDES[1:])
    k = source(STRIDES, "convert")
    v = source(STRIDES, "convert")
    mask = source(STRIDES[1:])
    sinks = source("nb0")
    kept = destination()
    """Row states of the parts, ``kept_bytes`` each; those of a row are contiguous.  0 for a single part."""
    dk = integer()
    dv = integer()
    keys = integer()
    queries = integer()
    heads = integer()
    groups = integer()
    batches = integer()
    mask_heads = integer()
    mask_batches = integer()
    block = integer()
    part = integer()
    parts = integer()
    kept_bytes = integer()
    rows_at = integer()
    """Offset in scratch memory of converted rows of a block of keys or values."""
    logits_at = integer()
    """Offset in scratch memory of the logits of a block, :data:`KEYS` a row."""
    mixed_at = integer()
    """Offset in scratch memory of row states, ``kept_bytes`` each."""
    scale = real()
    """The factor of products.  If ``cap`` is not 0, logits are ``cap`` times the tanh of the scaled product."""
    cap = real()
    slopes = reals()
    """The ALiBi slope of every head, if there is a mask."""


# -- rows --------------------------------------------------------------------------------------------------


@device_function
def rows_of(params: Flash) -> int:
    """The number of rows of a matrix."""
    return params.queries * (params.heads // params.groups)


@device_function
def head_of(params: Flash, matrix: int, row: int) -> int:
    """The head of queries that a row belongs to."""
    groups = params.groups
    return matrix % groups * (params.heads // groups) + row // params.queries


@device_function
def query_of(params: Flash, matrix: int, row: int) -> int:
    """The address of the query of a row."""
    place = params.q.row(row % params.queries)
    place += head_of(params, matrix, row) * params.q.nb2
    return place + matrix // params.groups * params.q.nb3


@device_function
def _result_of(params: Flash, matrix: int, row: int) -> int:
    place = params.y.address + row % params.queries * params.y.nb2
    place += head_of(params, matrix, row) * params.y.nb1
    return place + matrix // params.groups * params.y.nb3


@device_function
def mask_of(params: Flash, matrix: int, row: int, key: int) -> int:
    """The address of the mask of a row, from ``key`` on; 0 without a mask."""
    place = params.mask.address
    if place != 0:
        place += row % params.queries * params.mask.nb1 + 2 * key
        place += head_of(params, matrix, row) % params.mask_heads * params.mask.nb2
        place += matrix // params.groups % params.mask_batches * params.mask.nb3
    return place


@device_function
def key_rows(params: Flash, matrix: int, key: int) -> int:
    """The address of ``key`` of a matrix."""
    groups = params.groups
    place = params.k.row(key)
    return place + matrix % groups * params.k.nb2 + matrix // groups * params.k.nb3


@device_function
def value_rows(params: Flash, matrix: int, key: int) -> int:
    """The address of the value of ``key`` of a matrix."""
    groups = params.groups
    place = params.v.row(key)
    return place + matrix % groups * params.v.nb2 + matrix // groups * params.v.nb3


@device_function
def converted(
    ctx: int, convert: int, rows: int, stride: int, count: int, numbers: int, scratch_rows: int
) -> tuple[int, int]:
    """(address, stride) of ``count`` rows that kernels can read: in place, or converted to f32 in ``scratch_rows``."""
    if convert == 0:
        return rows, stride
    for r in range(count):
        read_row(ctx, convert, rows + r * stride, 0, numbers, scratch_rows + r * 4 * numbers)
    return scratch_rows, 4 * numbers


@device_function
def shown(params: Flash, matrix: int, first: int, last: int, key: int, count: int) -> int:
    """How many of ``count`` keys from ``key`` on are computed: the mask hides those behind from rows ``first`` to
    ``last``.
    """
    found = count
    if params.mask.address != 0:
        found = 0
        before = 0
        row = last
        while row > first and found < count:
            row -= 1
            mask = mask_of(params, matrix, row, key)
            if mask != before:  # several heads may have one mask
                found = max(found, _shown(mask, count))
            before = mask
    return min(found, count)


@emitted("i64(i64, i64)")
def _shown(mask: Value, count: Value) -> Value:
    """``count`` without the numbers of -inf at the end of a mask, in whole vectors."""
    lanes = simd.width("i16")

    def some(i: Value, carried: list[Value]) -> list[Value]:
        present = first_lanes(lanes, count - i * lanes)
        bits = values.masked_load(mask + i * (2 * lanes), vector(I16, lanes), present)
        visible = (present & bits.unequal(_HIDDEN)).bitcast(ir.IntType(lanes)).unequal(0)
        return [visible.select((i + 1) * lanes, carried[0])]

    (found,) = loop((count + (lanes - 1)).lshr(lanes.bit_length() - 1), [constant(mask.b, I64, 0)], some)
    return found


@device_function
def begin_softmax(kept: int) -> None:
    """Initialises the softmax state of a row."""
    simd.store_f32(kept, -math.inf)
    simd.store_f32(kept + 4, 0.0)


@device_function
def has_zeros(kept: int) -> bool:
    """Whether a power of a row's last block is 0."""
    least: float = simd.load_f32(kept + 8)
    return least == 0.0


@device_function
def begin(params: Flash, kept: int) -> None:
    """Initialises the state of a row: its softmax state and the weighted sum of values."""
    begin_softmax(kept)
    simd.fill_bytes(kept + KEPT, 0, params.kept_bytes - KEPT)


@device_function
def accumulate_softmax(params: Flash, matrix: int, row: int, key: int, count: int, kept: int, logits: int) -> float:
    """Replaces the products of a row and ``count`` keys by powers, and adds them to the row's softmax state.

    Returns the factor by which the weighted sum of earlier values has to be multiplied.
    """
    mask = mask_of(params, matrix, row, key)
    slope = 1.0
    if mask != 0:
        slope = params.slopes[head_of(params, matrix, row)]
    factor: float = _powers(logits, count, mask, slope, params.scale, params.cap, kept)
    return factor


@emitted("f32(i64, i64, i64, f32, f32, f32, i64)")
def _powers(x: Value, n: Value, mask: Value, slope: Value, scale: Value, cap: Value, kept: Value) -> Value:
    b, width = n.b, simd.width("f32")
    lanes = vector(F32, width)
    count = (n + (width - 1)).lshr(width.bit_length() - 1)
    lowest = constant(b, lanes, -math.inf)

    def change(times: Value, changed: Callable[[Value, Value], Value]) -> None:
        def one(i: Value, _: list[Value]) -> list[Value]:
            place = x + i * (4 * width)
            values.store(place, changed(i, values.load(place, lanes)))
            return []

        loop(count * times, [], one)

    def masked(i: Value, logit: Value) -> Value:
        bits = values.masked_load(mask + i * (2 * width), vector(I16, width), first_lanes(width, n - i * width))
        mask_value = PLAIN["f16"].widen(bits) * slope.splat(width)
        return mask_value.equal(-math.inf).select(lowest, logit + mask_value)

    change(constant(b, I64, 1), lambda i, product: product * scale.splat(width))
    change(cap.unequal(0.0).zext(I64), lambda i, logit: emit_tanh(logit) * cap.splat(width))
    change(mask.unequal(0).zext(I64), masked)

    def within(i: Value, logit: Value) -> Value:
        return first_lanes(width, n - i * width).select(logit, lowest)

    def highest(i: Value, carried: list[Value]) -> list[Value]:
        return [carried[0].maximum(within(i, values.load(x + i * (4 * width), lanes)))]

    (tops,) = loop(count, [lowest], highest)
    before, total = values.load(kept, F32), values.load(kept, F32, 4)
    top = before.maximum(tops.max())
    values.store(kept, top)
    base = top.equal(-math.inf).select(0.0, top)

    def power(i: Value, carried: list[Value]) -> list[Value]:
        place = x + i * (4 * width)
        raised = emit_exp(within(i, values.load(place, lanes)) - base.splat(width), positive=False)
        values.store(place, raised)
        present = first_lanes(width, n - i * width)
        return [carried[0] + raised, carried[1].minimum(present.select(raised, carried[1]))]

    sums, least = loop(count, [constant(b, lanes, 0), constant(b, lanes, math.inf)], power)
    factor = emit_exp((before - base).splat(width), positive=False).lane(0)
    values.store(kept, total * factor + sums.sum(), 4)
    values.store(kept, least.min(), 8)
    return factor


@emitted("void(i64, i64, f32)")
def scaled(row: Value, n: Value, factor: Value) -> None:
    """Multiplies a row of ``n`` f32 by ``factor``; the padding after it may change."""
    width = simd.width("f32")

    def one(i: Value, _: list[Value]) -> list[Value]:
        place = row + i * (4 * width)
        values.store(place, values.load(place, vector(F32, width)) * factor.splat(width))
        return []

    loop((n + (width - 1)).lshr(width.bit_length() - 1), [], one)


@functools.cache
def mixing(type_name: str, rows: int = 1, *, all_count: bool = False) -> Intrinsic:
    """``mix(mixed, kept_bytes, n, powers, values, stride, count)``: adds values times their powers to ``mixed``.

    ``count`` rows of ``n`` values of a plain type, ``stride`` bytes apart, each read once for ``rows`` rows of
    attention.  The sums of these lie ``kept_bytes`` apart from ``mixed`` on, their powers :data:`KEYS` numbers apart.
    Values with a power of 0 add nothing, NaN and infinities included; ``all_count``: no power is 0.
    """
    t = PLAIN[type_name]

    def emit(
        mixed: Value, kept_bytes: Value, n: Value, powers: Value, held: Value, stride: Value, count: Value
    ) -> None:
        width = simd.width("f32")
        lanes = vector(F32, width)

        def add(at: Value, vectors: int, present: Value | None) -> None:
            def read_values(place: Value, v: int) -> Value:
                if present is not None:
                    raw = values.masked_load(place, vector(t.raw, width), present)
                    return t.widen(raw)
                return t.read(place + v * width * t.elem_bytes, width)

            def one(j: Value, sums: list[Value]) -> list[Value]:
                place = held + j * stride + at * t.elem_bytes
                found = [read_values(place, v) for v in range(vectors)]
                sums = list(sums)
                for r in range(rows):
                    power = values.load(powers + j * 4, F32, 4 * KEYS * r).splat(width)
                    for v in range(vectors):
                        i = r * vectors + v
                        added = found[v].fma(power, sums[i])
                        sums[i] = added if all_count else power.unequal(0.0).select(added, sums[i])
                return sums

            places = [mixed + kept_bytes * r + at * 4 for r in range(rows)]
            begun = [values.load(place, lanes, 4 * width * v) for place in places for v in range(vectors)]
            for i, each in enumerate(loop(count, begun, one)):
                values.store(places[i // vectors], each, 4 * width * (i % vectors))

        # A single sum would wait for each addition, so the remaining vectors are taken in halves.
        vectors = min(_VECTORS, _SUMS[features.has_many_registers()] // rows)
        done = constant(n.b, I64, 0)
        while vectors:
            many = vectors * width

            def some(i: Value, _: list[Value], start: Value = done, vectors: int = vectors) -> list[Value]:
                add(start + i * (vectors * width), vectors, None)
                return []

            whole = (n - done).lshr(many.bit_length() - 1)
            loop(whole, [], some)
            done = done + whole * many
            vectors //= 2

        def rest(_: Value, __: list[Value]) -> list[Value]:
            add(done, 1, first_lanes(width, n - done))
            return []

        loop(done.unequal(n).zext(I64), [], rest)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)


#: Most vectors of a row that are accumulated at once.
_VECTORS = 8
#: Sums of several rows that stay in registers: of 16, and of 32.
_SUMS = (8, 16)


# -- the end of a row ----------------------------------------------------------------------------------------


@device_function
def leave(params: Flash, matrix: int, row: int, part: int, kept: int) -> None:
    """Stores the result of a row; with several parts, stores the row's state for :func:`merge`."""
    place = params.kept.address
    if place == 0:
        _finish(params, matrix, row, kept, 1)
    else:
        number = (matrix * rows_of(params) + row) * params.parts + part
        simd.copy_bytes(place + number * params.kept_bytes, kept, params.kept_bytes)


@device_function
def _finish(params: Flash, matrix: int, row: int, kept: int, parts: int) -> None:
    sinks = params.sinks.address
    sink = -math.inf
    if sinks != 0:
        sink = simd.load_f32(sinks + head_of(params, matrix, row) * params.sinks.nb0)
    _quotients(_result_of(params, matrix, row), params.dv, kept, params.kept_bytes, parts, sink)


@emitted("void(i64, i64, i64, i64, i64, f32)")
def _quotients(y: Value, n: Value, kept: Value, stride: Value, parts: Value, sink: Value) -> None:
    """The weighted sums of values divided by the sum of powers; zeros where that is 0.

    Overwrites logits with factors of parts.
    """
    b, width = n.b, simd.width("f32")
    lanes = vector(F32, width)

    def higher(i: Value, carried: list[Value]) -> list[Value]:
        return [carried[0].maximum(values.load(kept + i * stride, F32))]

    (top,) = loop(parts, [sink], higher)
    base = top.equal(-math.inf).select(0.0, top)

    def factor_of(logit: Value) -> Value:
        return emit_exp((logit - base).splat(width), positive=False)

    def add(i: Value, carried: list[Value]) -> list[Value]:
        place = kept + i * stride
        factor = factor_of(values.load(place, F32)).lane(0)
        values.store(place, factor)
        return [carried[0] + values.load(place, F32, 4) * factor]

    (total,) = loop(parts, [factor_of(sink).lane(0)], add)
    inverse = total.equal(0.0).select(0.0, 1.0 / total).splat(width)

    def some(v: Value, _: list[Value]) -> list[Value]:
        def mix(i: Value, carried: list[Value]) -> list[Value]:
            place = kept + i * stride
            mixed = values.load(place + v * (4 * width), lanes, KEPT)
            return [mixed.fma(values.load(place, F32).splat(width), carried[0])]

        (mixed,) = loop(parts, [constant(b, lanes, 0)], mix)
        values.masked_store(y + v * (4 * width), mixed * inverse, first_lanes(width, n - v * width))
        return []

    loop((n + (width - 1)).lshr(width.bit_length() - 1), [], some)


@kernel
def merge() -> Body:
    """Combines the states of the parts of a row to its result."""

    def body(ctx: int, params: Flash) -> None:
        rows, stride = rows_of(params), params.parts * params.kept_bytes
        first, end = thread_range(ctx, rows * params.groups * params.batches)
        for number in range(first, end):
            kept = params.kept.address + number * stride
            _finish(params, number // rows, number % rows, kept, params.parts)

    return body

"""The lightning indexer of sparse attention, and hyper-connections: see :mod:`ggplug.ops.deepseek`."""

from __future__ import annotations

import functools

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import aborted, scratch
from ggplug_cpu.parameters import CONVERTED, STRIDES, Parameters, destination, integer, real, source
from ggplug_cpu.parts.nest import BLOCK, thread_range
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES
from ggplug_cpu.parts.rows import read as read_row
from ggplug_cpu.simd.transcendental import emit_exp, emit_sigmoid
from ggplug_cpu.simd.values import (
    F32,
    I64,
    Value,
    constant,
    emitted,
    first_lanes,
    load,
    loop,
    masked_load,
    masked_store,
    store,
    vector,
)

#: Heads whose products are summed at a time.
_HEADS = 4
#: Number of products that are summed one after the other, a power of 2; their sums are added, so that rounding errors
#: do not grow in proportion to the length of rows.
_RUN = 64
#: Streams that are combined, as in ggml.
_STREAMS = 4


class Indexed(Parameters):
    """``keys`` rows of k, ``heads`` rows of q for each of ``tokens`` in ``sequences``; ``n`` is the length of rows."""

    y = destination()
    q = source(STRIDES)
    k = source(STRIDES, CONVERTED)
    weights = source(STRIDES)
    mask = source(STRIDES)
    n = integer()
    heads = integer()
    keys = integer()
    tokens = integer()
    sequences = integer()
    masks = integer()


class Combined(Parameters):
    """``tokens`` rows of mixes, each 24 numbers."""

    y = destination()
    mixes = source(STRIDES)
    scale = source(STRIDES)
    base = source(STRIDES)
    tokens = integer()
    n_iter = integer()
    eps = real()


class Mixed(Parameters):
    """Rows of ``n`` numbers of y: x of a token times ``factors``, plus the weighted sum of ``streams`` rows.

    ``targets``: rows of y for a token; ``weights`` has a number for each target, stream and token.
    """

    y = destination()
    x = source(STRIDES)
    factors = source(STRIDES)
    rows = source(STRIDES)
    weights = source(STRIDES)
    n = integer()
    targets = integer()
    streams = integer()
    tokens = integer()


class Gated(Parameters):
    """``tokens`` rows of ``n`` numbers of y, each ``scale`` times the sum of ``streams`` rows of x with their gates."""

    y = destination()
    x = source(STRIDES)
    gate = source(STRIDES)
    n = integer()
    streams = integer()
    tokens = integer()
    scale = real()


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory of :func:`index`: a block of a row, and as many rows as a vector has lanes."""
    return ARGUMENTS + ROW_BYTES + 4 * n * simd.width("f32")


# -- lightning_indexer -------------------------------------------------------------------------------


@kernel
def index() -> Body:
    """Computes as many keys at a time as a vector has lanes; their rows are interleaved in scratch memory."""
    score, lanes = _score(), simd.width("f32")

    def body(ctx: int, params: Indexed) -> None:
        n, keys, tokens = params.n, params.keys, params.tokens
        blocks = (keys + lanes - 1) // lanes
        scratch_row = scratch(ctx) + ARGUMENTS
        interleaved = scratch_row + ROW_BYTES
        first, end = thread_range(ctx, blocks * params.sequences)
        for task in range(first, end):
            if aborted(ctx):
                return
            key, s = task % blocks * lanes, task // blocks
            count = min(lanes, keys - key)
            simd.fill_bytes(interleaved, 0, 4 * n * lanes)
            for lane in range(count):
                k = params.k.address + (key + lane) * params.k.nb2 + s * params.k.nb3
                start = 0
                while start < n:
                    some = min(BLOCK, n - start)
                    row = read_row(ctx, params.k.convert, k, params.k.nb0, some, scratch_row)
                    for i in range(some):
                        simd.store_f32(interleaved + 4 * ((start + i) * lanes + lane), simd.load_f32(row + 4 * i))
                    k += params.k.block_bytes
                    start += BLOCK
            for t in range(tokens):
                q = params.q.address + t * params.q.nb2 + s * params.q.nb3
                weights = params.weights.row(t)
                weights += s * params.weights.nb3
                mask = params.mask.address + 4 * key + t * params.mask.nb1
                mask += s % params.masks * params.mask.nb3
                y = params.y.address + 4 * ((s * tokens + t) * keys + key)
                score(
                    y,
                    interleaved,
                    q,
                    params.q.nb1,
                    weights,
                    params.weights.nb0,
                    mask,
                    params.heads,
                    n,
                    count,
                )

    return body


@functools.cache
def _score() -> Intrinsic:
    """``(y, k, q, q_stride, weights, weights_stride, mask, heads, n, count)``: the scores of ``count`` keys."""
    lanes = simd.width("f32")
    floats = vector(F32, lanes)

    def emit(
        y: Value,
        k: Value,
        q: Value,
        q_stride: Value,
        weights: Value,
        weights_stride: Value,
        mask: Value,
        heads: Value,
        n: Value,
        count: Value,
    ) -> None:
        zero = constant(y.b, floats, 0)

        def added(total: Value, head: Value, several: int) -> Value:
            rows = [q + (head + j) * q_stride for j in range(several)]

            def run(first: Value, length: Value, sums: list[Value]) -> list[Value]:
                def one(i: Value, partial: list[Value]) -> list[Value]:
                    of_keys = load(k + (first + i) * (4 * lanes), floats)
                    factors = (load(row + (first + i) * 4, F32).splat(lanes) for row in rows)
                    return [of_keys.fma(factor, each) for factor, each in zip(factors, partial, strict=True)]

                return [a + b for a, b in zip(sums, loop(length, [zero] * several, one), strict=True)]

            runs = n.lshr(_RUN.bit_length() - 1)
            sums = loop(runs, [zero] * several, lambda r, sums: run(r * _RUN, constant(y.b, I64, _RUN), sums))
            for j, each in enumerate(run(runs * _RUN, n - runs * _RUN, sums)):
                weight = load(weights + (head + j) * weights_stride, F32).splat(lanes)
                total = (each > 0).select(each, 0).fma(weight, total)
            return total

        fours = heads.lshr(2)
        (total,) = loop(fours, [zero], lambda g, carried: [added(carried[0], g * _HEADS, _HEADS)])
        done = fours * _HEADS
        (total,) = loop(heads - done, [total], lambda h, carried: [added(carried[0], done + h, 1)])
        present = first_lanes(lanes, count)
        masked_store(y, total + masked_load(mask, floats, present), present)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64)")(emit)


# -- hyper-connections -------------------------------------------------------------------------------


@kernel
def combine() -> Body:
    """A token's matrix is a vector."""

    def body(ctx: int, params: Combined) -> None:
        scale = simd.load_f32(params.scale.address + 2 * params.scale.nb0)
        first, end = thread_range(ctx, params.tokens)
        for t in range(first, end):
            mixes = params.mixes.row(t)
            y = params.y.address + 4 * _STREAMS * _STREAMS * t
            _combine(y, mixes, params.base.address, scale, params.eps, params.n_iter)

    return body


def _all(v: Value, combine: str, step: int) -> Value:
    """Each lane with the three others of its row (``step`` 1) or its column (``step`` 4) of a matrix of 4 by 4."""
    for distance in (step, 2 * step):
        # within 4 or 16 lanes, the one that is so far away in both directions
        other = v.shuffle([lane ^ distance for lane in range(_STREAMS * _STREAMS)])
        v = v.maximum(other) if combine == "max" else v + other
    return v


@emitted("void(i64, i64, i64, f32, f64, i64)")
def _combine(y: Value, mixes: Value, base: Value, scale: Value, eps: Value, n_iter: Value) -> None:
    """``(y, mixes, base, scale, eps, n_iter)``: lane 4 s + d has element (d, s)."""
    count = _STREAMS * _STREAMS
    floats, behind = vector(F32, count), 4 * 2 * _STREAMS
    small = eps.convert(F32).splat(count)
    logits = load(mixes, floats, behind).fma(scale.splat(count), load(base, floats, behind))
    powers = emit_exp(logits - _all(logits, "max", 1), positive=False)
    v = powers / _all(powers, "sum", 1) + small
    v = v / (_all(v, "sum", _STREAMS) + small)

    def again(_: Value, carried: list[Value]) -> list[Value]:
        (v,) = carried
        v = v / (_all(v, "sum", 1) + small)
        return [v / (_all(v, "sum", _STREAMS) + small)]

    store(y, loop(n_iter - 1, [v], again)[0])


@kernel
def mix(starts: bool) -> Body:
    """Rows of streams, added up; ``starts``: to x times its factor."""
    add = _mixed(starts)

    def body(ctx: int, params: Mixed) -> None:
        n, targets = params.n, params.targets
        blocks = (n + BLOCK - 1) // BLOCK
        first, end = thread_range(ctx, blocks * targets * params.tokens)
        for task in range(first, end):
            at, row = task % blocks * BLOCK, task // blocks
            target, t = row % targets, row // targets
            x = params.x.row(t) + 4 * at
            factor = params.factors.address + target * params.factors.nb0 + t * params.factors.nb1
            rows = params.rows.address + t * params.rows.nb2 + 4 * at
            weights = params.weights.address + target * params.weights.nb0
            weights += t * params.weights.nb2
            add(
                params.y.address + 4 * (row * n + at),
                x,
                factor,
                rows,
                params.rows.nb1,
                weights,
                params.weights.nb1,
                params.streams,
                min(BLOCK, n - at),
            )

    return body


@functools.cache
def _mixed(starts: bool) -> Intrinsic:
    """``(y, x, factor, rows, stride, weights, weights_stride, streams, n)``."""
    lanes = simd.width("f32")
    floats = vector(F32, lanes)

    def emit(
        y: Value,
        x: Value,
        factor: Value,
        rows: Value,
        stride: Value,
        weights: Value,
        weights_stride: Value,
        streams: Value,
        n: Value,
    ) -> None:
        def some(v: Value, _: list[Value]) -> list[Value]:
            here, present = v * (4 * lanes), first_lanes(lanes, n - v * lanes)
            total = constant(y.b, floats, 0)
            if starts:
                total = masked_load(x + here, floats, present) * load(factor, F32).splat(lanes)

            def stream(h: Value, carried: list[Value]) -> list[Value]:
                weight = load(weights + h * weights_stride, F32).splat(lanes)
                return [masked_load(rows + h * stride + here, floats, present).fma(weight, carried[0])]

            masked_store(y + here, loop(streams, [total], stream)[0], present)
            return []

        loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64, i64, i64)")(emit)


@kernel
def gate() -> Body:
    """Rows of streams, each number times the sigmoid of its gate, added up."""

    def body(ctx: int, params: Gated) -> None:
        n = params.n
        blocks = (n + BLOCK - 1) // BLOCK
        first, end = thread_range(ctx, blocks * params.tokens)
        for task in range(first, end):
            at, t = task % blocks * BLOCK, task // blocks
            x = params.x.address + t * params.x.nb2 + 4 * at
            gates = params.gate.address + t * params.gate.nb2 + 4 * at
            y = params.y.address + 4 * (t * n + at)
            count = min(BLOCK, n - at)
            _gated(y, x, params.x.nb1, gates, params.gate.nb1, params.streams, count, params.scale)

    return body


@emitted("void(i64, i64, i64, i64, i64, i64, i64, f64)")
def _gated(
    y: Value, x: Value, x_stride: Value, gates: Value, gates_stride: Value, streams: Value, n: Value, scale: Value
) -> None:
    lanes = simd.width("f32")
    floats = vector(F32, lanes)
    factor = scale.convert(F32).splat(lanes)

    def some(v: Value, _: list[Value]) -> list[Value]:
        here, present = v * (4 * lanes), first_lanes(lanes, n - v * lanes)

        def stream(h: Value, carried: list[Value]) -> list[Value]:
            opened = emit_sigmoid(masked_load(gates + h * gates_stride + here, floats, present))
            return [masked_load(x + h * x_stride + here, floats, present).fma(opened, carried[0])]

        (total,) = loop(streams, [constant(y.b, floats, 0)], stream)
        masked_store(y + here, total * factor, present)
        return []

    loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], some)

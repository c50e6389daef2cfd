"""Recurrent layers: see :mod:`ggplug.ops.recurrent`.

A thread computes a head of a sequence from the first token to the last.  States are updated in the result, in place;
vectors lie along a row of a state.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, real, source
from ggplug_cpu.parts.faults import fault
from ggplug_cpu.parts.formulas import softplus
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I32, Value, constant, constants, emitted, first_lanes, loop, vector


class Convolved(Parameters):
    """``channels`` by ``tokens`` by ``sequences`` sums of ``taps`` products; rows are contiguous."""

    y = destination()
    x = source(STRIDES)
    weights = source(STRIDES)
    channels = integer()
    tokens = integer()
    sequences = integer()
    taps = integer()


class Scanned(Parameters):
    """States: ``dim`` rows of ``size`` numbers for each sequence and head; ``states``: their offset in y, in bytes.

    ``decays``: numbers of a for a head, 1 or ``size``.
    """

    y = destination()
    s = source()
    x = source(STRIDES)
    dt = source()
    a = source()
    b = source(STRIDES)
    c = source(STRIDES)
    ids = source()
    faults = destination()
    position = integer()
    size = integer()
    dim = integer()
    heads = integer()
    groups = integer()
    tokens = integer()
    sequences = integer()
    limit = integer()
    decays = integer()
    snapshots = integer()
    states = integer()


class Matrices(Parameters):
    """States: a matrix of ``size`` by ``size`` for each sequence and head; sources are contiguous.

    ``first`` to ``sixth`` are the op's sources in their order, without the state.
    """

    y = destination()
    state = source()
    first = source()
    second = source()
    third = source()
    fourth = source()
    fifth = source()
    sixth = source()
    size = integer()
    heads = integer()
    tokens = integer()
    sequences = integer()
    scale = real()


class Delta(Parameters):
    """As :class:`Matrices`, for :class:`ggplug.ops.GatedDeltaNet`; ``gates`` are 1 or ``size`` for a head."""

    y = destination()
    q = source(STRIDES)
    k = source(STRIDES)
    v = source(STRIDES)
    g = source()
    beta = source()
    state = source()
    size = integer()
    heads = integer()
    tokens = integer()
    sequences = integer()
    q_heads = integer()
    k_heads = integer()
    q_ratio = integer()
    k_ratio = integer()
    gates = integer()
    snapshots = integer()
    states = integer()
    scale = real()


def _sum_of_first() -> DeviceFunction:
    """``add(x, y, total, m)``: ``total`` plus the products of the first ``m`` lanes.

    The lanes after them are zeros, whose products with infinities are NaN; so these lanes keep their total.
    """
    lanes = simd.first_lanes(simd.width("f32"))

    @device_function
    def add(x: simd.Vector, y: simd.Vector, total: simd.Vector, m: int) -> simd.Vector:
        return simd.select(lanes(m), simd.fma(x, y, total), total)

    return add


#: Channels that a task of :func:`convolve` computes.
_PIECE = 1024
#: Rows in scratch are padded to a multiple of the widest vector.
_PADDING = 16


def scratch_bytes(size: int) -> int:
    """Bytes of scratch memory of :func:`delta`."""
    return 4 * (size + _PADDING)


# -- ssm_conv ----------------------------------------------------------------------------------------


@kernel
def convolve() -> Body:
    """Convolves along tokens; a vector holds neighbouring channels."""
    some = _convolve_some

    def body(ctx: int, params: Convolved) -> None:
        channels, tokens, taps = params.channels, params.tokens, params.taps
        pieces = -(-channels // _PIECE)
        first, end = thread_range(ctx, pieces * tokens * params.sequences)
        for number in range(first, end):
            piece, row = number % pieces, number // pieces
            t, s, start = row % tokens, row // tokens, piece * _PIECE
            x = params.x.row(start) + t * 4 + s * params.x.nb2
            weights = params.weights.row(start)
            y = params.y.address + 4 * (row * channels + start)
            n = min(_PIECE, channels - start)
            some(y, x, params.x.nb1, weights, params.weights.nb1, taps, n)

    return body


@emitted("void(i64, i64, i64, i64, i64, i64, i64)")
def _convolve_some(y: Value, x: Value, x_bytes: Value, w: Value, w_bytes: Value, taps: Value, n: Value) -> None:
    lanes = simd.width("f32")
    floats = vector(F32, lanes)
    iota = constants(y.b, I32, range(lanes))
    x_offsets = iota * x_bytes.convert(I32).splat(lanes)
    w_offsets = iota * w_bytes.convert(I32).splat(lanes)

    def one(v: Value, _: list[Value]) -> list[Value]:
        present = first_lanes(lanes, n - v * lanes)

        def tap(k: Value, carried: list[Value]) -> list[Value]:
            read = values.masked_gather(x + v * lanes * x_bytes + k * 4, x_offsets, floats, present)
            weight = values.masked_gather(w + v * lanes * w_bytes + k * 4, w_offsets, floats, present)
            return [read.fma(weight, carried[0])]

        (total,) = loop(taps, [constant(y.b, floats, 0)], tap)
        values.masked_store(y + v * (4 * lanes), total, present)
        return []

    loop((n + (lanes - 1)).lshr(lanes.bit_length() - 1), [], one)


# -- ssm_scan ----------------------------------------------------------------------------------------


@emitted("f32(f32)")
def softplus_of(x: Value) -> Value:
    """log(1 + e**x) of one number."""
    return softplus(x.splat(simd.width("f32"))).lane(0)


@kernel
def scan(several: bool) -> Body:
    """The selective scan; ``several``: each number of a state has its own decay."""
    F, step = simd.vec("f32"), simd.width("f32")
    load, store, zero, add = simd.load_first(F), simd.store_first, simd.zero(F), _sum_of_first()

    def body(ctx: int, params: Scanned) -> None:
        size, dim, heads = params.size, params.dim, params.heads
        tokens, sequences, groups = params.tokens, params.sequences, params.groups
        snapshots, of_head = params.snapshots, 4 * size * dim
        first, end = thread_range(ctx, heads * sequences)
        for unit in range(first, end):
            h, n = unit % heads, unit // heads
            state = params.y.address + params.states + unit * of_head
            index = simd.load_i32(params.ids.address + 4 * n)
            if index < 0 or index >= params.limit:
                fault(params.faults.address, params.position, n, index)
                simd.fill_bytes(state, 0, of_head)
            else:
                simd.copy_bytes(state, params.s.address + (index * heads + h) * of_head, of_head)
            group = h // (heads // groups)
            for kept in range(min(tokens, snapshots), snapshots):
                simd.fill_bytes(state + kept * sequences * heads * of_head, 0, of_head)
            if tokens == 0:
                simd.fill_bytes(state, 0, of_head)
            for t in range(tokens):
                dt = softplus_of(simd.load_f32(params.dt.address + 4 * ((n * tokens + t) * heads + h)))
                x = params.x.row(h, t)
                x += n * params.x.nb3
                b = params.b.row(group, t)
                b += n * params.b.nb3
                c = params.c.row(group, t)
                c += n * params.c.nb3
                y = params.y.address + 4 * ((n * tokens + t) * heads + h) * dim
                a = params.a.address + 4 * h * params.decays
                decay = simd.exp(simd.add(zero(), dt * simd.load_f32(a)))
                for d in range(dim):
                    row, into = state + 4 * d * size, dt * simd.load_f32(x + 4 * d)
                    total = zero()
                    for i in range(0, size, step):
                        m = min(step, size - i)
                        if several:
                            decay = simd.exp(simd.mul(load(a + 4 * i, m), dt))
                        now = simd.fma(load(row + 4 * i, m), decay, simd.mul(load(b + 4 * i, m), into))
                        total = add(now, load(c + 4 * i, m), total, m)
                        store(row + 4 * i, now, m)
                    simd.store_f32(y + 4 * d, simd.hsum(total))
                kept = tokens - 1 - t
                if kept > 0 and kept < snapshots:
                    simd.copy_bytes(state + kept * sequences * heads * of_head, state, of_head)

    return body


# -- matrices ----------------------------------------------------------------------------------------


@kernel
def matrices(rule: str) -> Body:
    """The recurrent op named ``rule``."""
    token = {"rwkv_wkv6": _wkv6(), "gated_linear_attn": _gated_linear(), "rwkv_wkv7": _wkv7()}[rule]

    def body(ctx: int, params: Matrices) -> None:
        size, heads, sequences = params.size, params.heads, params.sequences
        tokens = params.tokens
        of_sequence, of_head = tokens // sequences, 4 * size * size
        first, end = thread_range(ctx, heads * sequences)
        for unit in range(first, end):
            h, n = unit % heads, unit // heads
            state = params.y.address + 4 * size * heads * tokens + unit * of_head
            simd.copy_bytes(state, params.state.address + unit * of_head, of_head)
            for t in range(n * of_sequence, (n + 1) * of_sequence):
                token(params, state, 4 * size * (t * heads + h), 4 * size * h, size)

    return body


def _wkv6() -> DeviceFunction:
    F, step = simd.vec("f32"), simd.width("f32")
    load, store, zero = simd.load_first(F), simd.store_first, simd.zero(F)

    @device_function
    def token(params: Matrices, state: int, at: int, of_head: int, size: int) -> None:
        k, v = params.first.address + at, params.second.address + at
        r, decay = params.third.address + at, params.fifth.address + at
        bonus = params.fourth.address + of_head
        for j in range(0, size, step):
            m = min(step, size - j)
            total, value = zero(), load(v + 4 * j, m)
            for i in range(size):
                place = state + 4 * (i * size + j)
                s, kv = load(place, m), simd.mul(value, simd.load_f32(k + 4 * i))
                seen = simd.fma(kv, simd.load_f32(bonus + 4 * i), s)
                total = simd.fma(seen, simd.load_f32(r + 4 * i), total)
                store(place, simd.fma(s, simd.load_f32(decay + 4 * i), kv), m)
            store(params.y.address + at + 4 * j, total, m)

    return token


def _gated_linear() -> DeviceFunction:
    F, step = simd.vec("f32"), simd.width("f32")
    load, store, zero = simd.load_first(F), simd.store_first, simd.zero(F)

    @device_function
    def token(params: Matrices, state: int, at: int, of_head: int, size: int) -> None:
        k, v = params.first.address + at, params.second.address + at
        q, g = params.third.address + at, params.fourth.address + at
        for j in range(0, size, step):
            m = min(step, size - j)
            total, value = zero(), load(v + 4 * j, m)
            for i in range(size):
                place = state + 4 * (i * size + j)
                kv = simd.mul(value, simd.load_f32(k + 4 * i))
                s = simd.fma(load(place, m), simd.load_f32(g + 4 * i), kv)
                total = simd.fma(s, simd.load_f32(q + 4 * i), total)
                store(place, s, m)
            store(params.y.address + at + 4 * j, simd.mul(total, params.scale), m)

    return token


def _wkv7() -> DeviceFunction:
    F, step = simd.vec("f32"), simd.width("f32")
    load, store, zero, add = simd.load_first(F), simd.store_first, simd.zero(F), _sum_of_first()

    @device_function
    def token(params: Matrices, state: int, at: int, of_head: int, size: int) -> None:
        r, w = params.first.address + at, params.second.address + at
        k, v = params.third.address + at, params.fourth.address + at
        a, b = params.fifth.address + at, params.sixth.address + at
        for i in range(size):
            row, value = state + 4 * i * size, simd.load_f32(v + 4 * i)
            total = zero()
            for j in range(0, size, step):
                m = min(step, size - j)
                total = add(load(row + 4 * j, m), load(a + 4 * j, m), total, m)
            along = simd.hsum(total)
            total = zero()
            for j in range(0, size, step):
                m = min(step, size - j)
                s = simd.fma(load(row + 4 * j, m), load(w + 4 * j, m), simd.mul(load(k + 4 * j, m), value))
                s = simd.fma(load(b + 4 * j, m), along, s)
                total = add(s, load(r + 4 * j, m), total, m)
                store(row + 4 * j, s, m)
            simd.store_f32(params.y.address + at + 4 * i, simd.hsum(total))

    return token


# -- gated_delta_net ---------------------------------------------------------------------------------


@kernel
def delta() -> Body:
    """The gated delta rule, row after row of a head's state."""
    F, step = simd.vec("f32"), simd.width("f32")
    load, store, zero, add = simd.load_first(F), simd.store_first, simd.zero(F), _sum_of_first()

    def body(ctx: int, params: Delta) -> None:
        size, heads, sequences = params.size, params.heads, params.sequences
        tokens, snapshots, gates = params.tokens, params.snapshots, params.gates
        of_head, decays = 4 * size * size, scratch(ctx)
        of_all = of_head * heads * sequences
        first, end = thread_range(ctx, heads * sequences)
        for unit in range(first, end):
            h, n = unit % heads, unit // heads
            state = params.y.address + params.states + unit * of_head
            for kept in range(min(tokens, snapshots), snapshots):
                simd.fill_bytes(state + kept * of_all, 0, of_head)
            if tokens > 0:
                simd.copy_bytes(state, params.state.address + unit * of_head, of_head)
            for t in range(tokens):
                q = params.q.row(h % params.q_heads, t)
                q += n // params.q_ratio * params.q.nb3
                k = params.k.row(h % params.k_heads, t)
                k += n // params.k_ratio * params.k.nb3
                v = params.v.row(h, t)
                v += n * params.v.nb3
                at = (n * tokens + t) * heads + h
                g, beta = params.g.address + 4 * at * gates, simd.load_f32(params.beta.address + 4 * at)
                y = params.y.address + 4 * at * size
                for j in range(0, size, step):
                    m = min(step, size - j)
                    gate = load(g + 4 * j, m) if gates > 1 else simd.add(zero(), simd.load_f32(g))
                    store(decays + 4 * j, simd.exp(gate), m)
                for i in range(size):
                    row = state + 4 * i * size
                    total = zero()
                    for j in range(0, size, step):
                        m = min(step, size - j)
                        s = simd.mul(load(row + 4 * j, m), load(decays + 4 * j, m))
                        total = add(s, load(k + 4 * j, m), total, m)
                        store(row + 4 * j, s, m)
                    change = (simd.load_f32(v + 4 * i) - simd.hsum(total)) * beta
                    total = zero()
                    for j in range(0, size, step):
                        m = min(step, size - j)
                        s = simd.fma(load(k + 4 * j, m), change, load(row + 4 * j, m))
                        total = add(s, load(q + 4 * j, m), total, m)
                        store(row + 4 * j, s, m)
                    simd.store_f32(y + 4 * i, simd.hsum(total) * params.scale)
                kept = tokens - 1 - t
                if kept > 0 and kept < snapshots:
                    simd.copy_bytes(state + kept * of_all, state, of_head)

    return body

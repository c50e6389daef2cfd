"""Losses, and steps of optimisers."""

from __future__ import annotations

import math

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import integer, source
from ggplug_cpu.parts.nest import Places, Rows, destination_row, over_rows, source_row
from ggplug_cpu.parts.programs import row_program
from ggplug_cpu.parts.rows import ARGUMENTS, read, write
from ggplug_cpu.simd.transcendental import emit_exp
from ggplug_cpu.simd.values import (
    F32,
    F64,
    Value,
    constant,
    emitted,
    first_lanes,
    load,
    loop,
    masked_load,
    masked_store,
    vector,
)


class CrossEntropy(Rows):
    """Rows of logits and labels, each with an f64 for its term in the loss of ``count_of_rows`` rows."""

    losses = destination_row()
    logits = source_row()
    labels = source_row()
    count_of_rows = integer()


class CrossEntropyBack(Rows):
    """Rows of the result, of logits and labels; ``dy``: an f32."""

    y = destination_row()
    logits = source_row()
    labels = source_row()
    dy = source()
    count_of_rows = integer()


class Adamw(Rows):
    """Contiguous rows; ``settings``: seven f32."""

    w = destination_row()
    m = destination_row()
    v = destination_row()
    grad = source_row()
    settings = source()


class Sgd(Rows):
    """Contiguous rows; ``settings``: two f32."""

    w = destination_row()
    grad = source_row()
    settings = source()


def scratch_bytes(n: int) -> int:
    """Bytes of scratch memory of the losses for rows of ``n`` elements."""
    return ARGUMENTS + 12 * n


@emitted("f64(i64, i64)")
def _highest(x: Value, n: Value) -> Value:
    """The largest of ``n`` f32; NaN may be ignored."""
    width = simd.width("f32")
    lowest = constant(x.b, vector(F32, width), -math.inf)

    def one(i: Value, tops: list[Value]) -> list[Value]:
        mask = first_lanes(width, n - i * width)
        numbers = masked_load(x + i * (4 * width), vector(F32, width), mask)
        return [mask.select(numbers, lowest).maximum(tops[0])]

    (top,) = loop((n + (width - 1)).lshr(width.bit_length() - 1), [lowest], one)
    return top.max().convert(F64)


@emitted("f64(i64, i64, f64)")
def _powers(x: Value, n: Value, highest: Value) -> Value:
    """The sum of e**(x - highest) over ``n`` f32."""
    width = simd.width("f32")
    half = width // 2
    top, zero = highest.convert(F32).splat(width), constant(x.b, vector(F64, half), 0)

    def one(i: Value, sums: list[Value]) -> list[Value]:
        mask = first_lanes(width, n - i * width)
        numbers = emit_exp(masked_load(x + i * (4 * width), vector(F32, width), mask) - top, positive=False)
        wide = [mask.part(start, half).select(numbers.part(start, half).convert(F64), zero) for start in (0, half)]
        return [sums[0] + (wide[0] + wide[1])]

    (total,) = loop((n + (width - 1)).lshr(width.bit_length() - 1), [zero], one)
    return total.sum()


@emitted("f64(f64)")
def _logarithm(x: Value) -> Value:
    return x.unary("log")


@emitted("f64(i64, i64, i64, f64)")
def _losses(x: Value, labels: Value, n: Value, top: Value) -> Value:
    """The sum of label (top - x) over ``n`` f32: element by element, as the difference of two infinite sums is
    undefined.
    """
    half = simd.width("f32") // 2
    tops, zero = top.splat(half), constant(x.b, vector(F64, half), 0)

    def one(i: Value, sums: list[Value]) -> list[Value]:
        mask, at = first_lanes(half, n - i * half), i * (4 * half)
        number, label = (masked_load(each + at, vector(F32, half), mask).convert(F64) for each in (x, labels))
        return [mask.select(label.fma(tops - number, sums[0]), sums[0])]

    (total,) = loop((n + (half - 1)).lshr(half.bit_length() - 1), [zero], one)
    return total.sum()


@kernel
def cross_entropy() -> Body:
    """The sum over a row of label (log of the sum of powers - logit), divided by the number of rows."""

    @device_function
    def visit(ctx: int, params: CrossEntropy, row: int, n: int, places: Places) -> None:
        loss, logits, labels = places
        scratch_row = scratch(ctx) + ARGUMENTS
        p = read(ctx, params.logits.convert, logits, params.logits.stride, n, scratch_row)
        q = read(ctx, params.labels.convert, labels, params.labels.stride, n, scratch_row + 4 * n)
        highest = _highest(p, n)
        total = highest + _logarithm(_powers(p, n, highest))
        simd.store_f64(loss, _losses(p, q, n, total) / params.count_of_rows)

    return over_rows(CrossEntropy, visit)


@kernel
def cross_entropy_back() -> Body:
    """The softmax of a row of logits minus its labels, times dy divided by the number of rows."""
    combine = row_program("loss_back(x0,x1)")

    @device_function
    def visit(ctx: int, params: CrossEntropyBack, row: int, n: int, places: Places) -> None:
        y, logits, labels = places
        scratch_row, write_y = scratch(ctx) + ARGUMENTS, params.y.convert
        read_p, read_q = params.logits.convert, params.labels.convert
        p = read(ctx, read_p, logits, params.logits.stride, n, scratch_row)
        q = read(ctx, read_q, labels, params.labels.stride, n, scratch_row + 4 * n)
        r = y if write_y == 0 else scratch_row + 8 * n
        highest = _highest(p, n)
        factor = simd.load_f32(params.dy.address) / params.count_of_rows
        combine(r, p, q, n, highest, 1.0 / _powers(p, n, highest), factor)
        write(ctx, write_y, y, params.y.stride, n, r)

    return over_rows(CrossEntropyBack, visit)


@emitted("void(i64, i64, i64, i64, i64, i64)")
def _adamw_row(w: Value, m: Value, v: Value, grad: Value, parameters: Value, n: Value) -> None:
    width = simd.width("f32")
    alpha, beta1, beta2, eps, decay, beta1h, beta2h = (load(parameters, F32, 4 * i) for i in range(7))
    one_of = constant(n.b, F32, 1)
    alpha, keep, keep1, new1, keep2, new2, scale1, scale2, eps = (
        number.splat(width)
        for number in (alpha, one_of - alpha * decay, beta1, one_of - beta1, beta2, one_of - beta2, beta1h, beta2h, eps)
    )

    def one(i: Value, _: list[Value]) -> list[Value]:
        mask, at = first_lanes(width, n - i * width), i * (4 * width)
        weight, first, second, g = (masked_load(p + at, vector(F32, width), mask) for p in (w, m, v, grad))
        first = first * keep1 + g * new1
        second = second * keep2 + g * g * new2
        size = (second * scale2).unary("sqrt") + eps
        for place, value in ((m, first), (v, second), (w, weight * keep - alpha * (first * scale1) / size)):
            masked_store(place + at, value, mask)
        return []

    loop((n + (width - 1)).lshr(width.bit_length() - 1), [], one)


@emitted("void(i64, i64, i64, i64)")
def _sgd_row(w: Value, grad: Value, parameters: Value, n: Value) -> None:
    width = simd.width("f32")
    alpha, decay = (load(parameters, F32, 4 * i) for i in range(2))
    keep = (constant(n.b, F32, 1) - alpha * decay).splat(width)
    rate = alpha.splat(width)

    def one(i: Value, _: list[Value]) -> list[Value]:
        mask, at = first_lanes(width, n - i * width), i * (4 * width)
        weight, g = (masked_load(p + at, vector(F32, width), mask) for p in (w, grad))
        masked_store(w + at, weight * keep - rate * g, mask)
        return []

    loop((n + (width - 1)).lshr(width.bit_length() - 1), [], one)


@kernel
def adamw() -> Body:
    """Updates both moments, and the weights."""

    @device_function
    def visit(ctx: int, params: Adamw, row: int, n: int, places: Places) -> None:
        w, m, v, grad = places
        _adamw_row(w, m, v, grad, params.settings.address, n)

    return over_rows(Adamw, visit)


@kernel
def sgd() -> Body:
    """Updates the weights."""

    @device_function
    def visit(ctx: int, params: Sgd, row: int, n: int, places: Places) -> None:
        w, grad = places
        _sgd_row(w, grad, params.settings.address, n)

    return over_rows(Sgd, visit)

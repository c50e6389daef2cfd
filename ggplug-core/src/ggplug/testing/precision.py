"""How precise a result has to be: one table, a rule for each kind of op, and the derivation of each rule.

A rule says how far a result may be from what the op's reference gives in float64, before both are rounded to the
result's type.  It counts roundings to float32 in the op's formula *as the docstring writes it*, each of them off by at
most ``UNIT = 2**-24`` of the number that is rounded.  So a device may compute the formula in float32, operation by
operation, in any order; it may be more precise, and it may not store numbers on the way in fewer bits.  The rule
depends on the values that a case has, never on an error that was measured.

**Elements.**  ``room`` is an absolute distance for each element: a number of roundings times the size of what was
rounded.  A result is right where it lies between ``rounded(exact - room)`` and ``rounded(exact + room)``, rounded to
the nearest number of the result's type, ties to even.  So with no room it has to be the nearest number itself: a
result that was stored in fewer bits, or cut off in the place of rounded, is outside.  Functions of a number may be as
imprecise as OpenCL C allows them to be in its full profile (OpenCL C 3.0, section 7.4), whose limits other vendors'
libraries keep too: exp and log 3 units in the last place (each at most 2 roundings), division 2.5, sqrt 3, sin and cos
4, tanh 5, erf 16.  Numbers below float32's smallest normal one, ``2**-126``, may be flushed to zero.

**Sums.**  The order of a sum is left open, so each of n additions may round a number about as large as the sum, or as
the sum of some of its terms: sqrt(sum of squares of the terms) for terms of any sign; twice that is ``size`` if the sum
itself is not larger.  Roundings are independent of each other, each with the standard deviation UNIT / sqrt(3), so
their sum has sqrt(n / 3) UNIT size (N. J. Higham, T. Mary, *A new approach to probabilistic rounding error analysis*,
SIAM J. Sci. Comput. 41, 2019).  Six standard deviations are allowed.  Where a result has many elements their mean
square error is held to the standard deviation itself: at most ``2 (1 + 6 sqrt(2 / N))`` times its square for N
elements, six standard deviations of such a mean again, and a factor of two because elements share sources.

**Rounded sources.**  Products with weights of few bits round activations, as ggml does: to the type of the weights if
that is F16 or BF16, and to eight bits of the largest of a block if the weights have blocks.  Such a rounding is off by
at most half a step, with the standard deviation step / sqrt(12), and weighs as much as the weight that it meets.  In
the place of F16 it may be TF32, which has as many digits, and which tensor cores cut off: at most a whole step.

**Graphs.**  A node that reads results of other nodes inherits their errors.  How much, its graph shows: it is
evaluated twice more with each result moved by all of its room, up or down at random, and once the other way round.

An op from elsewhere brings its rule as it brings its cases: ``RULES["mine.wavelet"] = Rule(...)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.ops.attention import alibi_slopes
from ggplug.ops.base import Array
from ggplug.ops.elementwise import tile
from ggplug.ops.flash_attention import shares_of
from ggplug.ops.interpolation import ScaleMode
from ggplug.ops.pooling import PoolKind
from ggplug.ops.unary import Gelu, GeluErf, GeluQuick, Silu
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, Precision, RopeMode, Type

UNIT = 2.0**-24
"""The largest error of rounding to float32, relative to what is rounded."""

FLUSHED = 2.0**-126
"""Numbers that are smaller than this one may become zero where something is computed, and not only moved."""

DEVIATIONS = 6.0
"""How many standard deviations a single sum may be off: one of a thousand million sums is further off."""

SUMMED = DEVIATIONS / math.sqrt(3)
"""The roundings of n additions come to at most ``SUMMED sqrt(n)`` roundings of their size."""

Room = Callable[..., Array]
"""``(node, exact, *sources) -> distances in UNITs``, of arrays as references have them."""


class Rule(NamedTuple):
    """How far elements may be off.

    ``kind``: the kind of op.  ``bound``: the distance in words, x, y, a, b the sources' elements, f(x) the result's.
    ``why``: what is rounded.  ``room``: the same as a function.  ``spread``: whether it is DEVIATIONS standard
    deviations, so that means of many elements are held to less.
    """

    kind: str
    bound: str
    why: str
    room: Room
    spread: bool = False


# -- elements --------------------------------------------------------------------------------------


def _none(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    return np.zeros_like(exact)


def _flushed(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    return np.where((np.abs(exact) < FLUSHED) & (exact != 0), FLUSHED / UNIT, 0)


def _once(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    rounded = exact.astype(np.float32).astype(np.float64)
    off = np.where(np.isfinite(rounded), np.abs(rounded - exact), 0) / UNIT
    return np.maximum(off, _flushed(node, exact))


def _of_result(roundings: float) -> Room:
    return lambda node, exact, *sources: roundings * np.abs(exact)


def _scale(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    return np.asarray(3 * (np.abs(op.s * x) + abs(op.bias)))


def _hardsigmoid(node: Tensor, exact: Array, x: Array) -> Array:
    return 8 * (np.minimum(np.abs(x), 3) + 3) / 6


def _hardswish(node: Tensor, exact: Array, x: Array) -> Array:
    return np.where(np.abs(x) < 3.001, np.abs(x) * _hardsigmoid(node, exact, x), 0) + np.abs(exact)


def _softplus(node: Tensor, exact: Array, x: Array) -> Array:
    return 8 + 6 * np.abs(exact)


def _xielu(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    below = np.minimum(x, op.eps)
    negative = abs(op.alpha_n) * (np.abs(np.expm1(below)) + np.abs(x))
    return np.asarray(np.where(x > 0, 5 * np.abs(op.alpha_p * x * x), 12 * negative) + 5 * np.abs(op.beta * x))


_ACTIVATIONS: dict[Any, Callable[[Array, Array], Array]] = {
    Gelu: lambda x, y: 8 * np.abs(x) + np.abs(y),
    GeluErf: lambda x, y: 18 * np.abs(x) + np.abs(y),
    GeluQuick: lambda x, y: (14 + 4 * np.abs(x)) * np.abs(y),
    Silu: lambda x, y: 14 * np.abs(y),
}
"""The room of activations, which gated units have too, from x and y = f(x)."""


def _activation(of: Any) -> Room:
    return lambda node, exact, x: _ACTIVATIONS[of](x, exact)


def _gated(node: Tensor, exact: Array, x: Array, gate: Array | None = None) -> Array:
    op: Any = node.op
    x, gate = _halves(node, x, gate)
    y = op.activation.formula(x)
    return np.asarray(_ACTIVATIONS[op.activation](x, y) * np.abs(gate) + 2 * np.abs(exact))


def _swiglu_oai(node: Tensor, exact: Array, x: Array, gate: Array | None = None) -> Array:
    op: Any = node.op
    x, gate = _halves(node, x, gate)
    u = np.minimum(x, op.limit)
    opened = 1 + np.minimum(np.abs(gate), op.limit)
    return np.asarray(np.abs(u / (1 + np.exp(-op.alpha * u))) * opened * (18 + 3 * np.abs(op.alpha * u)))


def _halves(node: Tensor, x: Array, gate: Array | None) -> tuple[Array, Array]:
    """What a gated unit activates, and its gate: two sources, or the halves of one."""
    op: Any = node.op
    if gate is not None:
        return x, gate
    n = x.shape[-1] // 2
    first, second = x[..., :n], x[..., n : 2 * n]
    return (second, first) if op.swapped else (first, second)


def _rope(node: Tensor, exact: Array, x: Array, pos: Array, factors: Array | None = None) -> Array:
    op: Any = node.op
    pair = np.arange(op.pairs)
    normal = op.mode == RopeMode.NORMAL
    first = op.n_offs + (2 * pair if normal else pair)
    second = first + (1 if normal else op.pairs)
    magnitude = abs(op.attn_factor)
    if op.ext_factor:
        magnitude *= 1 + 0.1 * abs(math.log(op.freq_scale))
    size = np.zeros_like(exact)
    size[..., first] = size[..., second] = np.hypot(x[..., first], x[..., second]) * magnitude
    return 16 * size


# -- sums ------------------------------------------------------------------------------------------


def _added(x: Array) -> Array:
    """The roundings of adding up rows, [..., 1]."""
    total = np.abs(np.sum(x, axis=-1, keepdims=True))
    size = np.maximum(total, 2 * np.sqrt(np.sum(x * x, axis=-1, keepdims=True)))
    return np.asarray(_sqrt(x) * size)


def _sqrt(x: Array) -> float:
    """``SUMMED sqrt(n)`` for rows of n."""
    return SUMMED * math.sqrt(max(1, x.shape[-1]))


def _sum_rows(node: Tensor, exact: Array, x: Array) -> Array:
    return _added(x)


def _sum(node: Tensor, exact: Array, x: Array) -> Array:
    return _added(x.reshape(1, 1, 1, -1))


def _mean(node: Tensor, exact: Array, x: Array) -> Array:
    return np.asarray(_added(x) / max(1, x.shape[-1]) + 6 * np.abs(exact))


def _scaled_row(node: Tensor, exact: Array, x: Array) -> Array:
    return (16 + _sqrt(x) / 2) * np.abs(exact)


def _norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    n = max(1, x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / n
    deviation = np.sqrt(np.sum((x - mean) ** 2, axis=-1, keepdims=True) / n + op.eps)
    moved = (_added(x) / n + 6 * np.abs(mean)) / deviation
    return np.asarray(moved + (16 + _sqrt(x) / 2 + np.minimum(UNIT * moved, 1) * moved) * np.abs(exact))


def _soft_max(node: Tensor, exact: Array, x: Array, mask: Array | None = None, sinks: Array | None = None) -> Array:
    op: Any = node.op
    logits = op.scale * x
    off = 3 * np.abs(logits)
    if mask is not None:
        slopes = alibi_slopes(x.shape[1], op.max_bias)[:, np.newaxis, np.newaxis]
        masked = slopes * tile(mask[:, :, : x.shape[2]], x.shape)
        logits = logits + masked
        off = off + (34 if op.max_bias else 1) * np.abs(masked) + np.abs(logits)
    highest = np.max(np.where(np.isnan(logits), -np.inf, logits), axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        highest = np.fmax(highest, sinks.reshape(1, -1, 1, 1))
    off = np.where(exact > 0, off + np.abs(logits - highest), 0)
    shared = np.sum(exact * off, axis=-1, keepdims=True)
    return np.asarray(exact * (off + shared + 2 * np.abs(highest) + 12 + _sqrt(x)))


# -- products --------------------------------------------------------------------------------------

COARSE: dict[Type, float] = {F16: 2.0**-10, BF16: 2.0**-8}
"""The largest error of rounding to BF16, and of cutting off what F16 lacks, relative to the number."""


def _product(node: Tensor, exact: Array, weights: Array, other: Array, *ids: Array) -> Array:
    op: Any = node.op
    assert node.src[0] is not None
    assert node.src[1] is not None
    kind = node.src[0].type

    def summed(squares: Array) -> Array:
        """The sum of ``weights**2 squares`` of each element of the result."""
        return np.asarray(op.reference(weights * weights, squares, *ids)).reshape(exact.shape)

    weights, other = (np.where(np.isfinite(each), each, 0) for each in (weights, other))
    terms = summed(other * other)
    variance = (weights.shape[-1] + 1) / 3 * np.maximum(exact * exact, 4 * terms)
    if not node.src[1].type.is_quantized:
        if kind.is_quantized:
            variance = variance + summed(_block_steps(other, kind.block_size) ** 2) / 12 / UNIT**2
        elif kind in COARSE and op.precision != Precision.F32:
            variance = variance + terms * (COARSE[kind] / UNIT) ** 2 / 3
    return np.asarray(DEVIATIONS * np.sqrt(variance))


def _block_steps(values: Array, length: int) -> Array:
    """For each number the step of eight bits: a 127th of the largest number of its block."""
    blocks = values.reshape(-1, length)
    steps = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / 127
    return np.broadcast_to(steps, blocks.shape).reshape(values.shape)


def _attended(
    node: Tensor, q: Array, k: Array, mask: Array | None, sinks: Array | None, coarse: float
) -> tuple[Array, Array]:
    """Shares of attention, and their roundings: ``coarse`` is the deviation of rounding queries, in roundings."""
    op: Any = node.op
    assert node.src[1] is not None
    kind = node.src[1].type
    logits, _ = op.logits(q, k, mask)
    dots, terms = np.abs(q @ k.swapaxes(-1, -2)), (q * q) @ (k * k).swapaxes(-1, -2)
    off = SUMMED * math.sqrt(q.shape[-1] + 1) * np.maximum(dots, 2 * np.sqrt(terms)) + 4 * dots
    off = off + DEVIATIONS * coarse * np.sqrt(terms)
    if kind.is_quantized:
        steps = _block_steps(q, kind.block_size)
        off = off + DEVIATIONS * np.sqrt((steps * steps) @ (k * k).swapaxes(-1, -2) / 12) / UNIT
    off = abs(op.scale) * off + 10 * np.minimum(op.logit_softcap, np.abs(op.scale) * dots)
    if mask is not None:
        slopes = alibi_slopes(q.shape[1], op.max_bias)[:, np.newaxis, np.newaxis]
        off = off + (34 if op.max_bias else 1) * np.abs(slopes * tile(mask[:, :, : q.shape[2]], logits.shape))
    shares = shares_of(logits, sinks)
    highest = np.max(np.where(np.isnan(logits), -np.inf, logits), axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        highest = np.fmax(highest, sinks.reshape(1, -1, 1, 1))
    off = np.where(shares > 0, off + 2 * np.abs(logits - highest), 0)
    shared = np.sum(shares * off, axis=-1, keepdims=True) + np.where(shares > 0, 2 * np.abs(highest), 0)
    return shares, np.where(shares > 0, shares * (off + shared + 16 + 4 * _sqrt(logits)), 0)


def _flash_attn_ext(
    node: Tensor, exact: Array, q: Array, k: Array, v: Array, mask: Array | None = None, sinks: Array | None = None
) -> Array:
    op: Any = node.op
    kinds = [source.type for source in node.src[1:3] if source is not None]
    q, k, v = (np.where(np.isfinite(each), each, 0) for each in (q, k, v))
    coarse = [0.0 if op.precision == Precision.F32 else COARSE.get(kind, 0.0) / UNIT / math.sqrt(3) for kind in kinds]
    k, v = (np.repeat(each, q.shape[1] // max(1, each.shape[1]), axis=1) for each in (k, v))
    shares, off = _attended(node, q, k, mask, sinks, coarse[0])
    spread = np.sqrt((shares * shares) @ (v * v))
    added = SUMMED * math.sqrt(v.shape[-2] + 1) * np.maximum(np.abs(exact.swapaxes(1, 2)), 2 * spread)
    return np.asarray(off @ np.abs(v) + added + DEVIATIONS * coarse[1] * spread).swapaxes(1, 2)


def _flash_attn_back(
    node: Tensor, exact: Array, q: Array, k: Array, v: Array, d: Array, mask: Array | None = None,
    sinks: Array | None = None,
) -> Array:  # fmt: skip
    op: Any = node.op
    q, k, v, d = (np.where(np.isfinite(each), each, 0) for each in (q, k, v, d))
    batches, groups, share = *k.shape[:2], q.shape[1] // max(1, k.shape[1])
    wide_k, wide_v = (np.repeat(each, share, axis=1) for each in (k, v))
    shares, off = _attended(node, q, wide_k, mask, sinks, 0.0)
    d = d.swapaxes(1, 2)
    wanted = np.abs(d @ wide_v.swapaxes(-1, -2))
    added = 2 * np.sqrt((d * d) @ (wide_v * wide_v).swapaxes(-1, -2))
    of_dots = SUMMED * math.sqrt(v.shape[-1] + 1) * np.maximum(wanted, added)
    mean = np.sum(shares * wanted, axis=-1, keepdims=True)
    of_mean = np.sum(off * wanted + shares * (of_dots + 8 * wanted), axis=-1, keepdims=True) + _sqrt(shares) * mean
    scale = abs(op.scale)
    size = scale * shares * (wanted + mean)
    moved = scale * (off * (wanted + mean) + shares * (of_dots + of_mean)) + 24 * size

    def collected(first: Array, second: Array, off: Array) -> Array:
        """Roundings of the product of two matrices, the first of which is off by so much."""
        terms = 2 * np.sqrt((first * first) @ (second * second))
        return np.asarray(off @ np.abs(second) + SUMMED * math.sqrt(share * first.shape[-1] + 1) * terms)

    def folded(x: Array) -> Array:
        return np.asarray(x.reshape(batches, groups, share, *x.shape[2:]).sum(axis=2))

    turned = (each.swapaxes(-1, -2) for each in (size, moved, shares, off))
    sizes, moves, weights, offs = turned
    parts = [
        collected(size, wide_k, moved), folded(collected(sizes, q, moves)), folded(collected(weights, d, offs)),
    ]  # fmt: skip
    if sinks is not None:
        rest = 1 - shares.sum(axis=-1, keepdims=True)
        off_of_rest = rest * (16 + 4 * _sqrt(shares)) + np.sum(off, axis=-1, keepdims=True)
        of_rows = rest * of_mean + (off_of_rest + 16 * rest + SUMMED * math.sqrt(q.shape[-2])) * mean
        parts.append(of_rows.sum(axis=(0, 2, 3)))
    padded = [np.pad(each.reshape(-1), (0, -each.size % 4)) for each in parts]
    return np.concatenate(padded).reshape(exact.shape)


def _out_prod(node: Tensor, exact: Array, a: Array, b: Array) -> Array:
    op: Any = node.op
    a, b = (np.where(np.isfinite(each), each, 0) for each in (a, b))
    terms = op.reference(a * a, b * b)
    return np.asarray(DEVIATIONS * np.sqrt((a.shape[-2] + 1) / 3 * np.maximum(exact * exact, 4 * terms)))


def _solve_tri(node: Tensor, exact: Array, a: Array, b: Array) -> Array:
    lower = np.tril(np.where(np.isfinite(a), a, 1))
    n = a.shape[-1]
    singular = (np.diagonal(lower, axis1=-2, axis2=-1) == 0).any()
    if singular or not n:
        return np.zeros_like(exact)
    return np.asarray(2 * (n + 2) * np.abs(np.linalg.inv(lower)) @ np.abs(lower) @ np.abs(exact))


# -- sums of what is moved, gradients, losses, optimisers --------------------------------------------


def _cumsum(node: Tensor, exact: Array, x: Array) -> Array:
    count = np.arange(1, x.shape[-1] + 1)
    size = np.maximum(np.abs(exact), 2 * np.sqrt(np.cumsum(x * x, axis=-1)))
    return np.asarray(SUMMED * np.sqrt(count) * size + np.abs(exact))


def _repeat_back(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    size = np.maximum(np.abs(exact), 2 * np.sqrt(op.reference(x * x)))
    return np.asarray(SUMMED * math.sqrt(max(1, x.size // max(1, exact.size))) * size)


def _get_rows_back(node: Tensor, exact: Array, dy: Array, ids: Array) -> Array:
    op: Any = node.op
    size = np.maximum(np.abs(exact), 2 * np.sqrt(op.reference(dy * dy, ids)).reshape(exact.shape))
    return np.asarray(SUMMED * math.sqrt(max(1, ids.size)) * size)


def _group_norm(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    channels = -(-x.shape[1] // op.n_groups)
    room = np.zeros_like(exact)
    for start in range(0, x.shape[1], max(1, channels)):
        part = slice(start, start + channels)
        flat = (x.shape[0], 1, 1, x[:1, part].size)
        found = _norm(node, exact[:, part].reshape(flat), x[:, part].reshape(flat))
        room[:, part] = found.reshape(exact[:, part].shape)
    return room


def _arange(node: Tensor, exact: Array) -> Array:
    op: Any = node.op
    return np.asarray(4 * (np.abs(exact) + abs(op.start)))


def _timestep_embedding(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    half = op.dim // 2
    around = (12 + 4 * math.log(op.max_period)) * np.abs(x.reshape(-1, 1) * op.frequencies)
    room = np.zeros(exact.shape)
    room[..., :half] = room[..., half : 2 * half] = around
    return room + 8


def _silu_back(node: Tensor, exact: Array, dy: Array, x: Array) -> Array:
    x = tile(x, dy.shape)
    return np.asarray(16 * np.abs(dy) / (1 + np.exp(-x)) * (2 + np.abs(x)) + np.abs(exact))


def _rms_norm_back(node: Tensor, exact: Array, dy: Array, x: Array) -> Array:
    op: Any = node.op
    n = max(1, x.shape[-1])
    root = 1 / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) / n + op.eps)
    mean = np.abs(np.sum(x * dy, axis=-1, keepdims=True)) / n
    second = root**3 * np.abs(x)
    return np.asarray((24 + 2 * _sqrt(x)) * (root * np.abs(dy) + second * mean) + second * _added(x * dy) / n)


def _soft_max_back(node: Tensor, exact: Array, dy: Array, y: Array) -> Array:
    op: Any = node.op
    dot = np.abs(np.sum(y * dy, axis=-1, keepdims=True))
    return np.asarray(np.abs(op.scale * y) * (8 * (np.abs(dy) + dot) + _added(y * dy)))


def _shares(logits: Array) -> tuple[Array, Array]:
    """The softmax of rows, and the roundings of it: of the differences to the largest, powers, a sum, a quotient."""
    away = logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(away)
    shares = powers / powers.sum(axis=-1, keepdims=True)
    off = np.where(shares > 0, np.abs(away), 0)
    return shares, shares * (16 + _sqrt(logits) + 2 * off + 2 * np.sum(shares * off, axis=-1, keepdims=True))


def _cross_entropy_loss(node: Tensor, exact: Array, logits: Array, labels: Array) -> Array:
    rows = max(1, logits.size // max(1, logits.shape[-1]))
    away = np.abs(logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf))
    shares, _ = _shares(logits)
    of_sum = 16 + _sqrt(logits) + 2 * np.sum(shares * away, axis=-1, keepdims=True)
    terms = np.abs(labels) * (of_sum + 4 * away)
    return np.asarray(np.sum(terms) / rows * (2 + SUMMED * math.sqrt(max(1, logits.size)) / 8) + 8 * np.abs(exact))


def _cross_entropy_loss_back(node: Tensor, exact: Array, dy: Array, logits: Array, labels: Array) -> Array:
    rows = max(1, logits.size // max(1, logits.shape[-1]))
    shares, off = _shares(logits)
    return np.asarray(np.abs(dy / rows) * (off + 8 * (shares + np.abs(labels))))


def _adamw(node: Tensor, exact: Array, w: Array, grad: Array, m: Array, v: Array, params: Array) -> Array:
    alpha, beta1, beta2, eps, _, beta1h, beta2h = params.reshape(-1)
    kept, added = beta2 * beta2h * v, (1 - beta2) * beta2h * grad * grad
    root = np.sqrt(kept + added)
    moved = alpha * beta1h * (np.abs(beta1 * m) + np.abs((1 - beta1) * grad)) / (root + eps)
    # where v is negative, which it should not be, little may be left of the sum under the root
    return np.asarray(8 * np.abs(w) + (16 + 8 * (np.abs(kept) + added) / (root * (root + eps))) * np.abs(moved))


def _sgd(node: Tensor, exact: Array, w: Array, grad: Array, params: Array) -> Array:
    return np.asarray(8 * (np.abs(w) + np.abs(params.reshape(-1)[0] * grad)))


# -- windows and tokens ----------------------------------------------------------------------------


def _convolved(node: Tensor, exact: Array, first: Array, second: Array) -> Array:
    op: Any = node.op
    terms = np.asarray(op.reference(first * first, second * second))
    count = np.asarray(op.reference(np.ones_like(first), np.ones_like(second)))
    return np.asarray(DEVIATIONS * np.sqrt((count + 1) / 3 * np.maximum(exact * exact, 4 * terms)))


def _gathered(node: Tensor, exact: Array, x: Array, *others: Array) -> Array:
    """Of ops that are sums of elements of x, or of equal parts of them."""
    op: Any = node.op
    count = np.asarray(op.reference(np.ones_like(x), *others))
    return np.asarray((6 + SUMMED * np.sqrt(count)) * np.asarray(op.reference(np.abs(x), *others)))


def _pooled(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    if op.kind == PoolKind.MAX:
        return np.zeros_like(exact)
    return (6 + SUMMED * math.sqrt(op.k0 * getattr(op, "k1", 1))) * np.asarray(op.reference(np.abs(x)))


def _pooled_back(node: Tensor, exact: Array, grad: Array, x: Array) -> Array:
    op: Any = node.op
    return (6 + SUMMED * math.sqrt(op.k0 * op.k1)) * np.asarray(op.reference(np.abs(grad), x))


def _interpolated(node: Tensor, exact: Array, x: Array) -> Array:
    op: Any = node.op
    if op.mode & 255 == ScaleMode.NEAREST:
        return np.zeros_like(exact)
    return np.full_like(exact, (32 + 8 * max(*op.ne, *x.shape)) * np.abs(x).max(initial=0))


def _positions(node: Tensor, exact: Array, *sources: Array) -> Array:
    op: Any = node.op
    return 2 * np.asarray(op.reference(*map(np.abs, sources)))


def _tokens(node: Tensor, exact: Array, *sources: Array) -> Array:
    op: Any = node.op
    count = 6 * sources[0].shape[1] + 8 + _sqrt(sources[0])
    return np.asarray(count * np.asarray(op.reference(*map(np.abs, sources))))


def _scanned(node: Tensor, exact: Array, s: Array, x: Array, dt: Array, a: Array, *others: Array) -> Array:
    op: Any = node.op
    b, c, ids = others
    step = np.logaddexp(0, dt)
    off = (8 + 6 * step) * (np.abs(a).max(initial=0) + 1 / np.maximum(step, FLUSHED)) + 4 * np.abs(step)
    count = (x.shape[1] + 1) * (16 + off.max(initial=0)) + _sqrt(s)
    return np.asarray(count * np.asarray(op.reference(np.abs(s), np.abs(x), dt, a, np.abs(b), np.abs(c), ids)))


def _delta(node: Tensor, exact: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> Array:
    def longest(x: Array) -> float:
        return float(np.sqrt((x * x).sum(axis=-1)).max(initial=0))

    size, tokens = v.shape[3], v.shape[1]
    one = 1 + np.abs(beta).max(initial=0) * longest(k) ** 2
    held = longest(state) + tokens * np.abs(beta).max(initial=0) * longest(k) * np.abs(v).max(initial=0)
    factor = (64 + 16 * tokens + _sqrt(v)) * one**tokens * held * np.exp(np.maximum(g, 0).sum())
    return np.full_like(exact, factor * max(1.0, longest(q) / math.sqrt(size)))


# -- the table -------------------------------------------------------------------------------------

_MOVES = Rule(
    "moves", "0", "nothing: numbers of one type keep their bits, others become the nearest of the new type", _none
)
_EXACT = Rule("exact", "0", "nothing: float32 holds the result", _flushed)
_CHOSEN = Rule("chooses", "0", "nothing: numbers are only compared", _none)


def _indexed(node: Tensor, exact: Array, q: Array, k: Array, weights: Array, mask: Array) -> Array:
    keys, of_heads = k[:, :, 0], np.abs(weights[:, 0])
    products = np.einsum("sthd,skd->sthk", q, keys)
    size = np.maximum(np.abs(products), 2 * np.sqrt(np.einsum("sthd,skd->sthk", q**2, keys**2)))
    relative = SUMMED * math.sqrt(q.shape[3] + 1) * size + (q.shape[2] + 2) * np.abs(products)
    room = np.einsum("sthk,sth->stk", relative, of_heads)[:, np.newaxis]
    hidden = mask[np.arange(q.shape[0]) % max(1, mask.shape[0])]
    return np.asarray(room + 2 * np.abs(exact) + np.abs(np.where(np.isfinite(exact), exact - hidden, 0)))


def _balanced(node: Tensor, exact: Array, mixes: Array, scale: Array, base: Array) -> Array:
    op: Any = node.op
    scaled = np.abs(mixes[..., 8:] * scale[..., 2:3])
    e = (5 * scaled + 3 * np.abs(base[..., 8:])).max(axis=3, initial=0).reshape(1, -1, 1, 1)
    return np.asarray(2 * np.abs(exact) * (24 + 4 * e + 16 * op.n_iter))


def _mixed(node: Tensor, exact: Array, *sources: Array) -> Array:
    op: Any = node.op
    streams = sources[len(sources) // 4].shape[2]  # of x, or of the residual
    return np.asarray((streams + 3) * op.reference(*map(np.abs, sources)))


def _element(bound: str, why: str, room: Room) -> Rule:
    return Rule("one by one", bound, why, room)


def _row(bound: str, why: str, room: Room) -> Rule:
    return Rule("sums", bound, why, room, spread=True)


def _glu(bound: str) -> Rule:
    return _element(f"{bound} of f(x), times abs(g), + 2 abs(y)", "those of f, and a product", _gated)


_PRODUCT = Rule(
    "products",
    "6 sqrt((K + 1) size**2 / 3 + r), size = max(abs(y), 2 sqrt(sum((a b)**2)))",
    "the sums of K products; r, in square roundings, is for activations that are rounded: to F16 or BF16 "
    "sum((a b)**2) c**2 / 3 with c = 2**-10 or 2**-8, for weights in blocks sum((a step)**2) / 12 with step = "
    "max(abs(b)) / 127 of the block; else 0, and with Precision.F32 for weights without blocks",
    _product, spread=True,
)  # fmt: skip

_CONVOLVED = _row("6 sqrt((K + 1) / 3) size, as products without r", "the sums of K products", _convolved)
_GATHERED = _element("(6 + 3.46 sqrt(K)) sum(abs(x))", "the sum of what K windows have for an element", _gathered)
_POOLED = _element("0 of a maximum; (6 + 3.46 sqrt(k0 k1)) mean(abs(x))", "sums of the window, the quotient", _pooled)
_TOKENS = _element("(S + 8 + 6 T) f(abs(sources))", "products and sums of each of T tokens", _tokens)

RULES: dict[str, Rule] = {
    **dict.fromkeys(("cpy", "cont", "dup", "concat", "repeat", "get_rows", "set_rows", "set", "get_rel_pos"), _MOVES),
    **dict.fromkeys(("pad", "pad_reflect_1d", "roll", "diag", "tri", "diag_mask_inf", "diag_mask_zero"), _MOVES),
    **dict.fromkeys(("argmax", "argsort", "top_k", "count_equal"), _CHOSEN),
    **dict.fromkeys(("abs", "sgn", "neg", "step", "floor", "ceil", "round", "trunc", "relu"), _EXACT),
    **dict.fromkeys(("im2col", "im2col_3d", "win_part", "win_unpart"), _EXACT),
    "clamp": _element("abs(y - float32(y))", "a limit", _once),
    "add": _element("abs(y - float32(y))", "the sum, to the nearest", _once),
    "acc": _element("1 abs(y)", "the sum", _of_result(1)),
    "add_id": _element("1 abs(y)", "the sum", _of_result(1)),
    "fill": _element("1 abs(y)", "the number", _of_result(1)),
    "arange": _element("4 (abs(y) + abs(start))", "start, step, their product with i, the sum", _arange),
    "timestep_embedding": _element(
        "8 + (12 + 4 ln(max_period)) abs(angle)", "the frequency's logarithm and power, the angle, its sine or cosine",
        _timestep_embedding,
    ),
    "silu_back": _element(
        "16 abs(dy) s (2 + abs(x)) + abs(y), s = 1 / (1 + e**-x)", "s, 1 - s, products and a sum", _silu_back
    ),
    "sub": _element("abs(y - float32(y))", "the difference, to the nearest", _once),
    "mul": _element("abs(y - float32(y))", "the product, to the nearest", _once),
    "sqr": _element("abs(y - float32(y))", "the product, to the nearest", _once),
    "div": _element("5 abs(y)", "the quotient, within 2.5 units", _of_result(5)),
    "sqrt": _element("6 abs(y)", "the root, within 3 units", _of_result(6)),
    "exp": _element("6 abs(y)", "the power, within 3 units", _of_result(6)),
    "expm1": _element("6 abs(y)", "the power less 1, within 3 units", _of_result(6)),
    "log": _element("6 abs(y)", "the logarithm, within 3 units", _of_result(6)),
    "sin": _element("8 abs(y)", "the sine, within 4 units", _of_result(8)),
    "cos": _element("8 abs(y)", "the cosine, within 4 units", _of_result(8)),
    "tanh": _element("10 abs(y)", "the function, within 5 units", _of_result(10)),
    "scale": _element("3 (abs(s x) + abs(bias))", "s, bias, their product with x, the sum", _scale),
    "leaky_relu": _element("2 abs(y)", "the slope, the product", _of_result(2)),
    "elu": _element("6 abs(y)", "the power less 1, within 3 units", _of_result(6)),
    "sigmoid": _element("12 abs(y)", "the power, the sum, the quotient", _of_result(12)),
    "softplus": _element("8 + 6 abs(y)", "the power and the sum, of 1 or more; the logarithm", _softplus),
    "hardsigmoid": _element("8 (min(abs(x), 3) + 3) / 6", "the sum, the quotient, 1/6", _hardsigmoid),
    "hardswish": _element("as hardsigmoid, times abs(x), + abs(y)", "those of hardsigmoid, a product", _hardswish),
    "xielu": _element(
        "5 abs(ap x**2) or 12 abs(an) (abs(e**x - 1) + abs(x)), + 5 abs(beta x)",
        "the parameters, the power less 1, products, differences", _xielu,
    ),
    "silu": _element("14 abs(y)", "the power, the sum, the quotient, a product", _activation(Silu)),
    "gelu": _element(
        "8 abs(x) + abs(y)", "the argument and tanh, of at most 1, the sum 1 + tanh, products", _activation(Gelu)
    ),
    "gelu_erf": _element(
        "18 abs(x) + abs(y)", "the argument and erf, of at most 1, the sum 1 + erf, products", _activation(GeluErf)
    ),
    "gelu_quick": _element(
        "(14 + 4 abs(x)) abs(y)", "as silu, and 1.702 x, whose error the power turns into a factor",
        _activation(GeluQuick),
    ),
    "reglu": _element("abs(y - float32(y))", "the product, to the nearest", _once),
    "geglu": _glu("gelu"),
    "geglu_erf": _glu("gelu_erf"),
    "geglu_quick": _glu("gelu_quick"),
    "swiglu": _glu("silu"),
    "swiglu_oai": _element(
        "(18 + 3 abs(alpha u)) abs(u / (1 + e**(-alpha u))) (1 + min(abs(g), limit))",
        "as gelu_quick, the sum with 1, a product", _swiglu_oai,
    ),
    "rope": _element(
        "16 hypot(x0, x1) magnitude, of each pair",
        "sine and cosine, the magnitude, two products and their sum; the angle is as good as exact at any position, so "
        "it takes more than float32", _rope,
    ),
    "rope_back": _element("as rope", "as rope", _rope),
    "cumsum": _row("S size + abs(y), as sum_rows, of the elements up to i", "i sums", _cumsum),
    "repeat_back": _row("S size, as sum_rows, of what is added up", "the sums", _repeat_back),
    "get_rows_back": _row("S size, as sum_rows, of what is added up", "the sums", _get_rows_back),
    "group_norm": _row("as norm, of groups", "as norm", _group_norm),
    "rms_norm_back": _row(
        "(24 + 2 S) (r abs(dy) + r**3 abs(x mean)) + r**3 abs(x) S size / n, mean = sum(x dy) / n",
        "two sums of n products, the root, quotients, products", _rms_norm_back,
    ),
    "soft_max_back": _row(
        "abs(scale y) (8 (abs(dy) + abs(dot)) + S size), dot = sum(y dy)", "n products and sums, differences, products",
        _soft_max_back,
    ),
    "cross_entropy_loss": _row(
        "(2 + S/8) sum(labels (16 + S + 4 e + 2 sum(p e))) / rows + 8 abs(y), e = max(logits) - logit, p = softmax",
        "powers, sums, logarithms, products", _cross_entropy_loss,
    ),
    "cross_entropy_loss_back": _row(
        "abs(dy / rows) (p (24 + S + 2 e + 2 sum(p e)) + 8 labels)", "as soft_max, a difference, products",
        _cross_entropy_loss_back,
    ),
    "opt_step_adamw": _element(
        "8 abs(w) + (16 + 8 abs(v) / v') alpha beta1h (abs(beta1 m) + abs((1 - beta1) g)) / (sqrt(v' beta2h) + eps)",
        "moments, a root, quotients, products; moments themselves as ops without a rule", _adamw,
    ),
    "opt_step_sgd": _element("8 (abs(w) + abs(alpha g))", "products and a difference", _sgd),
    "out_prod": _row(
        "6 sqrt((K + 1) size**2 / 3), size = max(abs(y), 2 sqrt(sum((a b)**2)))", "the sums of K products", _out_prod
    ),
    "solve_tri": _element(
        "2 (n + 2) abs(a**-1) abs(a) abs(y)",
        "n products and sums, a quotient (N. J. Higham, Accuracy and stability of numerical algorithms, theorem 8.5)",
        _solve_tri,
    ),
    "sum_rows": _row("S size, size = max(abs(y), 2 sqrt(sum(x**2)))", "n sums", _sum_rows),
    "sum": _row("S size, as sum_rows", "n sums", _sum),
    "mean": _row("S size / n + 6 abs(y)", "n sums, the quotient", _mean),
    "norm": _row(
        "m + (16 + S/2 + m**2 UNIT) abs(y), m = (S size / n + 6 abs(mean)) / deviation",
        "the mean, m, by which all elements move; n squares and sums, the root, the quotient", _norm,
    ),
    "rms_norm": _row(
        "(16 + S/2) abs(y)", "n squares and sums, half of whose error is the root's, the quotient", _scaled_row
    ),
    "l2_norm": _row("(16 + S/2) abs(y)", "as rms_norm", _scaled_row),
    "soft_max": _row(
        "y (12 + S + e + sum(y e) + 2 abs(max)), e = 3 abs(scale x) + abs(mask) + 2 abs(logit) + abs(max)",
        "logits, whose errors the power turns into factors; powers, n sums, the quotient; 34 abs(mask) with ALiBi's "
        "slopes, which are powers", _soft_max,
    ),
    "mul_mat": _PRODUCT,
    "mul_mat_id": _PRODUCT,
    "flash_attn_ext": _row(
        "sum(p (16 + 4 S + e + sum(p e)) abs(v)) + S size, p the shares, e = scale (S(dk) size + r) + 4 abs(logit) + "
        "10 min(cap, abs(logit)) + abs(mask) + 2 abs(logit - max) + 2 abs(max), S and size as products have them",
        "logits as products, r of queries and shares rounded to the types of k and v; the rest as soft_max, and as "
        "products of its shares; powers are rounded again with every block of keys that brings a larger logit",
        _flash_attn_ext,
    ),
    "flash_attn_back": _row(
        "with g = d v, p the shares, e(p) their roundings: of v's gradient sum(e(p) abs(d)), of those of q and k "
        "scale sum((e(p) (abs(g) + m) + p (e(g) + e(m) + 24 abs(g) + 24 m)) abs(k or q)), m = sum(p abs(g)), each + "
        "S size of its sums; of the sinks' what is left of p for them in the place of p",
        "shares as in flash_attn_ext, and products of them", _flash_attn_back,
    ),
    **dict.fromkeys(("conv_2d_direct", "conv_2d_dw_direct", "conv_3d_direct"), _CONVOLVED),
    **dict.fromkeys(("conv_transpose_1d", "conv_transpose_2d", "ssm_conv"), _CONVOLVED),
    **dict.fromkeys(("im2col_back", "col2im_1d"), _GATHERED),
    **dict.fromkeys(("pool_1d", "pool_2d"), _POOLED),
    "pool_2d_back": _element(
        "(6 + 3.46 sqrt(k0 k1)) sum(abs(grad))", "the quotient, the sums of windows", _pooled_back
    ),
    "interpolate": _element(
        "(32 + 8 n) max(abs(x)), n the largest extent; 0 of NEAREST",
        "where a new pixel lies, of up to n; weights, products, sums", _interpolated,
    ),
    **dict.fromkeys(
        ("map_custom1", "map_custom2", "map_custom3", "custom_4d"),
        Rule("Python functions", "0", "nothing: every device calls the same function", _none),
    ),
    "lightning_indexer": _element(
        "sum(abs(w) (3.46 sqrt(n + 1) size + (heads + 2) abs(q k))) + 2 abs(y) + abs(y - mask), size as of products",
        "n products and sums of each head, their products with weights, sums", _indexed,
    ),
    "dsv4_hc_comb": _element(
        "2 abs(y) (24 + 4 max(5 abs(scale mixes) + 3 abs(base)) + 16 n_iter)",
        "logits, whose errors the powers turn into factors; sums and quotients, which never widen ratios of errors",
        _balanced,
    ),
    **dict.fromkeys(
        ("dsv4_hc_pre", "dsv4_hc_post"), _element("(H + 3) f(abs(sources))", "H products and sums", _mixed)
    ),
    "add_rel_pos": _element("2 (abs(a) + abs(pw) + abs(ph))", "two sums", _positions),
    **dict.fromkeys(("rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn"), _TOKENS),
    "ssm_scan": _element(
        "(S + (T + 1) (16 + max(e))) f(abs(sources)), e = (8 + 6 dt) (max(abs(a)) + 1 / dt) + 4 dt",
        "softplus, the power of dt a, products and sums of each of T tokens", _scanned,
    ),
    "gated_delta_net": _element(
        "(S + 64 + 16 T) (1 + beta abs(k)**2)**T size max(1, abs(q) / sqrt(S)), of the longest q and k and the largest "
        "beta; size = abs(state) + T beta abs(k) abs(v)",
        "the power of g, products and sums of each of T tokens, each of which the next ones multiply", _delta,
    ),
}  # fmt: skip
"""The rule of each op, by its name.  Ops outside core may add theirs; without one an op has :data:`OTHER`.

``S`` is ``SUMMED sqrt(n)`` for rows of n elements.
"""


def _largest(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    given = [exact, *(each for each in sources if each is not None and each.dtype.kind == "f")]
    return np.full_like(exact, 32 * max(np.abs(each).max(initial=0, where=np.isfinite(each)) for each in given))


OTHER = Rule("other", "32 max(abs(y), abs(sources))", "whatever the op does in float32", _largest)
"""The rule of an op from elsewhere that brings none."""


def rule_of(node: Tensor) -> Rule:
    """The rule of a node's op."""
    assert node.op is not None
    return RULES.get(node.op.name, OTHER)


def room(node: Tensor, exact: Array, sources: Sequence[Array | None]) -> Array:
    """How far each element of ``node`` may be from ``exact`` before both are rounded to the node's type.

    ``exact``: the reference of ``sources``; all four-dimensional, in NumPy order.  0 where ``exact`` is not finite.
    """
    rule = rule_of(node)
    if rule.room is _none:
        return np.zeros_like(exact)
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        roundings = np.broadcast_to(rule.room(node, exact, *sources), exact.shape)
        if (np.isnan(roundings) & finite).any():
            # A number that is not finite has entered elements that it has no part in: sums of a whole row, say.
            tamed = [None if each is None else _tamed(each) for each in sources]
            without = np.broadcast_to(rule.room(node, np.where(finite, exact, 0), *tamed), exact.shape)
            roundings = np.where(np.isnan(roundings), without, roundings)
        return np.where(finite, np.nan_to_num(roundings, nan=0.0, posinf=np.inf) * UNIT, 0.0)


def _tamed(values: Array) -> Array:
    """With 0 in the place of what is not finite."""
    return values if values.dtype.kind != "f" else np.where(np.isfinite(values), values, 0)


def mean_square(count: int) -> float:
    """How often its expectation the mean of ``count`` square errors may be; see the module's docstring."""
    return 2 * (1 + DEVIATIONS * math.sqrt(2 / max(1, count)))


_SPECIAL = """## Special values

NaN, infinities and signed zeros come out of a formula as its own operations in IEEE arithmetic have them, and have to
agree. Where ggml's CPU backend and NumPy differ, it is ggml's answer:

| op | NaN | in NumPy |
| --- | --- | --- |
| `relu`, `leaky_relu`, `step`, `sgn`, `hardsigmoid`, `reglu` | 0, as `x > 0` is false | `maximum`, `sign` keep it |
| `clamp` | `max`: `x < max` is false | `clip` keeps it |
| `argmax` | smaller than every number | `argmax` chooses the first NaN |
| `argsort` | comes last in both orders | comes last in the ascending order, the only one |
| `l2_norm` | the other numbers of its row are divided by eps, as by C's `fmaxf` | `maximum` makes the row NaN |

Products with weights in blocks make what an infinity or a NaN enters not finite, one or the other. Zeros have to
agree in their sign where an op's operations are exact or rounded once.
"""


def page() -> str:
    """``docs/precision.md``."""
    text = (__doc__ or "").replace("``", "`")
    heading, _, derivation = text.partition("\n\n")
    rows = ["| op | kind | how far, in units of 2\\*\\*-24 | what is rounded |", "| --- | --- | --- | --- |"]
    groups: dict[int, list[str]] = {}
    for name, rule in RULES.items():
        groups.setdefault(id(rule), []).append(name)
    for names in groups.values():
        rule = RULES[names[0]]
        shown = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {shown} | {rule.kind} | `{rule.bound}` | {rule.why} |")
    other = f"| others | {OTHER.kind} | `{OTHER.bound}` | {OTHER.why} |"
    made = "Made by `python -m ggplug.testing.precision`; `S` is `SUMMED sqrt(n)`, 3.46 sqrt(n), for rows of n."
    parts = ["# Precision", heading, derivation.strip(), "## The table", made, "\n".join([*rows, other]), _SPECIAL]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")

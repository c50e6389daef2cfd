"""The kernels of single nodes: ``kernel(op, dst, *src)`` over values in place.

Formulas are computed in float64 and rounded once; products in float32.  A result may lie on one of its sources, so
each kernel is done with reading before it stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from tests.mutation.subject.formulas import BINARY, GATED, ROWS, UNARY, Formula
from tests.mutation.subject.values import Array, Values, move, repeated, single, store, wide

LARGEST = float(np.finfo(np.float32).max)
"""Beyond this logits are infinite."""

PANEL = 512
"""Columns of weights that a product takes at once."""


def cannot(node: Tensor) -> str:
    """Why none of the kernels computes a node, besides its types; empty if nothing is in the way."""
    op = node.op
    if isinstance(op, ops.Rope) and (op.ext_factor or op.mode not in (RopeMode.NORMAL, RopeMode.NEOX)):
        return "rope turns pairs in the modes NORMAL and NEOX, without YaRN"
    return ""


def of_one(formula: Formula, op: Any, dst: Values, x: Values) -> None:
    store(dst, formula(op, wide(x)))


def of_two(formula: Formula, op: Any, dst: Values, a: Values, b: Values) -> None:
    store(dst, formula(op, wide(a), repeated(wide(b), a.bits.shape)))


def of_gate(formula: Formula, op: Any, dst: Values, x: Values, gate: Values | None = None) -> None:
    if gate is None:
        both, n = wide(x), x.bits.shape[-1] // 2
        first, second = both[..., :n], both[..., n : 2 * n]
        if op.swapped:
            first, second = second, first
    else:
        first, second = wide(x), wide(gate)
    store(dst, formula(op, first, second))


def argmax(op: Any, dst: Values, x: Values) -> None:
    values = wide(x)
    highest = np.where(np.isnan(values), -math.inf, values).max(-1, keepdims=True, initial=-math.inf)
    dst.bits[...] = (values == highest).argmax(-1).reshape(dst.bits.shape)  # 0 where all are NaN


def argsort(op: Any, dst: Values, x: Values) -> None:
    dst.bits[...] = np.argsort(-wide(x) if op.order else wide(x), axis=-1, kind="stable")


def slopes(heads: int, max_bias: float) -> Array:
    """ALiBi's slope of each head."""
    if not max_bias:
        return np.ones(heads)
    power = 1 << int(math.log2(heads))
    first, between = 2.0 ** (-max_bias / power), 2.0 ** (-max_bias / 2 / power)
    return np.array([first ** (h + 1) if h < power else between ** (2 * (h - power) + 1) for h in range(heads)])


def soft_max(op: Any, dst: Values, x: Values, mask: Values | None, sinks: Values | None) -> None:
    logits = wide(x) * op.scale
    heads = logits.shape[1]
    if not logits.size:
        return
    if mask is not None:
        shown = repeated(wide(mask)[:, :, : logits.shape[2]], logits.shape)
        logits = logits + slopes(heads, op.max_bias).reshape(1, heads, 1, 1) * shown
    logits = np.where(np.abs(logits) > LARGEST, np.copysign(math.inf, logits), logits)
    sink = np.full((1, heads, 1, 1), -math.inf) if sinks is None else wide(sinks).reshape(1, heads, 1, 1)
    highest = np.maximum(logits.max(-1, keepdims=True), sink)
    weights = np.exp(logits - highest)
    store(dst, weights / (weights.sum(-1, keepdims=True) + np.exp(sink - highest)))


def rope(op: Any, dst: Values, x: Values, pos: Values, freq_factors: Values | None) -> None:
    pairs = op.n_dims // 2
    exponents = -2.0 * np.arange(pairs) / op.n_dims
    angles = wide(pos).reshape(-1, 1) * op.freq_base**exponents
    if freq_factors is not None:
        angles = angles / wide(freq_factors).reshape(-1)[:pairs]
    angles = (op.freq_scale * angles)[:, np.newaxis, :]
    cos, sin = np.cos(angles) * op.attn_factor, np.sin(angles) * op.attn_factor
    i = np.arange(pairs)
    first, second = (2 * i, 2 * i + 1) if op.mode == RopeMode.NORMAL else (i, i + pairs)
    first, second = first + op.n_offs, second + op.n_offs
    values = wide(x)
    turned = values.copy()
    turned[..., first] = values[..., first] * cos - values[..., second] * sin
    turned[..., second] = values[..., first] * sin + values[..., second] * cos
    store(dst, turned)


def multiply(rows: Array, columns: Array) -> Array:
    """[n, m] = [n, k] times [m, k] turned, a panel of k after the other."""
    found = np.zeros((len(columns), len(rows)), np.float32)
    for start in range(0, rows.shape[1], PANEL):
        end = start + PANEL
        found += columns[:, start:end] @ rows[:, start:end].T
    return found


def products(weights: Array, columns: Array) -> Array:
    """The product of each matrix of columns; a matrix of weights serves several consecutive ones."""
    outer, inner, n, _ = columns.shape
    found = np.zeros((outer, inner, n, weights.shape[2]), np.float32)
    for k in range(outer):
        for j in range(inner):
            matrix = weights[k // (outer // weights.shape[0]), j // (inner // weights.shape[1])]
            found[k, j] = multiply(matrix, columns[k, j])
    return found


def mul_mat(op: Any, dst: Values, a: Values, b: Values) -> None:
    store(dst, products(single(a), single(b)))


def mul_mat_id(op: Any, dst: Values, experts: Values, b: Values, ids: Values) -> None:
    weights, columns, chosen = single(experts)[0], single(b)[0], ids.bits[0, 0]
    found = np.zeros(dst.bits.shape, np.float32)
    for token in range(chosen.shape[0]):
        for slot in range(chosen.shape[1]):
            expert = int(chosen[token, slot])
            if 0 <= expert < len(weights):
                column = columns[token, slot % columns.shape[1]]
                found[0, token, slot] = multiply(weights[expert], column[np.newaxis])[0]
    store(dst, found)


def copy(op: Any, dst: Values, x: Values, *written: Values) -> None:
    move(dst, Values(x.type, x.bits.copy()))


def concat(op: Any, dst: Values, a: Values, b: Values) -> None:
    dst.bits[...] = np.concatenate((a.bits, b.bits), axis=3 - op.dim)


def repeat(op: Any, dst: Values, x: Values) -> None:
    dst.bits[...] = repeated(x.bits, dst.bits.shape)


def get_rows(op: Any, dst: Values, table: Values, ids: Values) -> None:
    source = table if not table.type.is_quantized else Values(dst.type, wide(table).astype(dst.bits.dtype))
    rows = ids.bits[0]
    inside = (rows >= 0) & (rows < source.bits.shape[2])
    picked = np.zeros((*rows.shape, source.bits.shape[3]), source.bits.dtype)
    k, j, i = np.nonzero(inside)
    picked[k, j, i] = source.bits[k, j, rows[k, j, i]]
    move(dst, Values(source.type, picked))


def set_rows(op: Any, dst: Values, written: Values, rows: Values, ids: Values) -> None:
    for k in range(rows.bits.shape[0]):
        for j in range(rows.bits.shape[1]):
            chosen = ids.bits[0, k % ids.bits.shape[1], j % ids.bits.shape[2]]
            inside = (chosen >= 0) & (chosen < dst.bits.shape[2])
            target = np.zeros((1, 1, int(inside.sum()), dst.bits.shape[3]), dst.bits.dtype)
            move(Values(dst.type, target), Values(rows.type, rows.bits[k : k + 1, j : j + 1, inside]))
            dst.bits[k, j, chosen[inside]] = target[0, 0]


KERNELS: dict[Any, Callable[..., None]] = {
    **{op: partial(of_one, formula) for op, formula in {**UNARY, **ROWS}.items()},
    **{op: partial(of_two, formula) for op, formula in BINARY.items()},
    **{op: partial(of_gate, formula) for op, formula in GATED.items()},
    ops.Argmax: argmax,
    ops.Argsort: argsort,
    ops.SoftMax: soft_max,
    ops.Rope: rope,
    ops.MulMat: mul_mat,
    ops.MulMatId: mul_mat_id,
    ops.Cont: copy,
    ops.Dup: copy,
    ops.Cpy: copy,
    ops.Concat: concat,
    ops.Repeat: repeat,
    ops.GetRows: get_rows,
    ops.SetRows: set_rows,
}

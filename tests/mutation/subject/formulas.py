"""Formulas over float64: functions of one number, of two, of a number and its gate, and of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug import ops
from tests.mutation.subject.values import Array


def absolute(op: Any, x: Array) -> Array:
    return np.abs(x)


def sgn(op: Any, x: Array) -> Array:
    return np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0))


def neg(op: Any, x: Array) -> Array:
    return -x


def step(op: Any, x: Array) -> Array:
    return np.where(x > 0, 1.0, 0.0)


def sqr(op: Any, x: Array) -> Array:
    return x * x


def sqrt(op: Any, x: Array) -> Array:
    return np.sqrt(x)


def log(op: Any, x: Array) -> Array:
    return np.log(x)


def exp(op: Any, x: Array) -> Array:
    return np.exp(x)


def expm1(op: Any, x: Array) -> Array:
    return np.expm1(x)


def sin(op: Any, x: Array) -> Array:
    return np.sin(x)


def cos(op: Any, x: Array) -> Array:
    return np.cos(x)


def floor(op: Any, x: Array) -> Array:
    return np.floor(x)


def ceil(op: Any, x: Array) -> Array:
    return np.ceil(x)


def round_half_away(op: Any, x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def trunc(op: Any, x: Array) -> Array:
    return np.trunc(x)


def tanh(op: Any, x: Array) -> Array:
    return np.tanh(x)


def relu(op: Any, x: Array) -> Array:
    return np.where(x > 0, x, 0.0)


def elu(op: Any, x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(x))


def sigmoid(op: Any, x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(op: Any, x: Array) -> Array:
    return np.logaddexp(0.0, x)


def silu(op: Any, x: Array) -> Array:
    return x * sigmoid(op, x)


def gelu(op: Any, x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def gelu_erf(op: Any, x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu_quick(op: Any, x: Array) -> Array:
    return x * sigmoid(op, 1.702 * x)


def hardsigmoid(op: Any, x: Array) -> Array:
    return np.fmin(np.fmax((x + 3) / 6, 0.0), 1.0)


def hardswish(op: Any, x: Array) -> Array:
    return x * hardsigmoid(op, x)


def scale(op: Any, x: Array) -> Array:
    return x * op.s + op.bias


def clamp(op: Any, x: Array) -> Array:
    below = np.where(x < op.max, x, op.max)
    return np.where(below > op.min, below, op.min)


def leaky_relu(op: Any, x: Array) -> Array:
    return relu(op, x) - op.negative_slope * relu(op, -x)


def xielu(op: Any, x: Array) -> Array:
    negative = op.alpha_n * (np.expm1(np.minimum(x, op.eps)) - x)
    return np.where(x > 0, op.alpha_p * x * x, negative) + op.beta * x


def add(op: Any, a: Array, b: Array) -> Array:
    return a + b


def sub(op: Any, a: Array, b: Array) -> Array:
    return a - b


def mul(op: Any, a: Array, b: Array) -> Array:
    return a * b


def div(op: Any, a: Array, b: Array) -> Array:
    return a / b


def reglu(op: Any, x: Array, gate: Array) -> Array:
    return np.where(x > 0, x * gate, 0.0)


def geglu(op: Any, x: Array, gate: Array) -> Array:
    return gelu(op, x) * gate


def geglu_erf(op: Any, x: Array, gate: Array) -> Array:
    return gelu_erf(op, x) * gate


def geglu_quick(op: Any, x: Array, gate: Array) -> Array:
    return gelu_quick(op, x) * gate


def swiglu(op: Any, x: Array, gate: Array) -> Array:
    return silu(op, x) * gate


def swiglu_oai(op: Any, x: Array, gate: Array) -> Array:
    u = np.minimum(x, op.limit)
    return u * sigmoid(op, op.alpha * u) * (1 + np.clip(gate, -op.limit, op.limit))


def norm(op: Any, x: Array) -> Array:
    n = x.shape[-1]
    centred = x - x.sum(-1, keepdims=True) / n
    return centred / np.sqrt((centred * centred).sum(-1, keepdims=True) / n + op.eps)


def rms_norm(op: Any, x: Array) -> Array:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / x.shape[-1] + op.eps)


def l2_norm(op: Any, x: Array) -> Array:
    return x / np.fmax(np.sqrt((x * x).sum(-1, keepdims=True)), op.eps)


def sum_rows(op: Any, x: Array) -> Array:
    return x.sum(-1, keepdims=True)


def mean(op: Any, x: Array) -> Array:
    return x.sum(-1, keepdims=True) / np.float64(x.shape[-1])


def total(op: Any, x: Array) -> Array:
    return x.sum().reshape(1, 1, 1, 1)


Formula = Callable[..., Array]

UNARY: dict[Any, Formula] = {
    ops.Abs: absolute,
    ops.Sgn: sgn,
    ops.Neg: neg,
    ops.Step: step,
    ops.Sqr: sqr,
    ops.Sqrt: sqrt,
    ops.Log: log,
    ops.Exp: exp,
    ops.Expm1: expm1,
    ops.Sin: sin,
    ops.Cos: cos,
    ops.Floor: floor,
    ops.Ceil: ceil,
    ops.Round: round_half_away,
    ops.Trunc: trunc,
    ops.Tanh: tanh,
    ops.Relu: relu,
    ops.Elu: elu,
    ops.Sigmoid: sigmoid,
    ops.Softplus: softplus,
    ops.Silu: silu,
    ops.Gelu: gelu,
    ops.GeluErf: gelu_erf,
    ops.GeluQuick: gelu_quick,
    ops.Hardsigmoid: hardsigmoid,
    ops.Hardswish: hardswish,
    ops.Scale: scale,
    ops.Clamp: clamp,
    ops.LeakyRelu: leaky_relu,
    ops.Xielu: xielu,
}
BINARY: dict[Any, Formula] = {ops.Add: add, ops.Sub: sub, ops.Mul: mul, ops.Div: div}
GATED: dict[Any, Formula] = {
    ops.Reglu: reglu,
    ops.Geglu: geglu,
    ops.GegluErf: geglu_erf,
    ops.GegluQuick: geglu_quick,
    ops.Swiglu: swiglu,
    ops.SwigluOai: swiglu_oai,
}
ROWS: dict[Any, Formula] = {
    ops.Norm: norm,
    ops.RmsNorm: rms_norm,
    ops.L2Norm: l2_norm,
    ops.SumRows: sum_rows,
    ops.Mean: mean,
    ops.Sum: total,
}

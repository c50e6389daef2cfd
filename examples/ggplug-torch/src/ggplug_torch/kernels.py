"""The kernels: one function for each op, over four-dimensional tensors of PyTorch, outermost axis first.

Formulas are computed in float64 and rounded once, when the result is stored; products in float32.  A result may lie on
one of its sources, so each kernel is done with reading before it stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug.types import RopeMode

T = torch.Tensor

LARGEST = torch.finfo(torch.float32).max
"""Beyond this logits are infinite."""


def cannot(node: Tensor) -> str:
    """Why no kernel computes a node, apart from its types; empty if one does."""
    op = node.op
    if isinstance(op, ops.Rope) and (op.ext_factor or op.mode not in (RopeMode.NORMAL, RopeMode.NEOX)):
        return "rope rotates pairs in the modes NORMAL and NEOX, without YaRN"
    return ""


def wide(x: Any) -> T:
    """Values to compute with: float64; of a block type too."""
    return (x if isinstance(x, torch.Tensor) else x.float()).double()


def store(dst: T, values: T) -> None:
    """Rounds values to the type of the result.  Floats become integers by cutting; what does not fit, the nearest."""
    if dst.dtype.is_floating_point or dst.dtype == values.dtype:
        dst.copy_(values)
        return
    limits = torch.iinfo(dst.dtype)
    if not values.dtype.is_floating_point:
        dst.copy_(values.long().clamp(limits.min, limits.max))
        return
    cut = values.double().nan_to_num(0.0, float(limits.max), float(limits.min)).trunc()
    whole = cut.clamp(float(limits.min), math.nextafter(float(limits.max), 0)).to(dst.dtype)
    dst.copy_(torch.where(cut >= float(limits.max), torch.full_like(whole, limits.max), whole))


def repeated(x: T, shape: torch.Size) -> T:
    """A tensor repeated along each axis to a shape that is a multiple of its own."""
    return x.repeat([to // n if n else 1 for to, n in zip(shape, x.shape, strict=True)])


# -- functions of one number, and of two


def unary(formula: Callable[[Any, T], T]) -> Callable[..., None]:
    """A kernel of ``formula(op, x)``."""

    def kernel(op: Any, dst: T, x: T) -> None:
        store(dst, formula(op, wide(x)))

    return kernel


def binary(formula: Callable[[T, T], T]) -> Callable[..., None]:
    """A kernel of ``formula(a, b)``, b repeated to a's shape."""

    def kernel(op: Any, dst: T, a: T, b: T) -> None:
        store(dst, formula(wide(a), repeated(wide(b), a.shape)))

    return kernel


def glu(formula: Callable[[Any, T, T], T]) -> Callable[..., None]:
    """A kernel of ``formula(op, x, gate)``, two tensors or the halves of one."""

    def kernel(op: Any, dst: T, x: T, gate: T | None = None) -> None:
        if gate is None:
            n = x.shape[-1] // 2
            x, gate = x[..., :n], x[..., n : 2 * n]
            if op.swapped:
                x, gate = gate, x
        store(dst, formula(op, wide(x), wide(gate)))

    return kernel


def positive(x: T) -> T:
    """x where it is greater than 0, else 0; of NaN too."""
    return torch.where(x > 0, x, 0.0)


def gelu(x: T) -> T:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def gelu_erf(x: T) -> T:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def silu(x: T, slope: float = 1.0) -> T:
    return x * torch.sigmoid(slope * x)


def hardsigmoid(x: T) -> T:
    return torch.fmin(torch.fmax((x + 3) / 6, torch.zeros(())), torch.ones(()))


def clamp(op: Any, x: T) -> T:
    below = torch.where(x < op.max, x, op.max)
    return torch.where(below > op.min, below, op.min)


def xielu(op: Any, x: T) -> T:
    negative = op.alpha_n * (torch.expm1(x.clamp(max=op.eps)) - x)
    return torch.where(x > 0, op.alpha_p * x * x, negative) + op.beta * x


def swiglu_clamp(op: Any, x: T, gate: T) -> T:
    return silu(x.clamp(max=op.limit)) * gate.clamp(-op.limit, op.limit)


def swiglu_oai(op: Any, x: T, gate: T) -> T:
    u = x.clamp(max=op.limit)
    return silu(u, op.alpha) * (1 + gate.clamp(-op.limit, op.limit))


# -- rows


def norm(op: Any, x: T) -> T:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + op.eps)


def rms_norm(op: Any, x: T) -> T:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + op.eps)


def l2_norm(op: Any, x: T) -> T:
    length = torch.sqrt(x.square().sum(-1, keepdim=True))
    return x / torch.fmax(length, torch.full((), op.eps, dtype=torch.float64))


def argmax(op: Any, dst: T, x: T) -> None:
    highest = torch.where(x.isnan(), -math.inf, wide(x)).amax(-1, keepdim=True)
    columns = torch.arange(x.shape[-1]).expand(x.shape)
    first = torch.where(wide(x) == highest, columns, x.shape[-1]).amin(-1) % x.shape[-1]  # 0 where all are NaN
    dst.copy_(first.reshape(dst.shape))


def argsort(op: Any, dst: T, x: T) -> None:
    dst.copy_(torch.argsort(-wide(x) if op.order else wide(x), dim=-1, stable=True))


def soft_max(op: Any, dst: T, x: T, mask: T | None, sinks: T | None) -> None:
    heads = x.shape[1]
    logits = wide(x) * op.scale
    if mask is not None:
        slopes = torch.from_numpy(ops.alibi_slopes(heads, op.max_bias)).reshape(1, heads, 1, 1)
        logits = logits + slopes * repeated(wide(mask)[:, :, : x.shape[2]], x.shape)
    logits = torch.where(logits.abs() > LARGEST, torch.copysign(torch.full((), math.inf), logits), logits)
    sink = torch.full((1, heads, 1, 1), -math.inf) if sinks is None else wide(sinks).reshape(1, heads, 1, 1)
    if x.numel():
        highest = torch.maximum(logits.amax(-1, keepdim=True), sink)
        weights = torch.exp(logits - highest)
        store(dst, weights / (weights.sum(-1, keepdim=True) + torch.exp(sink - highest)))


def rope(op: Any, dst: T, x: T, pos: T, freq_factors: T | None) -> None:
    pairs = op.n_dims // 2
    angles = wide(pos).reshape(-1, 1) * op.freq_base ** (-2.0 * torch.arange(pairs, dtype=torch.float64) / op.n_dims)
    if freq_factors is not None:
        angles = angles / wide(freq_factors).reshape(-1)[:pairs]
    angles = (op.freq_scale * angles)[:, None, :]
    cos, sin = torch.cos(angles) * op.attn_factor, torch.sin(angles) * op.attn_factor
    i = torch.arange(pairs)
    first, second = (2 * i, 2 * i + 1) if op.mode == RopeMode.NORMAL else (i, i + pairs)
    first, second = first + op.n_offs, second + op.n_offs
    values = wide(x)
    out = values.clone()
    out[..., first] = values[..., first] * cos - values[..., second] * sin
    out[..., second] = values[..., first] * sin + values[..., second] * cos
    store(dst, out)


# -- matrices


def product(x: Any) -> T:
    """What products are made of: float32; of a block type too."""
    return (x if isinstance(x, torch.Tensor) else x.float()).float()


def mul_mat(op: Any, dst: T, a: Any, b: Any) -> None:
    weights, columns = product(a), product(b)
    for axis in (0, 1):
        weights = weights.repeat_interleave(columns.shape[axis] // max(1, weights.shape[axis]), axis)
    dst.copy_(torch.matmul(columns, weights.transpose(-1, -2)))


def mul_mat_id(op: Any, dst: T, experts: Any, b: Any, ids: T) -> None:
    weights, columns, chosen = product(experts)[0], product(b)[0], ids[0, 0]
    result = torch.zeros(dst.shape)
    for expert in chosen.unique().tolist():
        if 0 <= expert < len(weights):
            token, slot = torch.nonzero(chosen == expert, as_tuple=True)
            rows = columns[token, slot % max(1, columns.shape[1])]
            result[0, token, slot] = rows @ weights[expert].T
    dst.copy_(result)


# -- moving


def converted(values: T, dtype: torch.dtype) -> T:
    """Floats in another type.  A NaN loses its payload in float16; otherwise it keeps the bits that fit, made quiet."""
    found = values.to(dtype)
    if dtype == torch.float16:
        nan = torch.where(values.signbit(), -0x200, 0x7E00).to(torch.int16)
    elif dtype == torch.bfloat16:
        nan = (values.float().contiguous().view(torch.int32) >> 16 | 0x40).to(torch.int16)
    elif (values.dtype, dtype) == (torch.float16, torch.float32):
        bits = values.contiguous().view(torch.int16).long()
        nan = ((bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13).to(torch.int32)
    else:
        return found
    return torch.where(values.isnan(), nan.view(dtype), found)


def move(dst: T, values: T) -> None:
    """Copies elements, converted if the types differ."""
    if dst.dtype.is_floating_point and values.dtype.is_floating_point and dst.dtype != values.dtype:
        dst.copy_(converted(values, dst.dtype))
    else:
        store(dst, values)


def copy(op: Any, dst: T, x: T, *written: T) -> None:
    move(dst, x.clone().reshape(dst.shape))


def concat(op: Any, dst: T, a: T, b: T) -> None:
    dst.copy_(torch.cat((a, b), 3 - op.dim))


def repeat(op: Any, dst: T, x: T) -> None:
    dst.copy_(repeated(x, dst.shape))


def get_rows(op: Any, dst: T, a: Any, ids: T) -> None:
    table = a if isinstance(a, torch.Tensor) else a.float()
    rows = ids[0].long()
    inside = (rows >= 0) & (rows < table.shape[2])
    result = torch.zeros(dst.shape, dtype=table.dtype)
    k, j, i = torch.nonzero(inside, as_tuple=True)
    result[k, j, i] = table[k, j, rows[k, j, i]]
    move(dst, result)


def set_rows(op: Any, dst: T, written: T, rows: T, ids: T) -> None:
    for k in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            chosen = ids[0, k % ids.shape[1], j % ids.shape[2]].long()
            inside = (chosen >= 0) & (chosen < dst.shape[2])
            moved = torch.empty((int(inside.sum()), dst.shape[3]), dtype=dst.dtype)
            move(moved, rows[k, j, inside])
            dst[k, j, chosen[inside]] = moved


KERNELS: dict[Any, Callable[..., None]] = {
    ops.Abs: unary(lambda op, x: x.abs()),
    ops.Sgn: unary(lambda op, x: torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, 0.0))),
    ops.Neg: unary(lambda op, x: -x),
    ops.Step: unary(lambda op, x: torch.where(x > 0, 1.0, 0.0)),
    ops.Sqr: unary(lambda op, x: x * x),
    ops.Sqrt: unary(lambda op, x: x.sqrt()),
    ops.Log: unary(lambda op, x: x.log()),
    ops.Exp: unary(lambda op, x: x.exp()),
    ops.Expm1: unary(lambda op, x: x.expm1()),
    ops.Sin: unary(lambda op, x: x.sin()),
    ops.Cos: unary(lambda op, x: x.cos()),
    ops.Floor: unary(lambda op, x: x.floor()),
    ops.Ceil: unary(lambda op, x: x.ceil()),
    ops.Round: unary(lambda op, x: torch.copysign((x.abs() + 0.5).floor(), x)),
    ops.Trunc: unary(lambda op, x: x.trunc()),
    ops.Tanh: unary(lambda op, x: x.tanh()),
    ops.Relu: unary(lambda op, x: positive(x)),
    ops.Elu: unary(lambda op, x: torch.where(x > 0, x, x.expm1())),
    ops.Sigmoid: unary(lambda op, x: x.sigmoid()),
    ops.Softplus: unary(lambda op, x: torch.logaddexp(torch.zeros_like(x), x)),
    ops.Silu: unary(lambda op, x: silu(x)),
    ops.Gelu: unary(lambda op, x: gelu(x)),
    ops.GeluErf: unary(lambda op, x: gelu_erf(x)),
    ops.GeluQuick: unary(lambda op, x: silu(x, 1.702)),
    ops.Hardsigmoid: unary(lambda op, x: hardsigmoid(x)),
    ops.Hardswish: unary(lambda op, x: x * hardsigmoid(x)),
    ops.Scale: unary(lambda op, x: x * op.s + op.bias),
    ops.Clamp: unary(clamp),
    ops.LeakyRelu: unary(lambda op, x: positive(x) - op.negative_slope * positive(-x)),
    ops.Xielu: unary(xielu),
    ops.Add: binary(torch.add),
    ops.Sub: binary(torch.sub),
    ops.Mul: binary(torch.mul),
    ops.Div: binary(torch.div),
    ops.Reglu: glu(lambda op, x, gate: torch.where(x > 0, x * gate, 0.0)),
    ops.Geglu: glu(lambda op, x, gate: gelu(x) * gate),
    ops.GegluErf: glu(lambda op, x, gate: gelu_erf(x) * gate),
    ops.GegluQuick: glu(lambda op, x, gate: silu(x, 1.702) * gate),
    ops.Swiglu: glu(lambda op, x, gate: silu(x) * gate),
    ops.SwigluClamp: glu(swiglu_clamp),
    ops.SwigluOai: glu(swiglu_oai),
    ops.Norm: unary(norm),
    ops.RmsNorm: unary(rms_norm),
    ops.L2Norm: unary(l2_norm),
    ops.SumRows: unary(lambda op, x: x.sum(-1, keepdim=True)),
    ops.Mean: unary(lambda op, x: x.sum(-1, keepdim=True) / x.shape[-1]),
    ops.Sum: unary(lambda op, x: x.sum().reshape(1, 1, 1, 1)),
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

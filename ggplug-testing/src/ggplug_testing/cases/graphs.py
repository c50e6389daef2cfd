"""Graphs of many ops, as models have them: they find faults in how a device fuses, reorders or reuses memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from ggplug.ops.attention import soft_max
from ggplug.ops.base import Array
from ggplug.ops.copy import cast, cont, cpy
from ggplug.ops.elementwise import add, div, mul
from ggplug.ops.glu import swiglu
from ggplug.ops.matrix import mul_mat, mul_mat_id
from ggplug.ops.norms import norm, rms_norm
from ggplug.ops.reduce import sum_rows
from ggplug.ops.rotary import rope
from ggplug.ops.rows import get_rows, set_rows
from ggplug.ops.sort import argsort
from ggplug.ops.unary import gelu, relu, scale, sigmoid, silu, sin, sqr
from ggplug.ops.views import permute, reshape, view
from ggplug.tensor import Tensor
from ggplug.types import F16, F32, I32, I64, Q8_0, Type
from ggplug_testing.cases.case import Case, Leafs, labelled

SUBJECT = "graph"
"""What reports call these cases, in the place of an op."""

_HEADS, _HEAD, _WIDTH, _TOKENS = 4, 16, 64, 5


def graph_cases() -> list[Case]:
    """All graphs."""
    return labelled(_all())


def _all() -> Iterator[Case]:
    for weights in (F32, F16, Q8_0):
        name = weights.name
        yield _case(f"{name} feed forward", partial(_feed_forward, type=weights))
        yield _case(f"{name} gated feed forward", partial(_gated, type=weights))
        yield _case(f"{name} self attention", partial(_attention, type=weights))
        yield _case(f"{name} mixture of experts", partial(_experts, type=weights))
    for cache in (F32, F16):
        yield _case(f"{cache.name} cache of keys and values", partial(_cached, type=cache))
    yield _case("norm, weight, bias", _norm_weight_bias)
    yield _case("a result that several nodes read", _diamond)
    yield _case("a result that is read again much later", _long_lived)
    yield _case("copies into the parts of a tensor", _parts)
    yield _case("periodic activation", _snake)
    yield _case("views of views of results", _views)
    yield _case("reductions over several dimensions", _reductions)
    yield _case("ids out of range, twice", _faults)


def _case(label: str, make: Callable[[Leafs], Tensor | list[Tensor]]) -> Case:
    return Case(SUBJECT, label, make)


def _weights(leafs: Leafs, type: Type, *ne: int) -> Tensor:
    """Normally distributed, so small that what comes out is as large as what goes in."""

    def values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return random.normal(0, ne[0] ** -0.5, shape)

    return leafs.tensor(type, *ne, values=values)


def _feed_forward(leafs: Leafs, type: Type) -> Tensor:
    x = leafs.tensor(F32, _WIDTH, _TOKENS)
    h = norm(x, eps=1e-5)
    h = add(mul_mat(_weights(leafs, type, _WIDTH, 2 * _WIDTH), h), leafs.tensor(F32, 2 * _WIDTH))
    h = add(mul_mat(_weights(leafs, type, 2 * _WIDTH, _WIDTH), gelu(h)), leafs.tensor(F32, _WIDTH))
    return add(h, x)


def _gated(leafs: Leafs, type: Type) -> Tensor:
    x = leafs.tensor(F32, _WIDTH, _TOKENS)
    h = mul(rms_norm(x, eps=1e-6), leafs.tensor(F32, _WIDTH))
    gate = mul_mat(_weights(leafs, type, _WIDTH, 96), h)
    up = mul_mat(_weights(leafs, type, _WIDTH, 96), h)
    return add(mul_mat(_weights(leafs, type, 96, _WIDTH), swiglu(gate, up)), x)


def _mask(leafs: Leafs, keys: int) -> Tensor:
    hidden = np.where(np.arange(keys)[np.newaxis] > np.arange(_TOKENS)[:, np.newaxis] + keys - _TOKENS, -np.inf, 0.0)
    return leafs.array(F32, hidden)


def _projected(leafs: Leafs, type: Type, x: Tensor) -> Tensor:
    return reshape(mul_mat(_weights(leafs, type, _WIDTH, _WIDTH), x), _HEAD, _HEADS, _TOKENS)


def _attention(leafs: Leafs, type: Type) -> Tensor:
    x = leafs.tensor(F32, _WIDTH, _TOKENS)
    positions = leafs.array(I32, np.arange(_TOKENS))
    q = permute(rope(_projected(leafs, type, x), positions, n_dims=_HEAD), 0, 2, 1, 3)
    k = permute(rope(_projected(leafs, type, x), positions, n_dims=_HEAD), 0, 2, 1, 3)
    v = cont(permute(_projected(leafs, type, x), 1, 2, 0, 3))
    scores = soft_max(mul_mat(k, q), mask=_mask(leafs, _TOKENS), scale=_HEAD**-0.5)
    merged = cont(permute(mul_mat(v, scores), 0, 2, 1, 3), _WIDTH, _TOKENS)
    return add(mul_mat(_weights(leafs, type, _WIDTH, _WIDTH), merged), x)


def _cached(leafs: Leafs, type: Type) -> list[Tensor]:
    """Keys are written by set_rows, values by cpy into a view; both are read through views of the caches."""
    cells, used = 16, 9
    q = leafs.tensor(F32, _HEAD, _TOKENS, _HEADS)
    keys, values = leafs.tensor(type, _WIDTH, cells), leafs.tensor(type, _WIDTH, cells)
    new_keys, new_values = leafs.tensor(F32, _WIDTH, _TOKENS), leafs.tensor(F32, _WIDTH, _TOKENS)
    where = leafs.array(I64, np.arange(used - _TOKENS, used))
    written = set_rows(keys, new_keys, where)
    begin = (used - _TOKENS) * values.nb[1]
    stored = cpy(new_values, view(values, _WIDTH, _TOKENS, nb=values.nb[1:], offset=begin))
    split = (written.nb[0] * _HEAD, written.nb[1])
    k = permute(view(written, _HEAD, _HEADS, used, nb=split), 0, 2, 1, 3)
    v = cast(permute(view(values, _HEAD, _HEADS, used, nb=split), 1, 2, 0, 3), "f32")
    scores = soft_max(mul_mat(k, q), mask=_mask(leafs, used), scale=_HEAD**-0.5)
    # The copy is the first output, so it comes before the read of the cache.
    return [stored, mul_mat(cont(v), scores)]


def _experts(leafs: Leafs, type: Type) -> Tensor:
    experts, used = 8, 2
    x = leafs.tensor(F32, _WIDTH, _TOKENS)
    logits = mul_mat(_weights(leafs, F32, _WIDTH, experts), x)
    probabilities = soft_max(logits)
    order = argsort(probabilities, order=1)
    chosen = view(order, used, _TOKENS, nb=order.nb[1:])
    weights = reshape(get_rows(reshape(probabilities, 1, experts, _TOKENS), chosen), used, _TOKENS)
    weights = reshape(div(weights, sum_rows(weights)), 1, used, _TOKENS)
    h = mul_mat_id(_weights(leafs, type, _WIDTH, 32, experts), reshape(x, _WIDTH, 1, _TOKENS), chosen)
    h = mul(mul_mat_id(_weights(leafs, type, 32, _WIDTH, experts), silu(h), chosen), weights)
    first = view(h, _WIDTH, _TOKENS, nb=(h.nb[2],))
    second = view(h, _WIDTH, _TOKENS, nb=(h.nb[2],), offset=h.nb[1])
    return add(first, second)


def _norm_weight_bias(leafs: Leafs) -> Tensor:
    x = leafs.tensor(F32, 100, 7, layout="rows apart")
    return add(mul(norm(x, eps=1e-5), leafs.tensor(F32, 100)), leafs.tensor(F32, 100))


def _diamond(leafs: Leafs) -> Tensor:
    x = relu(leafs.tensor(F32, 33, 6))
    return add(mul(x, sigmoid(x)), add(scale(x, 2.0), sqr(x)))


def _long_lived(leafs: Leafs) -> Tensor:
    first = silu(leafs.tensor(F32, 65, 4))
    x = first
    for i in range(12):
        x = scale(gelu(x), 1.0 + 0.1 * i, bias=0.2)
    return add(x, first)


def _parts(leafs: Leafs) -> list[Tensor]:
    target = leafs.tensor(F32, 24, 6)
    writes = []
    for i in range(3):
        x = sqr(leafs.tensor(F32, 24, 2))
        writes.append(cpy(x, view(target, 24, 2, nb=target.nb[1:], offset=2 * i * target.nb[1])))
    return [*writes, scale(target, 0.5)]


def _snake(leafs: Leafs) -> Tensor:
    x, a, b = leafs.tensor(F32, 70, 9), leafs.tensor(F32, 1, 9, low=0.5, high=2), leafs.tensor(F32, 1, 9)
    return add(x, mul(sqr(sin(mul(x, a))), b))


def _views(leafs: Leafs) -> Tensor:
    x = relu(leafs.tensor(F32, 12, 10, 3))
    middle = view(x, 8, 6, 3, nb=x.nb[1:], offset=2 * x.nb[1] + 8)
    permuted = permute(view(middle, 8, 3, 3, nb=(2 * middle.nb[1], middle.nb[2])), 0, 2, 1, 3)
    return add(cont(permuted), scale(permuted, 3.0))


def _faults(leafs: Leafs) -> list[Tensor]:
    """The first node with such ids is named, by its first such id; what was computed before it is right."""
    ids = np.resize(np.arange(20), (40,))
    first = get_rows(leafs.tensor(F32, 17, 7), leafs.array(I32, ids))
    before = sqr(leafs.tensor(F32, 20, 6))
    second = set_rows(leafs.tensor(F32, 20, 4), before, leafs.array(I64, np.array([3, 0, 11, -9, 1, 2])))
    return [before, first, second]


def _reductions(leafs: Leafs) -> Tensor:
    x = leafs.tensor(F32, 20, 6, 5, low=0, high=1)
    rows = sum_rows(x)
    return sum_rows(cont(permute(rows, 1, 0, 2, 3)))

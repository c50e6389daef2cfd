"""Chains of ops that occur in models, whole and in every variant in which they are no chain any more.

Whatever chains a device computes at once, one of these is among them, and its variants are what a device must notice:
a result inside that is an output, that is read once more (before the chain ends or after it), that has a view, or is
read through one; sources of other types and strides, sources that are one tensor, that are computed in between, all
of them or one alone, whose bytes the result may take over then, or that broadcast the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from ggplug.ops.attention import soft_max
from ggplug.ops.base import Array
from ggplug.ops.copy import cast, cont
from ggplug.ops.elementwise import add, div, mul, sub
from ggplug.ops.glu import geglu, swiglu
from ggplug.ops.matrix import mul_mat
from ggplug.ops.norms import norm, rms_norm
from ggplug.ops.rotary import rope
from ggplug.ops.rows import set_rows
from ggplug.ops.unary import gelu, gelu_erf, neg, relu, scale, silu, sqr, tanh
from ggplug.ops.views import permute, reshape, view
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, I32, I64, KERNEL_FLOATS, Q8_0, RopeMode, Type
from ggplug_testing.cases.case import LAYOUTS, Case, Layout, Leafs, labelled

SUBJECT = "groups"
"""What reports call these cases, in the place of an op."""

_WIDTH, _ROWS = 40, 6


@dataclass
class Context:
    """How the leafs of a chain are made, and what happens to the results inside of it.

    ``at``: which of them, counted from 0, ``change`` is applied to; it answers what the chain goes on with, and may
    add to ``before`` and ``after``: nodes that are computed before the chain ends, or after it.  ``alone``: which
    source, counted from 0, is the only one that is computed; it is not repeated then, so it has as many bytes as a
    result.
    """

    leafs: Leafs
    type: Type = F32
    layout: Layout = "packed"
    weights: Type = F32
    computed: bool = False
    again: bool = False
    alone: int = -1
    at: int = -1
    change: Callable[[Context, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        self.sources: list[Tensor] = []
        self._count = 0

    def __call__(self, result: Tensor) -> Tensor:
        """A result inside of the chain, as the next node reads it."""
        number, self._count = self._count, self._count + 1
        return self.change(self, result) if self.change is not None and number == self.at else result

    def source(self, *ne: int, layout: Layout | None = None) -> Tensor:
        """Something that the chain reads: a leaf, or with ``computed`` a result of its own that dies in the chain."""
        made = self.leafs.tensor(self.type, *ne, layout=layout or self.layout, low=-2, high=2)
        if self.computed or len(self.sources) == self.alone:
            made = neg(made)
        self.sources.append(made)
        if self.again:
            self.after.append(sqr(made).set_output())
        return made

    def repeated(self, result: Tensor, *ne: int) -> Tensor:
        """A source that is repeated over a result; the one that is computed alone has the result's extents."""
        alone = len(self.sources) == self.alone
        return self.source(*(result.ne[: result.rank] if alone else ne), layout="packed")

    def weight(self, *ne: int) -> Tensor:
        """A matrix; its products are as large as what is multiplied."""

        def values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            return random.normal(0, ne[0] ** -0.5, shape)

        return self.leafs.tensor(self.weights, *ne, values=values)


Chain = Callable[[Context], Tensor]


def group_cases() -> list[Case]:
    """All chains in all variants."""
    return labelled(_all())


def whole_chains() -> Iterator[Case]:
    """All chains as they are, and some of them with other types."""
    for name, (chain, _) in CHAINS.items():
        yield _case(name, chain)
    for name in _LAID:
        chain, _ = CHAINS[name]
        for type in KERNEL_FLOATS[1:]:
            yield _case(f"{name}, {type.name}", chain, type=type)
    for name in _WEIGHED:
        chain, _ = CHAINS[name]
        for weights in (F16, BF16, Q8_0):
            yield _case(f"{name}, {weights.name} weights", chain, weights=weights)


_LAID = ("norm, scale, shift", "rms norm, scale", "run", "add, norm, scale, shift")
"""Chains that are tried with sources of other types and strides."""

_WEIGHED = ("product, bias, gelu, residual", "gated products", "product, scale")
"""Chains that are tried with weights of other types."""


def _all() -> Iterator[Case]:
    yield from whole_chains()
    for name, (chain, inside) in CHAINS.items():
        yield _case(f"{name}, sources computed in between", chain, computed=True)
        yield _case(f"{name}, sources computed and needed again", chain, computed=True, again=True)
        for source in _may_be_overwritten(chain):
            yield _case(f"{name}, source {source} computed alone", chain, alone=source)
        for at in range(inside):
            for change, apply in CHANGES.items():
                yield _case(f"{name}, result {at} {change}", chain, at=at, change=apply)
                if change in ("is an output", "is read before"):
                    yield _case(f"{name}, result {at} {change}, computed", chain, at=at, change=apply, computed=True)
    for name in _LAID:
        for layout in LAYOUTS[1:]:
            yield _case(f"{name}, {layout}", CHAINS[name][0], layout=layout)
    for name in _WEIGHED:
        yield _case(f"{name}, rows apart", CHAINS[name][0], layout="rows apart")
    # In sums of halves each rounding shows: all devices round every result to its type.
    for type in (F16, BF16):
        yield _case(f"{type.name} sums, each rounded", _sums, type=type)
        yield _case(f"{type.name} sums, each rounded, computed", _sums, type=type, computed=True)


def _may_be_overwritten(chain: Chain) -> Iterator[int]:
    """Which sources a chain's result could take the bytes of, were they the only ones that die in the chain."""
    count = len(_sources(chain, -1)[0])
    for number in range(count):
        sources, last = _sources(chain, number)
        if count > 1 and last.op is not None and not last.op.writes and sources[number].nbytes == last.nbytes:
            yield number


def _sources(chain: Chain, alone: int) -> tuple[list[Tensor], Tensor]:
    context = Context(Leafs(0), alone=alone)
    last = chain(context)
    return context.sources, last


def _case(label: str, chain: Chain, **how: object) -> Case:
    return Case(SUBJECT, label, partial(_made, chain=chain, how=how))


def _made(leafs: Leafs, chain: Chain, how: dict[str, object]) -> list[Tensor]:
    context = Context(leafs, **how)  # type: ignore[arg-type]
    last = chain(context)
    return [*context.before, last.set_output(), *context.after]


# -- what may happen to a result inside of a chain -------------------------------------------------


def _output(context: Context, result: Tensor) -> Tensor:
    return result.set_output()


def _before(context: Context, result: Tensor) -> Tensor:
    context.before.append(neg(result).set_output())
    return result


def _after(context: Context, result: Tensor) -> Tensor:
    context.after.append(neg(result).set_output())
    return result


def _view_after(context: Context, result: Tensor) -> Tensor:
    context.after.append(neg(view(result, result.ne[0], offset=0)).set_output())
    return result


def _view_output(context: Context, result: Tensor) -> Tensor:
    context.after.append(reshape(result, result.size).set_output())
    return result


def _through(context: Context, result: Tensor) -> Tensor:
    return reshape(result, *result.ne[: result.rank])


def _copied(context: Context, result: Tensor) -> Tensor:
    return cont(result)


def _cast(context: Context, result: Tensor) -> Tensor:
    return cast(cast(result, F16), result.type)


CHANGES: dict[str, Callable[[Context, Tensor], Tensor]] = {
    "is an output": _output,
    "is read before": _before,
    "is read after": _after,
    "has a view that is read": _view_after,
    "has a view that is an output": _view_output,
    "is read through a view": _through,
    "is copied": _copied,
    "is rounded": _cast,
}


# -- chains ----------------------------------------------------------------------------------------


def _norm_affine(c: Context) -> Tensor:
    h = c(norm(c.source(_WIDTH, _ROWS), eps=1e-2))
    h = c(mul(h, c.repeated(h, _WIDTH)))
    return add(h, c.repeated(h, _WIDTH))


def _norm_swapped(c: Context) -> Tensor:
    """The scale and the shift are full matrices, and come first."""
    h = c(norm(c.source(_WIDTH, _ROWS)))
    h = c(mul(c.source(_WIDTH, _ROWS), h))
    return add(c.source(_WIDTH, _ROWS), h)


def _norm_broadcast(c: Context) -> Tensor:
    """The norm of one row is repeated over a matrix."""
    h = c(norm(c.source(_WIDTH)))
    h = c(mul(c.source(_WIDTH, _ROWS), h))
    return add(h, c.repeated(h, 1, _ROWS))


def _rms_broadcast(c: Context) -> Tensor:
    """The RMS norm of one row is repeated over a matrix."""
    return mul(c.source(_WIDTH, _ROWS), c(rms_norm(c.source(_WIDTH), eps=0.3)))


def _rms_scale(c: Context) -> Tensor:
    h = c(rms_norm(c.source(_WIDTH, _ROWS), eps=0.3))
    return mul(h, c.repeated(h, _WIDTH))


def _one_weight(c: Context) -> Tensor:
    """Scale and shift are one tensor, and so are the normalised one and the last sum's other source."""
    x = c.source(_WIDTH, _ROWS)
    w = c.repeated(x, _WIDTH)
    return add(add(c(mul(c(rms_norm(x)), w)), w), x)


def _add_norm(c: Context) -> Tensor:
    """The sum is the residual of the next layer, too: it is read once more by the chain that follows it."""
    total = c(add(c.source(_WIDTH, _ROWS), c.source(_WIDTH, _ROWS)))
    h = c(norm(total, eps=1e-5))
    h = c(mul(h, c.repeated(h, _WIDTH)))
    return add(h, c.repeated(h, _WIDTH))


def _residual_norm(c: Context) -> Tensor:
    total = add(c.source(_WIDTH, _ROWS), c.source(_WIDTH, _ROWS))
    h = c(mul(c(rms_norm(total)), c.repeated(total, _WIDTH)))
    return add(h, total)


def _product(c: Context, columns: int = _ROWS) -> Tensor:
    h = c(mul_mat(c.weight(32, _WIDTH), c.source(32, columns)))
    h = c(add(h, c.repeated(h, _WIDTH)))
    h = c(gelu(h))
    return add(h, c.source(_WIDTH, columns))


def _product_aliased(c: Context) -> Tensor:
    """The product's input is the residual, too, so its bytes are needed until the chain's end."""
    x = c.source(_WIDTH, _ROWS)
    h = c(add(c(mul_mat(c.weight(_WIDTH, _WIDTH), x)), c.repeated(x, _WIDTH)))
    return add(h, x)


def _product_second(c: Context) -> Tensor:
    """The product is what is subtracted, and the divisor."""
    h = c(sub(c.source(_WIDTH, _ROWS), c(mul_mat(c.weight(32, _WIDTH), c.source(32, _ROWS)))))
    return div(c.source(_WIDTH, _ROWS), add(sqr(h), c.leafs.tensor(F32, 1, low=1, high=2)))


def _product_scaled(c: Context) -> Tensor:
    return scale(c(mul_mat(c.weight(32, _WIDTH), c.source(32, _ROWS))), 0.3, bias=0.5)


def _product_relu(c: Context) -> Tensor:
    """The bias is a column, the residual one row."""
    h = c(mul_mat(c.weight(32, _WIDTH), c.source(32, _ROWS)))
    h = c(relu(c(add(h, c.repeated(h, 1, _ROWS)))))
    return add(h, c.repeated(h, _WIDTH))


def _gated(c: Context) -> Tensor:
    x = c.source(32, _ROWS)
    first = c(mul_mat(c.weight(32, _WIDTH), x))
    second = c(mul_mat(c.weight(32, _WIDTH), x))
    return swiglu(first, gate=second)


def _gated_swapped(c: Context) -> Tensor:
    """The gate is computed first."""
    x = c.source(32, _ROWS)
    second = c(mul_mat(c.weight(32, _WIDTH), x))
    first = c(mul_mat(c.weight(32, _WIDTH), x))
    return geglu(first, gate=second)


def _gated_apart(c: Context) -> Tensor:
    """Products of different inputs."""
    first = c(mul_mat(c.weight(32, _WIDTH), c.source(32, _ROWS)))
    return swiglu(first, gate=c(mul_mat(c.weight(32, _WIDTH), c.source(32, _ROWS))))


def _halves(c: Context) -> Tensor:
    """The gate and what it opens are halves of one product."""
    h = c(mul_mat(c.weight(32, 2 * _WIDTH), c.source(32, _ROWS)))
    return add(c(swiglu(h, swapped=True)), c.source(_WIDTH, _ROWS))


def _halves_normed(c: Context) -> Tensor:
    """They are halves of the norm of a sum."""
    x = c.source(2 * _WIDTH, _ROWS)
    h = c(add(x, c.repeated(x, 2 * _WIDTH)))
    return scale(c(swiglu(c(rms_norm(h)))), 0.5)


def _repeated_normed(c: Context) -> Tensor:
    """Terms of the sums are repeated several times, along rows and along columns."""
    x = c.source(_WIDTH, _ROWS)
    h = c(add(x, c.repeated(x, _WIDTH, _ROWS // 3)))
    h = c(add(h, c.repeated(h, _WIDTH // 4, _ROWS)))
    return mul(c(norm(h, eps=1e-5)), c.repeated(h, _WIDTH, _ROWS // 2))


def _residual_first(c: Context) -> Tensor:
    """The sum that is normalised is read again, as the first source."""
    total = c(add(c.source(_WIDTH, _ROWS), c.source(_WIDTH, _ROWS)))
    return sub(total, c(mul(c(rms_norm(total)), c.repeated(total, _WIDTH))))


def _run_repeated(c: Context) -> Tensor:
    """A source is repeated several times within a row."""
    x = c.source(_WIDTH, _ROWS)
    h = c(mul(x, c.repeated(x, _WIDTH // 4, _ROWS)))
    return add(c(silu(h)), c.repeated(h, _WIDTH, _ROWS // 2))


def _run_in_blocks(c: Context) -> Tensor:
    """The last result has blocks, and a row of a source ends within one."""
    x = c.source(64, _ROWS)
    h = c(mul(x, c.repeated(x, 16, _ROWS)))
    return add(c.leafs.tensor(Q8_0, 64, _ROWS), h)


def _stored(c: Context, mode: int, cache: Type, factors: bool = False) -> Tensor:
    heads, head = 2, 16
    positions = c.leafs.array(I32, np.array([5, 0, 1_000_000, 9, 2, (1 << 24) + 1]))
    divided = c.leafs.tensor(F32, head // 2, low=0.5, high=2) if factors else None
    turned = c(rope(c.source(head, heads, _ROWS), positions, n_dims=head, mode=mode, freq_factors=divided))
    where = c.leafs.array(I64, np.array([3, 7, 0, 8, 1, 2]))
    return set_rows(c.leafs.tensor(cache, heads * head, 9), reshape(turned, heads * head, _ROWS), where)


def _stored_rows(c: Context) -> Tensor:
    """What is stored is a norm of rows of the cache itself."""
    cache = c.leafs.tensor(F32, _WIDTH, 9)
    where = c.leafs.array(I64, np.array([3, 7, 0, 8, 1, 2]))
    return set_rows(cache, c(rms_norm(view(cache, _WIDTH, _ROWS, nb=cache.nb[1:], offset=cache.nb[1]))), where)


def _stored_in_between(c: Context) -> Tensor:
    """A part of what the chain reads is overwritten before the chain ends."""
    cache = c.leafs.tensor(F32, _WIDTH, 9)
    h = c(norm(view(cache, _WIDTH, _ROWS, nb=cache.nb[1:])))
    c.before += [h, set_rows(cache, c.source(_WIDTH, 2), c.leafs.array(I64, np.array([1, 4])))]
    return add(c(mul(h, c.repeated(h, _WIDTH))), c.repeated(h, _WIDTH))


def _run(c: Context) -> Tensor:
    x = c.source(_WIDTH, _ROWS)
    h = c(mul(x, c.repeated(x, _WIDTH)))
    h = c(silu(h))
    h = c(sub(h, c.source(_WIDTH, _ROWS)))
    return scale(h, 1.5, bias=-0.25)


def _run_second(c: Context) -> Tensor:
    """What the run computes is the second source."""
    h = c(tanh(c.source(_WIDTH, _ROWS)))
    h = c(sub(c.source(_WIDTH, _ROWS), h))
    return mul(c.source(_WIDTH, 2 * _ROWS), h)


def _run_twice(c: Context) -> Tensor:
    """Each result is both sources of the next node."""
    h = c(add(c(relu(c.source(_WIDTH, _ROWS))), c.source(_WIDTH, _ROWS)))
    return mul(h, h)


def _diamond(c: Context) -> Tensor:
    """Two nodes read the first result, and a third reads both of theirs."""
    first = c(silu(c.source(_WIDTH, _ROWS)))
    return mul(c(add(first, c.repeated(first, _WIDTH))), c(sqr(first)))


def _long(c: Context) -> Tensor:
    h = c.source(_WIDTH, _ROWS)
    for i in range(12):
        h = scale(gelu_erf(h), 1.0 + 0.1 * i, bias=0.2)
    return h


def _soft(c: Context) -> Tensor:
    scores = c(mul_mat(c.source(32, 9), c.source(32, _ROWS)))
    return soft_max(c(scale(scores, 0.2)), mask=c.leafs.tensor(F32, 9, _ROWS))


def _attention(c: Context) -> Tensor:
    """Two heads of queries for each of keys and values; the values are turned by a copy, and the result back."""
    q, k, v = (c.source(16, heads, tokens, 2) for heads, tokens in ((4, 13), (2, 9), (2, 9)))
    logits = c(mul_mat(permute(k, 0, 2, 1, 3), permute(q, 0, 2, 1, 3)))
    shares = c(soft_max(logits, mask=c.leafs.tensor(F32, 9, 13, 1, 2), scale=0.25))
    mixed = c(mul_mat(c(cont(permute(v, 1, 2, 0, 3))), shares))
    return cont(permute(mixed, 0, 2, 1, 3))


def _product_normed(c: Context) -> Tensor:
    """So many rows that a device may well have threads compute whole ones."""
    h = c(mul_mat(c.weight(32, _WIDTH), c.source(32, 1600)))
    h = c(add(c(add(h, c.repeated(h, _WIDTH))), c.source(_WIDTH, 1600)))
    h = c(mul(c(norm(h, eps=1e-5)), c.repeated(h, _WIDTH)))
    return add(h, c.repeated(h, _WIDTH))


def _batches_normed(c: Context) -> Tensor:
    """Sums of several batches of matrices."""
    total = c(add(c.source(_WIDTH, 3, 2, 2), c.source(_WIDTH, 3, 2, 2)))
    return mul(norm(total, eps=1e-5), c.repeated(total, _WIDTH))


def _batches_affine(c: Context) -> Tensor:
    """Sums of several batches, each with a term of its own, and a scale and a shift for each batch."""
    x = c.source(_WIDTH, 3, 2, 2)
    total = add(x, c.repeated(x, _WIDTH, 1, 2, 2))
    h = mul(c(norm(total, eps=1e-5)), c.repeated(total, _WIDTH, 1, 1, 2))
    return add(h, c.repeated(h, _WIDTH, 1, 2, 2))


def _batches_multiplied(c: Context) -> Tensor:
    """One matrix of weights for several batches, each with a bias of its own."""
    h = c(mul_mat(c.weight(32, _WIDTH), c.source(32, 3, 2, 2)))
    return relu(add(h, c.repeated(h, _WIDTH, 1, 2, 2)))


def _stored_with_factors(c: Context) -> Tensor:
    """Turned by angles with factors, and stored head by head: rows in another order than they were computed in."""
    head, heads = 16, 3
    factors = c.leafs.tensor(F32, head // 2, low=0.5, high=2)
    positions = c.leafs.array(I32, np.arange(7, 7 + _ROWS))
    turned = rope(c.source(head, heads, _ROWS), positions, n_dims=head, mode=RopeMode.NEOX, freq_factors=factors)
    where = c.leafs.array(I64, np.array([4, 1, 8, 0, 3, 6]))
    return set_rows(c.leafs.tensor(F32, head, 9, heads), permute(c(turned), 0, 2, 1), where)


def _squares(c: Context) -> Iterator[Tensor]:
    """Sources that all have the extents of the chain's result, which may take over the bytes of any of them."""
    while True:
        yield c.source(16, 16)


def _square_product(c: Context) -> Tensor:
    w, x, bias, residual = islice(_squares(c), 4)
    return add(add(mul_mat(w, x), bias), residual)


def _square_product_scaled(c: Context) -> Tensor:
    w, x = islice(_squares(c), 2)
    return scale(mul_mat(w, x), 0.3)


def _square_gated(c: Context) -> Tensor:
    first, second, x = islice(_squares(c), 3)
    return swiglu(mul_mat(first, x), gate=mul_mat(second, x))


def _square_soft(c: Context) -> Tensor:
    k, q, mask = islice(_squares(c), 3)
    return soft_max(scale(mul_mat(k, q), 0.2), mask=mask)


def _square_attention(c: Context) -> Tensor:
    """One head of as many queries as keys, each of as many numbers; the values are stored in columns."""
    k, q, v, mask = islice(_squares(c), 4)
    return cont(mul_mat(cont(v), soft_max(mul_mat(k, q), mask=mask, scale=0.25)))


def _sums(c: Context) -> Tensor:
    h = c.source(_WIDTH, _ROWS)
    for _ in range(4):
        h = add(h, c.repeated(h, _WIDTH))
    return h


CHAINS: dict[str, tuple[Chain, int]] = {
    "norm, scale, shift": (_norm_affine, 2),
    "norm, scale first, shift first": (_norm_swapped, 2),
    "norm of a row, scale, shift": (_norm_broadcast, 2),
    "rms norm, scale": (_rms_scale, 1),
    "rms norm of a row, scale": (_rms_broadcast, 1),
    "rms norm, twice the same": (_one_weight, 2),
    "add, norm, scale, shift": (_add_norm, 3),
    "rms norm, scale, residual": (_residual_norm, 2),
    "product, bias, gelu, residual": (_product, 3),
    "one column, bias, gelu, residual": (partial(_product, columns=1), 0),
    "many columns, bias, gelu, residual": (partial(_product, columns=70), 0),
    "product, bias, its input": (_product_aliased, 2),
    "product, subtracted, divisor": (_product_second, 2),
    "product, scale": (_product_scaled, 1),
    "product, column, relu, row": (_product_relu, 3),
    "gated products": (_gated, 2),
    "gated products, gate first": (_gated_swapped, 2),
    "gated products of two inputs": (_gated_apart, 2),
    "product, its halves gated, residual": (_halves, 2),
    "add, rms norm, its halves gated, scale": (_halves_normed, 3),
    "add, add, norm, repeated terms": (_repeated_normed, 3),
    "rms norm, scale, subtracted from the sum": (_residual_first, 3),
    "rope, stored": (partial(_stored, mode=RopeMode.NORMAL, cache=F32), 1),
    "rope by halves, stored as f16": (partial(_stored, mode=RopeMode.NEOX, cache=F16), 1),
    "rope with factors, stored": (partial(_stored, mode=RopeMode.NORMAL, cache=F32, factors=True), 0),
    "rope with factors by halves, stored as f16": (partial(_stored, mode=RopeMode.NEOX, cache=F16, factors=True), 0),
    "rope with factors, stored head by head": (_stored_with_factors, 1),
    "norm of the cache, stored": (_stored_rows, 1),
    "norm of a cache that is written in between": (_stored_in_between, 2),
    "run": (_run, 3),
    "run, second source": (_run_second, 2),
    "run, both sources": (_run_twice, 2),
    "run, a source repeated within a row": (_run_repeated, 2),
    "run, a result in blocks": (_run_in_blocks, 1),
    "run, read by two": (_diamond, 3),
    "long run": (_long, 0),
    "add, norm, scale of batches": (_batches_normed, 1),
    "add, norm, scale, shift of batches": (_batches_affine, 1),
    "product, bias, relu of batches": (_batches_multiplied, 1),
    "scores, scale, soft max": (_soft, 2),
    "attention": (_attention, 4),
    "product of many columns, bias, residual, norm, scale, shift": (_product_normed, 5),
    "product of squares, bias, residual": (_square_product, 0),
    "product of squares, scale": (_square_product_scaled, 0),
    "gated products of squares": (_square_gated, 0),
    "scores of squares, scale, soft max": (_square_soft, 0),
    "attention of squares": (_square_attention, 0),
}
"""Name -> chain, and how many results it has inside."""

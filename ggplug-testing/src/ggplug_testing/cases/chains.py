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
from inspect import signature

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, I32, I64, KERNEL_FLOATS, Q8_0, RopeMode, Type
from ggplug_testing.cases.case import LAYOUTS, Case, Layout, Leafs, labelled

SUBJECT = "groups"
"""What reports call these cases, in the place of an op."""

WIDTH, ROWS = 40, 6

Other = Callable[[Tensor], Tensor]
"""Makes of a tensor one of the same extents and other values, by an op that is no part of a chain."""

OTHERS: tuple[Other, ...] = (ops.neg, partial(ops.scale, s=-0.5), lambda x: ops.add(x, x), ops.abs, ops.relu)
"""Any of them will do, a device need not have all; none of them rounds."""


@dataclass
class Context:
    """How the leafs of a chain are made, and what happens to the results inside of it.

    ``at``: which of them, counted from 0, ``change`` is applied to; it answers what the chain goes on with, and may
    add to ``before`` and ``after``: nodes that are computed before the chain ends, or after it.  ``alone``: which
    source, counted from 0, is the only one that is computed; it is not repeated then, so it has as many bytes as a
    result.  ``inside``: how many results the chain has inside.  ``other``: makes the nodes that are no part of the
    chain: of what a source is computed, and what reads a result once more.
    """

    leafs: Leafs
    other: Other = ops.neg
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
        self.inside = 0

    def __call__(self, result: Tensor) -> Tensor:
        """A result inside of the chain, as the next node reads it."""
        number, self.inside = self.inside, self.inside + 1
        return self.change(self, result) if self.change is not None and number == self.at else result

    def source(self, *ne: int, layout: Layout | None = None) -> Tensor:
        """Something that the chain reads: a leaf, or with ``computed`` a result of its own that dies in the chain."""
        made = self.leafs.tensor(self.type, *ne, layout=layout or self.layout, low=-2, high=2)
        if self.computed or len(self.sources) == self.alone:
            made = self.other(made)
        self.sources.append(made)
        if self.again:
            self.after.append(self.other(made).set_output())
        return made

    def matrix(self) -> Tensor:
        """A source of the size that most have."""
        return self.source(WIDTH, ROWS)

    def repeated(self, result: Tensor, *ne: int) -> Tensor:
        """A source that is repeated over a result; the one that is computed alone has the result's extents."""
        alone = len(self.sources) == self.alone
        return self.source(*(result.ne[: result.rank] if alone else ne), layout="packed")

    def weight(self, *ne: int) -> Tensor:
        """A matrix; its products are as large as what is multiplied."""

        def values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            return random.normal(0, ne[0] ** -0.5, shape)

        return self.leafs.tensor(self.weights, *ne, values=values)

    def product(self, columns: int = ROWS) -> Tensor:
        """A matrix by a source of so many columns."""
        return ops.mul_mat(self.weight(32, WIDTH), self.source(32, columns))

    def plus(self, result: Tensor, *ne: int) -> Tensor:
        """A result and a source of these extents, which is repeated; a row without them."""
        return ops.add(result, self.repeated(result, *(ne or (WIDTH,))))

    def times(self, result: Tensor, *ne: int) -> Tensor:
        """The same of a factor."""
        return ops.mul(result, self.repeated(result, *(ne or (WIDTH,))))

    def sum(self) -> Tensor:
        """The sum of two sources."""
        return ops.add(self.matrix(), self.matrix())


Chain = Callable[[Context], Tensor]

Change = Callable[[Context, Tensor], Tensor]


def group_cases(other: Other = ops.neg) -> list[Case]:
    """All chains in all variants; ``other`` makes the nodes that are no part of them."""
    return labelled(_all(other))


def whole_chains() -> Iterator[Case]:
    """All chains as they are, and some of them with other types."""
    for name, chain in CHAINS.items():
        yield _case(name, chain)
    for name in _LAID:
        for type in KERNEL_FLOATS[1:]:
            yield _case(f"{name}, {type.name}", CHAINS[name], type=type)
    for name in _WEIGHED:
        for weights in (F16, BF16, Q8_0):
            yield _case(f"{name}, {weights.name} weights", CHAINS[name], weights=weights)


_LAID = ("norm, scale, shift", "rms norm, scale", "run", "add, norm, scale, shift")
"""Chains that are tried with sources of other types and strides."""

_ALIKE = (
    "one column, bias, gelu, residual",
    "many columns, bias, gelu, residual",
    "rope with factors, stored",
    "rope with factors by halves, stored as f16",
)
"""Chains that are only tried whole: what is inside of them is inside of others."""

_WEIGHED = ("product, bias, gelu, residual", "gated products", "product, scale")
"""Chains that are tried with weights of other types."""


def _all(other: Other) -> Iterator[Case]:
    yield from whole_chains()
    variant = partial(_case, other=other)
    for name, chain in CHAINS.items():
        whole, _ = _tried(chain)
        yield variant(f"{name}, sources computed in between", chain, computed=True)
        yield variant(f"{name}, sources computed and needed again", chain, computed=True, again=True)
        for source in _may_be_overwritten(chain):
            yield variant(f"{name}, source {source} computed alone", chain, alone=source)
        for at in range(0 if name in _ALIKE else whole.inside):
            for change, apply in CHANGES.items():
                yield variant(f"{name}, result {at} {change}", chain, at=at, change=apply)
                if change in ("is an output", "is read before"):
                    yield variant(f"{name}, result {at} {change}, computed", chain, at=at, change=apply, computed=True)
    for name in _LAID:
        for layout in LAYOUTS[1:]:
            yield variant(f"{name}, {layout}", CHAINS[name], layout=layout)
    for name in _WEIGHED:
        yield variant(f"{name}, rows apart", CHAINS[name], layout="rows apart")
    # In sums of halves each rounding shows: all devices round every result to its type.
    for type in (F16, BF16):
        yield variant(f"{type.name} sums, each rounded", _sums, type=type)
        yield variant(f"{type.name} sums, each rounded, computed", _sums, type=type, computed=True)


def _may_be_overwritten(chain: Chain) -> Iterator[int]:
    """Which sources a chain's result could take the bytes of, were they the only ones that die in the chain."""
    count = len(_tried(chain)[0].sources)
    for number in range(count):
        made, last = _tried(chain, number)
        if count > 1 and last.op is not None and not last.op.writes and made.sources[number].nbytes == last.nbytes:
            yield number


def _tried(chain: Chain, alone: int = -1) -> tuple[Context, Tensor]:
    """A chain without values, and its last node."""
    context = Context(Leafs(0), alone=alone)
    return context, chain(context)


def _case(label: str, chain: Chain, **how: object) -> Case:
    return Case(SUBJECT, label, partial(_made, chain=chain, how=how))


def _made(leafs: Leafs, chain: Chain, how: dict[str, object]) -> list[Tensor]:
    context = Context(leafs, **how)  # type: ignore[arg-type]
    last = chain(context)
    return [*context.before, last.set_output(), *context.after]


# -- what may happen to a result inside of a chain -------------------------------------------------


def _before(c: Context, result: Tensor) -> Tensor:
    c.before.append(c.other(result).set_output())
    return result


def _followed(of: Change) -> Change:
    """What is made of a result is an output, computed after the chain."""

    def change(c: Context, result: Tensor) -> Tensor:
        c.after.append(of(c, result).set_output())
        return result

    return change


CHANGES: dict[str, Change] = {
    "is an output": lambda c, result: result.set_output(),
    "is read before": _before,
    "is read after": _followed(lambda c, result: c.other(result)),
    "has a view that is read": _followed(lambda c, result: c.other(ops.view(result, result.ne[0], offset=0))),
    "has a view that is an output": _followed(lambda c, result: ops.reshape(result, result.size)),
    "is read through a view": lambda c, result: ops.reshape(result, *result.ne[: result.rank]),
    "is copied": lambda c, result: ops.cont(result),
    "is rounded": lambda c, result: ops.cast(ops.cast(result, F16), result.type),
}


# -- norms -----------------------------------------------------------------------------------------


def _norm_swapped(c: Context) -> Tensor:
    """The scale and the shift are full matrices, and come first."""
    h = c(ops.norm(c.matrix()))
    h = c(ops.mul(c.matrix(), h))
    return ops.add(c.matrix(), h)


def _norm_broadcast(c: Context) -> Tensor:
    """The norm of one row is repeated over a matrix."""
    h = c(ops.norm(c.source(WIDTH)))
    return c.plus(c(ops.mul(c.matrix(), h)), 1, ROWS)


def _one_weight(c: Context) -> Tensor:
    """Scale and shift are one tensor, and so are the normalised one and the last sum's other source."""
    x = c.matrix()
    w = c.repeated(x, WIDTH)
    return ops.add(ops.add(c(ops.mul(c(ops.rms_norm(x)), w)), w), x)


def _batches_affine(c: Context) -> Tensor:
    """Sums of several batches, each with a term of its own, and a scale and a shift for each batch."""
    total = c.plus(c.source(WIDTH, 3, 2, 2), WIDTH, 1, 2, 2)
    return c.plus(c.times(c(ops.norm(total, eps=1e-5)), WIDTH, 1, 1, 2), WIDTH, 1, 2, 2)


# -- products --------------------------------------------------------------------------------------


def _product(c: Context, columns: int = ROWS) -> Tensor:
    return ops.add(c(ops.gelu(c(c.plus(c(c.product(columns)))))), c.source(WIDTH, columns))


def _product_aliased(c: Context) -> Tensor:
    """The product's input is the residual, too, so its bytes are needed until the chain's end."""
    x = c.matrix()
    return ops.add(c(c.plus(c(ops.mul_mat(c.weight(WIDTH, WIDTH), x)))), x)


def _product_second(c: Context) -> Tensor:
    """The product is what is subtracted, and the divisor."""
    h = c(ops.sub(c.matrix(), c(c.product())))
    return ops.div(c.matrix(), ops.add(ops.sqr(h), c.leafs.tensor(F32, 1, low=1, high=2)))


def _product_normed(c: Context) -> Tensor:
    """So many rows that a device may well have threads compute whole ones."""
    h = c(ops.add(c(c.plus(c(c.product(1600)))), c.source(WIDTH, 1600)))
    return c.plus(c(c.times(c(ops.norm(h, eps=1e-5)))))


def _gated(c: Context) -> Tensor:
    x = c.source(32, ROWS)
    first = c(ops.mul_mat(c.weight(32, WIDTH), x))
    return ops.swiglu(first, gate=c(ops.mul_mat(c.weight(32, WIDTH), x)))


def _gated_swapped(c: Context) -> Tensor:
    """The gate is computed first."""
    x = c.source(32, ROWS)
    gate = c(ops.mul_mat(c.weight(32, WIDTH), x))
    return ops.geglu(c(ops.mul_mat(c.weight(32, WIDTH), x)), gate=gate)


def _halves(c: Context) -> Tensor:
    """The gate and what it opens are halves of one product."""
    h = c(ops.mul_mat(c.weight(32, 2 * WIDTH), c.source(32, ROWS)))
    return ops.add(c(ops.swiglu(h, swapped=True)), c.matrix())


def _attention(c: Context) -> Tensor:
    """Two heads of queries for each of keys and values; the values are transposed by a copy, and the result back."""
    q, k, v = (c.source(16, heads, tokens, 2) for heads, tokens in ((4, 13), (2, 9), (2, 9)))
    logits = c(ops.mul_mat(ops.permute(k, 0, 2, 1, 3), ops.permute(q, 0, 2, 1, 3)))
    weights = c(ops.soft_max(logits, mask=c.leafs.tensor(F32, 9, 13, 1, 2), scale=0.25))
    mixed = c(ops.mul_mat(c(ops.cont(ops.permute(v, 1, 2, 0, 3))), weights))
    return ops.cont(ops.permute(mixed, 0, 2, 1, 3))


def _squares(formula: Callable[..., Tensor]) -> Chain:
    """A formula of sources that have the extents of its result, which may take over the bytes of any of them."""
    return lambda c: formula(*(c.source(16, 16) for _ in signature(formula).parameters))


def _soft_of_squares(k: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    return ops.soft_max(ops.scale(ops.mul_mat(k, q), 0.2), mask=mask)


def _attention_of_squares(k: Tensor, q: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """One head of as many queries as keys, each of as many numbers; the values are stored in columns."""
    return ops.cont(ops.mul_mat(ops.cont(v), ops.soft_max(ops.mul_mat(k, q), mask=mask, scale=0.25)))


# -- rows stored -----------------------------------------------------------------------------------


def _stored(c: Context, mode: int, cache: Type, factors: bool = False) -> Tensor:
    positions = c.leafs.array(I32, np.array([5, 0, 1_000_000, 9, 2, (1 << 24) + 1]))
    divided = c.leafs.tensor(F32, 8, low=0.5, high=2) if factors else None
    rotated = c(ops.rope(c.source(16, 2, ROWS), positions, n_dims=16, mode=mode, freq_factors=divided))
    where = c.leafs.array(I64, np.array([3, 7, 0, 8, 1, 2]))
    return ops.set_rows(c.leafs.tensor(cache, 32, 9), ops.reshape(rotated, 32, ROWS), where)


def _stored_by_head(c: Context) -> Tensor:
    """Rotated by angles with factors, and stored head by head: rows in another order than they were computed in."""
    factors = c.leafs.tensor(F32, 8, low=0.5, high=2)
    positions = c.leafs.array(I32, np.arange(7, 7 + ROWS))
    rotated = ops.rope(c.source(16, 3, ROWS), positions, n_dims=16, mode=RopeMode.NEOX, freq_factors=factors)
    where = c.leafs.array(I64, np.array([4, 1, 8, 0, 3, 6]))
    return ops.set_rows(c.leafs.tensor(F32, 16, 9, 3), ops.permute(c(rotated), 0, 2, 1), where)


def _stored_rows(c: Context) -> Tensor:
    """What is stored is a norm of rows of the cache itself."""
    cache = c.leafs.tensor(F32, WIDTH, 9)
    where = c.leafs.array(I64, np.array([3, 7, 0, 8, 1, 2]))
    rows = ops.view(cache, WIDTH, ROWS, nb=cache.nb[1:], offset=cache.nb[1])
    return ops.set_rows(cache, c(ops.rms_norm(rows)), where)


def _stored_in_between(c: Context) -> Tensor:
    """A part of what the chain reads is overwritten before the chain ends."""
    cache = c.leafs.tensor(F32, WIDTH, 9)
    h = c(ops.norm(ops.view(cache, WIDTH, ROWS, nb=cache.nb[1:])))
    c.before += [h, ops.set_rows(cache, c.source(WIDTH, 2), c.leafs.array(I64, np.array([1, 4])))]
    return c.plus(c(c.times(h)))


# -- runs ------------------------------------------------------------------------------------------


def _run_second(c: Context) -> Tensor:
    """What the run computes is the second source."""
    h = c(ops.tanh(c.matrix()))
    h = c(ops.sub(c.matrix(), h))
    return ops.mul(c.source(WIDTH, 2 * ROWS), h)


def _run_in_blocks(c: Context) -> Tensor:
    """The last result has blocks, and a row of a source ends within one."""
    h = c(c.times(c.source(64, ROWS), 16, ROWS))
    return ops.add(c.leafs.tensor(Q8_0, 64, ROWS), h)


def _long(c: Context) -> Tensor:
    h = c.matrix()
    for i in range(12):
        h = ops.scale(ops.gelu_erf(h), 1.0 + 0.1 * i, bias=0.2)
    return h


def _sums(c: Context) -> Tensor:
    h = c.matrix()
    for _ in range(4):
        h = c.plus(h)
    return h


CHAINS: dict[str, Chain] = {
    "norm, scale, shift": lambda c: c.plus(c(c.times(c(ops.norm(c.matrix(), eps=1e-2))))),
    "norm, scale first, shift first": _norm_swapped,
    "norm of a row, scale, shift": _norm_broadcast,
    "rms norm, scale": lambda c: c.times(c(ops.rms_norm(c.matrix(), eps=0.3))),
    "rms norm of a row, scale": lambda c: ops.mul(c.matrix(), c(ops.rms_norm(c.source(WIDTH), eps=0.3))),
    "rms norm, twice the same": _one_weight,
    "add, norm, scale, shift": lambda c: c.plus(c(c.times(c(ops.norm(c(c.sum()), eps=1e-5))))),
    "rms norm, scale, residual": lambda c: ops.add(c(c.times(c(ops.rms_norm(total := c.sum())))), total),
    "product, bias, gelu, residual": _product,
    "one column, bias, gelu, residual": partial(_product, columns=1),
    "many columns, bias, gelu, residual": partial(_product, columns=70),
    "product, bias, its input": _product_aliased,
    "product, subtracted, divisor": _product_second,
    "product, scale": lambda c: ops.scale(c(c.product()), 0.3, bias=0.5),
    "product, column, relu, row": lambda c: c.plus(c(ops.relu(c(c.plus(c(c.product()), 1, ROWS))))),
    "gated products": _gated,
    "gated products, gate first": _gated_swapped,
    "gated products of two inputs": lambda c: ops.swiglu(c(c.product()), gate=c(c.product())),
    "product, its halves gated, residual": _halves,
    "add, rms norm, its halves gated, scale": lambda c: ops.scale(
        c(ops.swiglu(c(ops.rms_norm(c(c.plus(c.source(2 * WIDTH, ROWS), 2 * WIDTH)))))), 0.5
    ),
    "add, add, norm, repeated terms": lambda c: c.times(
        c(ops.norm(c(c.plus(c(c.plus(c.matrix(), WIDTH, ROWS // 3)), WIDTH // 4, ROWS)), eps=1e-5)), WIDTH, ROWS // 2
    ),
    "rms norm, scale, subtracted from the sum": lambda c: ops.sub(
        total := c(c.sum()), c(c.times(c(ops.rms_norm(total))))
    ),
    "rope, stored": partial(_stored, mode=RopeMode.NORMAL, cache=F32),
    "rope by halves, stored as f16": partial(_stored, mode=RopeMode.NEOX, cache=F16),
    "rope with factors, stored": partial(_stored, mode=RopeMode.NORMAL, cache=F32, factors=True),
    "rope with factors by halves, stored as f16": partial(_stored, mode=RopeMode.NEOX, cache=F16, factors=True),
    "rope with factors, stored head by head": _stored_by_head,
    "norm of the cache, stored": _stored_rows,
    "norm of a cache that is written in between": _stored_in_between,
    "run": lambda c: ops.scale(c(ops.sub(c(ops.silu(c(c.times(c.matrix())))), c.matrix())), 1.5, bias=-0.25),
    "run, second source": _run_second,
    "run, both sources": lambda c: ops.mul(h := c(ops.add(c(ops.relu(c.matrix())), c.matrix())), h),
    "run, a source repeated within a row": lambda c: c.plus(
        c(ops.silu(c(c.times(c.matrix(), WIDTH // 4, ROWS)))), WIDTH, ROWS // 2
    ),
    "run, a result in blocks": _run_in_blocks,
    "run, read by two": lambda c: ops.mul(c(c.plus(first := c(ops.silu(c.matrix())))), c(ops.sqr(first))),
    "long run": _long,
    "add, norm, scale of batches": lambda c: c.times(
        ops.norm(c(ops.add(c.source(WIDTH, 3, 2, 2), c.source(WIDTH, 3, 2, 2))), eps=1e-5)
    ),
    "add, norm, scale, shift of batches": _batches_affine,
    "product, bias, relu of batches": lambda c: ops.relu(
        c.plus(c(ops.mul_mat(c.weight(32, WIDTH), c.source(32, 3, 2, 2))), WIDTH, 1, 2, 2)
    ),
    "scores, scale, soft max": lambda c: ops.soft_max(
        c(ops.scale(c(ops.mul_mat(c.source(32, 9), c.source(32, ROWS))), 0.2)), mask=c.leafs.tensor(F32, 9, ROWS)
    ),
    "attention": _attention,
    "product of many columns, bias, residual, norm, scale, shift": _product_normed,
    "product of squares, bias, residual": _squares(lambda w, x, b, y: ops.add(ops.add(ops.mul_mat(w, x), b), y)),
    "product of squares, scale": _squares(lambda w, x: ops.scale(ops.mul_mat(w, x), 0.3)),
    "gated products of squares": _squares(lambda a, b, x: ops.swiglu(ops.mul_mat(a, x), gate=ops.mul_mat(b, x))),
    "scores of squares, scale, soft max": _squares(_soft_of_squares),
    "attention of squares": _squares(_attention_of_squares),
}
"""The chains, by name.  ``c(...)`` is a result inside; sources are made in the order in which Python evaluates them."""

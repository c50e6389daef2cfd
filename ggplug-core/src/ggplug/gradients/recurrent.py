"""Rules of layers whose state goes from token to token: their formulas, token by token.

So the backward pass over many tokens has many nodes, and keeps the states of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import ops
from ggplug.gradients.rules import formula, packed, shaped, summed, zeros
from ggplug.tensor import Extents, Tensor


def _slice(x: Tensor, dim: int, start: int, count: int = 1) -> Tensor:
    """``count`` elements of x from ``start`` on along a dimension; the others stay whole."""
    ne = list(x.ne)
    ne[dim] = count
    return ops.view(x, *ne, nb=x.nb[1:], offset=start * x.nb[dim])


def _vector(x: Tensor) -> Tensor:
    return shaped(x, (x.size, 1, 1, 1))


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Parts one after the other along a dimension, joined by pairs: each element is copied a few times only."""
    while len(parts) > 1:
        pairs = [ops.concat(a, b, dim) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + list(parts[len(pairs) * 2 :])
    return parts[0]


def _after(y: Tensor, states: Tensor) -> Tensor:
    """Outputs, followed by states, as a vector."""
    return ops.concat(_vector(y), _vector(states), 0) if y.size else _vector(states)


@formula(ops.SsmConv)
def _(op: ops.SsmConv, x: Tensor, kernel: Tensor) -> Tensor:
    x, kernel = packed(x), packed(kernel)
    taps = kernel.ne[0]
    count = x.ne[0] - taps + 1
    y = None
    for k in range(taps):
        # The weight of each channel for this tap, [1, C], times a window of x, [T, C, S].
        term = ops.mul(_slice(x, 0, k, count), _slice(kernel, 0, k))
        y = term if y is None else ops.add(y, term)
    assert y is not None
    return ops.permute(y, 1, 0, 2, 3)


def _kept(states: Sequence[Tensor], snapshots: int, ne: Extents) -> Tensor:
    """The last states as a vector, those after the last token first; zeros before the first token."""
    last = list(states[: -snapshots - 1 : -1])
    return _joined([_vector(each) for each in [*last, *[zeros(ne)] * (snapshots - len(last))]], 0)


@formula(ops.SsmScan)
def _(op: ops.SsmScan, s: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, ids: Tensor) -> Tensor:
    size, dim, heads, _ = s.ne
    tokens, sequences = x.ne[2:]
    groups = b.ne[1]
    ne = size, dim, heads, sequences
    x, b, c = packed(x), packed(b), packed(c)
    step = ops.softplus(dt)  # [H, T, S]
    state = shaped(ops.get_rows(shaped(s, (size * dim * heads, s.ne[3])), ids), ne)
    decays, outputs, states = shaped(a, (a.ne[0], 1, heads, 1)), [], []

    def grouped(tensor: Tensor, t: int) -> Tensor:
        """What each head has of a token's groups, [n, 1, H, S]."""
        of_token = shaped(packed(_slice(tensor, 2, t)), (size, 1, groups, sequences))
        spread = ops.repeat(of_token, size, heads // groups, groups, sequences)
        return shaped(spread, (size, 1, heads, sequences))

    for t in range(tokens):
        now = shaped(packed(_slice(step, 1, t)), (1, 1, heads, sequences))
        decay = ops.exp(ops.mul(ops.repeat(now, a.ne[0], 1, heads, sequences), decays))
        scaled = ops.mul(shaped(packed(_slice(x, 2, t)), (1, dim, heads, sequences)), now)
        into = ops.mul(ops.repeat(scaled, *ne), grouped(b, t))
        state = ops.add(ops.mul(state, decay), into)
        states.append(state)
        outputs.append(shaped(ops.sum_rows(ops.mul(state, grouped(c, t))), (dim, heads, 1, sequences)))
    kept = _kept(states, op.snapshots, ne)
    return _after(_joined(outputs, 2), kept) if outputs else kept


class _Matrices:
    """The sources and the state of an op whose state is a matrix for each head, token by token.

    The state is [S, S, H, N]; the first index is the fastest, j in the ops' formulas, the second one is i.
    """

    def __init__(self, state: Tensor, like: Tensor) -> None:
        self.size, self.heads, tokens, _ = like.ne
        self.sequences = state.ne[1]
        self.tokens = tokens // self.sequences
        self.ne = self.size, self.size, self.heads, self.sequences
        self.state = shaped(state, self.ne)

    def row(self, x: Tensor, t: int) -> Tensor:
        """What x has for token t, indexed by j: [S, 1, H, N]."""
        by_sequence = shaped(x, (self.size, self.heads, self.tokens, self.sequences))
        return shaped(packed(_slice(by_sequence, 2, t)), (self.size, 1, self.heads, self.sequences))

    def column(self, x: Tensor, t: int) -> Tensor:
        """What x has for token t, indexed by i: [1, S, H, N]."""
        return shaped(self.row(x, t), (1, *self.ne[1:]))

    def spread(self, x: Tensor) -> Tensor:
        """x repeated to the extents of the state."""
        return ops.repeat(x, *self.ne)

    def result(self, outputs: Sequence[Tensor], state: Tensor) -> Tensor:
        """Outputs of all tokens and the states, as [S H, T + S N]."""
        width = self.size * self.heads
        states = shaped(state, (width, self.size * self.sequences))
        if not outputs:
            return states
        each = [shaped(y, (width, 1, self.sequences)) for y in outputs]
        return ops.concat(shaped(_joined(each, 1), (width, self.tokens * self.sequences)), states, 1)


def _over_i(x: Tensor) -> Tensor:
    """The sum over the second dimension."""
    return summed(x, (x.ne[0], 1, *x.ne[2:]))


@formula(ops.RwkvWkv6)
def _(op: ops.RwkvWkv6, k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> Tensor:
    m = _Matrices(state, k)
    s, outputs = m.state, []
    first = shaped(tf, (1, m.size, m.heads, 1))
    for t in range(m.tokens):
        kv = ops.mul(m.spread(m.row(v, t)), m.column(k, t))
        outputs.append(_over_i(ops.mul(ops.add(s, ops.mul(kv, first)), m.column(r, t))))
        s = ops.add(ops.mul(s, m.column(td, t)), kv)
    return m.result(outputs, s)


@formula(ops.GatedLinearAttn)
def _(op: ops.GatedLinearAttn, k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor) -> Tensor:
    m = _Matrices(state, k)
    s, outputs = m.state, []
    for t in range(m.tokens):
        kv = ops.mul(m.spread(m.row(v, t)), m.column(k, t))
        s = ops.add(ops.mul(s, m.column(g, t)), kv)
        outputs.append(ops.scale(_over_i(ops.mul(s, m.column(q, t))), op.scale))
    return m.result(outputs, s)


@formula(ops.RwkvWkv7)
def _(op: ops.RwkvWkv7, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    m = _Matrices(state, r)
    s, outputs = m.state, []
    for t in range(m.tokens):
        along = ops.sum_rows(ops.mul(s, m.row(a, t)))
        vk = ops.mul(m.spread(m.column(v, t)), m.row(k, t))
        s = ops.add(ops.add(ops.mul(s, m.row(w, t)), vk), ops.mul(m.spread(along), m.row(b, t)))
        outputs.append(ops.sum_rows(ops.mul(s, m.row(r, t))))
    return m.result(outputs, s)


@formula(ops.GatedDeltaNet)
def _(op: ops.GatedDeltaNet, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    size, heads, tokens, sequences = v.ne
    ne = size, size, heads, sequences
    v = packed(v)
    s, outputs, states = state, [], []

    def row(x: Tensor, t: int) -> Tensor:
        """q or k of token t for each head, repeated cyclically, and each sequence: [S, 1, H, N]."""
        of_token = shaped(packed(_slice(packed(x), 2, t)), (size, x.ne[1], 1, x.ne[3]))
        each = ops.repeat(of_token, size, heads, sequences // x.ne[3], x.ne[3])
        return shaped(each, (size, 1, heads, sequences))

    def of_heads(x: Tensor, t: int) -> Tensor:
        """g or beta of token t: [1 or S, 1, H, N]."""
        return shaped(packed(_slice(x, 2, t)), (x.ne[0], 1, heads, sequences))

    for t in range(tokens):
        s = ops.mul(s, ops.exp(of_heads(g, t)))
        value = shaped(packed(_slice(v, 2, t)), (1, size, heads, sequences))
        error = ops.mul(ops.sub(value, ops.sum_rows(ops.mul(s, row(k, t)))), of_heads(beta, t))
        s = ops.add(s, ops.mul(ops.repeat(error, *ne), row(k, t)))
        states.append(s)
        y = ops.scale(ops.sum_rows(ops.mul(s, row(q, t))), size**-0.5)
        outputs.append(shaped(y, (size * heads, 1, sequences)))
    kept = _kept(states, op.snapshots, ne)
    whole = _after(_joined(outputs, 1), kept) if outputs else kept
    return shaped(whole, (size * heads, whole.size // (size * heads)))

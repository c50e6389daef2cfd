"""Rules of ops of DeepSeek's models."""

from __future__ import annotations

from ggplug import ops
from ggplug.gradients.matrix import by_rows
from ggplug.gradients.rules import formula, packed, shaped, summed
from ggplug.ops.deepseek import STREAMS
from ggplug.tensor import Tensor


@formula(ops.LightningIndexer)
def _(op: ops.LightningIndexer, q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    keys, (_, heads, tokens, sequences) = shaped(k, (k.ne[0], k.ne[2], 1, k.ne[3])), q.ne
    flat = shaped(q, (q.ne[0], heads * tokens, 1, sequences))
    scores = shaped(ops.relu(ops.mul_mat(keys, flat)), (keys.ne[1], heads, tokens, sequences))
    weighted = ops.mul(scores, shaped(weights, (1, heads, tokens, sequences)))
    total = shaped(summed(weighted, (keys.ne[1], 1, tokens, sequences)), (keys.ne[1], tokens, 1, sequences))
    return ops.add(total, mask)


@formula(ops.Dsv4HcPre)
def _(op: ops.Dsv4HcPre, x: Tensor, weights: Tensor) -> Tensor:
    weighted = ops.mul(x, shaped(weights, (1, x.ne[1], x.ne[2])))
    return shaped(summed(weighted, (x.ne[0], 1, x.ne[2], 1)), (x.ne[0], x.ne[2]))


@formula(ops.Dsv4HcPreGated)
def _(op: ops.Dsv4HcPreGated, x: Tensor, gate: Tensor) -> Tensor:
    gated = ops.mul(x, ops.sigmoid(packed(gate)))
    return ops.scale(shaped(summed(gated, (x.ne[0], 1, x.ne[2], 1)), (x.ne[0], x.ne[2])), op.scale)


@formula(ops.Dsv4HcPost)
def _(op: ops.Dsv4HcPost, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    n, streams, tokens, _ = residual.ne
    spread = ops.repeat(shaped(x, (n, 1, tokens)), n, streams, tokens)
    return ops.add(ops.mul(spread, shaped(post, (1, streams, tokens))), ops.out_prod(by_rows(residual), comb))


@formula(ops.Dsv4HcComb)
def _(op: ops.Dsv4HcComb, mixes: Tensor, scale: Tensor, base: Tensor) -> Tensor:
    first, count = 2 * STREAMS, STREAMS * STREAMS
    mixes, scale, base = packed(mixes), packed(scale), packed(base)
    tokens = mixes.ne[1]
    of_logits = ops.view(mixes, count, tokens, nb=mixes.nb[1:], offset=4 * first)
    scaled = ops.mul(of_logits, ops.view(scale, 1, offset=8))
    logits = ops.add(scaled, ops.view(base, count, offset=4 * first))
    y = ops.scale(ops.soft_max(shaped(logits, (STREAMS, STREAMS, tokens))), 1, op.eps)

    def over_streams(y: Tensor) -> Tensor:
        return ops.div(y, ops.scale(summed(y, (STREAMS, 1, tokens, 1)), 1, op.eps))

    y = over_streams(y)
    for _ in range(1, op.n_iter):
        y = over_streams(ops.div(y, ops.scale(ops.sum_rows(y), 1, op.eps)))
    return y

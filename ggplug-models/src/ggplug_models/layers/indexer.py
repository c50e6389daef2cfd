"""Lightning indexers, which choose the keys that each token attends to (DeepSeek-AI, *DeepSeek-V3.2*, 2025)."""

from __future__ import annotations

import math

import ggplug as gg
from ggplug.tensor import Tensor


def of_best(q: Tensor, keys: Tensor, weights: Tensor, mask: Tensor, count: int) -> Tensor:
    """The mask, F16 [m, T / S, 1, S], in which a token sees only ``count`` of the keys that it sees in ``mask``.

    q: [d, n_head, T], keys: [d, m, 1, S], weights: [n_head, T], of the indexer.  ``mask``: F16 [m, T / S, 1, S].
    """
    d, n_head, tokens = q.ne[:3]
    m, n_seq = keys.ne[1], keys.ne[3]
    n = tokens // n_seq
    scale = 1 / math.sqrt(d * n_head)
    scores = gg.lightning_indexer(
        gg.reshape(q, d, n_head, n, n_seq),
        gg.permute(keys, 0, 2, 1, 3),
        gg.reshape(gg.scale(weights, scale), n_head, n, 1, n_seq),
        mask,
    )
    scores, seen = (gg.reshape(each, 1, m, n, n_seq) for each in (scores, mask))
    best = gg.top_k(gg.reshape(scores, m, n, n_seq), count)
    only = gg.set_rows(gg.fill(scores, -math.inf), gg.get_rows(seen, best), best)
    return gg.cast(gg.reshape(only, m, n, 1, n_seq), gg.F16)

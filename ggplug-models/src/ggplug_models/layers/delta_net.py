"""The gated delta rule (arXiv:2412.06464): a state matrix for each head that decays and that each token corrects."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor


def unit(x: Tensor, eps: float) -> Tensor:
    """Heads x [d, ...], divided by the square root of ``eps`` plus the sum of their squares."""
    return gg.scale(gg.rms_norm(x, eps=eps / x.ne[0]), x.ne[0] ** -0.5)


def delta_net(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The results [d, n_head, t, n_seq], and the new state [d d n_head, n_seq].

    q, k: [d, n, t, n_seq]; head h of v [d, n_head, t, n_seq] uses their head h mod n.  ``decay``: the logarithms of the
    factors of the state, [1 or d, n_head, t, n_seq].  ``beta``: the rate of the correction, [1, n_head, t, n_seq].
    """
    d, n_head, count, n_seq = v.ne
    size = d * d * n_head
    both = gg.gated_delta_net(q, k, v, decay, beta, gg.reshape(state, d, d, n_head, n_seq))
    y = gg.reshape(gg.view(both, v.size), d, n_head, count, n_seq)
    return y, gg.view(both, size, n_seq, nb=(4 * size,), offset=4 * v.size)

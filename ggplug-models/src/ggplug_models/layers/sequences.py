"""Layers that look at tokens before, through what they keep of them: convolutions over time, tokens shifted by one."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor


def by_time(x: Tensor, n_seq: int) -> Tensor:
    """Columns by sequence: [n, T] as [n, T / n_seq, n_seq]."""
    return gg.reshape(x, x.ne[0], x.ne[1] // n_seq, n_seq)


def columns(x: Tensor, first: int, count: int) -> Tensor:
    """Some numbers of each column: a view [count, ...] of [n, ...]."""
    return gg.view(x, count, *x.ne[1:3], nb=x.nb[1:3], offset=first * x.nb[0])


def convolved(x: Tensor, kernel: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution of each number over time, and the state after it.

    x: [n, t, n_seq], any strides.  kernel: [K, n].  state: [(K - 1) n, n_seq], the columns before, time innermost.
    Result: [n, t, n_seq], and a state [K - 1, n, n_seq].
    """
    n, count, n_seq = x.ne[:3]
    kept = kernel.ne[0] - 1
    x = gg.concat(gg.reshape(state, kept, n, n_seq), gg.transpose(x), dim=0)
    after = gg.view(x, kept, n, n_seq, nb=x.nb[1:3], offset=count * x.nb[0])
    return gg.ssm_conv(x, kernel), after


def shifted(x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's predecessor, and the last token, which is the next one's.

    x: [n, t, n_seq], contiguous.  before: [n, n_seq].  Result: [n, t, n_seq], and a view [n, 1, n_seq].
    """
    n, count, n_seq = x.ne[:3]
    first = gg.reshape(before, n, 1, n_seq)
    last = gg.view(x, n, 1, n_seq, nb=x.nb[1:3], offset=(count - 1) * x.nb[1])
    if count == 1:
        return first, last
    return gg.concat(first, gg.view(x, n, count - 1, n_seq, nb=x.nb[1:3]), dim=1), last

"""Layers that read previous tokens from a state: convolutions over time, and the previous token."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor


def by_time(x: Tensor, n_seq: int) -> Tensor:
    """Splits columns by sequence: [n, T] becomes [n, T / n_seq, n_seq]."""
    return gg.reshape(x, x.ne[0], x.ne[1] // n_seq, n_seq)


def columns(x: Tensor, first: int, count: int) -> Tensor:
    """The elements from ``first`` on of each column: a view [count, ...] of [n, ...]."""
    return gg.view(x, count, *x.ne[1:3], nb=x.nb[1:3], offset=first * x.nb[0])


def heads(x: Tensor, first: int, d: int, count: int) -> Tensor:
    """``count`` heads from element ``first`` of each column on: a view [d, count, t, n_seq] of [n, t, n_seq]."""
    return gg.view(x, d, count, *x.ne[1:3], nb=(d * x.nb[0], *x.nb[1:3]), offset=first * x.nb[0])


def convolved(x: Tensor, kernel: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Convolves each channel over time; returns the result [n, t, n_seq] and the new state [K - 1, n, n_seq].

    x: [n, t, n_seq], any strides.  kernel: [K, n].  state: [(K - 1) n, n_seq], the previous columns, time innermost.
    """
    n, count, n_seq = x.ne[:3]
    kept = kernel.ne[0] - 1
    x = gg.concat(gg.reshape(state, kept, n, n_seq), gg.transpose(x), dim=0)
    after = gg.view(x, kept, n, n_seq, nb=x.nb[1:3], offset=count * x.nb[0])
    return gg.ssm_conv(x, kernel), after


def shifted(x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Shifts tokens by one; returns the previous token of each, [n, t, n_seq], and the last token, [n, 1, n_seq].

    x: [n, t, n_seq], contiguous.  before: [n, n_seq], the tokens before the first ones.
    """
    n, count, n_seq = x.ne[:3]
    first = gg.reshape(before, n, 1, n_seq)
    last = gg.view(x, n, 1, n_seq, nb=x.nb[1:3], offset=(count - 1) * x.nb[1])
    if count == 1:
        return first, last
    return gg.concat(first, gg.view(x, n, count - 1, n_seq, nb=x.nb[1:3]), dim=1), last

"""Recurrent layers against plain loops, where no recorded case is; and what their shape rules refuse."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops
from ggplug.errors import ParameterError, ShapeError, TypeMismatchError
from ggplug.tensor import Tensor, new_tensor


def t(*ne: int, type: str = "f32") -> Tensor:
    return new_tensor(type, ne)


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("several", [False, True])
def test_a_state_space_model_goes_through_the_tokens_of_each_sequence(several: bool) -> None:
    size, dim, heads, groups, tokens, sequences, stored = 4, 3, 6, 2, 5, 2, 3
    s, x = numbers(stored, heads, dim, size), numbers(sequences, tokens, heads, dim, seed=1)
    dt, a = numbers(1, sequences, tokens, heads, seed=2), -np.abs(numbers(1, 1, heads, size if several else 1, seed=3))
    b, c = numbers(sequences, tokens, groups, size, seed=4), numbers(sequences, tokens, groups, size, seed=5)
    ids = np.array([2, 0]).reshape(1, 1, 1, 2)
    got = ops.SsmScan().reference(s, x, dt, a, b, c, ids).reshape(-1)
    want = np.zeros(x.shape)
    states = np.zeros((sequences, heads, dim, size))
    for n, h, d in itertools.product(range(sequences), range(heads), range(dim)):
        state = s[[2, 0][n], h, d].copy()
        for i in range(tokens):
            step = math.log1p(math.exp(dt[0, n, i, h]))
            for j in range(size):
                state[j] = state[j] * math.exp(step * a[0, 0, h, j if several else 0])
                state[j] += step * b[n, i, h // 3, j] * x[n, i, h, d]
            want[n, i, h, d] = (state * c[n, i, h // 3]).sum()
        states[n, h, d] = state
    np.testing.assert_allclose(got, np.concatenate([want.reshape(-1), states.reshape(-1)]), rtol=1e-10)


def test_snapshots_are_the_states_that_ever_fewer_tokens_leave() -> None:
    size, heads, tokens, sequences = 4, 2, 3, 2
    q, k, v = (numbers(sequences, tokens, heads, size, seed=i) for i in range(3))
    g, beta = -np.abs(numbers(sequences, tokens, heads, 1, seed=3)), numbers(sequences, tokens, heads, 1, seed=4)
    state = numbers(sequences, heads, size, size, seed=5)
    several = ops.GatedDeltaNet(4).reference(q, k, v, g, beta, state)[0, 0]
    kept = several[tokens * sequences :].reshape(4, *state.shape)
    for left_out in range(3):
        cut = slice(0, tokens - left_out)
        one = ops.GatedDeltaNet(1).reference(q[:, cut], k[:, cut], v[:, cut], g[:, cut], beta[:, cut], state)[0, 0]
        np.testing.assert_allclose(kept[left_out].reshape(-1, size * heads), one[-size * sequences :], rtol=1e-12)
    assert not kept[3].any()


def test_heads_of_a_delta_net_share_q_and_k_in_turns_and_sequences_in_blocks() -> None:
    q, k = numbers(2, 3, 2, 4), numbers(1, 3, 2, 4, seed=1)
    v, state = numbers(4, 3, 6, 4, seed=2), numbers(4, 6, 4, 4, seed=3)
    g, beta = numbers(4, 3, 6, 4, seed=4), numbers(4, 3, 6, 1, seed=5)
    got = ops.GatedDeltaNet().reference(q, k, v, g, beta, state)[0, 0]
    for n, h in itertools.product(range(4), range(6)):
        s = state[n, h].copy()
        for i in range(3):
            own_q, own_k = q[n // 2, i, h % 2], k[0, i, h % 2]
            s = s * np.exp(g[n, i, h])
            s += np.outer((v[n, i, h] - s @ own_k) * beta[n, i, h, 0], own_k)
            np.testing.assert_allclose(got[n * 3 + i, 4 * h : 4 * h + 4], s @ own_q / 2, rtol=1e-10)


@pytest.mark.parametrize("name", ["rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn"])
def test_sequences_are_independent(name: str) -> None:
    op = ops.GatedLinearAttn(0.5) if name == "gated_linear_attn" else ops.OPS[name]()
    size, heads, tokens = 3, 2, 4
    per_token = [numbers(1, 2 * tokens, heads, size, seed=i) for i in range(len(op.sources) - 1)]
    if name == "rwkv_wkv6":
        per_token[3] = numbers(1, 1, heads, size, seed=3)
    state = numbers(1, 1, 2, size * size * heads, seed=9)
    both = op.reference(*per_token, state)[0, 0]
    for n in range(2):
        cut = [x[:, n * tokens : (n + 1) * tokens] if x.shape[1] > 1 else x for x in per_token]
        one = op.reference(*cut, state[:, :, n : n + 1])[0, 0]
        np.testing.assert_allclose(both[n * tokens : (n + 1) * tokens], one[:tokens], rtol=1e-12)
        np.testing.assert_allclose(both[2 * tokens + n * size :][:size], one[tokens:], rtol=1e-12)


@pytest.mark.parametrize("name", ["rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn"])
def test_a_matrix_is_the_state_of_a_head(name: str) -> None:
    op = ops.GatedLinearAttn(0.5) if name == "gated_linear_attn" else ops.OPS[name]()
    size, heads, tokens = 3, 2, 4
    given = [numbers(1, tokens, heads, size, seed=i) for i in range(len(op.sources) - 1)]
    if name == "rwkv_wkv6":
        given[3] = numbers(1, 1, heads, size, seed=3)
    state = numbers(1, 1, 1, size * size * heads, seed=9)
    got = op.reference(*given, state)[0, 0]
    for h in range(heads):
        s = state.reshape(heads, size, size)[h].copy()
        for i in range(tokens):
            at = [x[0, min(i, x.shape[1] - 1), h] for x in given]
            want = np.zeros(size)
            if name == "rwkv_wkv7":
                r, w, k, v, a, b = at
                for row in range(size):
                    along = sum(a[j] * s[row, j] for j in range(size))
                    for j in range(size):
                        s[row, j] = s[row, j] * w[j] + v[row] * k[j] + along * b[j]
                        want[row] += s[row, j] * r[j]
            else:
                for row, j in itertools.product(range(size), range(size)):
                    kv = at[0][row] * at[1][j]
                    if name == "rwkv_wkv6":
                        want[j] += at[2][row] * (s[row, j] + at[3][row] * kv)
                        s[row, j] = s[row, j] * at[4][row] + kv
                    else:
                        s[row, j] = s[row, j] * at[3][row] + kv
                        want[j] += 0.5 * at[2][row] * s[row, j]
            np.testing.assert_allclose(got[i, h * size : (h + 1) * size], want, rtol=1e-10)
        np.testing.assert_allclose(got[tokens:].reshape(heads, size, size)[h], s, rtol=1e-10)


def test_a_convolution_of_tokens_reads_those_before() -> None:
    x, weights = numbers(1, 2, 3, 6), numbers(1, 1, 3, 4, seed=1)
    got = ops.SsmConv().reference(x, weights)
    for s, i, c in itertools.product(range(2), range(3), range(3)):
        np.testing.assert_allclose(got[0, s, i, c], (x[0, s, c, i : i + 4] * weights[0, 0, c]).sum(), rtol=1e-12)


SCAN = ((8, 3, 4, 2), (3, 4, 5, 2), (4, 5, 2), (1, 4), (8, 2, 5, 2), (8, 2, 5, 2))


def scanned(replace: dict[int, tuple[int, ...]], ids: Tensor | None = None, **parameters: int) -> Tensor:
    sources = [t(*replace.get(i, ne)) for i, ne in enumerate(SCAN)]
    return gg.ssm_scan(*sources, t(2, type="i32") if ids is None else ids, **parameters)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: gg.ssm_conv(t(3, 5, 2), t(4, 5)), ShapeError, r"x \[T \+ K - 1, C, S\]"),
        (lambda: gg.ssm_conv(gg.transpose(t(5, 7)), t(4, 5)), ShapeError, "rows must be contiguous"),
        (lambda: gg.ssm_conv(t(7, 5, type="f16"), t(4, 5)), TypeMismatchError, "f32"),
        (lambda: scanned({1: (3, 5, 5, 2)}), ShapeError, r"x must be \[D, H, T, S\]"),
        (lambda: scanned({3: (5, 4)}), ShapeError, "a must be"),
        (lambda: scanned({3: (8, 4)}, snapshots=2), ShapeError, "with one snapshot"),
        (lambda: scanned({4: (8, 3, 5, 2), 5: (8, 3, 5, 2)}), ShapeError, "H a multiple of G"),
        (lambda: scanned({}, t(2, type="i64")), TypeMismatchError, "ids of i32"),
        (lambda: scanned({}, snapshots=0), ParameterError, "snapshots must be 1"),
        (lambda: gg.rwkv_wkv6(*[t(8, 2, 5)] * 3, t(8, 3), t(8, 2, 5), t(128, 1)), ShapeError, "tf must hold S H"),
        (lambda: gg.rwkv_wkv7(*[t(8, 2, 5)] * 6, t(128, 2)), ShapeError, "T a multiple of N"),
        (lambda: gg.gated_linear_attn(*[t(8, 2, 5)] * 3, t(8, 2, 4), t(128, 1), 0.5), ShapeError, "the same extents"),
        (
            lambda: gg.gated_delta_net(*[t(8, 2, 5)] * 3, t(1, 2, 5), t(1, 2, 5), t(8, 8, 3)),
            ShapeError,
            "the state must be",
        ),
        (
            lambda: gg.gated_delta_net(t(8, 3, 5), *[t(8, 2, 5)] * 2, t(1, 2, 5), t(1, 2, 5), t(8, 8, 2)),
            ShapeError,
            "multiples of those of q and k",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()

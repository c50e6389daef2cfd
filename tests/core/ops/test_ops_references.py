"""References against the plainest possible computation, where ggml's recorded cases do not reach."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ggplug.ops as ops
from ggplug.ops.attention import alibi_slopes
from ggplug.tensor import new_tensor
from ggplug.types import RopeMode

rng = np.random.default_rng(7)


def test_mul_mat_is_rows_times_rows() -> None:
    a, b = rng.normal(size=(1, 2, 3, 5)), rng.normal(size=(2, 4, 6, 5))
    got = ops.MulMat().reference(a, b)
    assert got.shape == (2, 4, 6, 3)
    for i3, i2, n, m in np.ndindex(got.shape):
        # A matrix of a serves consecutive matrices of b.
        want = sum(a[i3 // 2, i2 // 2, m, k] * b[i3, i2, n, k] for k in range(5))
        assert got[i3, i2, n, m] == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_mul_mat_id_takes_the_chosen_expert(rows: int) -> None:
    experts, b = rng.normal(size=(1, 6, 3, 5)), rng.normal(size=(1, 7, rows, 5))
    ids = rng.integers(0, 6, size=(1, 1, 7, 4)).astype(np.int32)
    got = ops.MulMatId().reference(experts, b, ids)
    assert got.shape == (1, 7, 4, 3)
    for t, u in np.ndindex(7, 4):
        np.testing.assert_allclose(got[0, t, u], experts[0, ids[0, 0, t, u]] @ b[0, t, u % rows], rtol=1e-12)


def test_get_rows_and_set_rows_are_inverse() -> None:
    table, ids = rng.normal(size=(3, 2, 9, 4)), np.stack([rng.permutation(9)[:5] for _ in range(6)]).reshape(1, 3, 2, 5)
    rows = ops.GetRows().reference(table, ids.astype(np.int32))
    for k, j, i in np.ndindex(3, 2, 5):
        assert np.array_equal(rows[k, j, i], table[k, j, ids[0, k, j, i]])
    dst = rng.normal(size=table.shape)
    written = ops.SetRows().reference(dst, rows, ids)
    assert np.array_equal(ops.GetRows().reference(written, ids), rows)
    untouched = np.ones(table.shape, bool)
    for k, j, i in np.ndindex(3, 2, 5):
        untouched[k, j, ids[0, k, j, i]] = False
    assert np.array_equal(written[untouched], dst[untouched])


def test_set_rows_repeats_its_ids() -> None:
    dst, rows = np.zeros((4, 6, 8, 2)), rng.normal(size=(4, 6, 3, 2))
    ids = np.array([[[5, 0, 7], [1, 2, 3], [4, 6, 0]], [[0, 1, 2], [7, 6, 5], [3, 2, 1]]]).reshape(1, 2, 3, 3)
    got = ops.SetRows().reference(dst, rows, ids)
    for k, j, i in np.ndindex(4, 6, 3):
        assert np.array_equal(got[k, j, ids[0, k % 2, j % 3, i]], rows[k, j, i])


def test_alibi_slopes_fall_by_powers_and_then_between_them() -> None:
    # The paper's slopes for 8 heads, and for 12 the first 8 followed by every other slope of 16 heads.
    assert alibi_slopes(8, 8.0).tolist() == [2.0**-n for n in range(1, 9)]
    np.testing.assert_allclose(alibi_slopes(12, 8.0)[8:], [2.0 ** -(n / 2) for n in (1, 3, 5, 7)])
    assert alibi_slopes(5, 0.0).tolist() == [1.0] * 5


def test_soft_max_counts_the_sink_but_does_not_show_it() -> None:
    x, sinks = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(1, 1, 1, 3))
    mask = np.where(rng.random((1, 1, 6, 5)) < 0.3, -np.inf, 0.0)
    got = ops.SoftMax(scale=0.7).reference(x, mask, sinks)
    for b, h, r in np.ndindex(2, 3, 4):
        weights = np.exp(0.7 * x[b, h, r] + mask[0, 0, r])
        np.testing.assert_allclose(got[b, h, r], weights / (weights.sum() + math.exp(sinks[0, 0, 0, h])), rtol=1e-12)


def test_soft_max_does_not_overflow() -> None:
    got = ops.SoftMax().reference(np.array([[[[1e4, 1e4, -1e4]]]]))
    assert got.tolist() == [[[[0.5, 0.5, 0.0]]]]


# -- rope ------------------------------------------------------------------------------------------


def rotated(x: Any, angles: Any, neox: bool) -> Any:
    """A row's pairs as complex numbers, each rotated by its angle."""
    half = x.size // 2
    z = x[:half] + 1j * x[half:] if neox else x[0::2] + 1j * x[1::2]
    z = z * np.exp(1j * angles)
    return np.concatenate((z.real, z.imag)) if neox else np.stack((z.real, z.imag), axis=1).reshape(-1)


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
@pytest.mark.parametrize("n_offs", [0, 4])
def test_rope_turns_pairs_as_complex_numbers(mode: RopeMode, n_offs: int) -> None:
    x, pos = rng.normal(size=(2, 3, 2, 16)), np.array([0, 5, 1000], np.int32).reshape(1, 1, 1, 3)
    factors = rng.uniform(1, 4, size=(1, 1, 1, 4))
    got = ops.Rope(8, mode=mode, freq_base=500.0, freq_scale=0.5, n_offs=n_offs).reference(x, pos, factors)
    for b, t, h in np.ndindex(2, 3, 2):
        angles = 0.5 * pos[0, 0, 0, t] * 500.0 ** (-np.arange(4) / 4) / factors[0, 0, 0]
        want = x[b, t, h].copy()
        want[n_offs : n_offs + 8] = rotated(want[n_offs : n_offs + 8], angles, mode == RopeMode.NEOX)
        np.testing.assert_allclose(got[b, t, h], want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", [RopeMode.MROPE, RopeMode.IMROPE])
def test_rope_with_equal_positions_on_all_axes_is_rope_with_one(mode: RopeMode) -> None:
    x, pos = rng.normal(size=(1, 3, 2, 24)), np.array([3, 1, 9], np.int32)
    several = np.tile(pos, 4).reshape(1, 1, 1, 12)
    got = ops.Rope(24, mode=mode, sections=(4, 4, 4, 0)).reference(x, several)
    want = ops.Rope(24, mode=RopeMode.NEOX).reference(x, pos.reshape(1, 1, 1, 3))
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("mode", "axes"),
    [(RopeMode.MROPE, "ttthhwwwee"), (RopeMode.IMROPE, "thwthwtewe"), (RopeMode.VISION, "ttthhwwwee")],
)
def test_rope_sections_say_which_position_turns_a_pair(mode: RopeMode, axes: str) -> None:
    # The positions are zero but on one axis, so only the pairs of that axis are rotated.
    n = 20
    n_dims = n // 2 if mode == RopeMode.VISION else n
    x = rng.normal(size=(1, 1, 1, n))
    for axis, letter in enumerate("thwe"):
        pos = np.zeros((1, 1, 1, 4), np.int32)
        pos[..., axis] = 2
        got = ops.Rope(n_dims, mode=mode, sections=(3, 2, 3, 2)).reference(x, pos)
        rotated = np.abs(got - x)[0, 0, 0, :10] > 1e-12
        assert "".join(letter if on else "." for on in rotated) == "".join(c if c == letter else "." for c in axes)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones() -> None:
    op = ops.Rope(128, freq_scale=0.25, ext_factor=1.0, n_ctx_orig=4096)
    low, high = op.correction_range()
    # Pairs rotate 4096 / (2 pi) * 10000**(-i / 64) times: 32 times for i = 20.9, once for i = 45.03.
    assert (low, high) == (20, 46)
    x, pos = np.zeros((1, 1, 1, 128)), np.full((1, 1, 1, 1), 77, np.int32)
    x[..., 0::2] = 1
    got = op.reference(x, pos)[0, 0, 0]
    magnitude = 1 + 0.1 * math.log(4)
    np.testing.assert_allclose(np.hypot(got[0::2], got[1::2]), magnitude, rtol=1e-12)
    plain = 77 * 10000.0 ** (-np.arange(64) / 64)
    share = np.clip((np.arange(64) - 20) / 26, 0, 1)
    angles = plain * (1 - share) + 0.25 * plain * share
    np.testing.assert_allclose(got[0::2], magnitude * np.cos(angles), rtol=1e-9, atol=1e-12)


# -- element by element ----------------------------------------------------------------------------


def test_gelu_erf_is_exact_to_float64() -> None:
    x = np.linspace(-9, 9, 2001)
    want = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(ops.GeluErf().reference(x), want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "gelu", "gelu_erf", "gelu_quick", "tanh", "elu"])
def test_activations_saturate_without_overflow(name: str) -> None:
    got = ops.OPS[name]().reference(np.array([-1e4, 1e4]))
    want = {"sigmoid": [0, 1], "tanh": [-1, 1], "elu": [-1, 1e4]}.get(name, [0, 1e4])
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_round_takes_halves_away_from_zero() -> None:
    x = np.array([-2.5, -1.5, -0.5, -0.25, 0.5, 1.5, 2.5, 1e15])
    assert ops.Round().reference(x).tolist() == [-3, -2, -1, 0, 1, 2, 3, 1e15]


def test_step_sgn_and_abs_at_zero() -> None:
    x = np.array([-0.5, 0.0, 0.5])
    assert ops.Step().reference(x).tolist() == [0, 0, 1]
    assert ops.Sgn().reference(x).tolist() == [-1, 0, 1]
    assert ops.Abs().reference(x).tolist() == [0.5, 0, 0.5]


def test_xielu_builder_makes_slopes_positive() -> None:
    node = ops.xielu(new_tensor("f32", 3), -1.0, 30.0, 0.5, -1e-6)
    op = node.op
    assert isinstance(op, ops.Xielu)
    assert op.alpha_n == pytest.approx(0.5 + math.log1p(math.exp(-1)))
    assert op.alpha_p == 30.0
    x = np.array([-2.0, 0.0, 3.0])
    want = [op.alpha_n * (math.expm1(-2) + 2) - 1, op.alpha_n * math.expm1(-1e-6), 30 * 9 + 1.5]
    np.testing.assert_allclose(op.reference(x), want, rtol=1e-12)


def test_glu_gates_the_first_half_by_the_second() -> None:
    x = rng.normal(size=(1, 1, 2, 6))
    first, second = x[..., :3], x[..., 3:]
    assert np.array_equal(ops.Reglu().reference(x), np.maximum(first, 0) * second)
    assert np.array_equal(ops.Reglu(swapped=True).reference(x), np.maximum(second, 0) * first)
    assert np.array_equal(ops.Reglu().reference(first, second), ops.Reglu().reference(x))


def test_norms() -> None:
    x = rng.normal(3, 2, size=(1, 1, 4, 50))
    y = ops.Norm(eps=0.0).reference(x)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-14)
    np.testing.assert_allclose(y.std(-1), 1)
    np.testing.assert_allclose((ops.RmsNorm(eps=0.0).reference(x) ** 2).mean(-1), 1)
    np.testing.assert_allclose(np.linalg.norm(ops.L2Norm().reference(x), axis=-1), 1)
    # ggml's l2_norm bounds the norm from below and adds nothing to it.
    assert ops.L2Norm(eps=10.0).reference(np.full((1, 1, 1, 4), 2.0)).tolist() == [[[[0.2] * 4]]]


# -- moving ----------------------------------------------------------------------------------------


def test_copies_match_elements_in_ne_order() -> None:
    x = np.arange(24).reshape(1, 2, 3, 4)
    assert np.array_equal(ops.Cpy().reference(x, np.zeros((1, 1, 4, 6))).reshape(-1), np.arange(24))
    assert ops.Cont((6, 4)).reference(x).shape == (1, 1, 4, 6)
    assert ops.Concat(1).reference(x, x[:, :, :1]).shape == (1, 2, 4, 4)
    assert np.array_equal(ops.Repeat((8, 3, 2)).reference(x)[0, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3])


def test_permute_puts_a_dimension_where_its_axis_says() -> None:
    x = np.zeros((5, 4, 3, 2))  # ne 2, 3, 4, 5
    assert ops.Permute((2, 0, 3, 1)).reference(x).shape[::-1] == (3, 5, 2, 4)
    assert ops.Reshape((-1, 4)).reference(x).shape == (1, 1, 4, 30)


def test_argsort_orders_and_argmax_takes_the_first() -> None:
    x = np.array([[[[3.0, 1.0, 2.0, 3.0]]]])
    assert ops.Argsort().reference(x).tolist() == [[[[1, 2, 0, 3]]]]
    assert ops.Argsort(ops.SortOrder.DESC).reference(x).tolist() == [[[[0, 3, 2, 1]]]]
    assert ops.Argmax().reference(x).tolist() == [[[0]]]

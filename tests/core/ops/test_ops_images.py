"""Ops on images against plain loops written from their definitions, and what their shape rules refuse.

That the references compute what ggml computes is proven in test_ops_recorded.py, for those that have recorded cases.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops
from ggplug.errors import ParameterError, ShapeError, TypeMismatchError
from ggplug.ops import PoolKind, ScaleMode
from ggplug.tensor import Tensor, new_tensor
from ggplug_testing.judging.oracle import evaluate


def t(*ne: int, type: str = "f32") -> Tensor:
    return new_tensor(type, ne)


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def computed(node: Tensor) -> np.ndarray[Any, Any]:
    """What the oracle computes of a graph over tensors with values; four-dimensional in NumPy order."""
    return evaluate(gg.Graph(node), {})[node]


# -- references that no recorded case proves ---------------------------------------------------------


@pytest.mark.parametrize(("s0", "s1", "p0", "p1", "d0", "d1"), [(1, 1, 0, 0, 1, 1), (2, 3, 1, 2, 2, 1)])
def test_im2col_back_adds_up_what_im2col_takes_from_each_element(
    s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> None:
    height, width, channels, images, kh, kw = 7, 9, 2, 3, 2, 3
    op = ops.Im2colBack(s0, s1, p0, p1, d0, d1, True, (width, height, channels, images))
    high, wide = (
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in ((height, p1, d1, kh, s1), (width, p0, d0, kw, s0))
    )
    grad = numbers(images, high, wide, channels * kh * kw)
    want = np.zeros((images, channels, height, width))
    for n, i, j, c, y, x in itertools.product(*map(range, (images, high, wide, channels, kh, kw))):
        row, column = i * s1 - p1 + y * d1, j * s0 - p0 + x * d0
        if 0 <= row < height and 0 <= column < width:
            want[n, c, row, column] += grad[n, i, j, (c * kh + y) * kw + x]
    np.testing.assert_allclose(op.reference(grad, np.zeros((1, channels, kh, kw))), want, rtol=1e-12)


def test_im2col_back_in_one_dimension_does_the_same() -> None:
    op = ops.Im2colBack(2, 0, 1, 0, 2, 0, False, (9, 2, 3))
    grad = numbers(1, 3, 4, 6)
    want = np.zeros((3, 2, 9))
    for n, j, c, x in itertools.product(range(3), range(4), range(2), range(3)):
        if 0 <= 2 * j - 1 + 2 * x < 9:
            want[n, c, 2 * j - 1 + 2 * x] += grad[0, n, j, 3 * c + x]
    np.testing.assert_allclose(op.reference(grad, np.zeros((1, 5, 2, 3)))[0], want, rtol=1e-12)


@pytest.mark.parametrize("kind", PoolKind)
@pytest.mark.parametrize(("k0", "k1", "s0", "s1", "p0", "p1"), [(2, 3, 2, 1, 0, 0), (3, 2, 1, 2, 1, 1)])
def test_pool_2d_back_gives_a_mean_to_all_and_a_maximum_to_the_first_of_the_largest(
    kind: PoolKind, k0: int, k1: int, s0: int, s1: int, p0: int, p1: int
) -> None:
    x = np.random.default_rng(1).integers(0, 3, (2, 1, 8, 7)).astype(float)
    op = ops.Pool2dBack(int(kind), k0, k1, s0, s1, p0, p1)
    high, wide = (8 + 2 * p1 - k1) // s1 + 1, (7 + 2 * p0 - k0) // s0 + 1
    grad = numbers(2, 1, high, wide)
    want = np.zeros_like(x)
    for n, i, j in itertools.product(range(2), range(high), range(wide)):
        places = [
            (i * s1 - p1 + y, j * s0 - p0 + z)
            for y in range(k1)
            for z in range(k0)
            if 0 <= i * s1 - p1 + y < 8 and 0 <= j * s0 - p0 + z < 7
        ]
        if kind is PoolKind.AVG:
            for place in places:
                want[n, 0][place] += grad[n, 0, i, j] / (k0 * k1)
        else:
            largest = max(x[n, 0][place] for place in places)
            want[n, 0][next(place for place in places if x[n, 0][place] == largest)] += grad[n, 0, i, j]
    np.testing.assert_allclose(op.reference(grad, x), want, rtol=1e-12, atol=1e-14)


def test_windows_apart_are_the_image_with_zeros_around_and_together_again_it_is_the_image() -> None:
    x, w = numbers(1, 5, 7, 3), 4
    apart = ops.WinPart(w).reference(x)
    assert apart.shape == (4, w, w, 3)
    for window, i, j in itertools.product(range(4), range(w), range(w)):
        row, column = window // 2 * w + i, window % 2 * w + j
        want = x[0, row, column] if row < 5 and column < 7 else np.zeros(3)
        np.testing.assert_array_equal(apart[window, i, j], want)
    np.testing.assert_array_equal(ops.WinUnpart(7, 5, w).reference(apart), x)


def test_relative_positions_are_rows_by_distance() -> None:
    x = numbers(1, 1, 9, 2)
    got = ops.GetRelPos(5, 5).reference(x)
    for i, j in itertools.product(range(5), range(5)):
        np.testing.assert_array_equal(got[0, j, i], x[0, 0, 4 - i + j])


def test_relative_positions_are_added_along_rows_and_columns() -> None:
    a, pw, ph = numbers(1, 2, 6, 9), numbers(2, 3, 2, 3, seed=1), numbers(2, 3, 2, 3, seed=2)
    got = ops.AddRelPos().reference(a, pw, ph)
    for b, row, i, j in itertools.product(range(2), range(6), range(3), range(3)):
        want = a[0, b, row, j * 3 + i] + pw[b, row // 2, row % 2, i] + ph[b, row // 2, row % 2, j]
        np.testing.assert_allclose(got[0, b, row, j * 3 + i], want, rtol=1e-12)


def test_antialias_is_the_mean_of_what_a_new_pixel_covers_weighted_by_a_triangle() -> None:
    x = numbers(1, 1, 1, 12)
    got = ops.Interpolate((4,), ScaleMode.BILINEAR | ScaleMode.ANTIALIAS).reference(x)[0, 0, 0]
    for i in range(4):
        weights = np.maximum(1 - np.abs(np.arange(12) + 0.5 - (i + 0.5) * 3) / 3, 0)
        np.testing.assert_allclose(got[i], (weights * x[0, 0, 0]).sum() / weights.sum(), rtol=1e-6)


def test_aligned_corners_stay_where_they_are() -> None:
    x = numbers(1, 1, 5, 7)
    for mode in (ScaleMode.BILINEAR, ScaleMode.BICUBIC):
        y = ops.Interpolate((13, 9), mode | ScaleMode.ALIGN_CORNERS).reference(x)
        np.testing.assert_allclose(y[..., ::8, ::12], x[..., ::4, ::6], rtol=1e-6)


# -- what is made of several ops ---------------------------------------------------------------------


def test_convolutions_by_way_of_windows_are_the_convolutions() -> None:
    def leaf(*shape: int, seed: int) -> Tensor:
        return gg.tensor(np.round(numbers(*shape, seed=seed) * 8).astype(np.float32) / 8)  # exact in F16

    x, kernel = leaf(2, 4, 9, 11, seed=1), leaf(5, 4, 2, 3, seed=2)
    slide = {"s0": 2, "s1": 1, "p0": 1, "p1": 2, "d0": 2, "d1": 1}
    want = computed(gg.conv_2d_direct(kernel, x, **slide))
    np.testing.assert_allclose(computed(gg.conv_2d(kernel, x, **slide)), want, atol=1e-6)
    want = computed(gg.conv_2d_direct(kernel, x, 3, 2))
    np.testing.assert_allclose(computed(gg.conv_2d_sk_p0(kernel, x)), want, atol=1e-6)
    want = computed(gg.conv_2d_direct(kernel, x, 1, 1, 1, 1))
    np.testing.assert_allclose(computed(gg.conv_2d_s1_ph(kernel, x)), want, atol=1e-6)
    own = leaf(4, 1, 2, 3, seed=3)
    want = computed(gg.conv_2d_dw_direct(own, x, **slide))
    np.testing.assert_allclose(computed(gg.conv_2d_dw(own, x, **slide)), want, atol=1e-6)
    volume, cubes = leaf(6, 5, 4, 7, seed=4), leaf(8, 2, 2, 3, seed=5)
    want = computed(gg.conv_3d_direct(cubes, volume, 2, 3, 4, p0=1, s2=2))
    np.testing.assert_allclose(computed(gg.conv_3d(cubes, volume, 2, p0=1, s2=2)), want, atol=1e-6)


def test_convolutions_of_rows_are_those_of_images_of_one_row() -> None:
    x, kernel = gg.tensor(numbers(3, 4, 20).astype(np.float32)), gg.tensor(numbers(5, 4, 3).astype(np.float32))
    flat = gg.conv_2d_direct(gg.reshape(kernel, 3, 1, 4, 5), gg.reshape(x, 20, 1, 4, 3), 2, 1, 1, 0, 2, 1)
    got = computed(gg.conv_1d(kernel, x, 2, 1, 2))
    np.testing.assert_allclose(got[0], computed(flat)[:, :, 0], atol=2e-2)
    assert gg.conv_1d_ph(kernel, x).ne == (20, 5, 3, 1)
    own = gg.tensor(numbers(4, 1, 3).astype(np.float32))
    row = gg.tensor(numbers(4, 20).astype(np.float32))
    want = gg.conv_2d_dw_direct(gg.reshape(own, 3, 1, 1, 4), gg.reshape(row, 20, 1, 4), 1, 1, 1)
    got = computed(gg.conv_1d_dw_ph(own, row))
    np.testing.assert_allclose(got[0, 0], computed(want)[0, :, 0], atol=2e-2)


def test_a_convolution_whose_kernel_is_bf16_keeps_windows_in_f32() -> None:
    rows = gg.conv_2d(t(3, 3, 2, 4, type="bf16"), t(9, 9, 2)).src[0]
    while rows is not None and (rows.op is None or rows.op.name != "im2col"):
        rows = rows.src[0]
    assert rows is not None
    assert rows.type.name == "f32"


def test_upscale_multiplies_the_first_two_extents() -> None:
    assert gg.upscale(t(3, 4, 5, 2), 2).ne == (6, 8, 5, 2)


# -- shapes ------------------------------------------------------------------------------------------


def test_channels_side_by_side_stay_so_in_a_convolution_of_each() -> None:
    x = gg.permute(t(6, 9, 8, 2), 2, 0, 1)
    y = gg.conv_2d_dw_direct(t(3, 3, 1, 6), x)
    assert y.ne == (7, 6, 6, 2)
    assert y.nb == (24, 24 * 7, 4, 24 * 7 * 6)


@pytest.mark.parametrize("weight", [np.inf, -np.inf, np.nan])
def test_beyond_the_image_is_zero_for_whole_convolutions_and_nothing_for_those_of_each_channel(weight: float) -> None:
    x, kernel = np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3))
    kernel[0, 0, 0, 0] = weight  # of the element above and to the left
    border = np.zeros((4, 4), bool)
    border[0] = border[:, 0] = True
    with np.errstate(invalid="ignore"):
        whole = ops.Conv2dDirect(p0=1, p1=1).reference(kernel, x)[0, 0]
        volumes = ops.Conv3dDirect(channels=1, images=1, out_channels=1, p0=1, p1=1).reference(kernel, x)[0, 0]
        each = ops.Conv2dDwDirect(p0=1, p1=1).reference(kernel, x)[0, 0]
    for y in (whole, volumes):
        assert np.isnan(y[border]).all()
        assert not np.isfinite(y[~border]).any()
    ones = ops.Conv2dDwDirect(p0=1, p1=1).reference(np.ones((1, 1, 3, 3)), x)[0, 0]
    np.testing.assert_array_equal(each[border], ones[border])
    np.testing.assert_array_equal(each[~border], np.full(9, weight))


def test_a_window_that_lacks_less_than_a_stride_is_counted_as_ggml_does() -> None:
    assert gg.conv_2d_direct(t(1, 3, 2, 4), t(1, 1, 2), 1, 5, 0, 2, 1, 4).ne == (1, 1, 4, 1)


def test_planes_that_make_no_whole_volume_are_left_out() -> None:
    assert gg.im2col_3d(t(3, 3, 3, 3), t(9, 9, 9, 5), 3).ne == (81, 7, 7, 7)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: gg.conv_2d_direct(t(3, 3, 4, 5), t(9, 9, 3)), ShapeError, "the same number of channels"),
        (lambda: gg.conv_2d_direct(t(9, 3, 3, 5), t(7, 9, 3)), ShapeError, "no window of 9 taps"),
        (lambda: gg.conv_2d_direct(t(3, 3, 3, 5), t(7, 9, 3), s0=0), ParameterError, "s0 must be 1 or more"),
        (lambda: gg.conv_2d_direct(t(3, 3, 3, 5), t(7, 9, 3), p1=-1), ParameterError, "p1 must be 0 or more"),
        (lambda: gg.conv_2d_direct(t(3, 3, 3, 5), t(7, 9, 3, type="f16")), TypeMismatchError, "x must be f32"),
        (lambda: gg.conv_2d_direct(t(32, 3, 3, 5, type="q8_0"), t(64, 9, 3)), TypeMismatchError, "quantised"),
        (lambda: gg.conv_2d_dw_direct(t(3, 3, 3, 1), t(7, 9, 3)), ShapeError, r"must be \[KW, KH, 1, C\]"),
        (lambda: gg.conv_3d_direct(t(3, 3, 3, 5), t(7, 9, 9, 3), 2, 1, 2), ShapeError, "channels"),
        (lambda: gg.conv_transpose_1d(t(3, 4, 2), t(7, 3)), ShapeError, r"kernel must be \[K, OC, C\]"),
        (lambda: gg.conv_transpose_2d(t(3, 3, 4, 2), t(7, 7, 3)), ShapeError, "the same number of channels"),
        (lambda: gg.im2col(t(3, 3, 2), t(9, 9, 3)), ShapeError, "the same number of channels"),
        (lambda: gg.im2col(t(3, 3, 3), t(9, 9, 3), type="q8_0"), ParameterError, "plain float"),
        (lambda: gg.im2col(t(3, 2, 5), t(9, 2, 3, 2), is_2d=False), ShapeError, "at most three dimensions"),
        (lambda: gg.im2col_back(t(9, 7, 7), t(3, 3, 1), ne=(9, 8)), ShapeError, "extents .* of im2col's result"),
        (lambda: gg.col2im_1d(t(7, 3), 2, 2), ShapeError, "multiple of 2 channels"),
        (lambda: gg.col2im_1d(t(4, 3), 1, 2, 9), ShapeError, "must be positive"),
        (lambda: gg.pool_1d(t(3, 3), 0, 4), ShapeError, "no window of 4 elements"),
        (lambda: gg.pool_1d(t(3, 3), 2, 1), ParameterError, "kind must be 0"),
        (lambda: gg.pool_2d(t(3, 3), 1, 2, 4), ShapeError, "no window of 2 by 4"),
        (lambda: gg.pool_2d_back(t(3, 3), t(4, 4), 0, 3, 3), ShapeError, "grad must be contiguous"),
        (lambda: gg.interpolate(t(3, 3), (6, 6), 3), ParameterError, "no mode 3"),
        (lambda: gg.interpolate(t(3, 3), (6, 6), 512), ParameterError, "ANTIALIAS"),
        (lambda: gg.interpolate(t(3, 0), (6, 6)), ShapeError, "no pixels"),
        (lambda: gg.win_part(t(3, 4, 5), 0), ParameterError, "w must be 1 or more"),
        (lambda: gg.win_unpart(t(3, 4, 4, 3), 7, 5, 4), ShapeError, "must have the extents"),
        (lambda: gg.get_rel_pos(t(3, 4), 3, 3), ShapeError, "must have 5 rows"),
        (lambda: gg.add_rel_pos(t(9, 4), t(3, 2, 2), t(3, 4)), ShapeError, "must be"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()

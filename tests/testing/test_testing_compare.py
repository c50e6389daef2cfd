"""Results are equal within what is allowed, one by one and together; what has no distance has to agree."""

from __future__ import annotations

import numpy as np
import pytest

from ggplug import types
from ggplug.errors import ShapeError
from ggplug_testing.judging.comparison import Allowed, compare, compare_bits, compare_selected, nmse

WANT = np.array([[[[1.0, -2.0, 3.0, 4.0]]]])


def changed(position: int, value: float) -> np.ndarray:
    got = WANT.copy()
    got[..., position] = value
    return got


def test_nmse_is_the_error_relative_to_what_was_wanted() -> None:
    assert nmse(WANT, WANT) == 0
    assert nmse(changed(0, 2.0), WANT) == pytest.approx(1 / 30)
    assert nmse(np.ones(3), np.zeros(3)) == np.inf
    assert nmse(np.zeros(3), np.zeros(3)) == 0


def test_a_difference_within_the_allowed_error_is_no_difference() -> None:
    assert compare(changed(1, -2.001), WANT, 1e-6)
    outcome = compare(changed(1, -2.1), WANT, 1e-6)
    assert not outcome
    assert "[1, 0, 0, 0]" in outcome.reason
    assert outcome.nmse == pytest.approx(0.01 / 30)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_infinities_and_nans_have_to_agree(special: float) -> None:
    assert compare(changed(2, special), changed(2, special), 0)
    assert not compare(changed(2, special), WANT, 1e9)
    assert not compare(WANT, changed(2, special), 1e9)


def test_infinities_have_to_agree_in_sign() -> None:
    assert "sign" in compare(changed(2, np.inf), changed(2, -np.inf), 1e9).reason


def test_integers_are_compared_exactly() -> None:
    want = np.array([[[[2**40, 5]]]])
    assert compare(want, want.copy(), 0)
    outcome = compare(want + np.array([0, 1]), want, 1e9)
    assert "1 of 2 elements are wrong" in outcome.reason


def test_shapes_have_to_be_equal() -> None:
    with pytest.raises(ShapeError):
        compare(WANT, WANT[..., :3], 1)


def test_indices_may_order_equal_values_differently() -> None:
    values = np.array([[[[5.0, 1.0, 5.0, 0.0]]]])
    want = np.array([[[[3, 1, 0, 2]]]])
    assert compare_selected(np.array([[[[3, 1, 2, 0]]]]), want, values, 0)
    assert not compare_selected(np.array([[[[1, 3, 2, 0]]]]), want, values, 0)
    assert compare_selected(np.array([[[[0, 3, 2, 1]]]]), want, values, 0, ordered=False)


def test_indices_have_to_be_indices_and_different() -> None:
    values = np.zeros((1, 1, 1, 3))
    want = np.array([[[[0, 1, 2]]]])
    assert "twice" in compare_selected(np.array([[[[0, 0, 2]]]]), want, values, 0).reason
    assert "are no indices" in compare_selected(np.array([[[[0, 3, 2]]]]), want, values, 0).reason


def test_one_index_a_row_is_compared_by_its_value() -> None:
    values = np.array([[[[1.0, 7.0, 7.0], [9.0, 0.0, 0.0]]]])
    want = np.array([[[[1, 0]]]])
    assert compare_selected(np.array([[[[2, 0]]]]), want, values, 0)
    assert not compare_selected(np.array([[[[0, 0]]]]), want, values, 0)


def test_the_first_of_equal_values_has_to_be_selected_where_that_is_asked_for() -> None:
    values = np.array([[[[1.0, 7.0, 7.0], [np.nan, np.nan, np.nan]]]])
    want = np.array([[[[1, 0]]]])
    assert compare_selected(want.copy(), want, values, 0, first=True)
    assert "are not the first" in compare_selected(np.array([[[[2, 0]]]]), want, values, 0, first=True).reason
    assert "are not the first" in compare_selected(np.array([[[[1, 2]]]]), want, values, 0, first=True).reason


def test_zeros_may_have_to_agree_in_sign() -> None:
    zeros = np.array([[[[0.0, -0.0, 1.0]]]])
    assert compare(np.abs(zeros), zeros, 0)
    assert compare(zeros.copy(), zeros, 0, "signs")
    assert "sign" in compare(np.abs(zeros), zeros, 0, "signs").reason


def test_nan_and_infinity_may_stand_for_each_other_but_for_no_number() -> None:
    want = np.array([[[[np.nan, np.inf, 1.0]]]])
    assert compare(np.array([[[[-np.inf, np.nan, 1.0]]]]), want, 0, "not finite")
    assert not compare(np.array([[[[np.nan, 3.4e38, 1.0]]]]), want, 0, "not finite")
    assert not compare(np.array([[[[np.nan, np.inf, np.nan]]]]), want, 0, "not finite")
    assert not compare(np.array([[[[np.nan, np.inf, 1.5]]]]), want, 0, "not finite")


def test_bits_are_compared_nan_by_nan_and_block_by_block() -> None:
    nans = np.array([[[[0x7FC00000, 0x7FC00001]]]], np.uint32).view(np.float32)
    assert compare_bits(nans.copy(), nans)
    assert "got 7fc00001, want 7fc00000 at [0" in compare_bits(nans[..., ::-1], nans).reason
    blocks = np.zeros((1, 1, 2, 1), types.Q8_0.dtype)
    other = blocks.copy()
    other["qs"][0, 0, 1, 0, 31] = 1
    assert compare_bits(blocks.copy(), blocks)
    assert "[0, 1, 0, 0]" in compare_bits(other, blocks).reason
    with pytest.raises(ShapeError):
        compare_bits(blocks, blocks[:, :, :1])


def test_each_element_has_to_be_between_the_ends_that_are_allowed() -> None:
    allowed = Allowed(WANT - 0.25, WANT + 0.25)
    assert compare(changed(1, -2.25), WANT, allowed)
    small = Allowed(WANT - 0.01, WANT + 0.01)
    assert compare(changed(1, -2.02), WANT, small).reason == (
        "1 of 4 elements are not precise enough: got -2.02, want -2.0 at [1, 0, 0, 0] (ne order), from -2.01 to -1.99"
    )
    assert compare(changed(1, -2.01), WANT, Allowed(WANT, WANT)).reason.endswith("at [1, 0, 0, 0] (ne order), exactly")


def test_all_elements_together_may_be_held_to_less() -> None:
    assert not compare(changed(1, -2.1), WANT, Allowed(WANT - 0.25, WANT + 0.25, 1e-6))


def test_infinity_is_allowed_where_it_is_one_of_the_ends() -> None:
    largest = np.full_like(WANT, 65504.0)
    assert compare(largest * np.inf, largest, Allowed(largest, largest * np.inf))
    assert not compare(largest * np.inf, largest, Allowed(largest, largest))
    assert not compare(largest * np.nan, largest, Allowed(largest, largest * np.inf))


def test_what_is_far_off_is_wrong_and_not_imprecise() -> None:
    allowed = Allowed(WANT - 0.01, WANT + 0.01)
    assert compare(changed(1, -2.5), WANT, allowed).reason == (
        "1 of 4 elements are wrong: got -2.5, want -2.0 at [1, 0, 0, 0] (ne order)"
    )
    small = WANT.copy()
    small[..., 0] = 1e-9
    # next to numbers of about 3 a small one may be off by a part of these
    around = Allowed(small - 1e-12, small + 1e-12)
    got = small.copy()
    got[..., 0] = 1e-6
    assert "not precise enough" in compare(got, small, around).reason


def test_one_element_that_is_far_off_is_wrong_whatever_the_others_are() -> None:
    around = Allowed(WANT - 1e-4, WANT + 1e-4)
    got = WANT + 2e-4
    assert "not precise enough" in compare(got, WANT, around).reason
    for wrong in (40, 1.3 * float(WANT[..., 0].item())):
        got[..., 0] = wrong
        assert "are wrong" in compare(got, WANT, around).reason


def test_a_row_that_holds_the_values_of_another_one_is_reported() -> None:
    rows = np.random.default_rng(1).standard_normal((1, 2, 3, 8))
    allowed = Allowed(rows - 1e-6, rows + 1e-6)
    got = rows.copy()
    got[0, 1, 0] = rows[0, 0, 2]
    reason = compare(got, rows, allowed).reason
    assert reason.startswith("8 of 48 elements are wrong: got ")
    assert reason.endswith("; row [0, 1, 0] has the values of row [2, 0, 0]")
    whole = compare((got * 100).astype(np.int32), (rows * 100).astype(np.int32), 0).reason
    assert whole.endswith("; row [0, 1, 0] has the values of row [2, 0, 0]")
    got[0, 1, 0] = rng_of(8)
    assert "row" not in compare(got, rows, allowed).reason


def rng_of(count: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal(count)

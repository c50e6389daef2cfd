"""How precise results have to be follows from the op and its values: the table, and what it lets through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import ggplug as gg
from ggplug import types
from ggplug.ops.base import OPS
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, Q6_K, Q8_0, Type
from ggplug_testing.cases.case import Leafs, node
from ggplug_testing.judging.comparison import Allowed, compare
from ggplug_testing.judging.expected import Expected, within
from ggplug_testing.precision import OTHER, RULES, UNIT
from ggplug_testing.precision.__main__ import page

WEIGHTS = (F32, F16, BF16, Q8_0, Q6_K)


def product(weights: Type, k: int, seed: int, **parameters: Any) -> tuple[Tensor, Expected]:
    leafs = Leafs(seed)
    made = node(OPS["mul_mat"], leafs.tensor(weights, k, 16), leafs.tensor(F32, k, 16), **parameters)
    return made, Expected(gg.Graph(made), leafs.values)


def allowed(make: Callable[[Leafs], Tensor], seed: int = 1) -> tuple[Tensor, Expected, Allowed]:
    leafs = Leafs(seed)
    made = make(leafs)
    expected = Expected(gg.Graph(made), leafs.values)
    return made, expected, expected.allowed(made)


@pytest.mark.parametrize("kind", [F32, F16, Q8_0, Q6_K], ids=str)
def test_the_bounds_of_some_rows_of_a_result_are_those_of_these_rows(kind: Type) -> None:
    leafs = Leafs(1)
    total = gg.add(leafs.tensor(F32, 512, 5), leafs.tensor(F32, 512, 5))
    whole = gg.cast(total, kind) if kind is not F32 else total
    row = whole.nb[1]
    rows = node(OPS["view"], whole, ne=(256, 2, 1, 1), nb=(row, 2 * row, 2 * row), offset=row + row // 2)
    expected = Expected(gg.Graph(gg.neg(gg.cast(rows, F32))), leafs.values)
    part, all_of_it = expected.allowed(rows), expected.allowed(whole)
    for found, wanted in ((part.low, all_of_it.low), (part.high, all_of_it.high)):
        np.testing.assert_array_equal(found, wanted[:, :, 1:3, 256:])


def test_every_op_of_core_that_computes_has_a_rule() -> None:
    computing = {op.name for op in OPS.values() if op.__module__.startswith("ggplug.ops") and not op.is_view}
    assert computing <= set(RULES)
    moved = {name for name, rule in RULES.items() if rule.kind == "moves"}
    assert {op.name for op in OPS.values() if op.moves} <= moved  # others put zeros between what they move


@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_a_product_in_float32_is_held_to_1e_11(k: int) -> None:
    k = k - k % 256 if k > 256 else k
    made, expected = product(F32, k, 1)
    assert expected.allowed(made).nmse < 1e-13 * max(k, 64)
    assert expected.allowed(made).nmse < 2e-10


@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_seed_is_lucky(weights: Type) -> None:
    limits = []
    for seed in range(6):
        made, expected = product(weights, 256, seed)
        limits.append(expected.allowed(made).nmse)
    assert max(limits) < 1.5 * min(limits)


def test_activations_may_be_rounded_as_the_weights_are() -> None:
    limits = [expected.allowed(made).nmse for made, expected in (product(kind, 256, 3) for kind in WEIGHTS)]
    f32, f16, bf16, q8_0, q6_k = limits
    assert f32 < 1e-11 < f16 < 2e-6 < bf16 < 3e-5 < q8_0 < q6_k < 5e-4


def test_products_that_ask_for_float32_do_not_round_activations() -> None:
    for kind in (F16, BF16):
        made, expected = product(kind, 256, 3, precision=int(types.Precision.F32))
        assert expected.allowed(made).nmse < 1e-11


def test_what_a_sum_may_be_off_follows_its_terms_and_not_what_is_left_of_them() -> None:
    x = np.tile([1e4, -1e4, 0.5, 0.25], 16)
    made, _, bounds = allowed(lambda leafs: node(OPS["sum_rows"], leafs.array(F32, x)))
    assert made.ne[0] == 1
    assert 1e4 * UNIT < (bounds.high - bounds.low).item() < 1e6 * UNIT * 64


@pytest.mark.parametrize("name", ["sum_rows", "mul_mat", "out_prod"])
def test_equal_terms_may_be_added_one_after_the_other(name: str) -> None:
    n = 2304
    terms = np.full((1, n), np.float32(0.1))
    arrays = {"sum_rows": [terms], "mul_mat": [terms, terms], "out_prod": [terms.T, terms.T]}[name]
    _, _, bounds = allowed(lambda leafs: node(OPS[name], *(leafs.array(F32, array) for array in arrays)))
    term = np.float32(0.1) if name == "sum_rows" else np.float32(0.1) * np.float32(0.1)
    one_after_the_other = np.cumsum(np.full(n, term, np.float32), dtype=np.float32)[-1]
    assert bounds.low.item() < one_after_the_other < bounds.high.item()


@pytest.mark.parametrize("name", ["sub", "mul", "div", "rms_norm", "get_rows", "silu", "rope", "soft_max", "mul_mat"])
def test_results_that_went_through_f16_are_not_precise_enough(name: str) -> None:
    def make(leafs: Leafs) -> Tensor:
        x, w = leafs.tensor(F32, 32, 4), leafs.tensor(F32, 32, 4, low=0.5, high=2)
        if name == "rope":
            return node(OPS[name], leafs.tensor(F32, 32, 2, 4), leafs.array(types.I32, np.arange(4)), n_dims=32)
        if name == "get_rows":
            return node(OPS[name], x, leafs.array(types.I32, np.arange(3)))
        return node(OPS[name], x, w) if "x" not in OPS[name].sources else node(OPS[name], x)

    made, expected, bounds = allowed(make)
    want = expected[made]
    assert compare(want, want, bounds)
    assert not compare(want.astype(np.float16).astype(np.float64), want, bounds)


@pytest.mark.parametrize("kind", [F16, BF16])
def test_coarse_results_are_rounded_to_the_nearest_and_ties_to_even(kind: Type) -> None:
    step = 2.0**-10 if kind is F16 else 2.0**-7
    exact = np.array([1 + 0.4 * step, 1 + 0.6 * step, 1 + 0.5 * step, 1 + 1.5 * step, 1e39])
    bounds = within(kind, exact, np.zeros(5))
    nearest = np.array([1, 1 + step, 1, 1 + 2 * step, np.inf])
    np.testing.assert_array_equal(bounds.low, nearest)
    np.testing.assert_array_equal(bounds.high, nearest)
    near_a_tie = within(kind, exact[2:3], np.full(1, 4 * UNIT))
    assert (near_a_tie.low, near_a_tie.high) == (1, 1 + step)


def test_numbers_below_the_normal_ones_may_be_flushed_where_something_is_computed() -> None:
    tiny = np.array([2.0**-130, -(2.0**-130), 1.0, 0.0])
    for name, flushes in (("relu", True), ("add", True), ("cont", False)):
        sources = 2 if name == "add" else 1
        _, expected, bounds = allowed(
            lambda leafs, n=name, s=sources: node(OPS[n], *[leafs.array(F32, tiny / s) for _ in range(s)])
        )
        del expected
        assert (bounds.low[..., 0].item() <= 0) is flushes, name
        assert bounds.low[..., 3].item() == bounds.high[..., 3].item() == 0


def test_errors_of_earlier_nodes_are_in_what_a_later_one_may_be() -> None:
    def chain(leafs: Leafs, count: int) -> Tensor:
        x = leafs.tensor(F32, 64, 4)
        for _ in range(count):
            x = node(OPS["exp"], node(OPS["sin"], x))
        return x

    single, double = (allowed(lambda leafs, n=n: chain(leafs, n))[2] for n in (1, 2))
    assert np.mean(double.high - double.low) > 1.5 * np.mean(single.high - single.low)
    assert np.max(double.high - double.low) < 1e-4


def test_a_view_of_a_result_may_be_what_the_result_may_be() -> None:
    made, _, whole = allowed(lambda leafs: node(OPS["exp"], leafs.tensor(F32, 8, 4)))
    _, _, part = allowed(lambda leafs: gg.view(node(OPS["exp"], leafs.tensor(F32, 8, 4)), 3, 2, nb=(64,), offset=8))
    np.testing.assert_array_equal(part.low, whole.low[..., ::2, 2:5])
    assert made.ne[:2] == (8, 4)


def test_an_op_without_a_rule_is_held_to_float32() -> None:
    assert "test.none" not in RULES
    values = np.linspace(-3, 3, 32)
    made = node(OPS["exp"], Leafs(0).tensor(F32, 32))
    tolerance = OTHER.tolerance(made, values, values)
    assert tolerance.max() * UNIT < 1e-5


def test_the_page_about_precision_has_the_table_as_it_is() -> None:
    text = (ROOT / "docs" / "precision.md").read_text(encoding="utf-8")
    assert text == page(), "run: python -m ggplug_testing.precision > docs/precision.md"

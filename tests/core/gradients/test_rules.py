"""Every gradient rule is that of the op's reference, by differences over the cases of the conformance suite."""

from __future__ import annotations

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops
from ggplug.errors import DuplicateNameError
from ggplug.gradients import RULES, formula, rows, rule_of
from ggplug.ops.base import OPS, Op
from ggplug.ops.sliding import Axis
from ggplug_testing.cases import Leafs
from ggplug_testing.judging.derivatives import gradient_cases, slopes, wrong_slopes
from ggplug_testing.judging.oracle import evaluate

WITH_RULE = sorted(name for name, op in OPS.items() if name.partition(".")[2] == "" and rule_of(op) is not None)

CONSTANT = {"sgn", "step", "floor", "ceil", "round", "trunc", "fill"}
"""Ops whose gradient is zero where it is defined."""

OF_GGML = {
    ops.Abs,
    ops.Acc,
    ops.Add,
    ops.Cont,
    ops.Cos,
    ops.Cpy,
    ops.CrossEntropyLoss,
    ops.DiagMaskInf,
    ops.DiagMaskZero,
    ops.Div,
    ops.Dup,
    ops.Exp,
    ops.Expm1,
    ops.GetRows,
    ops.Im2col,
    ops.Log,
    ops.Mean,
    ops.Mul,
    ops.MulMat,
    ops.Neg,
    ops.Permute,
    ops.Pool2d,
    ops.Relu,
    ops.Repeat,
    ops.RepeatBack,
    ops.Reshape,
    ops.RmsNorm,
    ops.Rope,
    ops.Scale,
    ops.Set,
    ops.Sgn,
    ops.Silu,
    ops.Sin,
    ops.SoftMax,
    ops.Softplus,
    ops.Sqr,
    ops.Sqrt,
    ops.Step,
    ops.Sub,
    ops.Sum,
    ops.SumRows,
    ops.Swiglu,
    ops.Transpose,
    ops.View,
}
"""The ops for which ggml's backward pass has a rule (ggml_compute_backward)."""


def test_every_op_that_ggml_differentiates_has_a_rule() -> None:
    assert not [op for op in OF_GGML if rule_of(op) is None]


@pytest.mark.parametrize("name", WITH_RULE)
def test_a_rule_gives_the_slopes_of_differences(name: str) -> None:
    found = [slope for case in gradient_cases(OPS[name]) for slope in slopes(case)]
    assert bool(found) == (name not in CONSTANT)
    assert not [str(slope) for slope in found if not slope.right]


@pytest.mark.parametrize("name", WITH_RULE)
def test_a_rule_takes_the_gradient_of_what_is_transposed_afterwards(name: str) -> None:
    cases = [case for case in gradient_cases(OPS[name]) if min(case.make(Leafs(0)).ne[:2]) > 1]
    found = [slope for case in cases[:2] for slope in slopes(case, turned=True)]
    assert not [str(slope) for slope in found if not slope.right]


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_RULE)
def test_a_rule_gives_the_slopes_of_differences_in_all_cases(name: str) -> None:
    kinks = ("capped by 1e-",)  # at products that are 0, where such a cap is steeper than any difference
    wrong = [str(slope) for slope in wrong_slopes(OPS[name], thorough=True)]
    assert not [each for each in wrong if not any(kink in each for kink in kinks)]


@pytest.mark.parametrize("name", ["cumsum", "get_rows", "pad_reflect_1d", "set_rows"])
def test_a_rule_divides_what_has_more_rows_than_ops_can_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "EXACT", 2)
    assert not [str(slope) for slope in wrong_slopes(OPS[name], thorough="rows" in name)]


@pytest.mark.parametrize("s2", [1, 2, 3])
@pytest.mark.parametrize(("p2", "d2"), [(0, 1), (1, 1), (1, 2)])
def test_a_convolution_has_gradients_where_its_window_is_longer_than_the_planes(s2: int, p2: int, d2: int) -> None:
    axis = Axis(3, s2, p2, d2)
    for planes in range(1, 7):
        if axis.count(planes) < 1:
            continue
        kernel, x = gg.new_tensor("f32", (2, 2, 3, 6)), gg.new_tensor("f32", (4, 3, planes, 4))
        y = gg.conv_3d_direct(kernel, x, 2, 2, 3, s2=s2, p2=p2, d2=d2)
        loss = gg.sum(gg.mul(y, gg.cos(gg.reshape(gg.arange(0, y.size), *y.ne))))
        backward = gg.Graph(loss).backward(loss, [kernel, x])
        numbers = np.random.default_rng(planes)
        values = {each: numbers.standard_normal(each.size) for each in (kernel, x)}
        found = evaluate(backward, values)
        for each, number in values.items():  # the loss is linear in each of them
            slope = (found.exact(backward.gradients[each]).reshape(-1) * number).sum()
            assert slope == pytest.approx(found.exact(loss).item(), rel=1e-9, abs=1e-9)


def test_an_op_has_one_rule() -> None:
    with pytest.raises(DuplicateNameError, match="mul already has a gradient rule"):

        @formula(ops.Mul)
        def _(op: Op, a: object, b: object) -> None: ...


def test_rules_are_for_ops_and_for_families_of_them() -> None:
    assert all(issubclass(each, Op) for each in RULES)
    assert rule_of(ops.DiagMaskInf) is RULES[ops.DiagMask] is rule_of(ops.DiagMaskZero)
    assert rule_of(ops.Argsort) is None

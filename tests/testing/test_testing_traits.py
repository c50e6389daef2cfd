"""A report says what all failing cases of an op have and no passing one: an offset, strides, many rows, a parameter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggplug.backend import Device, Operand
from ggplug.ops import OPS, Op
from ggplug_testing.conformance import check
from ggplug_testing.devices.reference import ReferenceDevice, interpret
from ggplug_testing.reporting.rendering import text
from ggplug_testing.reporting.report import Finding, Report, hint

When = Callable[[Op, Operand, tuple[Operand | None, ...]], Any]


class Wrong(ReferenceDevice):
    """Computes an op wrongly where ``when(op, dst, src)`` is true."""

    match = Device.match

    def __init__(self, op: str, when: When) -> None:
        super().__init__("toy")

        def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
            wrong = when(op, dst, src)
            interpret(op, dst, *src)
            if wrong:
                dst.array()[...] = 7

        self.kernels = {OPS[op]: kernel}  # type: ignore[misc]


def report_of(op: str, when: When) -> Report:
    return check(Wrong(op, when), ops=[op], clauses=[], graphs=False, groups=False)


def has_nan(operand: Operand | None) -> bool:
    values = operand.array() if operand is not None else np.zeros(1)
    return values.dtype.kind == "f" and not np.isfinite(values).all()


@pytest.mark.parametrize(
    ("op", "when", "words"),
    [
        ("add", lambda op, dst, src: src[1].tensor.view_offset, "an offset of b"),
        ("add", lambda op, dst, src: not src[1].tensor.is_contiguous(), "strides of b that leave gaps"),
        ("add", lambda op, dst, src: np.prod(dst.tensor.ne[1:]) > 65535, "more than 65,535 rows in a"),
        ("add", lambda op, dst, src: dst.tensor.ne[0] % 4, "rows of a whose length is no multiple of 4"),
        ("mul", lambda op, dst, src: src[1].tensor.ne[1] < dst.tensor.ne[1], "another number of rows than b"),
        ("soft_max", lambda op, dst, src: src[2] is not None, ""),
        ("soft_max", lambda op, dst, src: op.max_bias, "max_bias other than 0.0"),
        ("get_rows", lambda op, dst, src: src[0].tensor.type.name == "f16", "a of f16"),
        ("silu", lambda op, dst, src: dst.offset == src[0].offset, "a result in the place of x"),
    ],
)
def test_what_separates_the_failing_cases_is_named(op: str, when: When, words: str) -> None:
    report = report_of(op, when)
    assert report.bad
    assert report.counts()["passed"]
    (cause, *_) = report.causes()
    if words:
        assert words in cause.hint
        assert cause.hint.endswith(", and no case that passed has")
        assert cause.hint[:60] in text(report)
    else:
        assert "mask" not in cause.hint


def test_nothing_is_named_where_passing_cases_have_it_too() -> None:
    seen = []

    def third(op: Op, dst: Operand, src: tuple[Operand | None, ...]) -> bool:
        seen.append(dst)
        return len(seen) in (20, 30, 41)

    (cause, *_) = report_of("add", third).causes()
    assert cause.hint == ""


def test_nothing_is_named_of_one_case_or_where_nothing_passed() -> None:
    assert hint("add", [["an offset of b"]], {"a of f32"}) == ""
    assert hint("add", [["an offset of b"]] * 2, ()) == ""
    assert hint("add", [["x", "y"], ["y", "z"]], {"z"}) == "all 2 of add have y, and no case that passed has"
    many = [["v", "w", "x", "y", "z"]] * 3
    bounds = [["more than 64 rows", "more than 65,535 rows", "rows longer than 16"]] * 2
    assert hint("add", bounds, {"a"}).startswith("all 2 of add have more than 65,535 rows, rows longer than 16, and no")
    expected = "all 3 of add have v, w, x (and 2 more such things), and no case that passed has"
    assert hint("add", many, {"a"}) == expected


def test_reports_of_other_processes_say_the_same() -> None:
    report = report_of("add", lambda op, dst, src: src[1] is not None and src[1].tensor.view_offset)
    merged = Report.merge("toy", [json.loads(report.to_json())])
    assert [each.hint for each in merged.causes()] == [each.hint for each in report.causes()]
    assert '"traits"' not in report.as_json()


def test_cases_without_traits_have_no_hint() -> None:
    findings = [Finding("graph", "a", "failed", "wrong"), Finding("graph", "b", "failed", "wrong")]
    report = Report("toy", [*findings, Finding("graph", "c", "passed")])
    assert [each.hint for each in report.causes()] == [""]

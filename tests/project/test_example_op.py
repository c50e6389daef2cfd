"""The example of an op outside of ggplug: it is right, the suite proves it, and no device takes it for another op."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

import ggplug as gg
from ggplug import gradients
from ggplug.errors import ParameterError, ShapeError
from ggplug.ops.base import OPS
from ggplug_testing.cases import GENERATORS
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.judging.derivatives import gradient_cases, slopes, wrong_slopes
from ggplug_testing.precision import RULES
from ggplug_testing.running.runner import run_op

EXAMPLE = "examples.soft_capped_gelu"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The module, whose ops are there for these tests alone."""
    module = importlib.import_module(EXAMPLE)
    yield module
    del gradients.RULES[module.SoftCappedGelu]
    for op in (module.SoftCappedGelu, module.SoftCappedGeluBack):
        for table in (OPS, GENERATORS, RULES):
            del table[op.name]
    del sys.modules[EXAMPLE]


@pytest.mark.parametrize("name", ["SoftCappedGelu", "SoftCappedGeluBack"])
def test_the_suite_has_its_cases(example: ModuleType, name: str) -> None:
    found = run_op(ReferenceDevice(), getattr(example, name))
    assert len(found) > 10
    assert {each.verdict for each in found} == {"passed"}


def test_its_gradient_is_that_of_differences(example: ModuleType) -> None:
    x, step = np.linspace(-4, 4, 65), 1e-6
    op, back = example.SoftCappedGelu(cap=0.5), example.SoftCappedGeluBack(cap=0.5)
    difference = (op.reference(x + step) - op.reference(x - step)) / (2 * step)
    np.testing.assert_allclose(back.reference(np.ones_like(x), x), difference, atol=1e-8)


def test_its_rule_is_checked_by_the_suite(example: ModuleType) -> None:
    cases = gradient_cases(example.SoftCappedGelu)
    assert len(cases) > 5
    assert all(list(slopes(case)) for case in cases)
    assert not wrong_slopes(example.SoftCappedGelu)


def test_wrong_calls_are_told(example: ModuleType) -> None:
    x = gg.new_tensor("f32", (4, 2))
    with pytest.raises(TypeError, match="positional"):
        example.soft_capped_gelu(x, 0.5)
    with pytest.raises(ParameterError, match="cap must be above 0"):
        example.soft_capped_gelu(x, cap=0)
    with pytest.raises(ShapeError, match="dy and x have the same extents"):
        example.soft_capped_gelu_back(gg.new_tensor("f32", (3, 2)), x)
    assert example.soft_capped_gelu(x, cap=2).op == example.SoftCappedGelu(cap=2.0)


def test_devices_without_its_kernel_decline_it(example: ModuleType) -> None:
    node = example.soft_capped_gelu(gg.new_tensor("f32", (4, 2)))
    for device in gg.devices():
        assert not device.supports_op(node), device

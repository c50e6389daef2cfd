"""Ops that other packages define: what a class may declare, and that no device takes it for another op."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops
from ggplug.ops import OPS, Op, builder
from ggplug.ops.base import Array
from ggplug.tensor import Spec, Tensor, like
from ggplug_testing import conformance
from ggplug_testing.devices.reference import ReferenceDevice


@pytest.fixture(autouse=True)
def _ours_alone() -> Iterator[None]:
    """Ops that a test defines are gone after it."""
    before = set(OPS)
    yield
    for name in set(OPS) - before:
        del OPS[name]


def x(*ne: int) -> Tensor:
    return gg.new_tensor("f32", ne or (4, 2))


class Same(Op, abstract=True):
    """What these ops have in common."""

    def result(self, x: Tensor) -> Spec:
        return like(x)

    def reference(self, x: Array) -> Array:
        return 0 * x + 7


# -- parameters ------------------------------------------------------------------------------------


def test_parameters_by_keyword_only_come_last_wherever_they_are_declared() -> None:
    class Mine(Same):
        name = "outside.mine"
        cap: float = field(kw_only=True)
        level: int = 2
        _: KW_ONLY
        low: float = 0.5

    assert str(inspect.signature(Mine)).replace("'", "") == "(level: int = 2, *, cap: float, low: float = 0.5)"
    op = Mine(3, cap=1)
    assert (op.level, op.cap, op.low) == (3, 1.0, 0.5)
    assert op.key == ("outside.mine", 1.0, 3, 0.5)  # in the order of the fields
    mine = builder(Mine)
    assert mine(x(), 3, cap=1).op == op
    assert mine(x(), cap=1, low=2).op == Mine(cap=1.0, low=2.0)
    assert list(inspect.signature(mine).parameters) == ["x", "level", "cap", "low", "name"]
    with pytest.raises(TypeError, match="cap"):
        mine(x())
    with pytest.raises(TypeError, match=r"^Mine: missing a required"):
        Mine(3)
    with pytest.raises(TypeError, match=r"^Mine: too many positional"):
        Mine(3, 1.0)


def test_a_default_may_be_made_and_self_is_a_name_like_others() -> None:
    class Mine(Same):
        name = "outside.mine"
        extents: tuple[int, ...] = field(default_factory=tuple)
        args: int = 1
        table: ClassVar[int] = 5

    assert Mine().extents == ()
    assert builder(Mine)(x()).op == Mine((), 1)
    assert replace(Mine((1, 2)), args=4) == Mine((1, 2), args=4)


def test_an_op_is_a_value() -> None:
    class Mine(Same):
        name = "outside.mine"
        level: int = 2

    op = Mine(5)
    for change in (lambda: setattr(op, "level", 1), lambda: setattr(op, "other", 1), lambda: delattr(op, "level")):
        with pytest.raises(FrozenInstanceError, match=r"Mine\.\w+ cannot be"):
            change()
    assert {op: 1}[Mine(5)] == 1


def test_a_class_without_words_evaluates_no_annotation() -> None:
    class Mine(Same):
        name = "outside.mine"
        level: Later = 2  # type: ignore[name-defined]  # noqa: F821

    assert inspect.signature(Mine).parameters["level"].annotation == "Later"
    assert inspect.getdoc(Mine) == "What these ops have in common."


def test_an_own_way_to_make_one_is_shown() -> None:
    class Area(Same):
        name = "outside.area"
        size: int

        def __init__(self, width: int, height: int) -> None:
            super().__init__(width * height)

    assert list(inspect.signature(Area).parameters) == ["width", "height"]
    assert Area(2, 3).size == 6
    assert pickle.loads(pickle.dumps(ops.Scale(2.0))) == ops.Scale(2.0)


def _fields(**fields: Any) -> dict[str, Any]:
    """Fields in this order: a type, and perhaps a default."""
    kinds = {name: value[0] if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"__annotations__": kinds} | {n: v[1] for n, v in fields.items() if isinstance(v, tuple)}


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("follows default argument", _fields(a=(int, 1), b=int)),
    ("b has init=False", _fields(a=(int, 1), b=(int, field(default=7, init=False)))),
    ("x is both a source", _fields(x=(int, 1))),
    ("__post_init__ is never called", {"__post_init__": lambda self: None}),
    ("__post_init__ is never called", _fields(a=(InitVar[int], 1)) | {"__post_init__": lambda self, a: None}),
    (r"inplace must hold positions in .*, got \(1,\)", {"inplace": (1,)}),
    (r"inplace must hold positions in .*, got \('x',\)", {"inplace": ("x",)}),
    (r"writes must hold positions in .*, got \(3,\)", {"writes": (3,)}),
    ("is not that of a function", {"name": "outside.lambda"}),
    ("is not that of a function", {"name": "outside.two words"}),
]


def test_an_op_without_a_shape_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="Wrong has no method result"):
        type("Wrong", (Op,), {"name": "outside.wrong", "__module__": __name__})


@pytest.mark.parametrize(("message", "body"), WRONG, ids=[message for message, _ in WRONG])
def test_a_class_that_is_no_op_is_refused_where_it_is_defined(message: str, body: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Same,), {"name": "outside.wrong", "__module__": __name__} | body)
    assert not any(name.startswith("outside.") for name in OPS)


# -- devices ---------------------------------------------------------------------------------------

q, p = gg.new_tensor("f32", (4, 2, 2)), gg.new_tensor("i32", (2,))
ABSTRACT: dict[str, Callable[[type[Op]], Tensor]] = {
    "Unary": lambda cls: builder(cls)(x()),
    "Binary": lambda cls: builder(cls)(x(), x()),
    "Glu": lambda cls: builder(cls)(x(), x()),
    "RowNorm": lambda cls: builder(cls)(x()),
    "Banded": lambda cls: builder(cls)(x(4, 4)),
    "DiagMask": lambda cls: builder(cls)(x(), 1),
    "Rotary": lambda cls: builder(cls)(q, p, 4),
}


def abstract_ops() -> dict[str, type[Op]]:
    bases = {
        base for op in OPS.values() for base in op.__mro__ if issubclass(base, Op) and OPS.get(base.name) is not base
    }
    return {base.__name__: base for base in bases if base.__module__.startswith("ggplug.")}


@pytest.mark.parametrize("base", ABSTRACT)
def test_no_device_takes_what_derives_from_ggplugs_abstract_op_for_one_of_ggplugs(base: str) -> None:
    words = {"name": f"outside.{base.lower()}", "__module__": __name__, "__doc__": "All sevens."}
    cls = type("Mine", (abstract_ops()[base],), words | {"reference": lambda self, x, *others: 0 * x + 7})
    assert cls.kinds == (cls,)
    node = ABSTRACT[base](cls)
    for device in gg.devices():
        assert not device.supports_op(node), device
        graph = gg.Graph(ops.silu(node))
        assert not device.groups(graph).members, device


def test_a_packages_own_abstract_op_has_rows_for_its_ops() -> None:
    class Mine(Same):
        name = "outside.mine"

    assert Mine.kinds == (Mine, Same)
    assert ops.RmsNorm.kinds[0] is ops.RmsNorm
    assert abstract_ops()["RowNorm"] in ops.RmsNorm.kinds
    np.testing.assert_array_equal(Mine().reference(np.zeros(2)), [7, 7])


# -- the suite -------------------------------------------------------------------------------------


def brings(monkeypatch: pytest.MonkeyPatch, **body: Any) -> None:
    """A device whose package defines an op when it is loaded."""

    def find(name: str) -> ReferenceDevice:
        type("Late", (Same,), {"name": "outside.late", "__module__": __name__} | body)
        return ReferenceDevice()

    monkeypatch.setattr(conformance, "find_device", find)


def test_the_suite_knows_the_ops_that_a_devices_package_brings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brings(monkeypatch)
    assert conformance.main(["Mine", "--op", "outside.late"]) == 0
    assert "PASSED" in capsys.readouterr().out


def test_an_op_without_cases_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brings(monkeypatch, __annotations__={"level": int})
    assert conformance.main(["Mine", "--op", "outside.late", "--verbose"]) == 2
    report = capsys.readouterr().out
    assert "NOTHING WAS PROVEN" in report
    assert "missing a required argument: 'level'" in " ".join(report.split())


def test_what_an_op_raises_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def result(self: Op, x: Tensor) -> Spec:
        return lik(x)  # type: ignore[name-defined]  # noqa: F821

    brings(monkeypatch, result=result)
    with pytest.raises(NameError, match="lik"):
        conformance.main(["Mine", "--op", "outside.late"])

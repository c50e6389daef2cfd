"""``ggplug ops``: who computes what in which types, and why not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from paths import ROOT

import ggplug as gg
from ggplug.backend import Decline
from ggplug.cli.app import run
from ggplug.cli.ops import page
from ggplug.errors import DeviceNotFoundError
from ggplug.ops import OPS
from ggplug.ops.base import Op, require, require_float
from ggplug.quantizing import COPY, MIXTURES
from ggplug.sketches.offers import examples, offers
from ggplug.tensor import Spec, Tensor, like
from ggplug.types import F32, Q4_0, TYPES
from ggplug_testing import ReferenceDevice


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["ops", *arguments]) == 0
    return capsys.readouterr().out


def test_every_op_that_computes_has_an_example() -> None:
    for cls in OPS.values():
        if not cls.is_view and cls.__module__.startswith("ggplug.ops"):
            assert any(kind.name in ("f32", "i32") for kind, _ in examples(cls)), cls.name


def test_examples_are_nodes_of_the_op_in_the_type_that_they_stand_for() -> None:
    for name in ("mul_mat", "get_rows", "lightning_indexer", "arange"):
        for kind, node in examples(OPS[name]):
            assert isinstance(node.op, OPS[name])
            assert kind in {node.type, *(each.type for each in node.src if each is not None)}


def test_an_op_of_somebody_else_is_asked_about_with_sources_of_equal_shape() -> None:
    class Stranger(Op):
        """max(x, cap)"""

        name = "test_cli_ops.stranger"
        optional = frozenset({"cap"})

        def result(self, x: Tensor, cap: Tensor | None = None) -> Spec:
            require_float(self, x)
            require(x.rank == 2, self, "x is a matrix", x)
            return like(x)

    class Choosy(Op):
        """Its parameter has no default."""

        name = "test_cli_ops.choosy"
        cap: float

        def result(self, x: Tensor) -> Spec:
            return like(x)

    for op in (Stranger, Choosy):
        del OPS[op.name]
    found = list(examples(Stranger))
    assert {kind.name for kind, _ in found} == {"f32", "f16", "bf16", "f64"}
    assert {tuple(each is None for each in node.src) for _, node in found} == {(False, False), (False, True)}
    assert list(examples(Choosy)) == []


def test_what_is_printed_is_what_the_device_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "--device", "CPU", "--op", "neg", "--json"))
    said: dict[str, Any] = {}
    for kind, node in examples(OPS["neg"]):
        said[kind.name] = gg.device("CPU").supports_op(node)
    assert {each["type"] for each in found} == set(said)
    for each in found:
        answer = said[each["type"]]
        assert bool(answer) == (each["accepted"] == each["nodes"])
        assert each["reasons"] == ([answer.reason] if isinstance(answer, Decline) else [])


def test_reasons_are_shown_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(printed(capsys, "--device", "CPU", "--op", "neg", "--type", "f64").split())
    assert "does not take f64 > f64" in shown
    assert "yes" in printed(capsys, "--device", "CPU", "--op", "neg", "--type", "f32")
    table = printed(capsys, "--device", "CPU")
    assert "floats" in next(line for line in table.splitlines() if line.startswith("neg "))


def test_names_that_do_not_exist_are_one_clean_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--op", "nonsense"], ["--type", "nonsense"], ["--device", "nonsense"]):
        assert run(["ops", *arguments]) == 1
        assert "nonsense" in capsys.readouterr().err


def test_only_types_that_are_asked_for_are_asked_about() -> None:
    found = list(offers([ReferenceDevice()], [OPS["mul_mat"]], [Q4_0, F32]))
    assert {each.type for each in found} == {"q4_0", "f32"}


def test_the_page_of_ops_is_current() -> None:
    """What devices compute, from the devices themselves."""
    try:
        devices = [gg.device("CPU"), gg.device("OpenCL0")]
    except DeviceNotFoundError:
        pytest.skip("there is no OpenCL here")
    classes = [cls for cls in OPS.values() if cls.__module__.startswith("ggplug.ops") and not cls.is_view]
    wanted = page(devices, list(offers(devices, classes, TYPES)))
    current = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert current == wanted, "run: ggplug ops --markdown --device CPU --device OpenCL0 > docs/ops.md"


def test_the_page_names_the_class_of_each_op() -> None:
    listed = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert [name for name, op in OPS.items() if f"\n| `{name}` | `{op.__name__}` | " not in listed] == []


def test_ops_and_types_are_listed_where_there_is_no_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ggplug.cli.ops.REGISTRY.devices", list)
    lines = printed(capsys).splitlines()
    names = {line.split()[0] for line in lines}
    assert {name for name, cls in OPS.items() if not cls.is_view} <= names
    assert "install a backend" in lines[-1]
    assert run(["ops", "--json"]) == 1
    assert "there is no device" in capsys.readouterr().err
    assert run(["ops", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"\b{kind.name}\b", shown) for kind in TYPES)


def test_the_help_of_quantize_names_every_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quantize", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", shown) for name in [*MIXTURES, COPY])

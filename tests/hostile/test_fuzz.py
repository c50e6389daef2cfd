"""A minute of the fuzzer, and the fuzzer itself: it finds what was planted."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest

from ggplug.graph import Graph
from ggplug.ops import base
from ggplug.ops.base import OPS, Array, Indexes, Op, apply
from ggplug.ops.rows import GetRows
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, I32
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.drawing.choices import Choices
from ggplug_testing.drawing.drawers import drawable
from ggplug_testing.drawing.layouts import LAYOUTS, lay
from tests.mutation import kernels

from . import child
from .child import Child
from .coverage import Coverage
from .draw import draw
from .expect import Expected
from .fuzz import Fuzzer, command, report
from .machine import Machine
from .minimise import minimise
from .outcome import Outcome
from .run import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="guard pages are made with mprotect")

OPS_IN_BRIEF = (
    "relu",
    "clamp",
    "add",
    "swiglu",
    "rms_norm",
    "sum",
    "mean",
    "argmax",
    "argsort",
    "soft_max",
    "rope",
    "mul_mat",
    "mul_mat_id",
    "get_rows",
    "set_rows",
    "cpy",
    "cont",
    "dup",
    "concat",
    "repeat",
    "view",
    "permute",
    "transpose",
    "reshape",
)
"""One op of each kind: each kernel that is compiled takes half a second."""

TYPES_IN_BRIEF = ("f32", "f16", "q4_0", "i32")


@pytest.mark.parametrize(
    ("device", "least"),
    [("CPU", 300), *(pytest.param(device, 1000, marks=pytest.mark.long) for device in ("CPU", "OpenCL0"))],
)
def test_random_cases_between_guard_pages_find_nothing(device: str, least: int) -> None:
    """At least so many cases, and then as many more as it takes for every op to have computed with every type."""
    pytest.importorskip("ggplug_cpu" if device == "CPU" else "ggplug_opencl")
    fuzzer = Fuzzer(device, seed=0, ops=OPS_IN_BRIEF, types=TYPES_IN_BRIEF)
    fuzzer.run(cases=least)
    while fuzzer.coverage.never() and fuzzer.count < 2000:
        fuzzer.run(cases=fuzzer.count + 100)
    assert not fuzzer.found, "\n\n".join(report(found) for found in fuzzer.found.values())
    assert fuzzer.coverage.outcomes["right"] > least // 5, fuzzer.coverage.outcomes
    assert not fuzzer.coverage.never(), "no case computed these sources"


def faults_of(device: ReferenceDevice, ops: tuple[str, ...], cases: int) -> dict[str, list[str]]:
    """What cases of some ops find on a device, by kind, and which cases do."""
    machine = Machine(device)
    coverage = Coverage(ops, ("f32", "f16", "q8_0", "i32"), seed=1)
    found: dict[str, list[str]] = {}
    for _ in range(cases):
        name = coverage.next()
        outcome = run(name, machine)
        coverage.note(name, outcome)
        if outcome.how == "fault":
            found.setdefault(outcome.kind, []).append(name)
    machine.free()
    return found


def test_the_references_themselves_are_right() -> None:
    assert faults_of(ReferenceDevice(), tuple(drawable()), 500) == {}


@pytest.mark.parametrize(
    ("kernel", "ops", "kind"),
    [
        (kernels.last_element_wrong, ("relu", "add", "cpy"), "values"),
        (kernels.slightly_wrong, ("mul_mat", "soft_max"), "values"),
        (kernels.writes_before_the_beginning, ("relu", "get_rows"), "outside"),
        (kernels.leaves_the_tail, ("silu", "rms_norm"), "values"),
        (kernels.leaves_the_last_row, ("norm",), "values"),
        (kernels.modifies_a_source, ("add", "concat"), "overwritten"),
        (kernels.ignores_strides, ("norm", "cont"), "values"),
        (kernels.clears_before_it_reads, ("add", "relu"), "values"),
        (kernels.raises, ("add",), "raises ComputeError"),
        (kernels.writes_a_row_too_many, ("set_rows",), "overwritten"),
    ],
)
def test_a_faulty_kernel_is_found(kernel: kernels.Kernel, ops: tuple[str, ...], kind: str) -> None:
    found = faults_of(kernels.FaultyKernels(kernel), ops, 60 * len(ops))
    assert kind in found, found


def test_which_source_holds_ids_is_what_the_op_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "OPS", dict(OPS))

    class Picked(Op):
        """get_rows with its ids in front."""

        name = "tests.picked"
        indexes = Indexes(ids=0, of=1, dim=1)

        def result(self, ids: Tensor, a: Tensor) -> Spec:
            return GetRows().result(a, ids)

        def reference(self, ids: Array, a: Array) -> Array:
            return GetRows().reference(a, ids)

    ids, a = Tensor(Spec(I32, (3, 1, 1, 1), 1)), Tensor(Spec(F32, (2, 4, 1, 1), 2))
    node = apply(Picked(), (ids, a))
    values = {ids: np.array([1, 4, 0], np.int32), a: np.arange(8, dtype=np.float32)}
    expected = Expected(Graph(node), {leaf: each.view(np.uint8) for leaf, each in values.items()}, {})
    assert expected.bad[node].tolist() == [[[[False, True, False]]]]
    assert expected.values[node].tolist() == [[[[2, 3], [0, 0], [0, 1]]]]


@pytest.mark.parametrize("layout", [each for each in LAYOUTS if each != "misaligned"])
def test_a_layout_that_is_drawn_ends_in_the_extents_that_were_asked_for(layout: str) -> None:
    for number in range(8):
        made = lay(Choices(str(number)), "x", layout, F32, (4, 3, 2, 5))
        assert made.of(Tensor(Spec(F32, made.root, 4))).ne == (4, 3, 2, 5)


def test_a_case_follows_from_its_name_and_changes_one_choice_at_a_time() -> None:
    name = "mul_mat/a/window/f16/3"
    once, again = draw(name), draw(name)
    assert once.draw.made == again.draw.made
    changed = draw(name, {"m": 1})
    differing = {what for what, (value, _) in changed.draw.made.items() if value != once.draw.made.get(what, [None])[0]}
    assert differing <= {"m"}


def test_a_fault_is_made_small() -> None:
    device = kernels.FaultyKernels(kernels.last_element_wrong)
    machine = Machine(device)
    name = next(iter(faults_of(device, ("add",), 60)["values"]))
    fixed = minimise(name, lambda choices: run(name, machine, choices).kind == "values")
    small = draw(name, fixed)
    assert all(set(source.ne) <= {1, small.drawn.sources[0].ne[0]} for source in small.drawn.sources if source)
    assert run(name, machine, fixed).kind == "values"
    for what in fixed:
        assert f"{what}=" in command("CPU", name, fixed)
    machine.free()


def test_a_child_that_ends_is_an_outcome_and_the_next_case_starts_another() -> None:
    with Child("CPU") as process:
        assert process.ask("relu/x/packed/f32/0").how != "fault"
        assert process._process is not None
        process._process.kill()
        ended = process.ask("relu/x/packed/f32/1")
        assert (ended.how, ended.kind) == ("fault", "crash SIGKILL")
        assert process.ask("relu/x/packed/f32/1").how != "fault"


def test_what_was_drawn_least_is_drawn_next() -> None:
    coverage = Coverage(("relu", "mul_mat"), ("f32", "q8_0"), seed=0, wanted=3)
    while coverage.missing():
        name = coverage.next()
        op, source, layout, kind, _ = name.split("/")
        coverage.note(name, Outcome("right" if kind == "f32" else "refused", uses=[(op, source, layout, kind)]))
    least = min(coverage.drawn[op, s, each] for op, s in coverage.rows for each in (*LAYOUTS, "f32", "q8_0"))
    assert least >= 3
    assert "smallest count: 3" in coverage.table()
    assert "drawn less than 3 times: nothing" in coverage.table()


@pytest.mark.parametrize(("goes_on", "how"), [(True, "right"), (False, "fault")])
def test_a_case_that_is_late_because_of_other_work_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, goes_on: bool, how: str
) -> None:
    seconds = itertools.count(0, 0.001) if goes_on else itertools.repeat(0.0)
    monkeypatch.setattr(child, "_processor_seconds", lambda process: next(seconds))
    answer = json.dumps({"how": "right"})
    say = f"print({answer!r}, flush=True)"
    program = f"import time\n{say}\nfor case in open(0):\n    time.sleep(2 * ('late' in case))\n    {say}"
    monkeypatch.setattr(child, "COMMAND", ("-c", program))
    with Child("CPU") as process:
        process.ask("first")
        process.limit = 0.2
        assert process.ask("late").how == how

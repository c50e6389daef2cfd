"""Recorded cases of ggml are replayed on a device, and the command line reports the result of each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM, raise_signal
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops, quants, types
from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug.tensor import Tensor
from ggplug_testing import vectors
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.ggml_ops import TABLE, Result, rewrite
from ggplug_testing.reporting.report import Finding
from ggplug_testing.vectors import Recording, replay
from tests.core.ops import vectors_choice
from tests.mutation import FAULTS

PLAIN = {type.name for type in types.TYPES if not type.is_quantized}
SUPPORTED_TYPES = PLAIN | {type.name for type in quants.block_types()}


@pytest.fixture(scope="module")
def compact(data: Path) -> Recording:
    return Recording(data / "ggml_ops_compact.npz")


@pytest.fixture(scope="module")
def recording(shared: Path | None, data: Path) -> Recording:
    """The complete cases where they are, else the compact choice."""
    complete = None if shared is None else shared / "vectors" / "ggml_ops.npz"
    return Recording(complete if complete and complete.is_file() else data / "ggml_ops_compact.npz")


@pytest.fixture(scope="module", params=["reference", "CPU"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "CPU":
        pytest.importorskip("ggplug_cpu")
    return vectors.find_device(request.param)


@pytest.fixture(scope="module")
def outcomes(recording: Recording, device: Device) -> list[Finding]:
    return list(replay(recording, device))


def test_no_case_fails(outcomes: list[Finding]) -> None:
    failed = [f"{o.subject} {o.case}: {o.reason}" for o in outcomes if o.verdict == "failed"]
    assert not failed, "\n".join(failed)


def test_just_the_cases_with_missing_ops_or_types_are_unsupported(
    recording: Recording, outcomes: list[Finding]
) -> None:
    for record, outcome in zip(recording.cases, outcomes, strict=True):
        tensors = record["tensors"]
        missing = {t["op"] for t in tensors} - {"NONE"} - set(TABLE)
        other = {t["type"] for t in tensors} - SUPPORTED_TYPES
        if not missing and not other:
            assert outcome.verdict == "passed", outcome
        elif missing:
            assert outcome.verdict == "declined", outcome
            assert "is not defined" in outcome.reason


def test_every_op_that_can_be_rewritten_is_recorded_and_passes(outcomes: list[Finding]) -> None:
    passed = {outcome.subject for outcome in outcomes if outcome.verdict == "passed"}
    assert {
        "MUL_MAT",
        "MUL_MAT_ID",
        "SOFT_MAX",
        "ROPE",
        "SET_ROWS",
        "GET_ROWS",
        "CPY",
        "CONT",
        "CONCAT",
        "GEGLU",
    } <= passed


def test_ops_that_one_op_of_ggml_stands_for_are_told_apart_by_its_parameters() -> None:
    half, x, weights = (
        int(np.float32(0.5).view(np.int32)),
        gg.new_tensor("f32", (8, 4, 3)),
        gg.new_tensor("f32", (4, 3)),
    )
    gated = Result(types.F32, x.ne, x.nb, 0)
    clamped = rewrite("GLU", [6, 0, 0, half], [x, x], gated)
    assert isinstance(clamped, Tensor)
    assert clamped.op == ops.SwigluClamp(limit=0.5)
    for params, source, op in (([half, 1], x, ops.Dsv4HcPreGated(0.5)), ([0, 0], weights, ops.Dsv4HcPre())):
        found = rewrite("DSV4_HC_PRE", params, [x, source], Result(types.F32, (8, 3, 1, 1), (4, 32, 96, 96), 0))
        assert isinstance(found, Tensor)
        assert found.op == op


def test_the_compact_choice_is_what_the_choosing_gives(shared: Path | None, data: Path, tmp_path: Path) -> None:
    complete = None if shared is None else shared / "vectors" / "ggml_ops.npz"
    if complete is None or not complete.is_file():
        pytest.skip("the complete recorded cases are not here")
    assert vectors_choice.main([str(complete), str(tmp_path / "choice.npz")]) == 0
    again, kept = Recording(tmp_path / "choice.npz"), Recording(data / "ggml_ops_compact.npz")
    assert again.cases == kept.cases
    np.testing.assert_array_equal(again.data, kept.data)


def test_the_compact_choice_is_small_and_wide(compact: Recording, data: Path) -> None:
    assert (data / "ggml_ops_compact.npz").stat().st_size <= 1_500_000
    kinds = {record["op"] for record in compact.cases}
    assert len(kinds) > 110


def test_in_place_cases_are_computed_in_place(compact: Recording) -> None:
    case = next(case for case in compact if case.op == "SCALE")
    assert case.build() is None
    ((result, source),) = case.aliases.items()
    assert result.op is not None
    assert result.src[0] is source


def test_a_wrong_result_is_reported_with_its_error(compact: Recording) -> None:
    device = next(fault for fault in FAULTS if fault.name == "everything is slightly wrong").make()
    outcome = next(iter(replay((case for case in compact if case.op == "SILU"), device)))
    assert outcome.verdict == "failed"
    assert outcome.nmse == pytest.approx(1e-6, rel=0.2)


@pytest.mark.parametrize("name", ["writes behind the end", "claims but raises", "leaves the tail of rows"])
def test_other_faults_are_reported_too(compact: Recording, name: str) -> None:
    device = next(fault for fault in FAULTS if fault.name == name).make()
    report = vectors.report(replay((case for case in compact if case.op in ("LOG", "SIN")), device))
    assert report["failed"]
    assert report["passed"] == 0


def test_a_device_that_declines_makes_cases_unsupported(compact: Recording) -> None:
    device = gg.testing.FakeDevice(declines=lambda node: "nothing today")
    report = vectors.report(replay((case for case in compact if case.op == "TANH"), device))
    assert {each["reason"] for each in report["unsupported"]} == {"nothing today"}
    assert (report["passed"], report["failed"]) == (0, [])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, "-m", "ggplug_testing.vectors", *arguments], capture_output=True, text=True, env=environment
    )


def test_the_command_line_prints_json(data: Path) -> None:
    done = run(str(data / "ggml_ops_compact.npz"), "--device", "reference", "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert set(report) == {"passed", "failed", "unsupported"}
    assert report["passed"] > 150
    assert report["failed"] == []
    assert all(set(each) == {"op", "vars", "reason"} for each in report["unsupported"])


def test_failures_have_an_exit_code_and_a_place_in_json(
    compact: Recording, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = next(fault for fault in FAULTS if fault.name == "the last element is wrong").make()
    monkeypatch.setattr(vectors, "find_device", lambda name: faulty)
    path = str(data / "ggml_ops_compact.npz")
    assert vectors.main([path, "--device", "x", "--op", "tanh", "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)["failed"]
    assert {"op", "vars", "nmse", "reason"} == set(failed[0])
    assert failed[0]["nmse"] > 1e-7
    assert vectors.main([path, "--device", "x", "--op", "tanh"]) == 1
    assert "FAILED       TANH" in capsys.readouterr().out


def test_a_file_or_device_that_is_none_is_an_error(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing.npz"
    nothing.write_bytes(b"PK not a file of cases")
    with pytest.raises(ParameterError, match="holds no recorded cases"):
        Recording(nothing)
    assert vectors.main([str(nothing), "--device", "reference"]) == 2
    lacking = tmp_path / "lacking.npz"
    vectors_choice.write(lacking, [{"op": "ADD", "vars": ""}], b"")
    with pytest.raises(ParameterError, match="lacks max_nmse, out, tensors, whole"):
        Recording(lacking)
    assert vectors.main([str(data / "ggml_ops_compact.npz"), "--device", "no such device"]) == 2
    assert "error: " in capsys.readouterr().err


def test_types_are_all_known(compact: Recording) -> None:
    names = {tensor["type"] for record in compact.cases for tensor in record["tensors"]}
    assert all(types.by_name(name) for name in names)
    assert isinstance(vectors.find_device("reference"), ReferenceDevice)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_replay_that_is_stopped_tells_what_passed_until_then(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed = vectors.replay

    def stopping(cases: Any, device: Any) -> Any:
        for number, outcome in enumerate(replayed(cases, device)):
            if number == 2:
                raise_signal(SIGTERM)
            yield outcome

    monkeypatch.setattr(vectors, "replay", stopping)
    assert vectors.main([str(data / "ggml_ops_compact.npz"), "--device", "reference"]) == 128 + SIGTERM
    *_, counts, stopped = capsys.readouterr().out.splitlines()
    assert counts.startswith("reference: 2 passed, 0 failed")
    assert re.fullmatch(r"STOPPED by SIGTERM; \d+ of \d+ cases were not replayed", stopped)
